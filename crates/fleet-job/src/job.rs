//! A job as values, made from a file that fits the schema. Defaults are those of the schema's
//! documentation; a test compares them.

use crate::file::{Data, Node, View};
use fleet_config::Place;
use std::path::PathBuf;

/// A job.
#[derive(Clone, Debug)]
pub struct Job {
    /// Files and rows.
    pub data: DataPart,
    /// The columns in the order of the file, without ignored ones.
    pub columns: Vec<ColumnPart>,
    /// The crosses in the order of the file.
    pub crosses: Vec<CrossPart>,
    /// Kind of the prediction.
    pub task: TaskKind,
    /// Groups of a ranking.
    pub ranking: RankingPart,
    /// The network.
    pub model: ModelPart,
    /// The training.
    pub train: TrainPart,
    /// Embedding tables.
    pub tables: TablesPart,
    /// The strategy file.
    pub strategy: Option<PathBuf>,
    /// Validation and report.
    pub evaluation: EvaluationPart,
    /// The model folder.
    pub folder: PathBuf,
}

/// Files and rows.
#[derive(Clone, Debug)]
pub struct DataPart {
    /// Files and patterns to train on.
    pub train: Vec<String>,
    /// Rows that measure the model while it trains.
    pub validation: Option<Split>,
    /// Rows that measure the finished model.
    pub test: Option<Split>,
    /// Name of the format, or `auto`.
    pub format: String,
    /// Separator of CSV files.
    pub separator: String,
    /// Texts for missing values.
    pub missing: Vec<String>,
    /// Number of rows that may be skipped.
    pub bad_rows_max: u64,
    /// Share of rows that may be skipped.
    pub bad_share_max: f64,
    /// File for skipped rows.
    pub bad_rows_kept: Option<PathBuf>,
    /// Memory for rows, in bytes.
    pub memory_bytes: u64,
    /// Rows that are shuffled together when data is streamed.
    pub window: usize,
    /// Threads that read files; 0 for one per core.
    pub threads: usize,
}

/// The rows of a part of the data.
#[derive(Clone, Debug, PartialEq)]
pub enum Split {
    /// All rows of these files.
    Files(Vec<String>),
    /// A random share.
    Random(f64),
    /// A share of the values of a column.
    Hash {
        /// The column.
        column: String,
        /// The share of its values.
        share: f64,
    },
    /// The newest share of the rows.
    Newest {
        /// The time column.
        column: String,
        /// The share of the rows.
        share: f64,
    },
    /// Rows from a time on.
    After {
        /// The time column.
        column: String,
        /// Seconds since 1970.
        seconds: i64,
    },
}

/// Purpose of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Input of the model.
    Feature,
    /// Kind of the prediction.
    Label,
    /// Weight of the row.
    Weight,
    /// Time of the row.
    Time,
    /// For splits and slices only.
    Group,
}

/// Type of the values of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ColumnKind {
    /// A number.
    Number,
    /// A category.
    Category,
    /// Several categories.
    Categories,
    /// A time.
    Time,
}

/// The side that a feature of a model with two sides describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The one who chooses.
    User,
    /// The thing that is chosen.
    Item,
}

/// A column.
#[derive(Clone, Debug)]
pub struct ColumnPart {
    /// Name in the job file.
    pub name: String,
    /// Name in the data files.
    pub source: String,
    /// Position in the job file.
    pub at: Option<Place>,
    /// Purpose.
    pub role: Role,
    /// Type of its values.
    pub kind: ColumnKind,
    /// Separator of several values in text files.
    pub separator: String,
    /// Numbers: change and encoding.
    pub number: NumberPart,
    /// Categories: ids and rows.
    pub category: CategoryPart,
    /// The column whose earlier values the values are.
    pub history_of: Option<String>,
    /// The side that the feature describes.
    pub side: Option<Side>,
    /// Label: what it means.
    pub label: LabelPart,
}

/// Change of a number before the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transform {
    /// As it is.
    None,
    /// Minus mean, divided by deviation.
    Standard,
    /// Logarithm, then standard.
    Log,
    /// Rank as a normal number.
    Quantile,
}

