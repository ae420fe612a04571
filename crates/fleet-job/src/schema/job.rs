//! The fields of a job file.

use super::{Field, Kind, Table};

/// Version of the format that this build reads and writes.
pub const VERSION: i64 = 1;

const fn field(
    name: &'static str,
    kind: Kind,
    default: &'static str,
    about: &'static str,
) -> Field {
    Field { name, kind, is_required: false, default, about }
}

const fn required(name: &'static str, kind: Kind, about: &'static str) -> Field {
    Field { name, kind, is_required: true, default: "", about }
}

const ANY: Kind = Kind::Number(f64::NEG_INFINITY, f64::INFINITY);
const SHARE: Kind = Kind::Number(0.0, 1.0);
const COUNT: Kind = Kind::Int(1, i64::MAX);
const TEXTS: Kind = Kind::List(&Kind::Text, 0);
const FILES: Kind = Kind::Either(&[Kind::Text, Kind::List(&Kind::Text, 1)]);
const SIZE: Kind = Kind::Int(1, SIZE_MAX);
const SIZES: Kind = Kind::List(&SIZE, 0);

/// Largest size of a layer or an embedding: larger ones are typing errors, not models.
const SIZE_MAX: i64 = 65_536;
/// Largest number of hash buckets of a feature.
const BUCKETS_MAX: i64 = 1 << 40;
/// Largest number of experts: all of them compute every row.
const EXPERTS_MAX: i64 = 256;
/// Largest number of bins or frequencies of a number.
const BINS_MAX: i64 = 1024;

/// The whole job file.
pub static JOB: Table = Table {
    fields: &[
        required("version", Kind::Int(1, i64::MAX), "version of this format: 1"),
        required("data", Kind::Table(&DATA), "files, their format, and which rows are for what"),
        required("columns", Kind::Map(&Kind::Table(&COLUMN)), "the columns that the job uses"),
        field(
            "crosses",
            Kind::Map(&Kind::Either(&[Kind::List(&Kind::Text, 2), Kind::Table(&CROSS)])),
            "",
            "features made of several category columns: each combination of values is a category",
        ),
        field("task", Kind::Table(&TASK), "", "what the model predicts"),
        field("model", Kind::Table(&MODEL), "", "the network"),
        field("train", Kind::Table(&TRAIN), "", "length of the training and its optimizer"),
        field("tables", Kind::Table(&TABLES), "", "embedding tables"),
        field("strategy", Kind::Table(&STRATEGY), "", "strategy of jobs with several processes"),
        field("evaluation", Kind::Table(&EVALUATION), "", "validation and the final report"),
        field("output", Kind::Table(&OUTPUT), "", "the model folder"),
        field(
            "tune",
            Kind::Map(&Kind::Table(&RANGE)),
            "",
            "fields that `fleet tune` searches, by their quoted paths: \"model.dim\" = { .. }",
        ),
    ],
};

static DATA: Table = Table {
    fields: &[
        required(
            "train",
            FILES,
            "files to train on, also of object stores; `*`, `?` and `[..]` are patterns; or \
             generated rows, such as made:ctr/0..1500000",
        ),
        field(
            "validation",
            Kind::Table(&SPLIT),
            "{ share = 0.1 }",
            "rows that measure the model while it trains",
        ),
        field("test", Kind::Table(&SPLIT), "", "rows that measure the finished model"),
        field("format", FORMAT, "auto", "format of the files"),
        field("separator", Kind::Text, "\",\"", "character between the fields of CSV files"),
        field(
            "missing",
            TEXTS,
            "[]",
            "texts that mean that a value is missing, besides the empty text",
        ),
        field("bad_rows", Kind::Table(&BAD_ROWS), "{ at_most = 0 }", "rows that cannot be read"),
        field("memory", Kind::Text, "\"4GiB\"", "memory for rows; larger data is streamed"),
        field("window", COUNT, "100000", "rows that are shuffled together when data is streamed"),
        field("threads", Kind::Int(0, 1024), "0", "threads that read files; 0 for one per core"),
    ],
};

const FORMAT: Kind = Kind::Choice(&[
    ("auto", "by the ending of the first file"),
    ("csv", "text with a header line"),
    ("criteo", "the tab-separated lines of Criteo's logs: label, I1 to I13, C1 to C26"),
    ("parquet", "Parquet files"),
    ("jsonl", "one JSON object per line"),
    ("tfrecord", "TFRecord files of tf.train.Example"),
    ("multislot", "lines of counts and values, one slot for each column in the job's order"),
]);

