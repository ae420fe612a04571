//! `fleet demo`: trains a model in this process on generated data whose best possible score is known.
//!
//! A demo is a network, a source of samples, and a test (one file each); the loop, the display and
//! the saving are the same for all. This is a first look, no benchmark: `cargo xtask bench` is one.

mod bert;
mod lenet;
mod producer;
mod progress;
mod resnet;
mod wide_deep;
mod word2vec;

use crate::output::{Output, Stop};
use clap::{Args, ValueEnum};
use fleet::data::synth::{Digits, IMAGE_PIXELS, IMAGE_SIDE};
use fleet::nn::Programs;
use fleet::{ExecOptions, Result, Session, Tensor};
use fleet_base::text;
use progress::Progress;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

#[derive(Args)]
pub struct DemoArgs {
    /// What to train
    #[arg(value_enum, default_value_t = Which::WideDeep)]
    model: Which,
    /// Samples to train on; by default enough to come close to the best score
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    samples: Option<u64>,
    /// Threads; by default as many as the machine has cores
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u16).range(..=1024))]
    threads: u16,
    /// The folder that the trained model is saved to; by default one among the temporary files
    #[arg(long, value_name = "FOLDER")]
    output: Option<PathBuf>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Which {
    /// Wide & deep on click logs
    #[value(name = "wide_deep", alias = "wide-deep")]
    WideDeep,
    /// LeNet on drawn digits
    Lenet,
    /// Skip-gram word vectors
    Word2vec,
    /// A small BERT that fills in masked words
    Bert,
    /// ResNet-18 on drawn digits
    Resnet,
}

/// A feed list.
type Batch = Vec<(&'static str, Tensor)>;

/// Where samples come from: a function of the sample's number, made while training runs.
trait Source: Send + Sync {
    /// Room for a batch.
    fn blank(&self, rows: usize) -> Result<Batch>;
    /// Fills a batch with the samples from `first` on.
    fn fill(&self, batch: &mut Batch, first: u64) -> Result<()>;
}

/// A model, its data, and what is shown of it.
struct Demo {
    /// What is trained on what.
    title: String,
    programs: Programs,
    source: Arc<dyn Source>,
    batch: usize,
    steps: u64,
    loss: String,
    /// A number between 0 and 1 that is shown beside the loss: what it is called, its variable.
    score: Option<(&'static str, String)>,
    /// What the saved model computes.
    targets: Vec<String>,
    /// Measures the trained model on samples that it has not seen.
    test: Test,
}

type Test = Box<dyn FnOnce(&mut Session) -> Result<Fact>>;

/// A line of the summary: a short name, and what is to be said.
type Fact = (&'static str, String);

/// Samples from here on are for tests; training never gets so far.
const FIRST_TESTED: u64 = 1 << 40;

pub fn run(args: &DemoArgs, out: &mut Output) -> Result<(), Stop> {
    let (demo, name) = match args.model {
        Which::WideDeep => (wide_deep::demo(args.samples)?, "wide_deep"),
        Which::Lenet => (lenet::demo(args.samples)?, "lenet"),
        Which::Word2vec => (word2vec::demo(args.samples)?, "word2vec"),
        Which::Bert => (bert::demo(args.samples)?, "bert"),
        Which::Resnet => (resnet::demo(args.samples)?, "resnet"),
    };
    let options = ExecOptions::threads(usize::from(args.threads));
    let mut session = Session::new(demo.programs.clone(), options)?;
    let count = parameter_count(&session);
    out.line(&demo.title)?;
    out.line(format!(
        "{name}: {} parameters, batches of {}, {} threads",
        text::count(count as f64),
        demo.batch,
        session.executor.threads()
    ))?;

    let begin = Instant::now();
    train(&demo, &mut session, out)?;
    let seconds = begin.elapsed().as_secs_f64();
    let samples = demo.steps as f64 * demo.batch as f64;
    let (what, found) = (demo.test)(&mut session)?;
    let folder = match &args.output {
        Some(folder) => folder.clone(),
        None => std::env::temp_dir().join(format!("fleet-demo-{}", std::process::id())).join(name),
    };
    let targets: Vec<&str> = demo.targets.iter().map(String::as_str).collect();
    fleet::save_inference_model(&folder, &session.programs.main, &targets, &session.scope)?;

    let rate = text::count(samples / seconds);
    let mut fact = |what: &str, found: &str| out.line(format!("{what:<10}{found}"));
    fact("trained", &format!("{} samples in {seconds:.1} s", text::count(samples)))?;
    fact("speed", &format!("{rate} samples/s, data made on the way"))?;
    fact(what, &found)?;
    fact("saved", &format!("{} (fleet stats shows what is in it)", folder.display()))
}

fn parameter_count(session: &Session) -> i64 {
    let shapes = session.programs.main.parameters().map(|(_, var)| var.shape);
    shapes.map(|shape| shape.dims().iter().product::<i64>()).sum()
}

fn train(demo: &Demo, session: &mut Session, out: &mut Output) -> Result<(), Stop> {
    let mut fetch = vec![demo.loss.as_str()];
    fetch.extend(demo.score.iter().map(|(_, var)| var.as_str()));
    let mut progress = Progress::new(demo.steps, demo.batch, demo.score.as_ref().map(|s| s.0));
    let mut fetched = Vec::new();
    producer::run(&*demo.source, demo.batch, demo.steps, |step, batch| {
        let feed: Vec<(&str, &Tensor)> = batch.iter().map(|(name, it)| (*name, it)).collect();
        let Session { programs, scope, executor, .. } = session;
        executor.run_into(&programs.main, scope, &feed, &fetch, &mut fetched)?;
        let score = fetched.get(1).map(number).transpose()?;
        progress.step(step, number(&fetched[0])?, score, out)
    })
}

fn number(tensor: &Tensor) -> Result<f64> {
    match tensor.dtype() {
        fleet::DType::F64 => tensor.item::<f64>(),
        _ => tensor.item::<f32>().map(f64::from),
    }
}

/// The share of `count` unseen samples for which `accuracy` says that they are right.
fn share_right(
    session: &mut Session,
    source: &dyn Source,
    accuracy: &str,
    count: usize,
) -> Result<f64> {
    const ROWS: usize = 250;
    let mut batch = source.blank(ROWS)?;
    let (mut right, mut batches) = (0.0, 0);
    for first in (0..count).step_by(ROWS) {
        source.fill(&mut batch, FIRST_TESTED + first as u64)?;
        let feed: Vec<(&str, &Tensor)> = batch.iter().map(|(name, it)| (*name, it)).collect();
        right += number(&session.evaluate(&feed, &[accuracy])?[0])?;
        batches += 1;
    }
    Ok(right / f64::from(batches))
}

/// Drawn digits in the middle of larger images of one or more equal channels.
struct DigitImages {
    digits: Digits,
    channels: usize,
    side: usize,
}

impl Source for DigitImages {
    fn blank(&self, rows: usize) -> Result<Batch> {
        let shape = [rows, self.channels, self.side, self.side].map(|dim| dim as i64);
        let images = Tensor::zeros(fleet::DType::F32, shape)?;
        Ok(vec![("x", images), ("y", Tensor::zeros(fleet::DType::I64, [rows as i64, 1])?)])
    }

    fn fill(&self, batch: &mut Batch, first: u64) -> Result<()> {
        let [(_, images), (_, labels)] = batch.as_mut_slice() else { return Ok(()) };
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
