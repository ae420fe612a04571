//! Trains a job: as one process, as a rank of a collective job, or as a worker of parameter
//! servers. The loop is that of [`fleet::Trainer`].

pub(crate) mod collective;
mod flags;
mod servers;

pub use flags::RunFlags;

use crate::check::check;
use crate::data::{Counts, JobData, Streamed};
use crate::features::{self, Applied, Features, Lookup};
use crate::file::{self, Text, View};
use crate::job::{Job, TaskKind};
use crate::lines::Lines;
use crate::model::Outputs;
use crate::negatives::{Draws, Negatives, WithNegatives};
use crate::origin::{self, Origin};
use crate::problems::{fail_on_errors, of_findings};
use crate::report::{self, Measured, Report};
use crate::retrieval;
use crate::rows::Share;
use crate::saved::{
    CHECKPOINTS_FOLDER, FEATURES_FILE, HTML_FILE, PROGRAM_FOLDER, SavedModel, save_job,
};
use crate::split::Part;
use crate::threads::Threads;
use crate::version;
use clap::Args;
use fleet::data::InMemoryDataset;
use fleet::nn::Var;
use fleet::strategy::StrategySource;
use fleet::topology::Mode;
use fleet::trainer::{Evaluation, Every, Goal, Pass, Position, Progress, Source, Trained};
use fleet::{CheckpointPolicy, DistributedStrategy, ExecOptions, Fleet, Trainer};
use fleet_base::output::{ExitReason, Output, error_line};
use fleet_base::temporary::TemporaryFolder;
use fleet_base::{Error, Result, text};
use fleet_config::Problem;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Trains the job of a file.
#[derive(Args, Clone, Debug, Default)]
#[allow(missing_docs, reason = "clap would show it as the description of a command")]
pub struct TrainArgs {
    /// Job file
    pub file: PathBuf,
    #[command(flatten)]
    pub threads: Threads,
    #[command(flatten)]
    pub flags: RunFlags,
    /// Folder for the trained model, instead of output.folder
    #[arg(long, value_name = "FOLDER")]
    pub output: Option<PathBuf>,
    /// Remove checkpoints of an earlier run, and train from the beginning
    #[arg(long)]
    pub fresh: bool,
    /// Show no progress, only the report
    #[arg(long)]
    pub quiet: bool,
}

/// Trains, as this worker's part of the job, and reports on the finished model.
pub fn run(args: &TrainArgs, fleet: &Fleet, out: &mut Output) -> Result<(), ExitReason> {
    train(args, fleet, &mut Lines::Output(out))
}

/// Like [`run`], with lines that may go elsewhere.
pub fn train(args: &TrainArgs, fleet: &Fleet, out: &mut Lines<'_>) -> Result<(), ExitReason> {
    train_text(args, None, fleet, out)
}

/// Trains a job whose file is built into the program: `args.file` is its name, and its folders are
/// relative to the current one. Without `args.output`, the model is measured and not kept.
pub fn run_built_in(
    args: &TrainArgs,
    source: &str,
    fleet: &Fleet,
    out: &mut Output,
) -> Result<(), ExitReason> {
    train_text(args, Some(source), fleet, &mut Lines::Output(out))
}

fn train_text(
    args: &TrainArgs,
    built_in: Option<&str>,
    fleet: &Fleet,
    out: &mut Lines<'_>,
) -> Result<(), ExitReason> {
    let begin = Instant::now();
    let Some(source) = built_in else {
        args.flags.check_mode(has_servers(fleet), "job:FILE")?;
        let origin = Origin::new(args.file.parent().unwrap_or(Path::new("")), fleet.env())?;
        let plan = TrainPlan::new(args, file::read(&args.file)?, origin, fleet)?;
        return plan.run(fleet, out, begin);
    };
    let text = (file::read_text(&args.file, source), source.to_string());
    let mut plan = TrainPlan::new(args, text, Origin::new("", fleet.env())?, fleet)?;
    if args.output.is_some() {
        return plan.run(fleet, out, begin);
    }
    // Only the first worker has files of its own.
    let base = Path::new(fleet.env().text("TMPDIR").unwrap_or("/tmp"));
    let temporary = match !fleet.is_server() && fleet.is_first_worker() {
        true => Some(TemporaryFolder::new(base, "fleet-model")?),
        false => None,
    };
    plan.is_kept = false;
    plan.checkpoints = args.flags.checkpoint.clone();
    if let Some(folder) = &temporary {
        plan.folder = folder.path().to_path_buf();
    }
    plan.run(fleet, out, begin)
}

fn has_servers(fleet: &Fleet) -> bool {
    fleet.topology().mode() == Mode::ParameterServer
}