static SPLIT: Table = Table {
    fields: &[
        field("files", FILES, "", "all rows of these files"),
        field("share", SHARE, "", "this share of the rows: random, or by `hash` or `column`"),
        field(
            "hash",
            Kind::Text,
            "",
            "column whose values are divided: all rows of a value stay together",
        ),
        field(
            "column",
            Kind::Text,
            "",
            "time column: the newest `share` of the rows, or those `after` a time",
        ),
        field(
            "after",
            Kind::Either(&[Kind::Text, ANY]),
            "",
            "rows whose `column` is at or after this: seconds since 1970, or `2024-03-01`",
        ),
    ],
};

static BAD_ROWS: Table = Table {
    fields: &[
        field("at_most", Kind::Int(0, i64::MAX), "0", "number of rows that may be skipped"),
        field("share", SHARE, "1", "share of the rows that may be skipped"),
        field("keep", Kind::Text, "", "file that gets the skipped rows with the reasons"),
    ],
};

static COLUMN: Table = Table {
    fields: &[
        field("role", ROLE, "feature", "what the column is for"),
        field("kind", COLUMN_KIND, "", "type of the values; required for features"),
        field("name", Kind::Text, "", "name of the column in the files, if it is another"),
        field("separator", Kind::Text, "\"|\"", "between the values of `categories` in text files"),
        field("transform", TRANSFORM, "standard", "numbers: change before the network"),
        field("embed", EMBED, "none", "numbers: encoding as a vector, beside the number itself"),
        field("bins", Kind::Int(2, BINS_MAX), "48", "numbers: intervals of a piecewise encoding"),
        field("frequencies", Kind::Int(1, BINS_MAX), "16", "numbers: waves of a periodic encoding"),
        field("sigma", Kind::Number(0.0, 1000.0), "0.1", "numbers: spread of the frequencies"),
        field(
            "vocabulary",
            Kind::Table(&VOCABULARY),
            "{ min_count = 1 }",
            "categories: the known values",
        ),
        field(
            "buckets",
            Kind::Int(1, BUCKETS_MAX),
            "",
            "categories: hash into this many ids, without a vocabulary",
        ),
        field(
            "rows",
            Kind::Int(1, BUCKETS_MAX),
            "",
            "category: its values are integers from 0 to below this, each of which has an \
             embedding",
        ),
        field("dim", SIZE, "", "categories: width of the embedding; `model.dim` by default"),
        field("at_most", SIZE, "64", "categories with several values: values that are used"),
        field(
            "pooling",
            POOLING,
            "mean",
            "categories with several values: how their rows are combined",
        ),
        field(
            "history_of",
            Kind::Text,
            "",
            "categories: the category whose earlier values they are, oldest first; shares its rows",
        ),
        field("side", SIDE, "", "mf, two_tower: what the feature describes"),
        field(
            "positive",
            Kind::Either(&[Kind::Text, ANY]),
            "1",
            "label of a binary task: the value that is 1",
        ),
        field(
            "at_least",
            ANY,
            "",
            "label: numbers from this on are 1; of a regression, for the AUC only",
        ),
        field(
            "levels",
            Kind::List(&ANY, 2),
            "",
            "label with at_least: all numbers that it has; the model learns their order, too",
        ),
        field(
            "classes",
            Kind::List(&Kind::Text, 2),
            "",
            "label of a multi_class task: the classes, in the order of the scores",
        ),
    ],
};

const ROLE: Kind = Kind::Choice(&[
    ("feature", "input of the model"),
    ("label", "what the model predicts; mmoe: one or more columns"),
    ("weight", "how often the row counts in the loss and in all measures"),
    ("time", "time of the row, for splits by time"),
    ("group", "not an input; for splits by hash and for slices"),
    ("ignore", "not read"),
]);

const COLUMN_KIND: Kind = Kind::Choice(&[
    ("number", "a number; may be missing"),
    ("category", "text or an integer that names something"),
    ("categories", "several of them"),
    ("time", "seconds since 1970, or a date as text"),
]);

const TRANSFORM: Kind = Kind::Choice(&[
    ("none", "the number as it is"),
    ("standard", "minus the mean, divided by the standard deviation"),
    ("log", "sign(x) log(1 + |x|), then standard"),
    ("quantile", "the rank among the training rows, as a normal number"),
]);

const EMBED: Kind = Kind::Choice(&[
    ("none", "the number alone"),
    ("piecewise", "how far the number is through each of `bins` intervals with equally many rows"),
    ("periodic", "sines and cosines with trained frequencies"),
]);

const POOLING: Kind = Kind::Choice(&[("mean", "their mean"), ("sum", "their sum")]);

const SIDE: Kind = Kind::Choice(&[
    ("user", "who chooses: a user, a query, a session"),
    ("item", "what is chosen"),
]);

static VOCABULARY: Table = Table {
    fields: &[
        field("min_count", COUNT, "1", "rarer values are treated as unknown"),
        field("size", COUNT, "", "at most this many values, the most frequent ones"),
    ],
};

