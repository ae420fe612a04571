//! A parameter server and a worker over loopback, in one process: rows of 16, batches of 53,248 ids
//! (2,048 samples of 26 slots) drawn uniformly. The worker makes requests from `--threads` threads
//! (2 by default): one batch is merged and split while the server works on another. All rows pass
//! through two sockets, so that a core for the worker and one for the server share the work.

use crate::measure::{Options, peak_rss_mb};
use fleet::Result;
use fleet::rng::Sequence;
use fleet_net::calls::CallOptions;
use fleet_net::{Log, Token};
use fleet_ps::{
    Durability, Initializer, JobTables, PullMode, Push, RemoteOptions, RemoteServers, Rule,
    ServerTables, SparseConfig, TableAccess, TableConfig, TableServer, rule,
};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Resident rows for pulls and pushes: more than caches hold.
const ROWS: u64 = 10_000_000;
/// Resident rows for the cost of a log.
const ROWS_LOGGED: u64 = 1_000_000;
const DIM: usize = 16;
const BATCH: usize = 2048 * 26;
const BATCHES: usize = 16;
/// Ids are spread over all 64 bits.
const ID_STEP: u64 = 0x9E37_79B9_7F4A_7C15;
/// Batches per timed step, over all threads.
const STEP_BATCHES: usize = 8;

struct Pair {
    server: TableServer,
    worker: RemoteServers,
}

fn job() -> JobTables {
    let sparse = SparseConfig {
        rule: Rule::Adagrad(rule::Adagrad::default()),
        initializer: Initializer::Uniform { low: -0.01, high: 0.01 },
        ..SparseConfig::plain(0, DIM)
    };
    JobTables {
        server_count: 1,
        worker_count: 1,
        sync: false,
        tables: vec![TableConfig::Sparse(sparse)],
    }
}

impl Pair {
    /// Starts a server with this number of rows, and a worker.
    fn start(tables: Arc<ServerTables>, rows: u64) -> Result<Pair> {
        let (token, options) = (Token::generate()?, CallOptions::default());
        let server = TableServer::bind("127.0.0.1:0", tables, &token, options, Log::stderr())?;
        let addresses = [server.address()];
        let worker =
            RemoteServers::connect(&job(), 0, &addresses, &token, RemoteOptions::default())?;
        let pair = Pair { server, worker };
        let mut out = vec![0.0; BATCH * DIM];
        for first in (0..rows).step_by(BATCH) {
            let end = (first + BATCH as u64).min(rows);
            let ids: Vec<u64> = (first..end).map(|id| id.wrapping_mul(ID_STEP)).collect();
            pair.worker.pull_sparse(
                0,
                (&ids).into(),
                &mut out[..ids.len() * DIM],
                PullMode::Train,
            )?;
        }
        Ok(pair)
    }

    /// Runs one step; returns its rows per second.
    fn step(&self, batches: &[Vec<u64>], threads: usize, run: &Run) -> Result<f64> {
        let threads = threads.max(1);
        let work = |thread: usize| {
            let mut numbers = vec![1e-3; BATCH * DIM];
            let own = batches.iter().cycle().skip(thread).step_by(threads);
            own.take(STEP_BATCHES / threads)
                .try_for_each(|ids| run(&self.worker, ids, &mut numbers))
        };
        let (begin, work) = (Instant::now(), &work);
        std::thread::scope(|scope| {
            let running: Vec<_> =
                (0..threads).map(|thread| scope.spawn(move || work(thread))).collect();
            // A thread that panics has printed why.
            running.into_iter().try_for_each(|thread| {
                thread.join().unwrap_or_else(|_| Err(fleet::Error::internal("a thread panicked")))
            })
        })?;
        let done = STEP_BATCHES / threads * threads * BATCH;
        Ok(done as f64 / begin.elapsed().as_secs_f64())
    }
}

type Run = dyn Fn(&RemoteServers, &[u64], &mut [f32]) -> Result<()> + Sync;

pub fn pull(options: &Options) -> Result<()> {
    measure(options, &|worker, ids, rows| worker.pull_sparse(0, ids.into(), rows, PullMode::Train))
}

pub fn push(options: &Options) -> Result<()> {
    measure(options, &push_batch)
}

fn push_batch(worker: &RemoteServers, ids: &[u64], grads: &mut [f32]) -> Result<()> {
    worker.push_sparse(0, None, Push::new(ids, grads))
}

