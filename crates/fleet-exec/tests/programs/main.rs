//! Random programs under guard pages. Every program either stays within its own memory or is
//! rejected, and its results equal the interpreter's.
//!
//! Every variable is a separate allocation (`Memory::Separate`) that ends at a guard page. Programs
//! run in child processes. If a child dies, the test reports the seed and the text of its program.
//! The ranks of a ring are threads of the child. `fleet_testkit::programs` has the generator.
//!
//! * `FLEET_PROGRAMS=100000` sets the number of programs, and `FLEET_PROGRAMS_FROM` the first seed.
//! * `FLEET_GUARD=0` uses the system's allocator, for a run under AddressSanitizer.
//!
//! docs/add-an-op.md has the commands. `crates/fleet/tests/programs` runs the same programs on the
//! rings of jobs, with tables of servers, and rewritten by strategies.

use fleet_base::{Error, ErrorKind, Result};
use fleet_exec::{ExecOptions, Executor, Interpreter, Memory};
use fleet_ops::{LookUp, Lookup, PushRows, Services, Tables};
use fleet_passes::BuildOptions;
use fleet_tensor::Tensor;
use fleet_testkit::local::{self, World};
use fleet_testkit::programs::generate::{self, Draft, Peers};
use fleet_testkit::programs::guard::GuardAllocator;
use fleet_testkit::programs::harness::{self, guarded};
use std::sync::Arc;

#[global_allocator]
static ALLOCATOR: GuardAllocator = GuardAllocator;

/// Default number of programs: takes a few seconds.
const PROGRAMS: u64 = 1000;

#[test]
fn programs_stay_in_their_memory() {
    let describe = |seed| generate::draft(seed).describe();
    let attempt = |seed| attempt(&generate::draft(seed));
    harness::run("programs_stay_in_their_memory", PROGRAMS, describe, attempt);
}

/// Runs a program in several ways. Returns whether it was accepted.
fn attempt(draft: &Draft) -> Result<bool> {
    let plain = run_ranks("the interpreter", draft, &|rank, services| {
        let mut scope = draft.scope();
        let interpreter = Interpreter::new().services(services);
        interpreter.run(&draft.program_of(rank), &mut scope, &draft.feed(), &draft.fetch())
    })?;
    let options = ExecOptions { memory: Memory::Separate, ..ExecOptions::threads(draft.threads) };
    let exact = ExecOptions { build: BuildOptions::none(), ..options.clone() };
    let inplace = BuildOptions { enable_inplace: true, ..BuildOptions::none() };
    let inplace = ExecOptions { build: inplace, ..options.clone() };
    let mut accepted = false;
    // With packed memory, unwritten memory holds leftovers of other variables.
    let packed = ExecOptions { memory: Memory::Packed, ..options.clone() };
    let ways =
        [("plain", exact), ("in place", inplace), ("rewritten", options), ("packed", packed)];
    for (what, options) in ways {
        let outcomes = run_ranks(what, draft, &|rank, services| {
            let mut scope = draft.scope();
            let mut executor = Executor::new(options.clone()).services(services);
            let (program, feed, fetch) = (draft.program_of(rank), draft.feed(), draft.fetch());
            let first = executor.run(&program, &mut scope, &feed, &fetch)?;
            executor.run(&program, &mut scope, &feed, &fetch)?;
            Ok(first)
        })?;
        accepted |= outcomes.iter().any(harness::is_accepted);
        if !draft.is_exact() {
            continue;
        }
        for (rank, (plain, outcome)) in plain.iter().zip(&outcomes).enumerate() {
            let (Ok(plain), Ok(outcome)) = (plain, outcome) else { continue };
            let is_rewritten = what == "rewritten" || what == "packed";
            let difference = if is_rewritten { near } else { same };
            for ((name, plain), found) in draft.fetches.iter().zip(plain).zip(outcome) {
                if let Some(difference) = difference(plain, found) {
                    let message = format!("{what}: '{name}' differs from the interpreter's result");
                    return Err(Error::internal(message)
                        .got(difference)
                        .at(format!("rank {rank}")));
                }
            }
        }
    }
    Ok(accepted)
}

/// The work of one rank, given its services.
type Work<'a> = dyn Fn(usize, Services) -> Result<Vec<Tensor>> + Sync + 'a;