static CROSS: Table = Table {
    fields: &[
        required("columns", Kind::List(&Kind::Text, 2), "two or more category columns"),
        field(
            "buckets",
            Kind::Int(1, BUCKETS_MAX),
            "",
            "hash into this many ids, without a vocabulary",
        ),
        field(
            "vocabulary",
            Kind::Table(&VOCABULARY),
            "{ min_count = 1 }",
            "the known combinations",
        ),
        field("dim", SIZE, "", "width of the embedding; `model.dim` by default"),
    ],
};

static TASK: Table = Table {
    fields: &[
        field("kind", TASK_KIND, "binary", "what the label is"),
        field("group", Kind::Text, "", "ranking: column whose rows are ranked together"),
        field("loss", RANKING_LOSS, "pairwise", "ranking: the loss"),
    ],
};

const RANKING_LOSS: Kind = Kind::Choice(&[
    ("pairwise", "of all pairs of a group: the logistic loss of their difference"),
    ("listwise", "softmax over a group"),
]);

const TASK_KIND: Kind = Kind::Choice(&[
    ("binary", "yes or no; scores are probabilities"),
    ("multi_class", "one of several classes; scores are probabilities"),
    ("regression", "a number"),
    ("retrieval", "none: each row is a user's choice of an item among all items (two_tower)"),
    ("ranking", "how relevant the row is in its group, 0 or more; scores have an order only"),
]);

static MODEL: Table = Table {
    fields: &[
        field("kind", MODEL_KIND, "dcn_v2", "the network"),
        field("dim", SIZE, "16", "width of embeddings"),
        field("hidden", SIZES, "[128, 64]", "sizes of the hidden layers; mf: none by default"),
        field("dropout", Kind::Number(0.0, 0.99), "0", "share of hidden values that a step drops"),
        field(
            "input_dropout",
            Kind::Number(0.0, 0.99),
            "0",
            "share of the inputs of the hidden layers that a step drops",
        ),
        field("norm", NORM, "none", "normalization of the hidden layers"),
        field("activation", ACTIVATION, "relu", "function of the hidden layers"),
        field("cross_layers", Kind::Int(1, 64), "2", "dcn_v2: cross layers"),
        field("similarity", SIMILARITY, "dot", "two_tower: the product of the vectors"),
        field(
            "temperature",
            Kind::Number(0.001, 1000.0),
            "1",
            "two_tower: divides the product; take about 0.1 for cosine",
        ),
        field(
            "negatives",
            SIZE,
            "",
            "two_tower, retrieval: items that are drawn for each batch as those not chosen, \
             instead of the items of its other rows",
        ),
        field(
            "negatives_power",
            SHARE,
            "0.75",
            "with negatives: items are drawn by their number of rows to this power; 0: all alike",
        ),
        field("attention", SIZES, "[32]", "din: sizes of the layers that weigh a history"),
        field(
            "experts",
            Kind::Int(1, EXPERTS_MAX),
            "4",
            "mmoe: experts, each with `hidden` layers",
        ),
        field("tower", SIZES, "[32]", "mmoe: sizes of the hidden layers of each label"),
        field("rank", SIZE, "", "dcn_v2: rank of the cross layers' matrices; full by default"),
    ],
};

const MODEL_KIND: Kind = Kind::Choice(&[
    ("mlp", "hidden layers over all features"),
    ("wide_deep", "an mlp, and a linear model of the features and crosses"),
    ("deepfm", "an mlp, a linear model, and the products of all pairs of embeddings"),
    ("dcn_v2", "an mlp, and cross layers that multiply features"),
    ("din", "an mlp; of a history, values that are like the row's own value count more"),
    (
        "mf",
        "matrix factorization: the product of a user's and an item's vectors, and a linear model",
    ),
    ("two_tower", "an mlp for each side; the score is the product of their vectors"),
    ("mmoe", "several labels: mlps as experts, which each label mixes by a gate of its own"),
]);

const SIMILARITY: Kind = Kind::Choice(&[
    ("dot", "the sum of the products of their values"),
    ("cosine", "the same, of vectors of length 1"),
]);

const NORM: Kind = Kind::Choice(&[
    ("none", "no normalization"),
    ("batch", "by mean and deviation over the batch; not on parameter servers"),
]);

const ACTIVATION: Kind = Kind::Choice(&[
    ("relu", "max(x, 0)"),
    ("gelu", "x times the normal distribution function"),
    ("tanh", "hyperbolic tangent"),
    ("sigmoid", "logistic function"),
]);

