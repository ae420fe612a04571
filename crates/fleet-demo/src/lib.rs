//! `fleet demo` and `fleetrun demo:NAME`: trains a model on generated data with a known best
//! possible score, in one process or as the workers of a job.
//!
//! A demo is a network with an optimizer, a source of samples, and a test; each has its own file.
//! The loop (`train.rs`), the display and the saving are shared. `wide_deep` is a job file instead,
//! which is built in and trained by the code of jobs. Demos are a first look, not a benchmark: for
//! that use `cargo xtask bench`.

#![deny(missing_docs)]
#![forbid(unsafe_code)]

mod bert;
mod gpt;
mod lenet;
mod resnet;
mod servers;
mod train;
mod word2vec;

use clap::{Args, ValueEnum};
use fleet::nn::optimizer::{Adam, Momentum, OptimizerDesc, Rule};
use fleet::nn::{LrSchedule, Net};
use fleet::servers::written_exchange;
use fleet::strategy::{StrategySource, Written};
use fleet::trainer::{self, Feeds, Progress};
use fleet::{
    DistributedOptimizer, DistributedStrategy, Error, ExecOptions, Fleet, Result, Session, Tensor,
    Trainer,
};
use fleet_base::output::{ExitReason, Output, error_line};
use fleet_base::{file::make_folder, text};
use fleet_job::Threads;
use fleet_job::trace::Tracing;
use fleet_job::train::{RunFlags, TrainArgs, run_built_in};
use fleet_synth::{Digits, IMAGE_PIXELS, IMAGE_SIDE};
use fleet_tensor::{bf16, f16};
use std::fs;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::Arc;

#[derive(Args)]
#[allow(missing_docs, reason = "clap would show it as the description of a command")]
pub struct DemoArgs {
    /// Model to train
    #[arg(value_enum, default_value_t = Which::WideDeep)]
    model: Which,
    #[command(flatten)]
    threads: Threads,
    #[command(flatten)]
    flags: RunFlags,
    /// Folder for the trained model [default: not saved]
    #[arg(long, value_name = "FOLDER")]
    output: Option<PathBuf>,
}

impl DemoArgs {
    /// Returns the strategy, and the file that it was read from.
    fn strategy(&self) -> Result<(DistributedStrategy, Option<StrategySource>)> {
        let mut strategy = DistributedStrategy::new();
        let Some(file) = &self.flags.strategy else { return Ok((strategy, None)) };
        let (source, warnings) = strategy.load_with_source(file)?;
        warnings.iter().for_each(error_line);
        Ok((strategy, Some(source)))
    }
}

#[derive(Clone, Copy, ValueEnum)]
enum Which {
    /// Wide & deep on click logs
    #[value(name = "wide_deep")]
    WideDeep,
    /// LeNet on generated digits
    Lenet,
    /// Skip-gram word vectors
    Word2vec,
    /// A small BERT that fills in masked words
    Bert,
    /// ResNet-18 on generated digits
    Resnet,
    /// A small GPT that predicts the next word
    Gpt,
}

/// Demos that do not train on parameter servers, with the reason.
pub const UNSUPPORTED_ON_SERVERS: &[(&str, &str)] = &[
    ("bert", "its optimizer AdamW is not supported on servers"),
    ("gpt", "its optimizer AdamW is not supported on servers"),
    ("resnet", "its batch-norm statistics would stay on each worker"),
];

impl Which {
    fn name(self) -> &'static str {
        match self {
            Which::WideDeep => "wide_deep",
            Which::Lenet => "lenet",
            Which::Word2vec => "word2vec",
            Which::Bert => "bert",
            Which::Resnet => "resnet",
            Which::Gpt => "gpt",
        }
    }

    /// Returns the network; `None` for the job file.
    fn network(self) -> Option<Network> {
        let network = |make: fn(&Size) -> Result<Demo>, batch, samples| {
            Some(Network { name: self.name(), make, batch, samples })
        };
        match self {
            Which::WideDeep => None,
            Which::Lenet => network(lenet::demo, lenet::BATCH, lenet::SAMPLES),
            Which::Word2vec => network(word2vec::demo, word2vec::BATCH, word2vec::SAMPLES),
            Which::Bert => network(bert::demo, bert::BATCH, bert::SAMPLES),
            Which::Resnet => network(resnet::demo, resnet::BATCH, resnet::SAMPLES),
            Which::Gpt => network(gpt::demo, gpt::BATCH, gpt::SAMPLES),
        }
    }
}

