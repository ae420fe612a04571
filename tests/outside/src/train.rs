//! The jobs: make data, train, predict.

use crate::network::network;
use crate::points::Points;
use crate::sign_momentum::sign_momentum;
use crate::within::Within;
use fleet::metrics::Accumulator;
use fleet::prelude::*;
use fleet::ps::{SaveFormat, SaveMode};
use fleet::rng::Sequence;
use fleet::topology::Mode;
use fleet::trainer::{Evaluation, Every, Feeds, Goal, Model, Pass, Position, Source, StopFlag};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

pub const MAKE: &str = "Write points to FOLDER, for training and for tests";

pub const TRAIN: &str = "Train on the points of FOLDER and save to OUTPUT: FOLDER OUTPUT [EPOCHS]. \
                         Alone, as ranks, or with servers";

pub const PREDICT: &str = "Predict with a saved model: MODEL X1 X2";

/// Files of each kind that [`make`] writes, and points in a file.
const FILES: u64 = 4;
const POINTS: usize = 1000;

/// Batch size of all workers together.
const BATCH: usize = 40;

/// Writes `train-N.points` and `test-N.points`.
pub fn make(_fleet: &Fleet, args: &[String]) -> Result<ExitCode> {
    let [folder] = args else { return Err(usage(MAKE, args)) };
    let folder = Path::new(folder);
    std::fs::create_dir_all(folder).map_err(|error| Error::io("create", folder, &error))?;
    for (kind, first) in [("train", 0), ("test", FILES)] {
        for file in 0..FILES {
            let mut random = Sequence::new(7, first + file);
            let mut number = || random.below(4001) as f32 / 1000.0 - 2.0;
            let mut text = String::new();
            for _ in 0..POINTS {
                let (a, b) = (number(), number());
                let y = a.sin() + 0.5 * b * b;
                // Writing to a string cannot fail.
                let _ = writeln!(text, "{a} {b} : {y}");
            }
            let path = folder.join(format!("{kind}-{file}.points"));
            std::fs::write(&path, text).map_err(|error| Error::io("write", &path, &error))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Loads this worker's share of the files of a kind.
fn points(fleet: &Fleet, folder: &Path, kind: &str) -> Result<InMemoryDataset> {
    let files: Vec<PathBuf> =
        (0..FILES).map(|file| folder.join(format!("{kind}-{file}.points"))).collect();
    let options = DatasetOptions::new(TextFiles::lines(Points::new()?))?;
    let batch_size = (BATCH / fleet.worker_num()).max(1);
    let mut points = InMemoryDataset::new(DatasetOptions { batch_size, seed: 3, ..options })?;
    points.set_filelist(fleet.util().get_file_shard(&files)?.to_vec())?;
    points.load_into_memory()?;
    points.local_shuffle();
    Ok(points)
}

/// Trains as this process's part of the job: alone, as a rank, as a worker or as a server.
pub fn train(fleet: &Fleet, args: &[String]) -> Result<ExitCode> {
    let (folder, output, epochs) = match args {
        [folder, output] => (folder, output, 10),
        [folder, output, epochs] => (folder, output, epochs.parse::<u64>()?),
        _ => return Err(usage(TRAIN, args)),
    };
    let (folder, output) = (Path::new(folder), Path::new(output));
    match fleet.topology().mode() {
        Mode::ParameterServer => on_servers(fleet, folder, output, epochs),
        _ => on_ranks(fleet, folder, output, epochs),
    }
}

fn on_ranks(fleet: &Fleet, folder: &Path, output: &Path, epochs: u64) -> Result<ExitCode> {
    let net = Net::new();
    let model = network(&net);
    let (loss, prediction) = (model.loss.name(), model.prediction.name());
    let optimizer = sign_momentum(0.001, 0.9);
    let optimizer = fleet.distributed_optimizer(optimizer, &DistributedStrategy::new());
    let job = optimizer.minimize(&net, model.loss)?;
    let mut session = fleet.session(net.build()?, &job, ExecOptions::default())?;

    let test = points(fleet, folder, "test")?;
    let trained = Trainer::new(fleet)
        .epochs(epochs)
        .watch("loss", &loss)
        .validate(Evaluation::new().mean("test loss", &loss), &test, Every::Epoch)
        .goal(Goal::lowest("test loss"))
        .checkpoints(output.join("checkpoints"), CheckpointPolicy::default())
        .scalars(output)
        .stop_on(&StopFlag::on_terminate()?)
        .run(&mut session, &points(fleet, folder, "train")?)?;
    report(fleet, (&mut session).into(), &test, &prediction)?;

    if fleet.is_first_worker() {
        let (main, scope) = (&session.programs.main, &mut session.scope);
        fleet::save_inference_model(output.join("model"), main, &[&prediction], scope)?;
        // For other programs: numpy.load reads it, and a file made by Python loads the same way.
        fleet::save_params(output.join("params.npz"), main, scope)?;
        fleet::load_params(output.join("params.npz"), main, scope)?;
    }
    fleet.finish()?;
    Ok(trained.exit_code())
}

fn on_servers(fleet: &Fleet, folder: &Path, output: &Path, epochs: u64) -> Result<ExitCode> {
    let net = Net::new();
    let model = network(&net);
    let (loss, prediction) = (model.loss.name(), model.prediction.name());
    let strategy = DistributedStrategy::new().with_a_sync(false);
    // Servers run built-in optimizers only.
    let optimizer = fleet.distributed_optimizer(Adam::new(0.01), &strategy);
    let job = optimizer.minimize_on_servers(&net, model.loss)?;
    if fleet.is_server() {
        fleet.init_server(&job)?.run()?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut worker = fleet.init_worker(net.build()?, &job, ExecOptions::default())?;
    let trainer = Trainer::new(fleet).epochs(epochs).watch("loss", &loss);
    let trained = trainer
        .stop_on(&StopFlag::on_terminate()?)
        .run(&mut worker, &points(fleet, folder, "train")?)?;
    let test = points(fleet, folder, "test")?;
    report(fleet, (&mut worker).into(), &test, &prediction)?;
    if fleet.is_first_worker() {
        // The tables, and in `output/model` the model for inference.
        worker.save_inference_model(output, &[&prediction], SaveMode::All, SaveFormat::Binary)?;
    }
    worker.barrier()?;
    fleet.finish()?;
    worker.stop()?;
    Ok(trained.exit_code())
}

/// Prints the metric over the test points of all workers.
fn report(
    fleet: &Fleet,
    mut model: Model<'_>,
    mut test: &InMemoryDataset,
    prediction: &str,
) -> Result<()> {
    let mut within = Within::new(0.2);
    let mut feeds = Feeds::default();
    let mut pass = Source::pass(&mut test, 0, Position::default())?;
    while Pass::next(&mut *pass, &mut feeds)? {
        let out = model.session().evaluate(&feeds.list(), &[prediction, "y"])?;
        within.add(out[0].as_slice()?, out[1].as_slice()?);
    }
    within.all_reduce(&mut fleet.metrics())?;
    let percent = 100.0 * within.value();
    fleet.util().print_on_rank(format!("{percent:.1} % of the test points are within 0.2"), 0);
    Ok(())
}

/// Predicts one point with a saved model.
pub fn predict(_fleet: &Fleet, args: &[String]) -> Result<ExitCode> {
    let [model, x1, x2] = args else { return Err(usage(PREDICT, args)) };
    let number = |text: &String| text.parse::<f32>().map_err(|_| usage(PREDICT, args));
    let x = Tensor::from_slice(&[number(x1)?, number(x2)?], [1, 2])?;
    let mut model = fleet::load_inference_model(model)?;
    let target = model.targets[0].as_str();
    let mut executor = Executor::new(ExecOptions::threads(1));
    let out = executor.run(&model.program, &mut model.scope, &[("x", &x)], &[target])?;
    println!("{:.2}", out[0].item::<f32>()?);
    Ok(ExitCode::SUCCESS)
}

fn usage(expected: &str, args: &[String]) -> Error {
    Error::invalid("wrong arguments").expected(expected).got(args.join(" "))
}