/// A job that is ready to be trained.
pub(crate) struct TrainPlan {
    pub text: Text,
    /// The content of the job file.
    pub source: String,
    pub job: Job,
    /// The model folder.
    pub folder: PathBuf,
    /// Whether the model folder is one of the user.
    pub is_kept: bool,
    /// The folder of checkpoints, if there are any.
    pub checkpoints: Option<PathBuf>,
    pub strategy: DistributedStrategy,
    pub strategy_source: Option<StrategySource>,
    pub data: Arc<JobData>,
    pub features: Arc<Features>,
    pub applied: Arc<Applied>,
    pub counts: Counts,
    pub options: ExecOptions,
    pub flags: RunFlags,
    /// Whether no progress is shown.
    pub is_quiet: bool,
}

impl TrainPlan {
    /// Reads and checks the job file and the data, and fits the features.
    fn new(
        args: &TrainArgs,
        (mut text, mut source): (Text, String),
        origin: Origin,
        fleet: &Fleet,
    ) -> Result<TrainPlan> {
        let (mut job, problems) = check(&text);
        let is_first = !fleet.is_server() && fleet.is_first_worker();
        let show = |problems: &[Problem]| {
            let warnings = problems.iter().filter(|it| is_first && !it.is_error());
            warnings.for_each(error_line);
        };
        show(&problems);
        fail_on_errors(&problems)?;
        if let Some(samples) = args.flags.samples {
            flags::set_samples(&mut text, &job, samples)?;
            source = file::to_toml(&text.root);
            job = Job::of(View::root(&text.root));
        }
        job.train.checkpoint_every = args.flags.checkpoint_every.or(job.train.checkpoint_every);
        let folder = match &args.output {
            Some(folder) => {
                origin::check_local("a model folder", folder)?;
                folder.clone()
            }
            None => origin.path(&job.folder),
        };
        let mut strategy = DistributedStrategy::new();
        let mut strategy_source = None;
        let of_job = job.strategy.as_ref().map(|file| origin.path(file));
        if let Some(file) = args.flags.strategy.clone().or(of_job) {
            let (source, warnings) = strategy.load_with_source(file)?;
            show(&warnings);
            strategy_source = Some(source);
        }
        let Prepared { data, features, applied, counts } = prepare(&job, &origin, &text, &show)?;
        let options = ExecOptions { profile: args.flags.trace.is_some(), ..args.threads.options() };
        let own = || folder.join(CHECKPOINTS_FOLDER);
        let plan = TrainPlan {
            text,
            source,
            job,
            is_kept: true,
            checkpoints: Some(args.flags.checkpoint.clone().unwrap_or_else(own)),
            folder,
            strategy,
            strategy_source,
            data,
            features,
            applied,
            counts,
            options,
            flags: args.flags.clone(),
            is_quiet: args.quiet,
        };
        if args.fresh && is_first {
            plan.remove_checkpoints()?;
        }
        Ok(plan)
    }

    /// Trains, as this worker's part of the job, or serves.
    fn run(&self, fleet: &Fleet, out: &mut Lines<'_>, begin: Instant) -> Result<(), ExitReason> {
        match has_servers(fleet) {
            true => servers::run(self, fleet, out, begin),
            false => collective::run(self, fleet, out, begin),
        }
    }

    fn remove_checkpoints(&self) -> Result<()> {
        let Some(folder) = self.checkpoints.as_ref().filter(|folder| folder.exists()) else {
            return Ok(());
        };
        std::fs::remove_dir_all(folder).map_err(|error| Error::io("remove", folder, &error))
    }

    /// Removes the checkpoints of a training that has ended, unless the user named their folder.
    fn drop_checkpoints(&self) -> Result<()> {
        match self.flags.checkpoint {
            Some(_) => Ok(()),
            None => self.remove_checkpoints(),
        }
    }

    /// Describes the job in two lines: `batches` are their size and the workers.
    fn describe(
        &self,
        parameters: f64,
        batches: &str,
        out: &mut Lines<'_>,
    ) -> Result<(), ExitReason> {
        let file = self.text.file.display();
        out.line(format!("{file}: {}", self.counts))?;
        let features = self.features.numbers.len() + self.features.ids.len();
        out.line(format!(
            "{} with {} parameters over {}, {batches}",
            self.job.model.kind.name(),
            text::count(parameters),
            text::counted(features, "feature"),
        ))
    }