/// Encoding of a number as a vector.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Embed {
    /// The number alone.
    None,
    /// How far the number is through each of this many intervals.
    Piecewise(usize),
    /// Sines and cosines.
    Periodic {
        /// Number of frequencies.
        frequencies: usize,
        /// Deviation of their initial values.
        sigma: f64,
    },
}

/// Settings of a number.
#[derive(Clone, Copy, Debug)]
pub struct NumberPart {
    /// Change before the network.
    pub transform: Transform,
    /// Encoding.
    pub embed: Embed,
}

/// Settings of ids.
#[derive(Clone, Debug)]
pub struct CategoryPart {
    /// Rarer values are unknown.
    pub min_count: u64,
    /// Largest number of known values.
    pub size_max: Option<u64>,
    /// Hash buckets instead of a vocabulary.
    pub buckets: Option<u64>,
    /// Values are integers below this, which need no vocabulary.
    pub rows: Option<u64>,
    /// Width of the embedding; that of the model if `None`.
    pub dim: Option<i64>,
    /// Number of values that are used of a column with several.
    pub values_max: usize,
    /// Whether the rows of several values are added up; otherwise their mean is taken.
    pub is_sum: bool,
}

impl CategoryPart {
    /// Returns settings by which all values are counted.
    pub fn counted(self) -> CategoryPart {
        CategoryPart { min_count: 1, buckets: None, rows: None, ..self }
    }
}

/// Meaning of a label.
#[derive(Clone, Debug, Default)]
pub struct LabelPart {
    /// The text that is 1.
    pub positive_text: Option<String>,
    /// The number that is 1.
    pub positive_number: Option<f64>,
    /// Numbers from this on are 1.
    pub at_least: Option<f64>,
    /// All numbers of the label, if the model learns their order.
    pub levels: Vec<f64>,
    /// The classes.
    pub classes: Vec<String>,
}

/// A cross of category columns.
#[derive(Clone, Debug)]
pub struct CrossPart {
    /// Name of the feature.
    pub name: String,
    /// Position in the job file.
    pub at: Option<Place>,
    /// The columns.
    pub columns: Vec<String>,
    /// Ids and rows.
    pub category: CategoryPart,
}

/// Kind of the prediction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskKind {
    /// Yes or no.
    Binary,
    /// One of several classes.
    MultiClass,
    /// A number.
    Regression,
    /// An order within groups.
    Ranking,
    /// The choice of an item among all.
    Retrieval,
}

impl TaskKind {
    /// Returns the name in job files.
    pub fn name(self) -> &'static str {
        match self {
            TaskKind::Binary => "binary",
            TaskKind::MultiClass => "multi_class",
            TaskKind::Regression => "regression",
            TaskKind::Ranking => "ranking",
            TaskKind::Retrieval => "retrieval",
        }
    }
}

/// Groups whose rows are ranked together.
#[derive(Clone, Debug, Default)]
pub struct RankingPart {
    /// The column whose values name the groups.
    pub group: Option<String>,
    /// Whether the loss is a softmax over a group; otherwise it is of pairs.
    pub is_listwise: bool,
    /// Places of a ranking that count.
    pub at: usize,
}

/// Kind of the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModelKind {
    /// Hidden layers.
    Mlp,
    /// Hidden layers and a linear model.
    WideDeep,
    /// Hidden layers, a linear model and products of pairs.
    DeepFm,
    /// Hidden layers and cross layers.
    DcnV2,
    /// Hidden layers, over histories that are weighted by the row's own value.
    Din,
    /// Products of the vectors of users and items.
    Mf,
    /// Hidden layers for each side, and the product of their vectors.
    TwoTower,
    /// Experts that each label mixes by a gate of its own.
    Mmoe,
}

