//! Random programs under guard pages: whatever a program says, it runs inside of its own memory or
//! is refused, and what runs gives what the interpreter gives.
//!
//! Every variable is an allocation of its own (`Memory::Separate`) that ends at a guard page
//! (`guard.rs`). Programs run in child processes; one that dies is reported with the seed and the
//! text of its program.
//!
//! * `FLEET_PROGRAMS=100000` runs so many programs, `FLEET_PROGRAMS_FROM` the first seed.
//! * `FLEET_GUARD=0` leaves allocations to the system, for a run under AddressSanitizer.
//!
//! docs/add-an-op.md has the commands.

mod generate;
mod guard;

use fleet_base::{Error, ErrorKind, Result};
use fleet_exec::{ExecOptions, Executor, Interpreter, Memory};
use fleet_passes::BuildOptions;
use fleet_tensor::Tensor;
use generate::Draft;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::{Command, Stdio};

#[global_allocator]
static ALLOCATOR: guard::GuardAllocator = guard::GuardAllocator;

/// Programs of a run that says nothing else: some seconds.
const PROGRAMS: u64 = 1000;

/// Programs of one child, which frees no address space.
const BATCH: u64 = 1000;

/// Given to a child: first seed, number of programs, and the file where it notes the seed at hand.
const CHILD: &str = "FLEET_PROGRAMS_CHILD";

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

#[test]
fn programs_stay_in_their_memory() {
    let (from, count) = (setting("FLEET_PROGRAMS_FROM", 0), setting("FLEET_PROGRAMS", PROGRAMS));
    let note = std::env::temp_dir().join(format!("fleet-programs-{}", std::process::id()));
    let mut failures = Vec::new();
    let (mut ran, mut refused) = (0, 0);
    let mut next = from;
    while next < from + count {
        let size = BATCH.min(from + count - next);
        let child = Command::new(std::env::current_exe().expect("this test"))
            .args(["--exact", "batch_of_programs", "--nocapture", "--test-threads=1"])
            .env(CHILD, format!("{next} {size} {}", note.display()))
            .stdin(Stdio::null())
            .output()
            .expect("a child process");
        let noted = fs::read_to_string(&note).unwrap_or_default();
        let counts: Vec<u64> = noted.split_whitespace().filter_map(|w| w.parse().ok()).collect();
        let [seed, did_run, was_refused] = counts[..] else {
            panic!("a child said nothing: {}", String::from_utf8_lossy(&child.stderr));
        };
        ran += did_run;
        refused += was_refused;
        next += size;
        if !child.status.success() {
            let said = String::from_utf8_lossy(&child.stderr);
            let last: Vec<&str> = said.lines().rev().take(30).collect();
            let last: Vec<&str> = last.into_iter().rev().collect();
            failures.push(format!(
                "seed {seed} (program {} of this run): {}\n{}\n{}",
                seed - from + 1,
                child.status,
                last.join("\n"),
                describe(&generate::draft(seed)),
            ));
            // The next child goes on behind the program that failed.
            next = seed + 1;
        }
        if failures.len() >= setting("FLEET_PROGRAMS_FAILURES", 1) as usize {
            break;
        }
    }
    let _ = fs::remove_file(&note);
    println!("{ran} programs ran, {refused} were refused");
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
    assert!(count < PROGRAMS || ran > count / 4, "{ran} of {count} programs ran");
}

/// Not a test by itself: what the child processes of the one above run.
#[test]
fn batch_of_programs() {
    let Ok(work) = std::env::var(CHILD) else { return };
    let mut words = work.splitn(3, ' ');
    let mut number = || words.next().and_then(|word| word.parse::<u64>().ok()).expect("a number");
    let (from, count) = (number(), number());
    let note = words.next().expect("a path").to_string();
    if setting("FLEET_GUARD", 1) != 0 {
        guard::enable();
    }
    let (mut ran, mut refused) = (0, 0);
    for seed in from..from + count {
        fs::write(Path::new(&note), format!("{seed} {ran} {refused}")).expect("the note");
        match attempt(&generate::draft(seed)) {
            Ok(true) => ran += 1,
            Ok(false) => refused += 1,
            Err(error) => panic!("seed {seed}: {error}"),
        }
    }
    fs::write(Path::new(&note), format!("{} {ran} {refused}", from + count - 1)).expect("the note");
}

