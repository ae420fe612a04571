//! Runs batches of programs in child processes. For a child that dies, the test reports the seed,
//! the program's text, and the last lines of the child's output.
//!
//! The role of a child is its batch: the first seed, the number of programs, and the file to which
//! it writes the current seed.

use super::guard;
use fleet_base::{Error, ErrorKind, Result};
use fleet_testhost::process;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::Stdio;

/// Number of programs per child. A child never frees address space.
const BATCH: u64 = 1000;

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Runs `FLEET_PROGRAMS` programs, or `default`, in child processes of `test`, which calls this.
/// `describe` returns the text of the program for a seed, and `attempt` whether it was accepted.
pub fn run(
    test: &str,
    default: u64,
    describe: impl Fn(u64) -> String,
    attempt: impl Fn(u64) -> Result<bool>,
) {
    if let Some(batch) = process::role() {
        return run_batch(&batch, attempt);
    }
    let (from, count) = (setting("FLEET_PROGRAMS_FROM", 0), setting("FLEET_PROGRAMS", default));
    let note = format!("fleet-programs-{}-{test}", std::process::id());
    let note = std::env::temp_dir().join(note);
    let mut failures = Vec::new();
    let (mut ran, mut refused) = (0, 0);
    let mut next = from;
    while next < from + count {
        let size = BATCH.min(from + count - next);
        let output = process::command(test, &format!("{next} {size} {}", note.display()))
            .stdin(Stdio::null())
            .output()
            .expect("a child process");
        let noted = fs::read_to_string(&note).unwrap_or_default();
        let counts: Vec<u64> = noted.split_whitespace().filter_map(|w| w.parse().ok()).collect();
        let [seed, did_run, was_refused] = counts[..] else {
            panic!("a child wrote no result: {}", String::from_utf8_lossy(&output.stderr));
        };
        ran += did_run;
        refused += was_refused;
        next += size;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            let last: Vec<&str> = said.lines().rev().take(30).collect();
            let last: Vec<&str> = last.into_iter().rev().collect();
            failures.push(format!(
                "seed {seed} (program {} of this run): {}\n{}\n{}",
                seed - from + 1,
                output.status,
                last.join("\n"),
                describe(seed),
            ));
            // The next child starts after the program that failed.
            next = seed + 1;
        }
        if failures.len() >= setting("FLEET_PROGRAMS_FAILURES", 1) as usize {
            break;
        }
    }
    let _ = fs::remove_file(&note);
    println!("{test}: {ran} programs ran, {refused} were rejected");
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
    assert!(count < default || ran > count / 4, "{ran} of {count} programs ran");
}

fn run_batch(batch: &str, attempt: impl Fn(u64) -> Result<bool>) {
    let mut words = batch.splitn(3, ' ');
    let mut number = || words.next().and_then(|word| word.parse::<u64>().ok()).expect("a number");
    let (from, count) = (number(), number());
    let note = words.next().expect("a path").to_string();
    if setting("FLEET_GUARD", 1) != 0 {
        guard::enable();
    }
    let (mut ran, mut refused) = (0, 0);
    for seed in from..from + count {
        fs::write(Path::new(&note), format!("{seed} {ran} {refused}")).expect("the note");
        match attempt(seed) {
            Ok(true) => ran += 1,
            Ok(false) => refused += 1,
            Err(error) => panic!("seed {seed}: {error}"),
        }
    }
    fs::write(Path::new(&note), format!("{} {ran} {refused}", from + count - 1)).expect("the note");
}

/// Whether a program was accepted; `FLEET_PROGRAMS_WHY=1` prints the reason for a rejection.
pub fn is_accepted<T>(outcome: &Result<T>) -> bool {
    if let (Err(error), 1) = (outcome, setting("FLEET_PROGRAMS_WHY", 0)) {
        eprintln!("refused: {error}");
    }
    outcome.is_ok()
}

/// Returns the outcome of a run. A panic or an internal error fails the test.
pub fn guarded<T>(what: &str, run: impl FnOnce() -> Result<T>) -> Result<Result<T>> {
    match catch_unwind(AssertUnwindSafe(run)) {
        Err(_) => Err(Error::internal(format!("{what}: a panic"))),
        Ok(Err(error)) if error.kind() == ErrorKind::Internal => {
            Err(Error::internal(format!("{what}: {error}")))
        }
        Ok(outcome) => Ok(outcome),
    }
}