impl ModelKind {
    /// Returns the name in job files.
    pub fn name(self) -> &'static str {
        match self {
            ModelKind::Mlp => "mlp",
            ModelKind::WideDeep => "wide_deep",
            ModelKind::DeepFm => "deepfm",
            ModelKind::DcnV2 => "dcn_v2",
            ModelKind::Din => "din",
            ModelKind::Mf => "mf",
            ModelKind::TwoTower => "two_tower",
            ModelKind::Mmoe => "mmoe",
        }
    }
}

/// The network.
#[derive(Clone, Debug)]
pub struct ModelPart {
    /// Its kind.
    pub kind: ModelKind,
    /// Width of embeddings.
    pub dim: i64,
    /// Sizes of hidden layers.
    pub hidden: Vec<i64>,
    /// Share of hidden values that a step drops.
    pub dropout: f64,
    /// Share of inputs of the hidden layers that a step drops.
    pub input_dropout: f64,
    /// Whether hidden layers are normalized over the batch.
    pub has_batch_norm: bool,
    /// Function of hidden layers.
    pub activation: String,
    /// Number of cross layers.
    pub cross_layers: usize,
    /// Sizes of the layers that weigh a history.
    pub attention: Vec<i64>,
    /// Number of experts.
    pub experts: usize,
    /// Sizes of the hidden layers of each label.
    pub tower: Vec<i64>,
    /// Rank of the matrices of cross layers.
    pub rank: Option<i64>,
    /// Whether vectors of sides have length 1.
    pub is_cosine: bool,
    /// Divides the product of the vectors.
    pub temperature: f64,
    /// Items that are drawn for each batch of a retrieval, instead of those of its other rows.
    pub negatives: Option<usize>,
    /// Items are drawn in proportion to their number of rows to this power.
    pub negatives_power: f64,
}

/// The optimizer.
#[derive(Clone, Debug)]
pub struct OptimizerPart {
    /// Its rule.
    pub kind: String,
    /// Learning rate.
    pub rate: f64,
    /// L2 regularization, or decoupled decay.
    pub weight_decay: f64,
    /// Factor of earlier steps.
    pub momentum: f64,
    /// Limit of the norm of all gradients.
    pub clip_norm: Option<f64>,
}

/// The training.
#[derive(Clone, Debug)]
pub struct TrainPart {
    /// Rows of a step.
    pub batch: usize,
    /// Passes over the rows.
    pub epochs: u64,
    /// The optimizer.
    pub optimizer: OptimizerPart,
    /// Learning rate over the training.
    pub schedule: String,
    /// Validations without a better value before the training stops.
    pub early_stop: Option<u64>,
    /// Seed of everything random.
    pub seed: u64,
    /// Steps between checkpoints.
    pub checkpoint_every: Option<u64>,
    /// Model folder to begin with.
    pub warm_start: Option<PathBuf>,
}

/// Whether the gradient of a table has only the rows of the batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sparse {
    /// If the table is large.
    Auto,
    /// Always.
    Yes,
    /// Never.
    No,
}

/// Embedding tables.
#[derive(Clone, Debug)]
pub struct TablesPart {
    /// Whether a step updates the rows of its batch only.
    pub sparse: Sparse,
    /// Learning rate of embeddings.
    pub rate: Option<f64>,
    /// L2 regularization of embeddings.
    pub weight_decay: f64,
    /// L2 regularization of the weights of a linear part, if it is another.
    pub linear_decay: Option<f64>,
    /// Limit of initial values.
    pub init: f64,
}

/// Validation and report.
#[derive(Clone, Debug)]
pub struct EvaluationPart {
    /// Steps between validations; `None` for epochs.
    pub every_steps: Option<u64>,
    /// The value by which models are compared.
    pub goal: Option<String>,
    /// Columns for whose values the report measures separately.
    pub slices: Vec<String>,
}

