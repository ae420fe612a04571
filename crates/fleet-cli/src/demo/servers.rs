//! Demos on parameter servers: `fleetrun --server_num=1 --worker_num=2 demo:wide_deep`. Embeddings
//! are sparse tables, and all other parameters are dense.
//!
//! Synchronous workers divide each batch. In other modes every worker trains full-size batches of
//! its own, and all workers together train as many samples as one process would. The training is
//! therefore similar for any number of workers.

use super::producer::Share;
use super::progress::Progress;
use super::server_closing::Closing;
use super::server_saves::Saves;
use super::{Batch, Demo, DemoArgs, NOT_ON_SERVERS, Size, number, producer, writable};
use crate::output::{Output, Stop};
use fleet::ps::{Durability, SaveFormat, SaveMode};
use fleet::servers::{Exchange, Worker};
use fleet::{Asked, Error, ExecOptions, Fleet, Tensor};
use fleet_base::text;
use fleet_topology::{Env, names};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Runs this process's part of the job: a server serves, a worker trains.
pub fn run(args: &DemoArgs, fleet: &Fleet, out: &mut Output) -> Result<(), Stop> {
    let name = args.model.name();
    if args.trace.is_some() {
        return Err(Error::unsupported("--trace shows what ranks of a collective job hide")
            .got("a job with parameter servers")
            .help(format!("fleetrun --nproc_per_node 2 demo:{name} --trace FOLDER"))
            .into());
    }
    if let Some((_, why)) = NOT_ON_SERVERS.iter().find(|(known, _)| *known == name) {
        return Err(Error::unsupported(format!("demo:{name} does not train on servers: {why}"))
            .help(format!("data parallel it does: fleetrun --nproc_per_node 2 demo:{name}"))
            .into());
    }
    let (strategy, source) = args.strategy()?;
    let asked = Asked { strategy: &strategy, source: source.as_ref() };
    let plan = Work::plan(args, fleet, &asked)?;
    let demo = args.model.make(&plan.size)?;
    let optimizer = demo.distributed(fleet, demo.optimizer.clone(), (&strategy, source.as_ref()));
    let job = optimizer.minimize_on_servers(&demo.net, demo.net.var(&demo.loss))?;
    if fleet.is_server() {
        let server = match &args.durable {
            Some(folder) => fleet.init_durable_server(&job, Durability::in_folder(folder))?,
            None => fleet.init_server(&job)?,
        };
        let count = job.tables.tables.len();
        let (address, exchange) = (server.address(), plan.exchange.name());
        out.line(format!("serves {} at {address}, {exchange}", counted(count, "table")))?;
        out.flush()?;
        return Ok(server.run()?);
    }
    let first = fleet.is_first_worker();
    writable(args.output.as_deref().filter(|_| first))?;
    let options = ExecOptions::threads(usize::from(args.threads));
    let mut worker = fleet.init_worker(demo.net.build()?, &job, options)?;
    let dense: usize = job.plan.tables.dense.iter().map(|table| table.len).sum();
    out.line(&demo.title)?;
    let rows = job.plan.tables.sparse.iter().map(|table| table.width).max();
    out.line(format!(
        "{name}: {}, {} on {}, batches of {} for each of {}",
        plan.exchange.name(),
        held(dense, rows),
        counted(fleet.server_num().max(1), "server"),
        plan.share.rows,
        counted(fleet.worker_num(), "worker"),
    ))?;
    let every = args.checkpoint_every.unwrap_or(plan.steps.div_ceil(20));
    let mut saves = Saves::new(args.checkpoint.clone(), every, first, plan.samples);
    match saves.have_begun(&worker)? {
        true => saves.join(&mut worker, out)?,
        false => saves.resume(&mut worker, plan.steps, out)?,
    }
    let closing = train(&demo, &plan, (fleet, &saves), &mut worker, out)?;
    if first {
        summary(demo, args, &closing, &mut worker, out)?;
    }
    // Servers must stay until the first worker's test has used them.
    saves.meet_at_end(&worker, plan.steps, 2)?;
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
struct Work {
    exchange: Exchange,
    /// Size with which the demo is created.
    size: Size,
    /// Steps of this worker.
    steps: u64,
    share: Share,
    /// Samples per step of all workers.
    samples: usize,
}

impl Work {
    fn plan(args: &DemoArgs, fleet: &Fleet, asked: &Asked<'_>) -> Result<Work, Stop> {
        // Errors in the strategy itself are reported first, and all at once.
        asked.check()?;
        let exchange = Exchange::asked(asked, false)?;
        let (workers, own) =
            (fleet.worker_num(), if fleet.is_worker() { fleet.worker_index() } else { 0 });
        // GEO sums the workers' changes, which requires sgd.
        let is_geo = exchange.is_geo();
        let samples = args.samples;
        let whole = Size { samples, workers, merges: false, apart: 1, is_geo };
        let (batch, samples) = args.model.usual();
        let (whole_batch, steps) = whole.of(batch, samples);
        if exchange == Exchange::Sync {
            let rows = whole_batch / workers;
            let share = Share { rows, stride: whole_batch as u64, first: (own * rows) as u64 };
            return Ok(Work { exchange, size: whole, steps, share, samples: whole_batch });
        }
        let (stride, first) = ((batch * workers) as u64, (own * batch) as u64);
        let all = args.samples.unwrap_or(samples);
        let steps = all.div_ceil(stride);
        // A schedule follows the steps of all workers, or a worker's own steps in GEO.
        let scheduled = if exchange.is_geo() { steps } else { steps * workers as u64 };
        let samples = Some(scheduled * batch as u64);
        let size = Size { samples, workers: 1, apart: workers, ..whole };
        let share = Share { rows: batch, stride, first };
        Ok(Work { exchange, size, steps, share, samples: batch * workers })
    }
}

fn train(
    demo: &Demo,
    work: &Work,
    (fleet, saves): (&Fleet, &Saves),
    worker: &mut Worker,
    out: &mut Output,
) -> Result<Closing, Stop> {
    let mut fetch = vec![demo.loss.as_str()];
    fetch.extend(demo.score.iter().map(|(_, var)| var.as_str()));
    let score = demo.score.as_ref().map(|(name, _)| *name);
    let live = Env::process().text(names::FLEET_PROGRESS).map(PathBuf::from);
    let workers = fleet.worker_num();
    let done = saves.done.min(work.steps);
    let mut progress = Progress::new(done, work.steps, work.samples, score, workers, live);
    // This worker's own values: asynchronous workers have no common step for a mean.
    let mean = |values: &[f64]| Ok(values.to_vec());
    let seen = worker.workers()?;
    // Other workers may be a step ahead of a worker that has made none.
    let is_first_process = seen.get(fleet.worker_index()).is_none_or(|own| own.steps == 0);
    let steps_at_begin =
        if is_first_process { 0 } else { seen.iter().map(|seen| seen.steps).sum() };
    let begin = Instant::now();
    let mut looked = begin;
    let mut step = |number_of: u64, batch: &Batch, worker: &mut Worker, out: &mut Output| {
        let found = worker.run(&fed(batch), &fetch)?;
        let score = found.get(1).map(number).transpose()?;
        if workers > 1 && looked.elapsed() >= LOOK_PERIOD {
            looked = Instant::now();
            let lost = worker.workers()?.iter().filter(|seen| seen.is_lost()).count();
            progress.set_batch(work.samples - lost * work.share.rows);
        }
        progress.step(number_of, number(&found[0])?, score, mean, out)?;
        Ok(saves.after_step(number_of, worker)?)
    };
    // Rows are not prefetched. The most frequent rows occur in every batch, so a prefetched row
    // would lack the last step's update. On a machine where reads take no time this staleness gains
    // nothing.
    producer::run(&*demo.source, &work.share, done..work.steps, |number_of, batch| {
        step(number_of, batch, worker, out)
    })?;
    worker.flush()?;
    saves.meet_at_end(worker, work.steps, 1)?;
    let seconds = begin.elapsed().as_secs_f64();
    // Pull again, to include gradients that the other workers have sent since.
    worker.flush()?;
    let samples = |steps: u64| work.samples as f64 / workers as f64 * steps as f64;
    let before = samples(saves.before_of_all);
    let planned = (samples(work.steps * workers as u64) - before).max(0.0);
    let (rows, seen) = (work.share.rows, worker.workers()?);
    Ok(Closing { rows, planned, before, steps_at_begin, seconds, seen })
}

/// Interval between checks for lost workers.
const LOOK_PERIOD: Duration = Duration::from_secs(2);

fn fed(batch: &Batch) -> Vec<(&str, &Tensor)> {
    batch.iter().map(|(name, tensor)| (*name, tensor)).collect()
}

fn summary(
    demo: Demo,
    args: &DemoArgs,
    closing: &Closing,
    worker: &mut Worker,
    out: &mut Output,
) -> Result<(), Stop> {
    let stats = worker.stats();
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
    let traffic = format!(
        "worker 0: {} gradients in {} pushes, {:.2} s waited; parameters lacked {:.1} of its own \
         gradients on average, {} at most",
        stats.gradient_count,
        stats.push_count,
        stats.blocked_seconds,
        stats.staleness_mean(),
        stats.staleness_max
    );
    fact("traffic", &traffic)?;
    args.output.as_ref().map_or(Ok(()), |folder| {
        fact("saved", &format!("{}: the model in model, tables beside it", folder.display()))
    })
}
