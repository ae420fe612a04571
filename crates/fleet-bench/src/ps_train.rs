//! Wide & deep with one parameter server and one or two workers of one thread each, asynchronous.
//! The network and the batches are those of `wide_deep.rs`, with Adam on everything and batches of
//! 2048 for each worker.
//!
//! The started process is the launcher. It starts itself again as server and workers, and adds up
//! the speeds of the workers, each over its own timed steps.

use crate::cpu;
use crate::measure::Options;
use crate::wide_deep::{BATCH, batches};
use fleet::nn::models::{WideDeepConfig, wide_deep};
use fleet::prelude::*;
use fleet::servers::Worker;
use fleet::{DatasetRun, DistributedStrategy, Fleet};
use fleet_net::Token;
use fleet_ps::Durability;
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

/// Variable that marks a started process as part of a job.
const PART_OF: &str = "FLEET_BENCH_PART_OF";
/// Variable that tells a server where to keep a log.
const LOG_IN: &str = "FLEET_BENCH_LOG_IN";
/// Timed runs, of which the median counts.
const RUNS: usize = 3;
/// Timed steps of a run, and the warmup steps before them.
const STEPS: usize = 100;
const WARMUP: usize = 20;
/// Steps after them whose mean loss is shown. `bench/peers/paddle/ps_wide_deep.py` trains as many
/// steps before, and measures as many.
const SCORED: usize = 60;

/// The work of a job's processes.
struct Task {
    workers: usize,
    is_async: bool,
    /// The work of a worker.
    work: fn(&Options, &mut Worker, &str, u64) -> Result<Outcome>,
}

/// The measures of a worker, or of all workers of a job.
#[derive(Default)]
struct Outcome {
    /// The sum of all workers' values.
    value: f64,
    /// The mean loss after the timed steps, if the work has one.
    loss: Option<f64>,
}

/// Measures the samples per second of all workers, and the loss that they reach.
pub fn run(options: &Options, workers: usize, is_async: bool) -> Result<()> {
    let task = Task { workers, is_async, work: steps };
    launch(options, &task, "samples/s", |_| job(options, workers, &[]))
}

/// Measures the speed from text files in percent of that from memory. Two workers do both
/// alternately, each at the same time as the other.
pub fn text_vs_memory(options: &Options) -> Result<()> {
    let task = Task { workers: 2, is_async: true, work: text };
    launch(options, &task, "%", |workers| {
        let all = job(options, workers, &[])?;
        Ok(Outcome { value: all.value / workers as f64, loss: None })
    })
}

/// Runs jobs of two workers whose server keeps a log, and jobs without one, alternately. The result
/// is the share of the speed that remains.
pub fn durability(options: &Options) -> Result<()> {
    let task = Task { workers: 2, is_async: true, work: steps };
    launch(options, &task, "of the speed without", |workers| {
        let folder = std::env::temp_dir().join(format!("fleet-bench-log-{}", std::process::id()));
        let path = folder.to_string_lossy();
        let without = job(options, workers, &[])?;
        let with = job(options, workers, &[(LOG_IN, &*path)]);
        // The log of a job that failed is useless.
        let _ = std::fs::remove_dir_all(&folder);
        Ok(Outcome { value: with?.value / without.value, loss: None })
    })
}

/// Measures several times, or runs as a part of a job that was started for that.
fn launch(
    options: &Options,
    task: &Task,
    unit: &str,
    measured: impl Fn(usize) -> Result<Outcome>,
) -> Result<()> {
    if std::env::var(PART_OF).is_ok() {
        return part(options, task);
    }
    let runs = (0..RUNS).map(|_| measured(task.workers)).collect::<Result<Vec<Outcome>>>()?;
    let losses: Option<Vec<f64>> = runs.iter().map(|run| run.loss).collect();
    let rates = runs.iter().map(|run| run.value).collect();
    crate::measure::print_rates_of_others(options, unit, rates, losses);
    Ok(())
}

/// Runs a job; returns the sum of the values and the mean of the losses that its workers print.
fn job(options: &Options, workers: usize, settings: &[(&str, &str)]) -> Result<Outcome> {
    let failed = |what: &dyn std::fmt::Display| {
        Error::unavailable(format!("a process of the job failed: {what}"))
    };
    // Bound and closed again, so that the server can bind it.
    let socket = TcpListener::bind("127.0.0.1:0").map_err(|error| failed(&error))?;
    let server = socket.local_addr().map_err(|error| failed(&error))?;
    drop(socket);
    let token = Token::generate()?;
    let start = |role: &str, port: u16, rank: usize| -> std::io::Result<Child> {
        Command::new(std::env::current_exe()?)
            .args(std::env::args().skip(1))
            .env(PART_OF, "1")
            .envs(settings.iter().copied())
            .env("FLEET_TOKEN", token.to_text())
            .env("TRAINING_ROLE", role)
            .env("PADDLE_PSERVERS_IP_PORT_LIST", server.to_string())
            .env("PADDLE_TRAINERS_NUM", workers.to_string())
            .env("PADDLE_TRAINER_ID", rank.to_string())
            .env("POD_IP", "127.0.0.1")
            .env("PADDLE_PORT", port.to_string())
            .stdout(Stdio::piped())
            .stderr(if options.profile { Stdio::inherit() } else { Stdio::null() })
            .spawn()
    };
    let mut children = vec![start("PSERVER", server.port(), 0).map_err(|error| failed(&error))?];
    for rank in 0..workers {
        children.push(start("TRAINER", 1, rank).map_err(|error| failed(&error))?);
    }
    let mut all = Outcome::default();
    for child in children {
        let output = child.wait_with_output().map_err(|error| failed(&error))?;
        if !output.status.success() {
            return Err(failed(&output.status).help("run with --profile to see its output"));
        }
        let text = String::from_utf8_lossy(&output.stdout);
        let mut numbers = text.split_whitespace().filter_map(|number| number.parse::<f64>().ok());
        all.value += numbers.next().unwrap_or(0.0);
        if let Some(loss) = numbers.next() {
            *all.loss.get_or_insert(0.0) += loss / workers as f64;
        }
    }
    Ok(all)
}