/// A demo that is made in code.
struct Network {
    name: &'static str,
    make: fn(&Size) -> Result<Demo>,
    /// Default samples per step.
    batch: usize,
    /// Default samples of the training.
    samples: u64,
}

/// Source of samples, which are functions of their number and generated during training.
trait Source: Send + Sync {
    /// Allocates a batch.
    fn blank(&self, rows: usize) -> Result<Feeds>;
    /// Fills a batch with the samples from `first` on.
    fn fill(&self, batch: &mut Feeds, first: u64) -> Result<()>;
}

/// A model with its data, optimizer and test.
struct Demo {
    /// Description of the model and its task.
    title: String,
    net: Net,
    optimizer: OptimizerDesc,
    source: Arc<dyn Source>,
    /// Samples per step, of all workers together.
    batch: usize,
    steps: u64,
    loss: String,
    /// Score between 0 and 1 that is shown beside the loss: its label and its variable.
    score: Option<(&'static str, String)>,
    /// Outputs of the saved model.
    targets: Vec<String>,
    /// Measures the trained model on unseen samples.
    test: Test,
}

impl Demo {
    /// Returns a trainer of `steps` steps, which shows the loss and, if there is one, the score.
    fn trainer<'f>(&self, fleet: &'f Fleet, steps: u64) -> Trainer<'f> {
        let trainer = Trainer::new(fleet).steps(steps).watch("loss", &self.loss);
        let score = self.score.iter();
        score
            .fold(trainer, |trainer, (label, variable)| trainer.watch(label, variable))
            .progress(Progress::each(fleet))
    }

    /// Returns this worker's share of all batches. They never end, so that a longer training
    /// resumes after the last step of a shorter one.
    fn batches(&self, share: Share) -> impl trainer::Source + use<> {
        let source = Arc::clone(&self.source);
        let make = move |_epoch, step: u64, batch: &mut Feeds| {
            if batch.is_empty() {
                *batch = source.blank(share.rows)?;
            }
            source.fill(batch, step * share.stride + share.first)?;
            Ok(true)
        };
        trainer::from_fn(make).batches(u64::MAX).ahead(BATCHES_AHEAD)
    }

    /// Returns the distributed form of `optimizer`.
    fn distributed<'f>(
        &self,
        fleet: &'f Fleet,
        optimizer: OptimizerDesc,
        (strategy, source): (&DistributedStrategy, Option<&StrategySource>),
    ) -> DistributedOptimizer<'f> {
        let distributed = fleet.distributed_optimizer(optimizer, strategy);
        let distributed = distributed.global_batch(self.batch);
        source.cloned().into_iter().fold(distributed, |it, source| it.read_from(source))
    }
}

/// Batches in flight: enough to smooth delays of either side, in little memory.
const BATCHES_AHEAD: usize = 8;

/// The samples of a worker.
#[derive(Clone, Copy)]
struct Share {
    /// Samples of this worker per step.
    rows: usize,
    /// Distance between the first samples of consecutive steps.
    stride: u64,
    /// Samples of other workers in a step before this worker's.
    first: u64,
}

type Test = Box<dyn FnOnce(&mut Session) -> Result<Fact>>;

