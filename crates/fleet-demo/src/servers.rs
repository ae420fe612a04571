//! Demos on parameter servers: `fleetrun --server_num=1 --worker_num=2 demo:wide_deep`. Embeddings
//! are sparse tables, and all other parameters are dense.
//!
//! Synchronous workers divide each batch. In other modes every worker trains full-size batches of
//! its own, and all workers together train as many samples as one process would. The training is
//! therefore similar for any number of workers.

use super::{Demo, DemoArgs, Network, Share, Size, UNSUPPORTED_ON_SERVERS};
use fleet::ps::{Durability, SaveFormat, SaveMode};
use fleet::servers::{Exchange, Worker, written_exchange};
use fleet::strategy::Written;
use fleet::trainer::Trained;
use fleet::{CheckpointPolicy, Error, Fleet};
use fleet_base::output::{ExitReason, Output};
use fleet_base::text;
use fleet_job::closing::ClosingReport;
use std::time::Instant;

/// Runs this process's part of the job: a server serves, a worker trains.
pub fn run(
    args: &DemoArgs,
    network: &Network,
    fleet: &Fleet,
    out: &mut Output,
) -> Result<(), ExitReason> {
    let name = network.name;
    if let Some((_, why)) = UNSUPPORTED_ON_SERVERS.iter().find(|(known, _)| *known == name) {
        return Err(Error::unsupported(format!(
            "demo:{name} is not supported on parameter servers: {why}"
        ))
        .help(format!("train data parallel: fleetrun --nproc_per_node 2 demo:{name}"))
        .into());
    }
    let (strategy, source) = args.strategy()?;
    let written = Written { strategy: &strategy, source: source.as_ref() };
    let plan = WorkerPlan::new(args, network, fleet, &written)?;
    let demo = (network.make)(&plan.size)?;
    let optimizer = demo.distributed(fleet, demo.optimizer.clone(), (&strategy, source.as_ref()));
    let job = optimizer.minimize_on_servers(&demo.net, demo.net.var(&demo.loss))?;
    if fleet.is_server() {
        let server = match &args.flags.durable {
            Some(folder) => fleet.init_durable_server(&job, Durability::in_folder(folder))?,
            None => fleet.init_server(&job)?,
        };
        let count = job.tables.tables.len();
        let (address, exchange) = (server.address(), plan.exchange.name());
        out.line(format!("serving {} at {address}, {exchange}", counted(count, "table")))?;
        out.flush()?;
        return Ok(server.run()?);
    }
    let first = fleet.is_first_worker();
    let mut worker = fleet.init_worker(demo.net.build()?, &job, args.threads.options())?;
    let dense: usize = job.plan.tables.dense.iter().map(|table| table.len).sum();
    out.line(&demo.title)?;
    let rows = job.plan.tables.sparse.iter().map(|table| table.width()).max();
    out.line(format!(
        "{name}: {}, {} on {}, batches of {} on each of {}",
        plan.exchange.name(),
        held(dense, rows),
        counted(fleet.server_num().max(1), "server"),
        plan.share.rows,
        counted(fleet.worker_num(), "worker"),
    ))?;
    let (closing, trained) = train(&demo, args, &plan, fleet, &mut worker)?;
    if first {
        summary(demo, args, &closing, &mut worker, out)?;
    }
    // Servers must stay until the first worker's test has used them.
    trained.wait(&worker, 2)?;
    Ok(worker.stop()?)
}

/// Describes the servers' tables: parameters of layers, rows of tables, or both.
fn held(dense: usize, rows: Option<usize>) -> String {
    let rows = rows.map(|width| format!("rows of {width}"));
    let dense = (dense > 0).then(|| format!("{} parameters", text::count(dense as f64)));
    dense.into_iter().chain(rows).collect::<Vec<_>>().join(" and ")
}

fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// Plan of this worker's part of the training.
struct WorkerPlan {
    exchange: Exchange,
    /// Size with which the demo is created.
    size: Size,
    /// Steps of this worker.
    steps: u64,
    share: Share,
    /// Samples per step of all workers.
    samples: usize,
}