impl Job {
    /// Makes a job from the root of a file. Values that are absent get their defaults.
    pub fn of(root: View<'_>) -> Job {
        let names = |view: View<'_>| view.entries().to_vec();
        let columns = names(root.table("columns"));
        let crosses = names(root.table("crosses"));
        let task = match root.table("task").text("kind") {
            Some("multi_class") => TaskKind::MultiClass,
            Some("regression") => TaskKind::Regression,
            Some("ranking") => TaskKind::Ranking,
            Some("retrieval") => TaskKind::Retrieval,
            _ => TaskKind::Binary,
        };
        Job {
            data: data(root.table("data")),
            columns: columns
                .iter()
                .filter(|entry| View::of(&entry.node).text("role") != Some("ignore"))
                .map(|entry| column(&entry.key, View::of(&entry.node)))
                .collect(),
            crosses: crosses.iter().map(|entry| cross(&entry.key, &entry.node)).collect(),
            task,
            ranking: RankingPart {
                group: root.table("task").text("group").map(str::to_string),
                is_listwise: root.table("task").text("loss") == Some("listwise"),
                at: root.table("evaluation").count("at").unwrap_or(10) as usize,
            },
            model: model(root.table("model")),
            train: train(root.table("train")),
            tables: tables(root.table("tables")),
            strategy: root.table("strategy").text("file").map(PathBuf::from),
            evaluation: evaluation(root.table("evaluation")),
            folder: root.table("output").text("folder").unwrap_or("model").into(),
        }
    }

    /// Returns the column of this name.
    pub fn column(&self, name: &str) -> Option<&ColumnPart> {
        self.columns.iter().find(|column| column.name == name)
    }

    /// Returns the label's column, the first one of several.
    pub fn label(&self) -> Option<&ColumnPart> {
        self.labels().next()
    }

    /// Returns the columns of the labels.
    pub fn labels(&self) -> impl Iterator<Item = &ColumnPart> {
        self.columns.iter().filter(|column| column.role == Role::Label)
    }

    /// Returns the column whose values name the users or the items: the first category of a side.
    pub fn id_of(&self, side: Side) -> Option<&ColumnPart> {
        let is = |it: &&ColumnPart| it.side == Some(side) && it.kind == ColumnKind::Category;
        self.columns.iter().find(is)
    }

    /// Returns what a feature describes; a cross describes what all of its columns do.
    pub fn side_of(&self, feature: &str) -> Option<Side> {
        if let Some(column) = self.column(feature) {
            return column.side;
        }
        let cross = self.crosses.iter().find(|cross| cross.name == feature)?;
        let mut sides = cross.columns.iter().map(|name| self.column(name)?.side);
        let first = sides.next()??;
        sides.all(|side| side == Some(first)).then_some(first)
    }

    /// Returns the value by which models are compared.
    pub fn goal(&self) -> &str {
        self.evaluation.goal.as_deref().unwrap_or(match self.task {
            TaskKind::Binary => "auc",
            TaskKind::MultiClass => "loss",
            TaskKind::Regression => "rmse",
            TaskKind::Ranking => "ndcg",
            TaskKind::Retrieval => "loss",
        })
    }
}

fn data(view: View<'_>) -> DataPart {
    let bad = view.table("bad_rows");
    let memory = view.text("memory").and_then(bytes_of).unwrap_or(4 << 30);
    DataPart {
        train: view.texts("train").unwrap_or_default(),
        validation: match view.maybe_table("validation") {
            Some(view) => split(view),
            None => Some(Split::Random(0.1)),
        }
        .filter(|split| *split != Split::Random(0.0)),
        test: view.maybe_table("test").and_then(split),
        format: view.text("format").unwrap_or("auto").to_string(),
        separator: view.text("separator").unwrap_or(",").to_string(),
        missing: view.texts("missing").unwrap_or_default(),
        bad_rows_max: bad.count("at_most").unwrap_or(0),
        bad_share_max: bad.number("share").unwrap_or(1.0),
        bad_rows_kept: bad.text("keep").map(PathBuf::from),
        memory_bytes: memory,
        window: view.count("window").unwrap_or(100_000) as usize,
        threads: view.count("threads").unwrap_or(0) as usize,
    }
}

