//! Every algorithm in the simulated network. A rank dies, falls silent or loses a connection at
//! each of its steps, and every survivor gets the right result or an error in bounded time.

use fleet_base::Result;
use fleet_comm::{Algorithm, Group, GroupOptions, Hierarchy, ReduceOp, World};
use fleet_net::MemoryStore;
use fleet_net::sim::{self, Fault, Outcome};
use std::sync::Arc;
use std::time::Duration;

/// Timeout on the simulated clock.
const TIMEOUT: Duration = Duration::from_secs(100);

type Work = fn(&Group) -> Result<Vec<i64>>;

const RANKS: usize = 5;
const LENGTH: usize = 70;

fn own(group: &Group, length: usize) -> Vec<i64> {
    (0..length).map(|i| (group.rank() * 100 + i) as i64).collect()
}

fn all_reduce(group: &Group) -> Result<Vec<i64>> {
    let mut data = own(group, LENGTH);
    group.all_reduce("x", &mut data, ReduceOp::Sum).map(|()| data)
}

fn large(group: &Group) -> Result<Vec<i64>> {
    let mut data = own(group, 3000);
    group.all_reduce("x", &mut data, ReduceOp::Sum).map(|()| data)
}

const OTHERS: [(&str, Work); 8] = [
    ("reduce", |group| {
        let mut data = own(group, LENGTH);
        group.reduce("x", &mut data, ReduceOp::Max, 2).map(|()| data)
    }),
    ("reduce of much", |group| {
        let mut data = own(group, 10_000);
        group.reduce("x", &mut data, ReduceOp::Sum, 1).map(|()| data)
    }),
    ("broadcast", |group| {
        let mut data = own(group, LENGTH);
        group.broadcast("x", &mut data, 3).map(|()| data)
    }),
    ("broadcast of much", |group| {
        let mut data = own(group, 10_000);
        group.broadcast("x", &mut data, 1).map(|()| data)
    }),
    ("reduce_scatter", |group| {
        let mut block = vec![0; 7];
        let input = own(group, 7 * group.size());
        group.reduce_scatter("x", &input, &mut block, ReduceOp::Sum).map(|()| block)
    }),
    ("all_gather", |group| {
        let mut all = vec![0; LENGTH * group.size()];
        group.all_gather("x", &own(group, LENGTH), &mut all).map(|()| all)
    }),
    ("all_to_all", |group| {
        let sends = [1, 2, 3, 4, 5];
        let receives = [group.rank() + 1; RANKS];
        let mut output = vec![0; RANKS * (group.rank() + 1)];
        group.all_to_all_v("x", &own(group, 15), &sends, &mut output, &receives)?;
        Ok(output)
    }),
    ("barrier", |group| group.barrier("x").map(|()| vec![])),
];

fn run(options: &sim::Options, group: &GroupOptions, work: Work) -> sim::Report<Vec<i64>> {
    let store = MemoryStore::new();
    let all: Vec<usize> = (0..RANKS).collect();
    sim::run(options, |fabric| {
        let (abort, store) = (fabric.abort().clone(), Arc::new(store.clone()));
        let world = World::new(Arc::new(fabric.clone()), store, abort);
        work(&world.group("world", &all, group)?)
    })
}

/// Runs some work with all faults at all steps.
fn check(name: &str, group: &GroupOptions, work: Work) {
    let seed = 42;
    let fine = run(&sim::Options::new(RANKS, seed), group, work);
    let right: Vec<Vec<i64>> = fine
        .outcomes
        .into_iter()
        .map(|outcome| match outcome {
            Outcome::Ended(Ok(data)) => data,
            other => panic!("{name} without a fault: {other:?}"),
        })
        .collect();
    for rank in 0..RANKS {
        for step in 0..fine.steps[rank] {
            let peer = (rank + 1 + step as usize) % RANKS;
            let mut faults = vec![Fault::Crash { rank, step }, Fault::Hang { rank, step }];
            if peer != rank {
                faults.push(Fault::Cut { rank, step, peer });
            }
            for fault in faults {
                let seed = seed + step;
                let options =
                    sim::Options { faults: vec![fault], ..sim::Options::new(RANKS, seed) };
                check_fault(
                    &format!("{name}, {fault:?}, seed {seed}"),
                    &options,
                    group,
                    work,
                    &right,
                );
            }
        }
    }
}

fn check_fault(
    what: &str,
    options: &sim::Options,
    group: &GroupOptions,
    work: Work,
    right: &[Vec<i64>],
) {
    let report = run(options, group, work);
    for (rank, outcome) in report.outcomes.into_iter().enumerate() {
        let seconds = report.ended[rank].nanos() / 1_000_000_000;
        assert!(seconds <= TIMEOUT.as_secs() + 1, "{what}: rank {rank} took {seconds} s");
        match outcome {
            Outcome::Ended(Ok(data)) => assert_eq!(data, right[rank], "{what}: rank {rank}"),
            Outcome::Ended(Err(error)) => {
                let text = error.to_string();
                assert!(text.contains("rank "), "{what}: rank {rank} names no culprit: {text}");
                assert!(text.contains("group 'world"), "{what}: rank {rank} names no call: {text}");
            }
            Outcome::Crashed | Outcome::Hung => {}
        }
    }
}

fn options() -> GroupOptions {
    GroupOptions { shared_memory: false, timeout: TIMEOUT, ..GroupOptions::default() }
}

#[test]
fn all_reduces_survive_or_say_why() {
    for algorithm in Algorithm::ALL {
        let options = GroupOptions { algorithm, ..options() };
        check(&format!("{algorithm:?}"), &options, all_reduce);
    }
    let options = GroupOptions { hierarchy: Hierarchy::Ranks(2), ..options() };
    check("two levels", &options, all_reduce);
}

#[test]
fn long_all_reduces_survive_or_say_why() {
    for algorithm in [Algorithm::Ring, Algorithm::HalvingDoubling, Algorithm::Direct] {
        let options = GroupOptions { algorithm, ..options() };
        check(&format!("{algorithm:?} of much"), &options, large);
    }
}

#[test]
fn other_collectives_survive_or_say_why() {
    for (name, work) in OTHERS {
        check(name, &options(), work);
    }
}