/// A line of the summary: a short label and its text.
type Fact = (&'static str, String);

/// First sample for tests; training never gets that far.
const FIRST_TESTED: u64 = 1 << 40;

/// The amount of training, and the number of workers.
struct Size {
    samples: Option<u64>,
    workers: usize,
    /// Whether the mode is GEO, which distributes only changes that add up.
    is_geo: bool,
}

impl Size {
    /// Returns the samples per step and the number of steps. Workers divide the batch of one
    /// worker, so the training does not depend on their number. If the batch is not divisible, it
    /// is slightly larger.
    fn of(&self, batch: usize, samples: u64) -> (usize, u64) {
        let batch = batch.next_multiple_of(self.workers);
        (batch, self.samples.unwrap_or(samples).div_ceil(batch as u64))
    }
}

/// Returns the number of unseen samples for the test: at most as many as were trained, in multiples
/// of the lower limit. A short training thus does not end with a long test.
fn test_sample_count(steps: u64, batch: usize, limits: RangeInclusive<usize>) -> usize {
    let (unit, most) = limits.into_inner();
    let trained = usize::try_from(steps.saturating_mul(batch as u64)).unwrap_or(most);
    (trained.min(most) / unit).max(1) * unit
}

/// Returns a rate that falls to 0 over the training.
fn linear_decay(learning_rate: f64, steps: u64) -> LrSchedule {
    let decay_steps = steps as f64;
    LrSchedule::Polynomial { learning_rate, decay_steps, end: 0.0, power: 1.0, cycle: false }
}

/// The job file of `wide_deep`.
const WIDE_DEEP: &str = include_str!("../../../examples/jobs/wide_deep.toml");

/// Trains, as this worker's part of the job.
pub fn run(args: &DemoArgs, fleet: &Fleet, out: &mut Output) -> Result<(), ExitReason> {
    let has_servers = fleet.topology().mode() == fleet::topology::Mode::ParameterServer;
    let title = format!("demo:{}", args.model.name());
    args.flags.check_mode(has_servers, &title)?;
    let is_first = !fleet.is_server() && fleet.is_first_worker();
    check_writable(args.output.as_deref().filter(|_| is_first))?;
    let Some(network) = args.model.network() else {
        let (threads, flags, output) = (args.threads, args.flags.clone(), args.output.clone());
        let file = title.into();
        let (job, note) = wide_deep(&args.strategy()?, has_servers, fleet.worker_num())?;
        if let Some(note) = note.filter(|_| is_first) {
            out.line(note)?;
        }
        let args = TrainArgs { file, threads, flags, output, ..TrainArgs::default() };
        return run_built_in(&args, &job, fleet, out);
    };
    match has_servers {
        true => servers::run(args, &network, fleet, out),
        false => run_collective(args, &network, fleet, out),
    }
}

/// Returns the job file of `wide_deep` with a batch that divides among the workers and an optimizer
/// that suits the strategy, and a note if the optimizer is not that of the file.
fn wide_deep(
    (strategy, source): &(DistributedStrategy, Option<StrategySource>),
    has_servers: bool,
    workers: usize,
) -> Result<(String, Option<String>)> {
    let batch = BATCH.next_multiple_of(workers);
    let file = WIDE_DEEP.replace(&format!("batch = {BATCH}"), &format!("batch = {batch}"));
    let written = Written { strategy, source: source.as_ref() };
    let alone = strategy.localsgd() || strategy.adaptive_localsgd();
    // Servers report errors in the strategy themselves.
    let is_geo = has_servers && written_exchange(&written, false).is_ok_and(|it| it.is_geo());
    let (rule, settings) = if is_geo {
        // GEO sums the workers' changes. Rows are in few samples of a batch, so that their
        // gradients are small.
        ("sgd", "rate = 0.3 }\n\n[tables]\nrate = 2.5")
    } else if !has_servers && strategy.lars() {
        ("momentum", "rate = 0.5 }\n\n[tables]\nrate = 0.5")
    } else if !has_servers && (strategy.dgc() || alone) {
        ("momentum", "rate = 0.02 }\n\n[tables]\nrate = 0.5")
    } else {
        return Ok((file, None));
    };
    let job = file.replace(OPTIMIZER, &format!("optimizer = {{ kind = \"{rule}\", {settings}"));
    Ok((job, Some(format!("wide_deep: {rule} instead of adam, as the strategy requires"))))
}

/// The batch of `wide_deep`.
const BATCH: usize = 1024;
/// The optimizer of `wide_deep`, on the last line of the table `[train]`.
const OPTIMIZER: &str = "optimizer = { kind = \"adam\", rate = 0.003 }";

fn run_collective(
    args: &DemoArgs,
    network: &Network,
    fleet: &Fleet,
    out: &mut Output,
) -> Result<(), ExitReason> {
    check_writable(args.flags.trace.as_deref())?;
    let (strategy, source) = args.strategy()?;
    let (samples, workers) = (args.flags.samples, fleet.worker_num());
    let size = Size { samples, workers, is_geo: false };
    let (demo, name) = ((network.make)(&size)?, network.name);
    let optimizer = suitable_optimizer(demo.optimizer.clone(), &strategy);
    if optimizer != demo.optimizer {
        let (rule, rate) = (optimizer.rule.op(), optimizer.settings.learning_rate.value_at(0));
        let usual = demo.optimizer.rule.op();
        let line = format!(
            "{name}: {rule} with learning rate {rate} instead of {usual}, as the strategy requires"
        );
        out.line(line)?;
    }
    // Counted before the workers divide them.
    let parameters = parameter_count(&demo.net)?;
    let optimizer = demo.distributed(fleet, optimizer, (&strategy, source.as_ref()));
    let job = optimizer.minimize(&demo.net, demo.net.var(&demo.loss))?;
    let options = ExecOptions { profile: args.flags.trace.is_some(), ..args.threads.options() };
    let mut session = fleet.session(demo.net.build()?, &job, options.clone())?;
    out.line(&demo.title)?;
    let threads = session.executor.threads();
    out.line(header(name, &demo, parameters, (fleet, job.plan.copy.1), threads))?;

    let mut tracing = Tracing::new(args.flags.trace.as_deref(), demo.steps)?;
    let trained = train::run(&demo, args, fleet, &mut session, job.plan.copy, &mut tracing)?;
    if let Some(line) = tracing.finish(fleet)? {
        out.line(format!("trace     {line}"))?;
    }
    fleet.meet(&mut session)?;
    if !trained.is_terminated
        && let Some(whole) = fleet.whole(&session)?
    {
        summary(demo, args, &trained, &mut whole.session(options)?, out)?;
    }
    // The first worker may still run its test; if it dies meanwhile, all others learn of it.
    fleet.finish()?;
    if trained.is_terminated { Err(ExitReason::Terminated) } else { Ok(()) }
}

/// Creates the folder and checks that it is writable. It is written only after training, when an
/// error would come too late.
fn check_writable(folder: Option<&Path>) -> Result<()> {
    let Some(folder) = folder else { return Ok(()) };
    make_folder(folder)?;
    let trial = folder.join(format!(".trial-{}", std::process::id()));
    let made = fs::write(&trial, "").and_then(|()| fs::remove_file(&trial));
    made.map_err(|error| Error::io("write to", folder, &error))
}

/// Learning rate for LARS, which multiplies it with a coefficient of 0.001 and the ratio of norms.
/// A rate that suits Momentum would have no effect.
const LARS_RATE: f64 = 0.5;

/// Returns the demo's optimizer. If the strategy is made for another rule and would not be applied,
/// returns that rule instead.
fn suitable_optimizer(usual: OptimizerDesc, strategy: &DistributedStrategy) -> OptimizerDesc {
    let alone = strategy.localsgd() || strategy.adaptive_localsgd();
    match usual.rule {
        Rule::Adam(_) | Rule::AdamW(_) | Rule::Momentum(_) if strategy.lars() => {
            Momentum::new(LARS_RATE, 0.9).into()
        }
        Rule::Adam(_) | Rule::AdamW(_) if strategy.dgc() || alone => {
            Momentum::new(0.02, 0.9).into()
        }
        Rule::Momentum(_) | Rule::AdamW(_) if strategy.lamb() => Adam::new(1e-3).into(),
        _ => usual,
    }
}

fn header(
    name: &str,
    demo: &Demo,
    parameters: i64,
    (fleet, copies): (&Fleet, usize),
    threads: usize,
) -> String {
    let parameters = text::count(parameters as f64);
    let threads = match threads {
        1 => "1 thread".to_string(),
        count => format!("{count} threads"),
    };
    let (workers, batch) = (fleet.worker_num(), demo.batch);
    match workers {
        1 => format!("{name}: {parameters} parameters, batches of {batch}, {threads}"),
        _ => format!(
            "{name}: {parameters} parameters, batches of {batch}: {} per worker for {workers} \
             workers, {threads} per worker",
            batch / copies
        ),
    }
}

fn summary(
    demo: Demo,
    args: &DemoArgs,
    trained: &train::Trained,
    session: &mut Session,
    out: &mut Output,
) -> Result<(), ExitReason> {
    let (what, found) = (demo.test)(session)?;
    if let Some(folder) = &args.output {
        let targets: Vec<&str> = demo.targets.iter().map(String::as_str).collect();
        fleet::save_inference_model(folder, &session.programs.main, &targets, &session.scope)?;
    }

    let mut fact = |what: &str, found: &str| out.line(format!("{what:<10}{found}"));
    fact("trained", &trained.amount())?;
    fact("speed", &trained.speed())?;
    fact(what, &found)?;
    args.output
        .as_ref()
        .map_or(Ok(()), |folder| fact("saved", &format!("{} (see fleet stats)", folder.display())))
}

fn parameter_count(net: &Net) -> Result<i64> {
    net.rewrite_with(|programs, _| {
        let shapes = programs.main.parameters().map(|(_, var)| var.shape);
        Ok(shapes.map(|shape| shape.dims().iter().product::<i64>()).sum())
    })
}

fn number(tensor: &Tensor) -> Result<f64> {
    match tensor.dtype() {
        fleet::DType::F64 => tensor.item::<f64>(),
        _ => Ok(f64::from(floats(tensor)?.into_iter().next().unwrap_or(f32::NAN))),
    }
}

/// Reads floats, which mixed precision may have left in 16 bits.
fn floats(tensor: &Tensor) -> Result<Vec<f32>> {
    match tensor.dtype() {
        fleet::DType::F16 => Ok(tensor.as_slice()?.iter().map(|it: &f16| it.to_f32()).collect()),
        fleet::DType::BF16 => Ok(tensor.as_slice()?.iter().map(|it: &bf16| it.to_f32()).collect()),
        _ => tensor.to_vec(),
    }
}

/// Digits per batch of [`accuracy_test`].
const TESTED_AT_ONCE: usize = 250;

/// Returns the test of the share of correct predictions on `count` unseen digits in whole batches,
/// from the variable `accuracy`.
fn accuracy_test(source: Arc<DigitImages>, accuracy: String, count: usize) -> Test {
    Box::new(move |session| {
        let mut batch = source.blank(TESTED_AT_ONCE)?;
        let (mut right, mut batches) = (0.0, 0);
        for first in (0..count).step_by(TESTED_AT_ONCE) {
            source.fill(&mut batch, FIRST_TESTED + first as u64)?;
            right += number(&session.evaluate(&batch.list(), &[&accuracy])?[0])?;
            batches += 1;
        }
        let percent = 100.0 * right / f64::from(batches);
        Ok(("accuracy", format!("{percent:.2} % of {count} unseen digits classified correctly")))
    })
}

/// Returns the loss on unseen samples.
fn loss_on(session: &mut Session, source: &dyn Source, loss: &str, count: usize) -> Result<f64> {
    let mut batch = source.blank(count)?;
    source.fill(&mut batch, FIRST_TESTED)?;
    number(&session.evaluate(&batch.list(), &[loss])?[0])
}

/// Generated digits in the middle of larger images with one or more equal channels.
struct DigitImages {
    digits: Digits,
    channels: usize,
    side: usize,
}

impl Source for DigitImages {
    fn blank(&self, rows: usize) -> Result<Feeds> {
        let shape = [rows, self.channels, self.side, self.side].map(|dim| dim as i64);
        let images = Tensor::zeros(fleet::DType::F32, shape)?;
        let labels = Tensor::zeros(fleet::DType::I64, [rows as i64, 1])?;
        Ok(Feeds::from([("x", images), ("y", labels)]))
    }

    fn fill(&self, batch: &mut Feeds, first: u64) -> Result<()> {
        let [images, labels] = batch.tensors(["x", "y"])?;
        let labels = labels.as_mut_slice()?;
        let mut drawn = vec![0.0; labels.len() * IMAGE_PIXELS];
        self.digits.fill_batch_f32(&mut drawn, labels, first)?;
        let images = images.as_mut_slice::<f32>()?;
        images.fill(-1.0);
        let edge = (self.side - IMAGE_SIDE) / 2;
        let planes = images.chunks_exact_mut(self.side * self.side);
        for (index, plane) in planes.enumerate() {
            let digit = &drawn[index / self.channels * IMAGE_PIXELS..][..IMAGE_PIXELS];
            for (row, pixels) in digit.chunks(IMAGE_SIDE).enumerate() {
                plane[(row + edge) * self.side + edge..][..IMAGE_SIDE].copy_from_slice(pixels);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The job file is valid with each optimizer.
    #[test]
    fn strategies_change_the_optimizer() {
        let geo = "a_sync: true a_sync_configs { k_steps: 4 }";
        for (text, has_servers, rule) in [
            ("", false, "adam"),
            ("", true, "adam"),
            (geo, true, "sgd"),
            ("lars: true", false, "momentum"),
            ("dgc: true", false, "momentum"),
            ("localsgd: true", false, "momentum"),
            ("lamb: true", false, "adam"),
        ] {
            let strategy = DistributedStrategy::parse(text).unwrap();
            let (job, note) = wide_deep(&(strategy, None), has_servers, 3).unwrap();
            assert!(job.contains("\nbatch = 1026\n"), "{job}");
            assert!(job.contains(&format!("kind = \"{rule}\"")), "{text}: {job}");
            assert_eq!(note.is_some(), rule != "adam", "{text}");
            let problems = fleet_job::problems_of("job.toml".as_ref(), &job);
            assert!(problems.is_empty(), "{problems:?}");
        }
    }
}