/// Reads a number of bytes: `512MiB`, `4GiB`, `2GB`, or digits alone.
pub fn bytes_of(text: &str) -> Option<u64> {
    let text = text.trim();
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let unit = match unit.trim() {
        "" | "B" => 1.0,
        "KB" | "kB" => 1e3,
        "MB" => 1e6,
        "GB" => 1e9,
        "TB" => 1e12,
        "KiB" => 1024.0,
        "MiB" => 1024.0 * 1024.0,
        "GiB" => 1024.0 * 1024.0 * 1024.0,
        "TiB" => 1024.0 * 1024.0 * 1024.0 * 1024.0,
        _ => return None,
    };
    let bytes = number.parse::<f64>().ok()? * unit;
    (bytes.is_finite() && bytes >= 1.0).then_some(bytes as u64)
}

/// Returns the rows of a part; `None` if the table does not say which (see `check.rs`).
pub fn split(view: View<'_>) -> Option<Split> {
    let share = view.number("share");
    if let Some(files) = view.texts("files") {
        return Some(Split::Files(files));
    }
    if let Some(column) = view.text("hash") {
        return Some(Split::Hash { column: column.to_string(), share: share? });
    }
    if let Some(column) = view.text("column") {
        let column = column.to_string();
        if let Some(after) = view.node("after") {
            return Some(Split::After { column, seconds: seconds_of(after)? });
        }
        return Some(Split::Newest { column, share: share? });
    }
    share.map(Split::Random)
}

/// Returns the seconds since 1970 of a number, a date or a time.
pub fn seconds_of(node: &Node) -> Option<i64> {
    match &node.data {
        Data::Int(value) => Some(*value),
        Data::Number(value) => Some(*value as i64),
        Data::Text(text) => fleet_data::parse_time(text),
        _ => None,
    }
}

fn column(name: &str, view: View<'_>) -> ColumnPart {
    let role = match view.text("role") {
        Some("label") => Role::Label,
        Some("weight") => Role::Weight,
        Some("time") => Role::Time,
        Some("group") => Role::Group,
        _ => Role::Feature,
    };
    let label = LabelPart {
        positive_text: view.text("positive").map(str::to_string),
        positive_number: view.number("positive"),
        at_least: view.number("at_least"),
        levels: view.numbers("levels").unwrap_or_default(),
        classes: view.texts("classes").unwrap_or_default(),
    };
    let kind = match (view.text("kind"), role) {
        (Some("number"), _) => ColumnKind::Number,
        (Some("category"), _) => ColumnKind::Category,
        (Some("categories"), _) => ColumnKind::Categories,
        (Some("time"), _) | (None, Role::Time) => ColumnKind::Time,
        (_, Role::Group) => ColumnKind::Category,
        (_, Role::Label) if label.positive_text.is_some() || !label.classes.is_empty() => {
            ColumnKind::Category
        }
        _ => ColumnKind::Number,
    };
    ColumnPart {
        name: name.to_string(),
        source: view.text("name").unwrap_or(name).to_string(),
        at: view.at,
        role,
        kind,
        separator: view.text("separator").unwrap_or("|").to_string(),
        number: number(view),
        category: category(view),
        history_of: view.text("history_of").map(str::to_string),
        side: match view.text("side") {
            Some("user") => Some(Side::User),
            Some("item") => Some(Side::Item),
            _ => None,
        },
        label,
    }
}

fn number(view: View<'_>) -> NumberPart {
    let transform = match view.text("transform") {
        Some("none") => Transform::None,
        Some("log") => Transform::Log,
        Some("quantile") => Transform::Quantile,
        _ => Transform::Standard,
    };
    let embed = match view.text("embed") {
        Some("piecewise") => Embed::Piecewise(view.count("bins").unwrap_or(48) as usize),
        Some("periodic") => Embed::Periodic {
            frequencies: view.count("frequencies").unwrap_or(16) as usize,
            sigma: view.number("sigma").unwrap_or(0.1),
        },
        _ => Embed::None,
    };
    NumberPart { transform, embed }
}

