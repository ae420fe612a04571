//! Under every strategy, a rank that dies or has fewer batches than the others is named in time,
//! and the job can resume.

use crate::launch::{assert_success, run_in, stderr_of};
use crate::strategies::{NAMES, session, step};
use crate::{die_now, scratch};
use fleet::prelude::*;
use std::path::Path;

const FIRST_STEPS: u64 = 6;

/// Runs in a rank process; the strategy is the folder's name. If `deadly`, a thread kills rank 1
/// while its steps continue.
pub fn train(fleet: &Fleet, folder: &Path, deadly: bool) -> Result<()> {
    let name = folder.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let mut session = session(fleet, name)?;
    let policy = CheckpointPolicy { every_steps: Some(2), every: None, keep_last: 2 };
    let mut checkpoints = fleet.checkpoints(folder, policy)?;
    let Session { programs, scope, .. } = &mut session;
    let from = checkpoints.resume(&programs.main, scope)?.map_or(0, |resumed| resumed.step);
    assert_eq!(from > 0, !deadly);
    let last = if deadly { u64::MAX } else { from + 4 };
    for number in from + 1..=last {
        step(&mut session, fleet, number)?;
        checkpoints.after_step(number, &session.programs.main, &session.scope, Default::default)?;
        if deadly && fleet.worker_index() == 1 && number == FIRST_STEPS {
            std::thread::spawn(|| die_now());
        }
    }
    checkpoints.finish()?;
    fleet.finish()
}

#[test]
fn a_rank_killed_in_the_middle_is_named_and_the_job_goes_on() {
    let folder = scratch("killed");
    for name in NAMES {
        let folder = folder.join(name);
        let text = folder.to_str().unwrap();
        let outputs = run_in("train until killed", 2, text);
        let survivor = stderr_of(&outputs[0]);
        // Detected by the end of its process, not by its silence, which takes longer.
        assert!(!survivor.contains("silent"), "{name}: {survivor}");
        assert!(!outputs[0].status.success(), "{name}: {survivor}");
        assert!(survivor.contains("rank 1 (host"), "{name}: {survivor}");
        assert_success(&run_in("train again", 2, text));
    }
    std::fs::remove_dir_all(&folder).unwrap();
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
