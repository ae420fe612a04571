//! Load of a large job on its parameter servers, computed from measurements of one machine and from
//! simulated batches whose ids follow a power law:
//! `cargo run --release --example servers_scale`. Options, with their defaults: `--servers 100`,
//! `--workers 1000`, `--rows 1e11`, `--rate 40000`, `--batch 2048`, `--dim 16`.

use fleet::prelude::*;
use fleet::rng::Sequence;
use std::collections::HashSet;

/// The job.
#[derive(Clone, Copy)]
pub struct Job {
    /// Number of servers.
    pub servers: u64,
    /// Number of workers.
    pub workers: f64,
    /// Number of rows of all tables.
    pub rows: f64,
    /// Samples per second of one worker.
    pub rate: f64,
    /// Samples per step of one worker.
    pub batch: usize,
    /// Numbers per row.
    pub dim: f64,
}

impl Default for Job {
    fn default() -> Job {
        Job { servers: 100, workers: 1000.0, rows: 1e11, rate: 40_000.0, batch: 2048, dim: 16.0 }
    }
}

// Measured on one core of a Xeon at 2.0 GHz (docs/performance.md), for rows of 16 with Adagrad.
const PULL_ROWS_PER_CORE: f64 = 9.2e6;
const PUSH_ROWS_PER_CORE: f64 = 5.8e6;
/// Bytes of the index per row.
const INDEX_BYTES: f64 = 12.8;
/// Seconds per request: two wake-ups per side.
const REQUEST_SECONDS: f64 = 15e-6;
/// Bytes per second that a core moves through a socket.
const SOCKET_BYTES_PER_CORE: f64 = 2.5e9;
/// Shards of a table on a server, each with a lock.
const SHARDS: u64 = 256;

// Click logs like those of `CtrConfig::criteo_like`.
const SLOTS: usize = 26;
const SMALLEST_SLOT: f64 = 4.0;
const EXPONENT: f64 = 1.1;
/// Number of sampled batches.
const BATCHES: u64 = 200;

/// Averages over the sampled batches.
pub struct SampledLoad {
    /// Distinct ids of a batch.
    pub ids: f64,
    /// Ids requested from the busiest server, relative to the mean server.
    pub busiest_server: f64,
    /// The same for the shards of all servers.
    pub busiest_shard: f64,
}

/// Returns sizes of slots in a geometric progression with the sum `rows`.
fn slot_sizes(rows: f64) -> Vec<f64> {
    let size = |ratio: f64, slot: usize| SMALLEST_SLOT * ratio.powi(slot as i32);
    let (mut low, mut high) = (1.0, 1e3);
    for _ in 0..200 {
        let ratio = (low + high) / 2.0;
        let sum: f64 = (0..SLOTS).map(|slot| size(ratio, slot)).sum();
        if sum < rows { low = ratio } else { high = ratio }
    }
    (0..SLOTS).map(|slot| size(low, slot).floor().max(1.0)).collect()
}

