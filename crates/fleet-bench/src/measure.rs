//! Timing of steps, and the printed result.

use fleet::{Result, Session, Tensor};
use std::time::Instant;

#[derive(Clone)]
pub struct Options {
    pub name: String,
    pub threads: usize,
    pub steps: usize,
    pub warmup: usize,
    /// Prints where the time of the steps goes, besides the result.
    pub profile: bool,
}

impl Options {
    pub fn parse(args: &[String]) -> Result<Options, String> {
        let mut options =
            Options { name: String::new(), threads: 2, steps: 0, warmup: 0, profile: false };
        let mut rest = args.iter();
        while let Some(arg) = rest.next() {
            let mut number = || {
                let text = rest.next().map(String::as_str).unwrap_or("");
                text.parse().map_err(|_| format!("{arg} '{text}': expected a number"))
            };
            match arg.as_str() {
                "--threads" => options.threads = number()?,
                "--steps" => options.steps = number()?,
                "--warmup" => options.warmup = number()?,
                "--profile" => options.profile = true,
                flag if flag.starts_with('-') => return Err(format!("unknown option {flag}")),
                name => options.name = name.to_string(),
            }
        }
        Ok(options)
    }

    /// Returns the number of steps and of warmup steps, from the command line or by default.
    pub fn counts(&self, default_steps: usize, default_warmup: usize) -> (usize, usize) {
        let or = |given: usize, default: usize| if given == 0 { default } else { given };
        (or(self.steps, default_steps), or(self.warmup, default_warmup))
    }

    pub fn exec(&self) -> fleet::ExecOptions {
        fleet::ExecOptions { profile: self.profile, ..fleet::ExecOptions::threads(self.threads) }
    }
}

/// Runs steps over prepared batches in turn and prints the result. `per_step` is the number of
/// samples per step.
pub fn measure(
    options: &Options,
    session: &mut Session,
    batches: &[Vec<(&str, Tensor)>],
    per_step: usize,
    default_steps: usize,
    default_warmup: usize,
) -> Result<()> {
    measure_steps(options, session, batches, per_step, (default_steps, default_warmup), || Ok(()))
}

/// Like [`measure`], with `behind` as the last part of each step.
pub fn measure_steps(
    options: &Options,
    session: &mut Session,
    batches: &[Vec<(&str, Tensor)>],
    per_step: usize,
    (default_steps, default_warmup): (usize, usize),
    behind: impl Fn() -> Result<()>,
) -> Result<()> {
    let (steps, warmup) = options.counts(default_steps, default_warmup);
    let feeds: Vec<Vec<(&str, &Tensor)>> = batches
        .iter()
        .map(|batch| batch.iter().map(|(name, tensor)| (*name, tensor)).collect())
        .collect();
    let mut rates = Vec::with_capacity(steps);
    // The startup program has run; its time is not part of a step.
    let (startup, startup_ops) = (session.executor.profile(), session.executor.profile_ops());
    for step in 0..warmup + steps {
        let begin = Instant::now();
        session.run(&feeds[step % feeds.len()], &[])?;
        behind()?;
        if step >= warmup {
            rates.push(per_step as f64 / begin.elapsed().as_secs_f64());
        }
    }
    print_rates(options, "samples/s", rates);
    if options.profile {
        let kinds = session.executor.profile().into_iter();
        let kinds = kinds.map(|(name, count, seconds)| {
            let before = startup.iter().find(|row| row.0 == name);
            let (count_before, seconds_before) = before.map_or((0, 0.0), |row| (row.1, row.2));
            (name, count - count_before, seconds - seconds_before)
        });
        let mut ops = session.executor.profile_ops();
        ops.retain(|row| !startup_ops.contains(row));
        show_profile(kinds.filter(|row| row.1 > 0).collect(), &ops, warmup + steps);
        show_memory(session, &feeds[0])?;
    }
    Ok(())
}

