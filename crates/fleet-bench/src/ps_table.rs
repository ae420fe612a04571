//! A table of the parameter server by itself, on one core: ten million resident rows of 16, and
//! batches of 53,248 ids (2,048 samples of 26 slots) drawn uniformly from all of them, so that
//! nearly every row comes from memory. Real ids are skewed and faster.

use crate::measure::{Options, peak_rss_mb};
use fleet::Result;
use fleet::rng::Sequence;
use fleet_ps::{Initializer, PullMode, Push, Rule, SparseConfig, SparseTable, rule};
use std::time::Instant;

const ROWS: u64 = 10_000_000;
const DIM: usize = 16;
const BATCH: usize = 2048 * 26;
const BATCHES: usize = 16;
/// Ids are spread over all 64 bits.
const ID_STEP: u64 = 0x9E37_79B9_7F4A_7C15;

pub fn pull(options: &Options) -> Result<()> {
    let table = filled(Rule::Sgd(rule::Sgd::default()))?;
    let mut out = vec![0.0; BATCH * DIM];
    measure(options, |ids| table.pull(ids, &mut out, PullMode::Train))
}

pub fn push(options: &Options) -> Result<()> {
    let table = filled(Rule::Adagrad(rule::Adagrad::default()))?;
    let grads: Vec<f32> = (0..BATCH * DIM).map(|i| (i % 7) as f32 * 1e-3).collect();
    measure(options, |ids| table.push(Push::new(ids, &grads)))
}

/// Measures the payload (weights without state: the leanest rows) relative to the memory held for
/// it, as the table counts it and as the system counts it for the process.
pub fn memory(options: &Options) -> Result<()> {
    let before = peak_rss_mb();
    let table = filled(Rule::Sgd(rule::Sgd::default()))?;
    let stats = table.stats();
    let payload = stats.payload_bytes as f64;
    let resident = (peak_rss_mb() - before) * 1048576.0;
    let ratio = 100.0 * payload / stats.held_bytes as f64;
    println!(
        "{{\"bench\": \"{}\", \"unit\": \"%\", \"median\": {ratio:.4}, \"min\": {ratio:.4}, \
         \"max\": {ratio:.4}, \"runs\": 1, \"threads\": 1, \"peak_rss_mb\": {:.0}, \
         \"percent_of_resident\": {:.4}}}",
        options.name,
        peak_rss_mb(),
        100.0 * payload / resident
    );
    Ok(())
}

fn filled(rule: Rule) -> Result<SparseTable> {
    let table = SparseTable::new(SparseConfig {
        rule,
        initializer: Initializer::Uniform { low: -0.01, high: 0.01 },
        ..SparseConfig::plain(0, DIM)
    })?;
    let mut out = vec![0.0; BATCH * DIM];
    let begin = Instant::now();
    let mut first = 0;
    while first < ROWS {
        let count = (ROWS - first).min(BATCH as u64);
        let ids: Vec<u64> = (first..first + count).map(|id| id.wrapping_mul(ID_STEP)).collect();
        table.pull(&ids, &mut out[..ids.len() * DIM], PullMode::Train)?;
        first += count;
    }
    let rate = ROWS as f64 / begin.elapsed().as_secs_f64();
    eprintln!("created {ROWS} rows at {:.2} M rows/s", rate / 1e6);
    Ok(table)
}

fn measure(options: &Options, mut run: impl FnMut(&[u64]) -> Result<()>) -> Result<()> {
    let mut rng = Sequence::new(1, 1);
    let batches: Vec<Vec<u64>> = (0..BATCHES)
        .map(|_| (0..BATCH).map(|_| rng.below(ROWS).wrapping_mul(ID_STEP)).collect())
        .collect();
    let or = |given: usize, default: usize| if given == 0 { default } else { given };
    let (steps, warmup) = (or(options.steps, 200), or(options.warmup, 20));
    let mut rates = Vec::with_capacity(steps);
    for step in 0..warmup + steps {
        let begin = Instant::now();
        run(&batches[step % BATCHES])?;
        if step >= warmup {
            rates.push(BATCH as f64 / begin.elapsed().as_secs_f64());
        }
    }
    rates.sort_by(f64::total_cmp);
    println!(
        "{{\"bench\": \"{}\", \"unit\": \"rows/s\", \"median\": {:.0}, \"min\": {:.0}, \
         \"max\": {:.0}, \"runs\": {steps}, \"threads\": 1, \"peak_rss_mb\": {:.0}}}",
        options.name,
        rates[steps / 2],
        rates[0],
        rates[steps - 1],
        peak_rss_mb()
    );
    Ok(())
}