/// Draws batches and counts the ids requested from each server and shard.
pub fn draw(job: &Job) -> SampledLoad {
    let sizes = slot_sizes(job.rows);
    let power = 1.0 - EXPONENT;
    let edges: Vec<f64> = sizes.iter().map(|size| (size + 1.0).powf(power)).collect();
    let mut servers = vec![0u64; job.servers as usize];
    let mut shards = vec![0u64; (job.servers * SHARDS) as usize];
    let (mut rng, mut seen, mut all) = (Sequence::new(1, 1), HashSet::new(), 0u64);
    for _ in 0..BATCHES {
        seen.clear();
        for _ in 0..job.batch {
            for (slot, edge) in edges.iter().enumerate() {
                let unit = (rng.below(1 << 53) as f64 + 0.5) / (1u64 << 53) as f64;
                let rank = (1.0 + unit * (edge - 1.0)).powf(1.0 / power) - 1.0;
                // Ids are spread over all 64 bits, as hashes of features are.
                let id = (((slot as u64) << 48) + rank as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
                if seen.insert(id) {
                    let place = (id ^ (id >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9) >> 20;
                    servers[(place % job.servers) as usize] += 1;
                    shards[(place % (job.servers * SHARDS)) as usize] += 1;
                    all += 1;
                }
            }
        }
    }
    let busiest = |counts: &[u64]| {
        let most = counts.iter().copied().max().unwrap_or(0) as f64;
        most * counts.len() as f64 / all.max(1) as f64
    };
    SampledLoad {
        ids: all as f64 / BATCHES as f64,
        busiest_server: busiest(&servers),
        busiest_shard: busiest(&shards),
    }
}

/// Returns the report, one fact a line.
pub fn report(job: &Job) -> Vec<String> {
    let load = draw(job);
    let servers = job.servers as f64;
    let row_bytes = job.dim * 8.0 + INDEX_BYTES;
    let batches = job.rate / job.batch as f64 * job.workers;
    // A worker merges equal ids of a batch before it requests them.
    let rows = batches * load.ids / servers;
    let busy = rows * load.busiest_server;
    let (into, out) = (rows * (16.0 + job.dim * 4.0), rows * job.dim * 4.0);
    let requests = batches * 2.0;
    let cores = busy / PULL_ROWS_PER_CORE
        + busy / PUSH_ROWS_PER_CORE
        + (into + out) / SOCKET_BYTES_PER_CORE
        + requests * REQUEST_SECONDS;
    // The lock of a shard is held while its rows are read or written.
    let held = 1.0 / PULL_ROWS_PER_CORE + 1.0 / PUSH_ROWS_PER_CORE;
    let lock = rows / SHARDS as f64 * load.busiest_shard * held;
    let gigabits = |bytes: f64| bytes * 8.0 / 1e9;
    vec![
        format!(
            "{} servers, {} workers of {} samples/s, {:.3e} rows of {}",
            job.servers, job.workers, job.rate, job.rows, job.dim
        ),
        format!(
            "ids per batch of {}: {:.0} distinct of {}",
            job.batch,
            load.ids,
            job.batch * SLOTS
        ),
        format!(
            "memory: {row_bytes:.1} bytes per row, {:.1} TB, {:.0} GB per server",
            job.rows * row_bytes / 1e12,
            job.rows * row_bytes / servers / 1e9
        ),
        format!(
            "rows: {:.2} million/s pulled and pushed per server, the busiest {:.2} times the mean",
            rows / 1e6,
            load.busiest_server
        ),
        format!(
            "network per server: {:.2} Gbit/s in, {:.2} Gbit/s out",
            gigabits(into),
            gigabits(out)
        ),
        format!("requests: {requests:.0} per second and server, of {:.0} rows", load.ids / servers),
        format!("cores: {cores:.1} on the busiest server"),
        format!(
            "locks: the busiest of {SHARDS} shards per server has {:.2} times the mean, and is \
             held {:.2} % of the time",
            load.busiest_shard,
            lock * 100.0
        ),
        format!(
            "log of durable servers: {:.2} GB/s per server",
            rows * (8.0 + job.dim * 4.0) / 1e9
        ),
    ]
}

/// For the test of the examples.
pub fn train(_: u64) -> Result<()> {
    report(&Job::default()).iter().for_each(|line| println!("{line}"));
    Ok(())
}

fn main() -> Result<()> {
    let mut job = Job::default();
    let mut args = std::env::args().skip(1);
    while let Some(name) = args.next() {
        let value: Option<f64> = args.next().and_then(|text| text.parse().ok());
        let value = value.filter(|value| *value >= 1.0 && value.is_finite());
        let wrong = || Error::invalid(format!("invalid {name}")).expected("a number >= 1");
        let value = value.ok_or_else(wrong)?;
        match name.as_str() {
            "--servers" => job.servers = value as u64,
            "--workers" => job.workers = value,
            "--rows" => job.rows = value,
            "--rate" => job.rate = value,
            "--batch" => job.batch = value as usize,
            "--dim" => job.dim = value,
            _ => {
                return Err(Error::invalid(format!("unknown option {name}"))
                    .expected("--servers, --workers, --rows, --rate, --batch or --dim"));
            }
        }
    }
    report(&job).iter().for_each(|line| println!("{line}"));
    Ok(())
}