/// Makes the requests of a training step, without its computation: pulls the batch, and pushes it.
fn pull_and_push(worker: &RemoteServers, ids: &[u64], numbers: &mut [f32]) -> Result<()> {
    worker.pull_sparse(0, ids.into(), numbers, PullMode::Train)?;
    numbers.fill(1e-3);
    push_batch(worker, ids, numbers)
}

/// Pulls from and pushes to a server with a log and one without, alternately. The result is the
/// share of the speed that remains, also while a snapshot is written.
pub fn durability(options: &Options) -> Result<()> {
    let folder = std::env::temp_dir().join(format!("fleet-bench-ps-{}", std::process::id()));
    let outcome = durability_in(options, &folder);
    // Files of a run that failed are useless.
    let _ = std::fs::remove_dir_all(&folder);
    outcome
}

fn durability_in(options: &Options, folder: &std::path::Path) -> Result<()> {
    let plain = Pair::start(ServerTables::all(&job())?.remove(0), ROWS_LOGGED)?;
    let kept = Durability::in_folder(folder);
    let kept = Pair::start(ServerTables::durable(&job(), 0, kept)?, ROWS_LOGGED)?;
    let (batches, (steps, warmup)) = (batches(ROWS_LOGGED), options.counts(30, 3));
    let (mut without, mut with) = (Vec::new(), Vec::new());
    for step in 0..warmup + steps {
        let rates = [
            plain.step(&batches, options.threads, &pull_and_push)?,
            kept.step(&batches, options.threads, &pull_and_push)?,
        ];
        if step >= warmup {
            without.push(rates[0]);
            with.push(rates[1]);
        }
    }
    let tables = kept.server.tables().clone();
    let begin = Instant::now();
    let snapshot = std::thread::spawn(move || tables.snapshot_now());
    let mut during = Vec::new();
    while !snapshot.is_finished() {
        during.push(kept.step(&batches, options.threads, &pull_and_push)?);
    }
    snapshot.join().unwrap_or_else(|_| Err(fleet::Error::internal("a snapshot panicked")))?;
    let span = begin.elapsed();
    let (without, with) = (median(&mut without), median(&mut with));
    let ratio = with / without;
    println!(
        "{{\"bench\": \"{}\", \"unit\": \"of the speed without\", \"median\": {ratio:.4}, \
         \"min\": {ratio:.4}, \"max\": {ratio:.4}, \"runs\": {steps}, \"threads\": {}, \
         \"peak_rss_mb\": {:.0}, \"rows_per_s\": {with:.0}, \"rows_per_s_without\": {without:.0}, \
         \"rows_per_s_in_a_snapshot\": {:.0}, \"snapshot_s\": {:.2}}}",
        options.name,
        options.threads,
        peak_rss_mb(),
        median(&mut during),
        Duration::as_secs_f64(&span)
    );
    Ok(())
}

fn batches(rows: u64) -> Vec<Vec<u64>> {
    let mut rng = Sequence::new(1, 1);
    (0..BATCHES)
        .map(|_| (0..BATCH).map(|_| rng.below(rows).wrapping_mul(ID_STEP)).collect())
        .collect()
}

fn measure(options: &Options, run: &Run) -> Result<()> {
    let pair = Pair::start(ServerTables::all(&job())?.remove(0), ROWS)?;
    let (batches, (steps, warmup)) = (batches(ROWS), options.counts(40, 5));
    let mut rates = Vec::with_capacity(steps);
    for step in 0..warmup + steps {
        let rate = pair.step(&batches, options.threads, run)?;
        if step >= warmup {
            rates.push(rate);
        }
    }
    let median = median(&mut rates);
    println!(
        "{{\"bench\": \"{}\", \"unit\": \"rows/s\", \"median\": {median:.0}, \"min\": {:.0}, \
         \"max\": {:.0}, \"runs\": {steps}, \"threads\": {}, \"peak_rss_mb\": {:.0}}}",
        options.name,
        rates[0],
        rates[steps - 1],
        options.threads,
        peak_rss_mb()
    );
    Ok(())
}

/// Returns the median, and sorts the rates.
fn median(rates: &mut [f64]) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates.get(rates.len() / 2).copied().unwrap_or(0.0)
}