/// Runs a server, or a worker that prints the result of its work.
fn part(options: &Options, task: &Task) -> Result<()> {
    let fleet = Fleet::parameter_server()?;
    let net = Net::new();
    let model = wide_deep(&net, &WideDeepConfig { auc: false, ..WideDeepConfig::criteo() });
    let strategy = DistributedStrategy::new().with_a_sync(task.is_async);
    let optimizer = fleet.distributed_optimizer(Adam::new(1e-3), &strategy);
    let loss = model.loss.name();
    let job = optimizer.minimize_on_servers(&net, model.loss)?;
    if fleet.is_server() {
        match std::env::var(LOG_IN) {
            Ok(folder) => fleet.init_durable_server(&job, Durability::in_folder(folder))?.run()?,
            Err(_) => fleet.init_server(&job)?.run()?,
        }
        if options.profile {
            let (steps, warmup) = options.counts(STEPS, WARMUP);
            let samples = (task.workers * (steps + warmup) * BATCH) as f64;
            eprintln!("server: CPU microseconds per sample {:.2}", cpu::total() * 1e6 / samples);
        }
        return Ok(());
    }
    let exec = ExecOptions { num_threads: 1, ..options.exec() };
    let mut worker = fleet.init_worker(net.build()?, &job, exec)?;
    let outcome = (task.work)(options, &mut worker, &loss, fleet.worker_index() as u64)?;
    let loss = outcome.loss.map_or_else(String::new, |loss| loss.to_string());
    println!("{} {loss}", outcome.value);
    if options.profile {
        eprintln!("{:?}", worker.stats());
        let executor = &worker.session.executor;
        for (op, count, seconds) in executor.profile().iter().take(12) {
            eprintln!("{op:<28} {count:>5} ops {:>9.3} ms in total", seconds * 1e3);
        }
    }
    worker.stop()
}

fn steps(options: &Options, worker: &mut Worker, loss: &str, _: u64) -> Result<Outcome> {
    let batches = batches()?;
    let feeds: Vec<Vec<(&str, &Tensor)>> = batches
        .iter()
        .map(|batch| batch.iter().map(|(name, tensor)| (*name, tensor)).collect())
        .collect();
    let (steps, warmup) = options.counts(STEPS, WARMUP);
    let step = |at: usize, worker: &mut Worker, fetched: &[&str]| {
        worker.look_ahead(&feeds[(at + 1) % feeds.len()])?;
        worker.run(&feeds[at % feeds.len()], fetched)
    };
    (0..warmup).try_for_each(|at| step(at, worker, &[]).map(drop))?;
    worker.barrier()?;
    let (begin, computed) = (Instant::now(), cpu::by_thread());
    (warmup..warmup + steps).try_for_each(|at| step(at, worker, &[]).map(drop))?;
    // Gradients that are not applied do not count as trained.
    worker.flush()?;
    let seconds = begin.elapsed().as_secs_f64();
    if options.profile {
        cpu::print_since("worker", &computed, steps * BATCH);
    }
    let mut sum = 0.0;
    for at in warmup + steps..warmup + steps + SCORED {
        sum += f64::from(step(at, worker, &[loss])?[0].to_vec::<f32>()?[0]);
    }
    let value = (steps * BATCH) as f64 / seconds;
    Ok(Outcome { value, loss: Some(sum / SCORED as f64) })
}

fn text(options: &Options, worker: &mut Worker, _: &str, rank: u64) -> Result<Outcome> {
    let (passes, warmup) = options.counts(5, 1);
    let mut shares = crate::data::text_vs_memory(rank, passes, warmup, |dataset| {
        worker.barrier()?;
        let begin = Instant::now();
        worker.train_from_dataset(dataset, DatasetRun::new())?;
        worker.flush()?;
        Ok(begin.elapsed().as_secs_f64())
    })?;
    shares.sort_by(f64::total_cmp);
    Ok(Outcome { value: shares[shares.len() / 2], loss: None })
}
