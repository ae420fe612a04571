//! Tests of the simulator: the same run for a seed, ordered bytes under all network faults, and the
//! right error on every survivor of a fault at any step.

use fleet_base::Result;
use fleet_net::sim::{self, Fault, Options, Outcome, Report, SimFabric};
use fleet_net::{Abort, Deadline, Fabric, Limits, Time, Transfer};
use std::time::Duration;

const STEPS: u64 = 4;
const BYTES: usize = 100_000;

/// A ring: in each step every rank sends to its right and receives from its left.
fn ring(fabric: &SimFabric) -> Result<()> {
    let members: Vec<usize> = (0..fabric.size()).collect();
    let mesh = fabric.open("ring", &members)?;
    let (rank, size) = (mesh.rank(), mesh.size());
    for step in 0..STEPS {
        let (to, from) = ((rank + 1) % size, (rank + size - 1) % size);
        let byte = |rank: usize, at: usize| (rank * 7 + step as usize * 31 + at * 3) as u8;
        let data: Vec<u8> = (0..BYTES).map(|at| byte(rank, at)).collect();
        let mut right = true;
        let mut sink = |offset: usize, piece: &[u8]| {
            right &= piece.iter().enumerate().all(|(at, got)| *got == byte(from, offset + at));
        };
        let limits = mesh.limits(Duration::from_secs(300), fabric.abort());
        mesh.transfer(
            &mut [
                Transfer::Send { to, data: &data },
                Transfer::Fold { from, bytes: BYTES, unit: 4, sink: &mut sink },
            ],
            &limits,
        )?;
        assert!(right, "step {step} on rank {rank}");
    }
    Ok(())
}

fn run(ranks: usize, seed: u64, faults: &[Fault]) -> Report<()> {
    println!("ranks {ranks} seed {seed} faults {faults:?}");
    sim::run(&Options { faults: faults.to_vec(), ..Options::new(ranks, seed) }, ring)
}

#[test]
fn a_seed_is_a_run() {
    for seed in 0..5 {
        let (first, second) = (run(3, seed, &[]), run(3, seed, &[]));
        assert_eq!((first.digest, &first.ended), (second.digest, &second.ended));
        assert!(first.outcomes.iter().all(|outcome| matches!(outcome, Outcome::Ended(Ok(())))));
        assert_eq!(first.steps, [STEPS; 3]);
    }
    assert_ne!(run(3, 1, &[]).digest, run(3, 2, &[]).digest);
}

#[test]
fn every_fault_at_every_step_ends_in_time() {
    for step in 0..STEPS {
        for rank in 0..3 {
            let peer = (rank + 1) % 3;
            for (fault, bound) in [
                (Fault::Crash { rank, step }, 6),
                (Fault::Hang { rank, step }, 31),
                (Fault::Cut { rank, step, peer }, 6),
            ] {
                let report = run(3, step * 3 + rank as u64, &[fault]);
                for (at, outcome) in report.outcomes.iter().enumerate() {
                    let Outcome::Ended(Err(error)) = outcome else {
                        // The last bytes may already have been in flight.
                        let own = at == rank;
                        let last = step + 1 == STEPS && matches!(outcome, Outcome::Ended(Ok(())));
                        assert!(own || last, "rank {at}: {outcome:?}");
                        continue;
                    };
                    let text = error.to_string();
                    assert!(text.contains("rank "), "{text}");
                    assert!(!text.contains("deadline"), "{text}");
                    assert!(report.ended[at].since(Time::default()) < Duration::from_secs(bound));
                }
                let all_fine = report.outcomes.iter().all(|o| matches!(o, Outcome::Ended(Ok(()))));
                assert!(!all_fine || matches!(fault, Fault::Cut { .. }));
            }
        }
    }
}

#[test]
fn a_standstill_is_an_error() {
    let report = sim::run(&Options::new(2, 1), |fabric| {
        let mesh = fabric.open("m", &[0, 1])?;
        let mut into = [0; 4];
        let from = 1 - mesh.rank();
        let limits = Limits::new(Deadline::never(), &Abort::new());
        mesh.transfer(&mut [Transfer::Recv { from, into: &mut into }], &limits)
    });
    let Outcome::Ended(Err(error)) = &report.outcomes[0] else { panic!() };
    assert!(error.to_string().contains("4 of 4 bytes from rank 1"), "{error}");
}

#[test]
fn deadlines_are_on_the_simulated_clock() {
    let report = sim::run(&Options::new(2, 1), |fabric| {
        let mesh = fabric.open("m", &[0, 1])?;
        if mesh.rank() == 1 {
            let limits = mesh.limits(Duration::from_secs(7200), fabric.abort());
            let mut into = [0; 4];
            return mesh.transfer(&mut [Transfer::Recv { from: 0, into: &mut into }], &limits);
        }
        let limits = mesh.limits(Duration::from_secs(3600), fabric.abort());
        let mut into = [0; 4];
        mesh.transfer(&mut [Transfer::Recv { from: 1, into: &mut into }], &limits)
    });
    assert_eq!(report.ended[0], Time::from_nanos(3_600_000_000_000));
}