    /// Returns the rows of a part for training or validation.
    pub fn rows(&self, part: Part, share: Share, batch: usize) -> Result<PartRows> {
        let rows = match part {
            Part::Train => self.counts.train,
            Part::Validation => self.counts.validation,
            Part::Test => self.counts.test,
        };
        let rows = rows / share.of;
        if self.data.fits(&self.applied, rows) {
            let dataset = self.data.load(&self.applied, part, share, batch, false)?;
            return Ok(PartRows::Memory(Box::new(dataset)));
        }
        Ok(PartRows::Streamed(self.data.stream(&self.applied, part, share, batch)?))
    }

    /// Returns the steps of an epoch with this many rows of each worker.
    pub fn steps_per_epoch(&self, workers: u64, batch: usize) -> u64 {
        (self.counts.train / workers).div_ceil(batch as u64).max(1)
    }

    /// Returns a trainer with the settings of the job, without validation and checkpoints.
    fn trainer<'f>(&self, fleet: &'f Fleet, outputs: &OutputNames) -> Trainer<'f> {
        let trainer = Trainer::new(fleet)
            .watch("loss", &outputs.loss)
            .constant("job", format!("{:08x}", crc32fast::hash(self.source.as_bytes())))
            .scalars(&self.folder);
        match (self.is_quiet, has_servers(fleet)) {
            (true, _) => trainer.progress(Progress::none()),
            // Each worker shows its own loss.
            (false, true) => trainer.progress(Progress::each(fleet)),
            (false, false) => trainer,
        }
    }

    /// Returns the interval and the metrics of validations.
    fn validation(&self, outputs: &OutputNames) -> (Evaluation, Every) {
        let mut evaluation = Evaluation::new().mean("loss", &outputs.row_loss);
        // The loss of a ranking is one value for a batch, which has the weights in it.
        if self.features.weight.is_some() && self.job.task != TaskKind::Ranking {
            let own = outputs.weights.as_deref();
            evaluation = evaluation.weights(own.unwrap_or(features::INPUT_WEIGHT));
        }
        let mut names = Vec::new();
        for (name, [score, label]) in &outputs.areas {
            let name = name.as_ref().map_or("auc".to_string(), |name| format!("auc.{name}"));
            evaluation = evaluation.auc(&name, score, label);
            names.push(name);
        }
        if names.len() > 1 {
            evaluation = evaluation.mean_of("auc", names.iter().map(String::as_str));
        }
        if self.job.task == TaskKind::Ranking {
            let (label, group) = (features::INPUT_LABEL, features::INPUT_GROUP);
            evaluation =
                evaluation.ndcg("ndcg", &outputs.scores, label, group, self.job.ranking.at);
        }
        for (label, variable) in &outputs.means {
            evaluation = evaluation.mean(label, variable);
        }
        let every = self.job.evaluation.every_steps.map_or(Every::Epoch, Every::Steps);
        (evaluation, every)
    }

    /// Returns the goal of validations. The root of a mean is lowest where the mean is.
    pub fn goal(&self) -> Goal {
        match self.job.goal() {
            "rmse" => Goal::lowest("mse"),
            "auc" => Goal::highest("auc"),
            "ndcg" => Goal::highest("ndcg"),
            "accuracy" => Goal::highest("accuracy"),
            _ => Goal::lowest("loss"),
        }
    }

    /// Returns the items that a worker draws for its batches, if the job says so.
    fn negatives(&self, worker: u64) -> Result<Option<Negatives>> {
        let model = &self.job.model;
        let Some(count) = model.negatives else { return Ok(None) };
        let (power, seed) = (model.negatives_power, self.job.train.seed);
        let draws = Draws { count, power, seed, worker };
        Negatives::read(&self.data, &self.applied, draws).map(Some)
    }

    fn policy(&self) -> CheckpointPolicy {
        let every_steps = self.job.train.checkpoint_every;
        let every = every_steps.is_none().then_some(CHECKPOINT_INTERVAL);
        CheckpointPolicy { every_steps, every, keep_last: CHECKPOINTS_KEPT }
    }

    /// Writes job, features and program into the model folder, as a new version of it.
    fn replace_model(&self, save_program: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
        save_job(&self.folder, &self.source, &self.features)?;
        save_program(&self.folder.join(PROGRAM_FOLDER))?;
        version::finish(&self.folder)
    }

    /// Shows a line of the summary.
    fn fact(&self, what: &str, text: &str, out: &mut Lines<'_>) -> Result<(), ExitReason> {
        out.line(format!("{what:<12}{text}"))
    }

    /// Shows how much was trained. `seconds` is the whole duration, with reading.
    pub fn trained(
        &self,
        trained: &Trained,
        seconds: f64,
        out: &mut Lines<'_>,
    ) -> Result<(), ExitReason> {
        let (rows, steps) = (text::count(trained.rows as f64), trained.step);
        self.fact("trained", &format!("{rows} rows in {seconds:.1} s, {steps} steps"), out)?;
        let rate = text::count(trained.rows as f64 / trained.seconds.max(1e-9));
        self.fact("speed", &format!("{rate} rows/s without reading and reporting"), out)
    }

    /// Scores the test rows with the saved model, and writes and shows the report. Without test
    /// rows, those of the validation are scored.
    pub fn report(&self, trained: &Trained, out: &mut Lines<'_>) -> Result<(), ExitReason> {
        let part = match (&self.job.data.test, &self.job.data.validation) {
            (Some(_), _) => Some(Part::Test),
            (None, Some(_)) => Some(Part::Validation),
            (None, None) => None,
        };
        let report = Report {
            version: report::VERSION,
            model: self.job.model.kind.name().to_string(),
            task: self.job.task.name().to_string(),
            label: self
                .features
                .labels()
                .map(|it| it.column.as_str())
                .collect::<Vec<_>>()
                .join(", "),
            steps: trained.step,
            rows: trained.rows,
            seconds: trained.seconds,
            best_step: trained.best.as_ref().map(|best| best.step),
            report: self.measured(part)?,
        };
        report.save(&self.folder)?;
        report.lines().into_iter().try_for_each(|line| out.line(line))?;
        if !self.is_kept {
            return Ok(());
        }
        self.fact("saved", &self.folder.display().to_string(), out)?;
        self.fact("report", &self.folder.join(HTML_FILE).display().to_string(), out)
    }

    /// Measures a part with the saved model. A retrieval also saves the vectors of users and items.
    fn measured(&self, part: Option<Part>) -> Result<Option<Measured>> {
        let (data, applied) = (&self.data, &self.applied);
        let open = || SavedModel::open(&self.folder, self.options.clone());
        let measured = if self.job.task == TaskKind::Retrieval {
            retrieval::finish(&mut open()?, data, applied, &self.folder, part)?
        } else if let Some(part) = part {
            let name = crate::data::name_of(part);
            Some(report::measure(&mut open()?, data, applied, part, name)?)
        } else {
            None
        };
        Ok(measured.map(|mut measured| {
            measured.charts.extend(report::training_charts(&self.folder));
            measured
        }))
    }
}