fn describe(draft: &Draft) -> String {
    let mut text = draft.program.to_string();
    for (name, tensor) in &draft.feeds {
        text += &format!("feed {name} {}{}\n", tensor.dtype(), tensor.shape());
    }
    text + &format!("fetch {}\n", draft.fetches.join(" "))
}

/// Runs a program in several ways; whether it was accepted.
fn attempt(draft: &Draft) -> Result<bool> {
    let plain = guarded("the interpreter", || {
        let mut scope = draft.scope();
        Interpreter::new().run(&draft.program, &mut scope, &draft.feed(), &draft.fetch())
    })?;
    let exact = ExecOptions { build: BuildOptions::none(), ..options() };
    let inplace = BuildOptions { enable_inplace: true, ..BuildOptions::none() };
    let inplace = ExecOptions { build: inplace, ..options() };
    let mut accepted = false;
    // Here memory that was not written holds what other variables left.
    let packed = ExecOptions { memory: Memory::Packed, ..options() };
    let ways =
        [("plain", exact), ("in place", inplace), ("rewritten", options()), ("packed", packed)];
    for (what, options) in ways {
        let outcome = guarded(what, || {
            let (mut scope, mut executor) = (draft.scope(), Executor::new(options));
            let (feed, fetch) = (draft.feed(), draft.fetch());
            let first = executor.run(&draft.program, &mut scope, &feed, &fetch)?;
            executor.run(&draft.program, &mut scope, &feed, &fetch)?;
            Ok(first)
        })?;
        accepted |= outcome.is_ok();
        if let (Ok(plain), Ok(outcome)) = (&plain, &outcome) {
            let is_rewritten = what == "rewritten" || what == "packed";
            let difference = if is_rewritten { near } else { same };
            for ((name, plain), found) in draft.fetches.iter().zip(plain).zip(outcome) {
                if let Some(difference) = difference(plain, found) {
                    let message = format!("{what}: '{name}' is not what the interpreter makes");
                    return Err(Error::internal(message).got(difference));
                }
            }
        }
    }
    Ok(accepted)
}

fn options() -> ExecOptions {
    ExecOptions { memory: Memory::Separate, ..ExecOptions::threads(1) }
}

/// What a run says; a panic or a fault of ours is a failure of the test.
fn guarded<T>(what: &str, run: impl FnOnce() -> Result<T>) -> Result<Result<T>> {
    match catch_unwind(AssertUnwindSafe(run)) {
        Err(_) => Err(Error::internal(format!("{what}: a panic"))),
        Ok(Err(error)) if error.kind() == ErrorKind::Internal => {
            Err(Error::internal(format!("{what}: {error}")))
        }
        Ok(outcome) => Ok(outcome),
    }
}

/// The first difference: without a rewrite, kernels see the same numbers in the same order.
fn same(plain: &Tensor, found: &Tensor) -> Option<String> {
    let bytes = plain.as_bytes().iter().zip(found.as_bytes());
    let at = bytes.into_iter().position(|(a, b)| a != b);
    let differs = plain.shape() != found.shape() || at.is_some();
    differs.then(|| format!("byte {} of {}{}", at.unwrap_or(0), plain.dtype(), plain.shape()))
}

/// The first difference that rounding does not explain. Fused kernels round in another order, and
/// infinities may become NaN.
fn near(plain: &Tensor, found: &Tensor) -> Option<String> {
    const TOLERANCE: f32 = 0.02;
    let (Ok(plain), Ok(found)) = (plain.as_slice::<f32>(), found.as_slice::<f32>()) else {
        return None;
    };
    let is_off = |(a, b): (&f32, &f32)| {
        a.is_finite() && b.is_finite() && (a - b).abs() > TOLERANCE * (1.0 + a.abs())
    };
    let at = plain.iter().zip(found).position(is_off)?;
    Some(format!("{} for {} at element {at}", found[at], plain[at]))
}