impl WorkerPlan {
    fn new(
        args: &DemoArgs,
        network: &Network,
        fleet: &Fleet,
        written: &Written<'_>,
    ) -> Result<WorkerPlan, ExitReason> {
        // Errors in the strategy itself are reported first, and all at once.
        fleet::strategy::validate(*written)?;
        let exchange = written_exchange(written, false)?;
        let (workers, own) =
            (fleet.worker_num(), if fleet.is_worker() { fleet.worker_index() } else { 0 });
        // GEO sums the workers' changes, which requires sgd.
        let is_geo = exchange.is_geo();
        let samples = args.flags.samples;
        let whole = Size { samples, workers, is_geo };
        let (batch, samples) = (network.batch, network.samples);
        let (whole_batch, steps) = whole.of(batch, samples);
        if exchange.is_sync() {
            let rows = whole_batch / workers;
            let share = Share { rows, stride: whole_batch as u64, first: (own * rows) as u64 };
            return Ok(WorkerPlan { exchange, size: whole, steps, share, samples: whole_batch });
        }
        let (stride, first) = ((batch * workers) as u64, (own * batch) as u64);
        let all = args.flags.samples.unwrap_or(samples);
        let steps = all.div_ceil(stride);
        // A schedule follows the steps of all workers, or a worker's own steps in GEO.
        let scheduled = if exchange.is_geo() { steps } else { steps * workers as u64 };
        let samples = Some(scheduled * batch as u64);
        let size = Size { samples, workers: 1, ..whole };
        let share = Share { rows: batch, stride, first };
        Ok(WorkerPlan { exchange, size, steps, share, samples: batch * workers })
    }
}

fn train(
    demo: &Demo,
    args: &DemoArgs,
    plan: &WorkerPlan,
    fleet: &Fleet,
    worker: &mut Worker,
) -> Result<(ClosingReport, Trained), ExitReason> {
    let workers = fleet.worker_num();
    let seen = worker.workers()?;
    // Other workers may be a step ahead of a worker that has made none.
    let is_first_process = seen.get(fleet.worker_index()).is_none_or(|own| own.steps == 0);
    let steps_at_begin =
        if is_first_process { 0 } else { seen.iter().map(|seen| seen.steps).sum() };
    let begin = Instant::now();
    // Rows are not prefetched. The most frequent rows occur in every batch, so a prefetched row
    // would lack the last step's update. On a machine where reads take no time this staleness gains
    // nothing.
    let mut trainer = demo.trainer(fleet, plan.steps).look_ahead(false);
    if let Some(folder) = &args.flags.checkpoint {
        let every_steps = Some(args.flags.checkpoint_every.unwrap_or(plan.steps.div_ceil(20)));
        let policy = CheckpointPolicy { every_steps, every: None, keep_last: CHECKPOINTS_KEPT };
        let samples = format!("{} of all workers", plan.samples);
        trainer = trainer.checkpoints(folder, policy).constant("number of samples a step", samples);
    }
    let trained = trainer.run(&mut *worker, demo.batches(plan.share))?;
    trained.wait(worker, 1)?;
    let seconds = begin.elapsed().as_secs_f64();
    // Pull again, to include gradients that the other workers have sent since.
    worker.flush()?;
    let samples = |steps: u64| plan.samples as f64 / workers as f64 * steps as f64;
    let before = samples(trained.steps_before);
    let planned = (samples(plan.steps * workers as u64) - before).max(0.0);
    let (rows, seen, stats) = (plan.share.rows as f64, worker.workers()?, worker.stats());
    Ok((ClosingReport { rows, planned, before, steps_at_begin, seconds, seen, stats }, trained))
}

/// Number of checkpoints to keep: the newest, and one before it that is used if it is damaged.
const CHECKPOINTS_KEPT: usize = 2;

fn summary(
    demo: Demo,
    args: &DemoArgs,
    closing: &ClosingReport,
    worker: &mut Worker,
    out: &mut Output,
) -> Result<(), ExitReason> {
    let (what, found) = (demo.test)(&mut worker.session)?;
    if let Some(folder) = &args.output {
        let targets: Vec<&str> = demo.targets.iter().map(String::as_str).collect();
        worker.save_inference_model(folder, &targets, SaveMode::All, SaveFormat::Binary)?;
    }
    let mut fact = |what: &str, found: &str| out.line(format!("{what:<10}{found}"));
    for (what, found) in closing.facts() {
        fact(what, &found)?;
    }
    fact(what, &found)?;
    fact("pushes", &closing.pushes())?;
    args.output.as_ref().map_or(Ok(()), |folder| {
        fact("saved", &format!("{} (model/ and tables)", folder.display()))
    })
}