/// Runs a program on all of its ranks and returns the outcome of each.
fn run_ranks(what: &str, draft: &Draft, work: &Work<'_>) -> Result<Vec<Result<Vec<Tensor>>>> {
    let alone = |services: Services| Ok(vec![guarded(what, || work(0, services))?]);
    match draft.peers {
        Peers::Alone | Peers::Rings(1) => alone(Services::none()),
        Peers::Tables(_) => alone(Services::none().with_tables(Arc::new(MockTables))),
        // If one rank fails, the rings of the other end too.
        Peers::Rings(ranks) => local::run(ranks, |rank, world| {
            guarded(what, || work(rank, rings(world, ranks, rank)))?
        })
        .into_iter()
        .map(|outcome| match outcome {
            Err(error) if is_our_fault(&error) => Err(error),
            outcome => Ok(outcome),
        })
        .collect(),
    }
}

/// Whether an error is a bug in Fleet. A timeout is one, because ranks that run the same program
/// never wait for each other in vain.
fn is_our_fault(error: &Error) -> bool {
    error.kind() == ErrorKind::Internal || error.to_string().contains("timeout while waiting")
}

fn rings(world: &World, ranks: usize, rank: usize) -> Services {
    let members: Vec<usize> = (0..ranks).collect();
    (0..2).fold(Services::none(), |services, id| {
        services.with_ring(id, world.ring(id, &members, rank))
    })
}

/// Tables that read all of their inputs and write all of their outputs.
struct MockTables;

impl MockTables {
    fn read(parts: &[&[f32]]) -> Result<()> {
        std::hint::black_box(parts.iter().flat_map(|part| part.iter()).sum::<f32>());
        Ok(())
    }
}

impl Tables for MockTables {
    fn lookup(&self, _: u32, lookups: &mut [Lookup<'_>], how: LookUp) -> Result<()> {
        for lookup in lookups {
            assert_eq!(lookup.rows.len(), lookup.ids.len() * how.width, "expected one row per id");
            for (id, row) in lookup.ids.iter().zip(lookup.rows.chunks_exact_mut(how.width)) {
                row.fill(if Some(*id) == how.padding { 0.0 } else { 1.0 / (2.0 + *id as f32) });
            }
        }
        Ok(())
    }

    fn push_sparse(&self, _: u32, pushes: &[PushRows<'_>], width: usize) -> Result<()> {
        for push in pushes {
            assert_eq!(push.grads.len(), push.ids.len() * width, "expected one row per id");
            for counts in [push.shows, push.clicks].into_iter().flatten() {
                let fits = push.ids.is_empty() || push.ids.len().is_multiple_of(counts.len());
                assert!(fits, "expected one count per sample");
                MockTables::read(&[counts])?;
            }
            MockTables::read(&[push.grads])?;
        }
        Ok(())
    }

    fn send_dense(&self, _: u32, parts: &[&[f32]]) -> Result<()> {
        MockTables::read(parts)
    }

    fn recv_dense(&self, _: u32, parts: &mut [&mut [f32]]) -> Result<()> {
        parts.iter_mut().for_each(|part| part.fill(0.5));
        Ok(())
    }

    fn send_barrier(&self) -> Result<()> {
        Ok(())
    }

    fn fetch_barrier(&self) -> Result<()> {
        Ok(())
    }

    fn touch(&self, _: u32, ids: &[i64]) -> Result<()> {
        std::hint::black_box(ids.iter().fold(0, |sum: i64, id| sum.wrapping_add(*id)));
        Ok(())
    }

    fn exchange(&self, _: u32, parts: &mut [&mut [f32]], _: Option<usize>) -> Result<()> {
        parts.iter_mut().for_each(|part| part.iter_mut().for_each(|value| *value += 1.0));
        Ok(())
    }
}

/// Returns the first byte that differs. Without rewrites, kernels see the same numbers in the same
/// order, so the results are equal bit for bit.
fn same(plain: &Tensor, found: &Tensor) -> Option<String> {
    let bytes = plain.as_bytes().iter().zip(found.as_bytes());
    let at = bytes.into_iter().position(|(a, b)| a != b);
    let differs = plain.shape() != found.shape() || at.is_some();
    differs.then(|| format!("byte {} of {}{}", at.unwrap_or(0), plain.dtype(), plain.shape()))
}

/// Returns the first difference that rounding does not explain. Fused kernels round in another
/// order, and infinities may become NaN.
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
