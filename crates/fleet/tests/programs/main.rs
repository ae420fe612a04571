//! The random programs of `crates/fleet-exec/tests/programs`, extended by parts of a job: rings of
//! `fleet-comm` between ranks that are threads, tables of parameter servers in this process, and
//! rewrites by strategies. Every variable ends at a guard page.
//!
//! `FLEET_PROGRAMS`, `FLEET_PROGRAMS_FROM` and `FLEET_GUARD` have the same meaning as there.

mod servers;
mod strategies;

use fleet::ir::Program;
use fleet::ops::{Registry, Services};
use fleet::{Error, ErrorKind, ExecOptions, Executor, GroupRing, Memory, Result, Scope, Tensor};
use fleet_comm::{GroupOptions, World};
use fleet_net::{Abort, MemoryStore};
use fleet_testkit::programs::generate::{self, Peers};
use fleet_testkit::programs::guard::GuardAllocator;
use fleet_testkit::programs::harness::{self, guarded};
use std::sync::Arc;
use std::time::Duration;

#[global_allocator]
static ALLOCATOR: GuardAllocator = GuardAllocator;

/// Default number of programs of each kind in a run: takes some seconds.
const PROGRAMS: u64 = 150;

#[test]
fn programs_of_two_ranks_stay_in_their_memory() {
    let describe = |seed| generate::draft_with_peers(seed, Peers::Rings(2)).describe();
    let test = "programs_of_two_ranks_stay_in_their_memory";
    harness::run(test, PROGRAMS, describe, over_rings);
}

#[test]
fn programs_of_workers_stay_in_their_memory() {
    let describe = |seed| generate::draft_with_peers(seed, servers::PEERS).describe();
    let test = "programs_of_workers_stay_in_their_memory";
    harness::run(test, PROGRAMS, describe, servers::attempt);
}

#[test]
fn rewritten_programs_stay_in_their_memory() {
    let test = "rewritten_programs_stay_in_their_memory";
    harness::run(test, PROGRAMS, strategies::describe, strategies::attempt);
}

/// Returns the `y` that two ranks fetch from a program on ring 0. Rank 1 runs `other`, if given.
fn of_two_ranks(body: &str, other: Option<&str>, x: &Tensor) -> Vec<Vec<f32>> {
    let parsed = |body: &str| {
        let text = format!("fleet program 1\nblock0 {{\n{body}\n}}");
        Program::parse(&text, Registry::standard()).expect("well formed")
    };
    let programs = [parsed(body), parsed(other.unwrap_or(body))];
    let outcomes = run_ranks(2, &[(0, vec![0, 1])], |rank, services| {
        let mut executor = Executor::new(separate(1)).services(services);
        let out = executor.run(&programs[rank], &mut Scope::new(), &[("x", x)], &["y"])?;
        out[0].to_vec::<f32>()
    });
    let outcomes = outcomes.expect("no fault of ours").into_iter();
    outcomes.map(|outcome| outcome.expect("both ranks succeed")).collect()
}

#[test]
fn a_tensor_goes_from_one_rank_to_the_other() {
    let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0], [3]).expect("fits");
    let send = "%x: f32[3] data %y: f32[3] () = send_v2(X: %x) {nranks: 2, peer: 1}
        (Out: %y) = relu(X: %x)";
    let recv = "%x: f32[3] data %y: f32[3]
        (Out: %y) = recv_v2() {nranks: 2, peer: 0, out_shape: [3], dtype: f32}";
    let expected = vec![vec![1.0, 2.0, 3.0]; 2];
    assert_eq!(of_two_ranks(send, Some(recv), &x), expected);
}

#[test]
fn a_tensor_without_elements_is_reduced() {
    let x = Tensor::from_slice::<f32>(&[], [0, 4]).expect("fits");
    let body = "%x: f32[-1, 4] data %y: f32[-1, 4] (Out: %y) = c_allreduce_sum(X: %x) {nranks: 2}";
    assert!(of_two_ranks(body, None, &x).iter().all(Vec::is_empty));
}

/// A network without parameters sends nothing.
#[test]
fn a_collective_of_no_variables_does_nothing() {
    let x = Tensor::from_slice(&[5.0f32], [1]).expect("fits");
    let body = "%x: f32[1] data %y: f32[1] () = c_broadcast() {nranks: 2}
        (Out: %y) = relu(X: %x)";
    assert_eq!(of_two_ranks(body, None, &x), [[5.0], [5.0]]);
}

/// A ring of a job: its id, and its members.
type RingOf = (i64, Vec<usize>);

/// Timeout for a peer; only a program that hangs waits this long.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Runs `work` at every rank of a job of threads; returns each outcome. A fault of Fleet itself is
/// an error.
fn run_ranks<T: Send>(
    ranks: usize,
    rings: &[RingOf],
    work: impl Fn(usize, Services) -> Result<T> + Sync,
) -> Result<Vec<Result<T>>> {
    let store = MemoryStore::new();
    let options =
        GroupOptions { timeout: TIMEOUT, timeout_open: TIMEOUT, ..GroupOptions::default() };
    let hosts: Vec<String> = (0..ranks).map(|_| "here".to_string()).collect();
    let outcomes: Vec<Result<T>> = std::thread::scope(|scope| {
        let start = |(rank, fabric)| {
            let world = World::new(Arc::new(fabric), Arc::new(store.clone()), Abort::new());
            let (work, options) = (&work, &options);
            scope.spawn(move || {
                let mut services = Services::none();
                for (id, members) in rings.iter().filter(|ring| ring.1.contains(&rank)) {
                    let group = world.group(&format!("ring {id}"), members, options)?;
                    services = services.with_ring(*id, Arc::new(GroupRing(group)));
                }
                let ended = services.clone();
                let outcome = guarded("a rank", || work(rank, services)).and_then(|it| it);
                // Its peer may wait for this rank.
                outcome.inspect_err(|error| ended.abort(error))
            })
        };
        let fabrics = fleet_net::memory::fabrics_on(&hosts).into_iter().enumerate();
        let threads: Vec<_> = fabrics.map(start).collect();
        let died = |_| Err(Error::internal("the thread of a rank has panicked"));
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(died)).collect()
    });
    let is_ours = |error: &Error| {
        error.kind() == ErrorKind::Internal || error.to_string().contains("timed out")
    };
    match outcomes.iter().find_map(|outcome| outcome.as_ref().err().filter(|it| is_ours(it))) {
        Some(error) => Err(Error::internal(error.to_string())),
        None => Ok(outcomes),
    }
}

fn separate(threads: usize) -> ExecOptions {
    ExecOptions { memory: Memory::Separate, ..ExecOptions::threads(threads) }
}

fn over_rings(seed: u64) -> Result<bool> {
    let draft = generate::draft_with_peers(seed, Peers::Rings(2));
    let rings: Vec<RingOf> = (0..2).map(|id| (id, vec![0, 1])).collect();
    let outcomes = run_ranks(2, &rings, |rank, services| {
        let mut scope = draft.scope();
        let mut executor = Executor::new(separate(draft.threads)).services(services);
        let (program, feed, fetch) = (draft.program_of(rank), draft.feed(), draft.fetch());
        executor.run(&program, &mut scope, &feed, &fetch)?;
        executor.run(&program, &mut scope, &feed, &fetch)
    })?;
    Ok(outcomes.iter().any(harness::is_accepted))
}

fn same(one: &[Tensor], other: &[Tensor]) -> bool {
    one.iter().map(Tensor::as_bytes).eq(other.iter().map(Tensor::as_bytes))
}