/// The data of a job, with the features that are fitted to it.
#[derive(Clone)]
pub(crate) struct Prepared {
    pub data: Arc<JobData>,
    pub features: Arc<Features>,
    pub applied: Arc<Applied>,
    pub counts: Counts,
}

/// Reads the training files and fits the features, or takes those of an earlier model. `show` gets
/// what the data shows about the job.
pub(crate) fn prepare(
    job: &Job,
    origin: &Origin,
    text: &Text,
    show: &dyn Fn(&[Problem]),
) -> Result<Prepared> {
    let data = JobData::open(job, origin)?;
    let fitted = data.fit(u64::MAX)?;
    let findings = of_findings(&fitted.findings, text);
    show(&findings);
    fail_on_errors(&findings)?;
    let features = match &job.train.warm_start {
        Some(model) => warm_features(&origin.path(model), fitted.features)?,
        None => fitted.features,
    };
    let features = Arc::new(features);
    let applied = data.apply(&features)?;
    Ok(Prepared { data: Arc::new(data), features, applied, counts: fitted.counts })
}

/// Checkpoints that are kept: the newest, and one before it that is used if it is damaged.
const CHECKPOINTS_KEPT: usize = 2;
/// Time between checkpoints.
const CHECKPOINT_INTERVAL: Duration = Duration::from_secs(60);

/// Returns the features of an earlier model, with this job's label and slices. The earlier ones
/// must be those of the job file.
fn warm_features(model: &Path, own: Features) -> Result<Features> {
    let earlier =
        features::load(&model.join(FEATURES_FILE)).map_err(|error| error.at("train.warm_start"))?;
    let names = |features: &Features| -> Vec<String> {
        let ids = features.ids.iter().map(|ids| match ids.lookup {
            Lookup::Rows(rows) => format!("{} ({} x {rows} rows)", ids.name, ids.dim),
            _ => format!("{} ({})", ids.name, ids.dim),
        });
        features.numbers.iter().map(|number| number.column.clone()).chain(ids).collect()
    };
    let (expected, got) = (names(&own), names(&earlier));
    let is_same = |own: &Features, earlier: &Features| {
        own.label_names() == earlier.label_names() && own.scores() == earlier.scores()
    };
    if expected == got && !is_same(&own, &earlier) {
        let labels = |it: &Features| match it.has_labels() {
            true => it.label_names().join(", "),
            false => text::counted(it.scores(), "score"),
        };
        return Err(Error::invalid("the model of train.warm_start has other labels")
            .expected(labels(&own))
            .got(labels(&earlier))
            .help("train from the beginning: remove train.warm_start"));
    }
    if expected != got {
        return Err(Error::invalid("the model of train.warm_start has other features")
            .expected(expected.join(", "))
            .got(got.join(", "))
            .help("train from the beginning: remove train.warm_start"));
    }
    Ok(Features { slices: own.slices, rows: own.rows, ..earlier })
}

