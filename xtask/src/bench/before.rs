//! `--before BUILD`: this build and another one in turn.
//!
//! A round runs the other build twice and this one once, in an order that rotates. The second run
//! of the other build shows how far apart two series of the same build lie: a ratio within that
//! spread is no difference.

use super::benches::Bench;
use super::processes::{self, Place};
use super::{Options, report};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Number of random splits of the other build's runs into halves whose medians are compared.
const SPLIT_COUNT: usize = 2_000;
/// Share of the ratios that lie below the spread, and above it.
const TAIL: f64 = 0.05;

pub struct Before {
    /// Root of the other build's checkout.
    pub root: PathBuf,
}

impl Before {
    /// Finds the checkout; checks out a git revision under `target/before`.
    pub fn find(root: &Path, given: &str) -> Result<Before, String> {
        let folder = Path::new(given);
        if folder.join("Cargo.toml").is_file() {
            let root = folder.canonicalize().map_err(|error| format!("{given}: {error}"))?;
            return Ok(Before { root });
        }
        let name = format!("{given}^{{commit}}");
        let commit = git(root, &["rev-parse", "--verify", "--quiet", &name]).map_err(|_| {
            format!("--before {given}: expected the folder of a checkout or a git revision")
        })?;
        let root_before = root.join("target/before").join(&commit);
        if !root_before.join("Cargo.toml").is_file() {
            git(root, &["worktree", "prune"])?;
            let place = root_before.display().to_string();
            git(root, &["worktree", "add", "--quiet", "--force", "--detach", &place, &commit])?;
        }
        Ok(Before { root: root_before })
    }
}

fn git(root: &Path, args: &[&str]) -> Result<String, String> {
    let output = Command::new("git").args(args).current_dir(root).output();
    let output = output.map_err(|error| format!("cannot start git: {error}"))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).trim().to_string()),
        false => {
            let why = String::from_utf8_lossy(&output.stderr);
            Err(format!("git {} failed: {}", args.join(" "), why.trim()))
        }
    }
}

pub fn compare(
    new: &Place<'_>,
    old: &Place<'_>,
    options: &Options,
    bench: &Bench,
) -> Result<(), String> {
    let (mut after, mut before) = (Vec::new(), Vec::new());
    for round in 0..options.rounds {
        for turn in 0..3 {
            let is_new = (round + turn) % 3 == 1;
            let place = if is_new { new } else { old };
            let value = processes::run_ours(place, bench.name, options.threads)?;
            let median = value["median"].as_f64().unwrap_or(f64::NAN);
            if is_new { after.push(median) } else { before.push(median) }
        }
    }
    let spread = spread(&before);
    let ratio = report::ratio(median(&after), median(&before));
    if options.json {
        let line = json!({
            "bench": bench.name,
            "unit": bench.unit,
            "rounds": options.rounds,
            "threads": options.threads,
            "before": before,
            "after": after,
            "ratio": ratio,
            "spread": [spread.0, spread.1],
        });
        println!("{line}");
        return Ok(());
    }
    let verdict = match ratio {
        ratio if ratio < spread.0 => "slower",
        ratio if ratio > spread.1 => "faster",
        _ => "no difference",
    };
    println!(
        "{:<34} {:>12.2} / {:>12.2} {}   ratio {ratio:.3}   one build {:.3} .. {:.3}   {verdict}",
        bench.name,
        median(&after),
        median(&before),
        bench.unit,
        spread.0,
        spread.1,
    );
    Ok(())
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    report::median(&sorted)
}

/// Returns the spread of ratios between the medians of two random halves of `runs`, without the
/// lowest and the highest [`TAIL`] of them.
fn spread(runs: &[f64]) -> (f64, f64) {
    let mut runs = runs.to_vec();
    let half = runs.len() / 2;
    // A fixed seed: the same runs give the same spread.
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut ratios: Vec<f64> = (0..SPLIT_COUNT)
        .map(|_| {
            for last in (1..runs.len()).rev() {
                // Knuth's MMIX generator; its upper bits are the random ones.
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                runs.swap(last, (state >> 33) as usize % (last + 1));
            }
            median(&runs[..half]) / median(&runs[half..])
        })
        .collect();
    ratios.sort_by(f64::total_cmp);
    let skipped = (SPLIT_COUNT as f64 * TAIL) as usize;
    (ratios[skipped], ratios[SPLIT_COUNT - 1 - skipped])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_spread_holds_one_and_grows_with_the_noise() {
        let calm: Vec<f64> = (0..20).map(|run| 100.0 + f64::from(run % 3)).collect();
        let noisy: Vec<f64> = (0..20).map(|run| 100.0 + 20.0 * f64::from(run % 3)).collect();
        let (low, high) = spread(&calm);
        assert!(low <= 1.0 && high >= 1.0, "{low} .. {high}");
        let wide = spread(&noisy);
        assert!(wide.0 < low && wide.1 > high, "{wide:?} is not wider than {low} .. {high}");
        assert_eq!(spread(&calm), (low, high), "the spread of the same runs differs");
    }
}