/// Prints the line that the runner reads.
pub fn print_rates(options: &Options, unit: &str, rates: Vec<f64>) {
    let memory = format!(", \"peak_rss_mb\": {:.0}", peak_rss_mb());
    print_line(options, unit, rates, &memory);
}

/// Like [`print_rates`], for work in other processes, whose memory is unknown here. `losses` are
/// those that the runs reached.
pub fn print_rates_of_others(
    options: &Options,
    unit: &str,
    rates: Vec<f64>,
    losses: Option<Vec<f64>>,
) {
    let loss = losses.map_or_else(String::new, |mut losses| {
        losses.sort_by(f64::total_cmp);
        format!(", \"loss\": {:.4}", losses[losses.len() / 2])
    });
    print_line(options, unit, rates, &loss);
}

/// Prints times in milliseconds, with the peak memory of each rank in MB.
pub fn print_times_of_ranks(options: &Options, times: Vec<f64>, memory: &[f64]) {
    let memory: Vec<String> = memory.iter().map(|mb| format!("{mb:.0}")).collect();
    print_line(
        options,
        "ms",
        times,
        &format!(", \"peak_rss_mb_of_ranks\": [{}]", memory.join(", ")),
    );
}

/// `more` is further fields, each after a comma.
fn print_line(options: &Options, unit: &str, mut rates: Vec<f64>, more: &str) {
    rates.sort_by(f64::total_cmp);
    println!(
        "{{\"bench\": \"{}\", \"unit\": \"{unit}\", \"median\": {:.2}, \"min\": {:.2}, \
         \"max\": {:.2}, \"runs\": {}, \"threads\": {}{more}}}",
        options.name,
        rates[rates.len() / 2],
        rates[0],
        rates[rates.len() - 1],
        rates.len(),
        options.threads,
    );
}

/// Prints (kind, ops of it per step, seconds of all runs), and the ops one by one.
fn show_profile(mut rows: Vec<(String, usize, f64)>, ops: &[(String, f64)], runs: usize) {
    rows.sort_by(|a, b| b.2.total_cmp(&a.2));
    let total: f64 = rows.iter().map(|row| row.2).sum();
    eprintln!("{:<40} {:>6} {:>12} {:>7}", "op", "count", "ms per step", "share");
    for (name, count, seconds) in rows {
        eprintln!(
            "{name:<40} {count:>6} {:>12.3} {:>6.1}%",
            seconds / runs as f64 * 1e3,
            seconds / total * 100.0
        );
    }
    eprintln!("{:<40} {:>6} {:>12.3}", "sum", "", total / runs as f64 * 1e3);
    for (op, seconds) in ops.iter().take(40) {
        eprintln!("{:>10.3} ms  {op}", seconds / runs as f64 * 1e3);
    }
}

fn show_memory(session: &mut Session, feed: &[(&str, &Tensor)]) -> Result<()> {
    let metas: Vec<_> =
        feed.iter().map(|(name, tensor)| (*name, tensor.dtype(), *tensor.shape())).collect();
    let Session { programs, scope, executor, .. } = session;
    let plan = executor.plan(&programs.main, scope, &metas, &[])?;
    for (what, bytes) in [
        ("temporaries, packed", plan.arena_bytes),
        ("  peak of live bytes", plan.arena_bytes_live),
        ("  without sharing", plan.arena_bytes_unshared),
        ("scratch", plan.scratch_bytes),
        ("kept between steps", plan.persistable_bytes),
        ("fed", plan.feed_bytes),
    ] {
        eprintln!("{what:<40} {:>10.1} MB", bytes as f64 / 1e6);
    }
    Ok(())
}

/// Returns the peak resident memory of this process, if the system reports it (Linux).
pub fn peak_rss_mb() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .and_then(|rest| rest.trim().trim_end_matches("kB").trim().parse::<f64>().ok())
        .map_or(f64::NAN, |kb| kb / 1024.0)
}
