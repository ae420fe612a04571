//! Under every strategy, a rank that dies or has fewer batches than the others is named in time,
//! and the job resumes with the same bits.

use crate::launch::{assert_success, run_in, stderr_of};
use crate::strategies::{NAMES, session, state, step};
use crate::{die_now, scratch};
use fleet::prelude::*;
use std::path::Path;

const FIRST_STEPS: u64 = 6;

/// Ranks that train under a strategy, of which one is killed.
struct Layout {
    strategy: &'static str,
    ranks: usize,
    lost: usize,
}

/// Every strategy on two ranks, and the division of the stages of a pipeline: the ranks 0 and 1 own
/// the first stage, 2 and 3 the last one.
fn layouts() -> impl Iterator<Item = Layout> {
    let pairs = NAMES.map(|strategy| Layout { strategy, ranks: 2, lost: 1 });
    let owner = |lost: usize| Layout { strategy: "sharded_parameters_of_stages", ranks: 4, lost };
    pairs.into_iter().chain([owner(1), owner(2)])
}

/// Runs in a rank process, in the folder `RANKS/STRATEGY/LOST RANK`. The lost rank has a thread
/// that kills it while its steps continue.
pub fn train_until_killed(fleet: &Fleet, folder: &Path) -> Result<()> {
    let (strategy, lost) = layout_of(folder);
    let mut session = session(fleet, strategy)?;
    let mut checkpoints = fleet.checkpoints(folder, POLICY)?;
    for number in 1.. {
        step(&mut session, fleet, number)?;
        checkpoints.after_step(number, &session.programs.main, &session.scope, Default::default)?;
        if fleet.worker_index() == lost && number == FIRST_STEPS {
            std::thread::spawn(|| die_now());
        }
    }
    Ok(())
}

/// Resumes, and compares with a training that never stopped.
pub fn train_again(fleet: &Fleet, folder: &Path) -> Result<()> {
    let (strategy, _) = layout_of(folder);
    let mut again = session(fleet, strategy)?;
    let mut checkpoints = fleet.checkpoints(folder, POLICY)?;
    let Session { programs, scope, .. } = &mut again;
    let from = checkpoints.resume(&programs.main, scope)?.expect("a checkpoint").step;
    let last = from + 4;
    for number in from + 1..=last {
        step(&mut again, fleet, number)?;
        checkpoints.after_step(number, &again.programs.main, &again.scope, Default::default)?;
    }
    checkpoints.finish()?;
    let mut whole = session(fleet, strategy)?;
    (1..=last).try_for_each(|number| step(&mut whole, fleet, number))?;
    for ((name, again), (expected_name, expected)) in state(&again).iter().zip(&state(&whole)) {
        assert_eq!(name, expected_name);
        assert!(again == expected, "{strategy}: {name}, resumed from step {from}");
    }
    assert_eq!(state(&again).len(), state(&whole).len());
    fleet.finish()
}

const POLICY: CheckpointPolicy =
    CheckpointPolicy { every_steps: Some(2), every: None, keep_last: 2 };

/// Returns the strategy and the lost rank of a job's folder.
fn layout_of(folder: &Path) -> (&str, usize) {
    let mut parts = folder.iter().rev().filter_map(|part| part.to_str());
    let lost = parts.next().and_then(|part| part.parse().ok()).expect("a rank");
    (parts.next().expect("a strategy"), lost)
}

#[test]
fn a_killed_rank_is_named_and_the_job_resumes() {
    let scratch = scratch("killed");
    for Layout { strategy, ranks, lost } in layouts() {
        let folder = scratch.join(ranks.to_string()).join(strategy).join(lost.to_string());
        let text = folder.to_str().unwrap();
        let what = format!("{strategy}, rank {lost} of {ranks}");
        // All ranks end; one that hangs fails the test.
        let outputs = run_in("train until killed", ranks, text);
        for (rank, output) in outputs.iter().enumerate().filter(|(rank, _)| *rank != lost) {
            let text = stderr_of(output);
            // Detected by the end of its process, not by its silence, which takes longer.
            assert!(!text.contains("silent"), "{what}: {rank}: {text}");
            assert!(!output.status.success(), "{what}: {rank}: {text}");
            assert!(text.contains(&format!("rank {lost} (host")), "{what}: {rank}: {text}");
        }
        assert_success(&run_in("train again", ranks, text));
    }
    std::fs::remove_dir_all(&scratch).unwrap();
}

/// Rank 1 has one batch less, including strategies that communicate nothing in the last step.
pub fn unequal(fleet: &Fleet, name: &str) -> Result<()> {
    let mut session = session(fleet, name)?;
    for number in 1..=8 - fleet.worker_index() as u64 {
        step(&mut session, fleet, number)?;
    }
    fleet.finish()
}

#[test]
fn unequal_numbers_of_batches_are_refused_under_every_strategy() {
    for name in NAMES {
        for output in run_in("unequal", 2, name) {
            let text = stderr_of(&output);
            assert!(!output.status.success(), "{name}: {text}");
            let counted = text.contains("different numbers of training steps")
                && text.contains("8 on every rank, as on rank 0, got 7 on rank 1");
            assert!(counted || text.contains("finish"), "{name}: {text}");
        }
    }
}