fn category(view: View<'_>) -> CategoryPart {
    let vocabulary = view.table("vocabulary");
    CategoryPart {
        min_count: vocabulary.count("min_count").unwrap_or(1),
        size_max: vocabulary.count("size"),
        buckets: view.count("buckets"),
        rows: view.count("rows"),
        dim: view.int("dim"),
        values_max: view.count("at_most").unwrap_or(64) as usize,
        is_sum: view.text("pooling") == Some("sum"),
    }
}

fn cross(name: &str, node: &Node) -> CrossPart {
    let view = View::of(node);
    let columns = match &node.data {
        Data::List(_) => crate::file::texts(node),
        _ => view.texts("columns").unwrap_or_default(),
    };
    let (name, at) = (name.to_string(), Some(node.at));
    CrossPart { name, at, columns, category: category(view) }
}

fn model(view: View<'_>) -> ModelPart {
    let kind = match view.text("kind") {
        Some("mlp") => ModelKind::Mlp,
        Some("wide_deep") => ModelKind::WideDeep,
        Some("deepfm") => ModelKind::DeepFm,
        Some("din") => ModelKind::Din,
        Some("mf") => ModelKind::Mf,
        Some("two_tower") => ModelKind::TwoTower,
        Some("mmoe") => ModelKind::Mmoe,
        _ => ModelKind::DcnV2,
    };
    ModelPart {
        kind,
        dim: view.int("dim").unwrap_or(16),
        hidden: view.ints("hidden").unwrap_or_else(|| match kind {
            ModelKind::Mf => Vec::new(),
            _ => vec![128, 64],
        }),
        dropout: view.number("dropout").unwrap_or(0.0),
        input_dropout: view.number("input_dropout").unwrap_or(0.0),
        has_batch_norm: view.text("norm") == Some("batch"),
        activation: view.text("activation").unwrap_or("relu").to_string(),
        cross_layers: view.count("cross_layers").unwrap_or(2) as usize,
        attention: view.ints("attention").unwrap_or_else(|| vec![32]),
        experts: view.count("experts").unwrap_or(4) as usize,
        tower: view.ints("tower").unwrap_or_else(|| vec![32]),
        rank: view.int("rank"),
        is_cosine: view.text("similarity") == Some("cosine"),
        temperature: view.number("temperature").unwrap_or(1.0),
        negatives: view.count("negatives").map(|count| count as usize),
        negatives_power: view.number("negatives_power").unwrap_or(0.75),
    }
}

fn train(view: View<'_>) -> TrainPart {
    let optimizer = view.table("optimizer");
    TrainPart {
        batch: view.count("batch").unwrap_or(512) as usize,
        epochs: view.count("epochs").unwrap_or(10),
        optimizer: OptimizerPart {
            kind: optimizer.text("kind").unwrap_or("adam").to_string(),
            rate: optimizer.number("rate").unwrap_or(0.001),
            weight_decay: optimizer.number("weight_decay").unwrap_or(0.0),
            momentum: optimizer.number("momentum").unwrap_or(0.9),
            clip_norm: optimizer.number("clip_norm"),
        },
        schedule: view.text("schedule").unwrap_or("constant").to_string(),
        early_stop: view.count("early_stop"),
        seed: view.count("seed").unwrap_or(1),
        checkpoint_every: view.count("checkpoint_every"),
        warm_start: view.text("warm_start").map(PathBuf::from),
    }
}

fn tables(view: View<'_>) -> TablesPart {
    TablesPart {
        sparse: match view.text("sparse") {
            Some("yes") => Sparse::Yes,
            Some("no") => Sparse::No,
            _ => Sparse::Auto,
        },
        rate: view.number("rate"),
        weight_decay: view.number("weight_decay").unwrap_or(0.0),
        linear_decay: view.number("linear_decay"),
        init: view.number("init").unwrap_or(0.01),
    }
}

fn evaluation(view: View<'_>) -> EvaluationPart {
    EvaluationPart {
        every_steps: view.count("every"),
        goal: view.text("goal").map(str::to_string),
        slices: view.texts("slices").unwrap_or_default(),
    }
}