/// Names of the outputs of a network.
pub(crate) struct OutputNames {
    loss: String,
    row_loss: String,
    scores: String,
    means: Vec<(&'static str, String)>,
    weights: Option<String>,
    areas: Vec<(Option<String>, [String; 2])>,
    vectors: Option<[String; 2]>,
}

impl OutputNames {
    fn of(outputs: &Outputs<'_>) -> OutputNames {
        let names = |var: Var<'_>| var.name();
        OutputNames {
            loss: outputs.loss.name(),
            row_loss: outputs.row_loss.name(),
            weights: outputs.weights.map(names),
            scores: outputs.scores.name(),
            means: outputs.means.iter().map(|(label, var)| (*label, var.name())).collect(),
            areas: outputs.areas.iter().map(|(name, of)| (name.clone(), of.map(names))).collect(),
            vectors: outputs.vectors.map(|vectors| vectors.map(|var| var.name())),
        }
    }

    /// Returns what a saved model computes: scores, then the vectors of user and item.
    fn targets(&self) -> Vec<&str> {
        let vectors = self.vectors.iter().flatten().map(String::as_str);
        std::iter::once(self.scores.as_str()).chain(vectors).collect()
    }
}

/// Rows of a part for the trainer, in memory or streamed.
pub(crate) enum PartRows {
    Memory(Box<InMemoryDataset>),
    Streamed(Streamed),
}

impl PartRows {
    /// Sets the number of rows of a batch.
    pub fn set_batch(&mut self, batch: usize) -> Result<()> {
        match self {
            PartRows::Memory(rows) => rows.update_settings(|settings| settings.batch_size = batch),
            PartRows::Streamed(rows) => rows.set_batch(batch),
        }
    }

    /// Returns the rows as a source of a trainer: those of a training in another order each epoch.
    fn source<'r>(
        &'r mut self,
        part: Part,
        negatives: Option<&'r Negatives>,
    ) -> WithNegatives<'r, PartSource<'r>> {
        let source = match self {
            PartRows::Memory(dataset) => match part {
                Part::Train => PartSource::Shuffled(dataset),
                Part::Validation | Part::Test => PartSource::Memory(dataset),
            },
            PartRows::Streamed(dataset) => PartSource::Streamed(dataset),
        };
        WithNegatives { source, negatives }
    }
}

pub(crate) enum PartSource<'r> {
    Shuffled(&'r mut InMemoryDataset),
    Memory(&'r InMemoryDataset),
    Streamed(&'r Streamed),
}

impl Source for PartSource<'_> {
    fn pass(&mut self, epoch: u64, from: Position) -> Result<Box<dyn Pass + '_>> {
        match self {
            PartSource::Shuffled(dataset) => dataset.pass(epoch, from),
            PartSource::Memory(dataset) => dataset.pass(epoch, from),
            PartSource::Streamed(dataset) => {
                dataset.set_epoch(epoch);
                dataset.pass(epoch, from)
            }
        }
    }

    fn batches_after(&self, from: Position) -> Option<u64> {
        match self {
            PartSource::Shuffled(dataset) => dataset.batches_after(from),
            PartSource::Memory(dataset) => dataset.batches_after(from),
            PartSource::Streamed(dataset) => dataset.batches_after(from),
        }
    }

    fn redistribute(&self, from: Position, saved: usize, now: usize) -> Position {
        match self {
            PartSource::Shuffled(dataset) => dataset.redistribute(from, saved, now),
            PartSource::Memory(dataset) => dataset.redistribute(from, saved, now),
            PartSource::Streamed(dataset) => dataset.redistribute(from, saved, now),
        }
    }
}

/// Returns the rows of each copy of the model in a step.
fn share_of_batch(batch: usize, copies: usize) -> Result<usize> {
    if batch.is_multiple_of(copies) {
        return Ok(batch / copies);
    }
    Err(Error::invalid("the batch does not divide among the workers")
        .expected(format!("a multiple of {copies}"))
        .got(batch)
        .at("train.batch"))
}