static TRAIN: Table = Table {
    fields: &[
        field("batch", Kind::Int(1, 1 << 24), "512", "rows of a step, of all workers together"),
        field("epochs", COUNT, "10", "passes over the training rows"),
        field("optimizer", Kind::Table(&OPTIMIZER), "{ kind = \"adam\" }", "the optimizer"),
        field("schedule", SCHEDULE, "constant", "learning rate over the training"),
        field("early_stop", COUNT, "", "stop after this many validations without a better value"),
        field(
            "seed",
            Kind::Int(0, i64::MAX),
            "1",
            "seed of initial values, shuffles, splits and dropout",
        ),
        field(
            "checkpoint_every",
            COUNT,
            "",
            "steps between checkpoints; by default one each epoch",
        ),
        field(
            "warm_start",
            Kind::Text,
            "",
            "model folder whose features and parameters the training begins with",
        ),
    ],
};

static OPTIMIZER: Table = Table {
    fields: &[
        field("kind", OPTIMIZER_KIND, "adam", "the rule"),
        field("rate", Kind::Number(0.0, 1000.0), "0.001", "learning rate"),
        field(
            "weight_decay",
            Kind::Number(0.0, 1.0),
            "0",
            "L2 regularization of the layers; adamw: decoupled decay",
        ),
        field("momentum", SHARE, "0.9", "momentum: factor of earlier steps"),
        field(
            "clip_norm",
            Kind::Number(0.0, f64::INFINITY),
            "",
            "limit of the norm of all gradients together",
        ),
    ],
};

const OPTIMIZER_KIND: Kind = Kind::Choice(&[
    ("adam", "Adam"),
    ("adamw", "Adam with decoupled weight decay; not on parameter servers"),
    ("adagrad", "Adagrad"),
    ("sgd", "plain gradient descent"),
    ("momentum", "gradient descent with momentum"),
]);

const SCHEDULE: Kind = Kind::Choice(&[
    ("constant", "the same rate in all steps"),
    ("linear", "falls to 0 over all epochs, in a straight line"),
    ("cosine", "falls to 0 over all epochs, as a half wave"),
]);

static TABLES: Table = Table {
    fields: &[
        field("sparse", SPARSE, "auto", "whether a step updates the rows of its batch only"),
        field(
            "rate",
            Kind::Number(0.0, 1000.0),
            "",
            "learning rate of embeddings; that of the optimizer by default",
        ),
        field(
            "weight_decay",
            Kind::Number(0.0, 1.0),
            "0",
            "L2 regularization of embeddings (not of sparse ones)",
        ),
        field(
            "linear_decay",
            Kind::Number(0.0, 1.0),
            "",
            "L2 regularization of the weights of a linear part; `weight_decay` by default",
        ),
        field(
            "init",
            Kind::Number(0.0, 10.0),
            "0.01",
            "initial values are uniform between minus and plus this",
        ),
    ],
};

const SPARSE: Kind = Kind::Choice(&[
    ("auto", "if a table has many more rows than a batch has ids"),
    ("yes", "always"),
    ("no", "never, except on parameter servers"),
]);

static STRATEGY: Table = Table {
    fields: &[field("file", Kind::Text, "", "a DistributedStrategy file (see fleet strategy)")],
};

static EVALUATION: Table = Table {
    fields: &[
        field(
            "every",
            Kind::Either(&[Kind::Choice(&[("epoch", "after each epoch")]), COUNT]),
            "epoch",
            "when to validate: after each epoch, or each time after this many steps",
        ),
        field(
            "goal",
            GOAL,
            "",
            "the value by which models are compared; by default auc, loss, rmse or ndcg",
        ),
        field(
            "slices",
            TEXTS,
            "",
            "category columns for whose values the report measures separately",
        ),
        field(
            "at",
            Kind::Int(1, 1_000_000),
            "10",
            "ranking, retrieval: places of a ranking that count",
        ),
    ],
};

const GOAL: Kind = Kind::Choice(&[
    (
        "auc",
        "binary, and regression with at_least: area under the ROC curve; the mean of several \
         labels",
    ),
    ("loss", "the training loss, such as log-loss, cross entropy or squared error"),
    ("accuracy", "multi_class: share of right predictions"),
    ("rmse", "regression: root of the mean squared error"),
    ("ndcg", "ranking: normalized discounted cumulative gain of the first places"),
]);

static RANGE: Table = Table {
    fields: &[
        field("choice", Kind::List(&Kind::Any, 1), "", "one of these values"),
        field("range", Kind::List(&ANY, 2), "", "a number between these two, evenly distributed"),
        field(
            "log",
            Kind::List(&ANY, 2),
            "",
            "a number between these two, whose logarithm is evenly distributed",
        ),
    ],
};

static OUTPUT: Table = Table {
    fields: &[field("folder", Kind::Text, "model", "the model folder, beside the job file")],
};
