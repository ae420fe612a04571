//! Jobs of several ranks that stop and resume: with the same number of ranks, with others, and
//! after a rank died during a save.

use crate::launch::{assert_success, run_in, stderr_of};
use crate::strategies::{NAMES, session, state, step};
use crate::{die_now, scratch};
use fleet::Checkpoints;
use fleet::prelude::*;
use fleet::strategy::{Spread, local_state};
use std::path::Path;

const SAVED: u64 = 5;
const LAST: u64 = 8;

fn policy(every: u64) -> CheckpointPolicy {
    CheckpointPolicy { every_steps: Some(every), every: None, keep_last: 2 }
}

/// Resumes from the folder, runs steps until `last`, and returns the step resumed from.
fn go(fleet: &Fleet, session: &mut Session, folder: &Path, every: u64, last: u64) -> Result<u64> {
    let mut checkpoints = fleet.checkpoints(folder, policy(every))?;
    let from = resume(fleet, session, &mut checkpoints)?;
    for number in from + 1..=last {
        step(session, fleet, number)?;
        let rank = fleet.worker_index();
        let entries = || [("cursor".to_string(), format!("{number} of rank {rank}"))].into();
        checkpoints.after_step(number, &session.programs.main, &session.scope, entries)?;
    }
    checkpoints.finish()?;
    fleet.barrier_worker()?;
    Ok(from)
}

fn resume(fleet: &Fleet, session: &mut Session, checkpoints: &mut Checkpoints) -> Result<u64> {
    let Session { programs, scope, .. } = session;
    let Some(resumed) = checkpoints.resume(&programs.main, scope)? else { return Ok(0) };
    let rank =
        if resumed.entries_of_ranks.len() == fleet.worker_num() { fleet.worker_index() } else { 0 };
    assert_eq!(resumed.entries["cursor"], format!("{} of rank {rank}", resumed.step));
    Ok(resumed.step)
}

/// For each strategy: stops after step 6, resumes from step 5, and compares with an uninterrupted
/// run.
pub fn stop_and_resume(fleet: &Fleet, folder: &Path) -> Result<()> {
    for name in NAMES {
        let folder = folder.join(name);
        let mut whole = session(fleet, name)?;
        (1..=LAST).try_for_each(|number| step(&mut whole, fleet, number))?;
        assert_eq!(go(fleet, &mut session(fleet, name)?, &folder, SAVED, SAVED + 1)?, 0);
        let mut second = session(fleet, name)?;
        assert_eq!(go(fleet, &mut second, &folder, SAVED, LAST)?, SAVED);
        for ((name_a, a), (name_b, b)) in state(&second).iter().zip(&state(&whole)) {
            assert_eq!(name_a, name_b);
            assert!(a == b, "{name}: {name_a} on rank {}", fleet.worker_index());
        }
        assert_eq!(second.scope.step(), whole.scope.step());
    }
    fleet.finish()
}

/// For each strategy: resumes the checkpoint of another number of ranks, and checks that the ranks'
/// own state adds up to the same sums.
pub fn resume_elsewhere(fleet: &Fleet, folder: &Path) -> Result<()> {
    for name in NAMES {
        let mut session = session(fleet, name)?;
        let mut checkpoints = fleet.checkpoints(folder.join(name), policy(SAVED))?;
        assert_eq!(resume(fleet, &mut session, &mut checkpoints)?, SAVED);
        let path = folder.join(name).join(format!("step-{SAVED:012}"));
        let common = fleet::format::load_tensors(&path)?;
        for (name, tensor) in &common.tensors {
            if session.scope.contains(name) {
                let held = session.scope.tensor(name)?;
                assert_eq!(held.as_bytes(), tensor.as_bytes(), "{name}");
            }
        }
        let old = old_sums(&path)?;
        // With one rank there is no state of its own, but the old ranks' state must still be
        // combined.
        let local = match fleet.worker_num() {
            1 => Vec::new(),
            _ => local_state(&session.programs.main),
        };
        for var in local {
            if var.spread == Spread::Owner {
                assert_eq!(session.scope.tensor(&var.name)?.as_bytes(), owned(&path, &var.name)?);
                continue;
            }
            let held = session.scope.tensor(&var.name)?;
            let Ok(held) = held.as_slice::<f32>() else { continue };
            let held: Vec<f64> = held.iter().map(|v| f64::from(*v)).collect();
            let new = fleet.util().all_reduce(&held, ReduceOp::Sum)?;
            let factor = match var.spread {
                Spread::Share => 1.0,
                _ => fleet.worker_num() as f64 / OLD_RANKS as f64,
            };
            let (_, old) = old.iter().find(|(name, _)| *name == var.name).unwrap();
            for (new, old) in new.iter().zip(old) {
                let expected = old * factor;
                let close = (new - expected).abs() <= 1e-4 * (1e-3 + expected.abs());
                assert!(close, "{name}: {}: {new} and {expected}", var.name);
            }
        }
        (SAVED + 1..=SAVED + 3).try_for_each(|number| step(&mut session, fleet, number))?;
        // Every rank has its own parameters only if they are divided.
        if !session.scope.contains("fc_0.w_0") {
            continue;
        }
        let weight = session.scope.tensor("fc_0.w_0")?.to_vec::<f32>()?;
        assert!(weight.iter().all(|value| value.is_finite()));
    }
    fleet.finish()
}

const OLD_RANKS: usize = 4;

/// Returns the value of a variable that one of the old ranks owned.
fn owned(path: &Path, name: &str) -> Result<Vec<u8>> {
    let part = |rank: usize| fleet::format::load_tensors(path.join(format!("rank-{rank:05}")));
    for rank in 0..OLD_RANKS {
        let found = part(rank)?.tensors.into_iter().find(|(other, _)| other == name);
        if let Some((_, tensor)) = found {
            return Ok(tensor.as_bytes().to_vec());
        }
    }
    panic!("no rank owned {name}")
}

/// Returns the sums over ranks of each rank's own state.
fn old_sums(path: &Path) -> Result<Vec<(String, Vec<f64>)>> {
    let mut sums: Vec<(String, Vec<f64>)> = Vec::new();
    for rank in 0..OLD_RANKS {
        let part = fleet::format::load_tensors(path.join(format!("rank-{rank:05}")))?;
        for (name, tensor) in part.tensors {
            let Ok(values) = tensor.as_slice::<f32>() else { continue };
            let values: Vec<f64> = values.iter().map(|v| f64::from(*v)).collect();
            match sums.iter_mut().find(|(other, _)| *other == name) {
                Some((_, sum)) => sum.iter_mut().zip(values).for_each(|(sum, v)| *sum += v),
                None => sums.push((name, values)),
            }
        }
    }
    Ok(sums)
}

/// Layouts that keep sums of gradients in other places: in one process, on every rank, at the
/// owners of all parameters, and at those of the parameters of a stage.
const MERGING: [(&str, usize); 4] = [
    ("gradient_merge", 1),
    ("gradient_merge", 4),
    ("sharding_with_merge", 4),
    ("merged_gradients_of_stages", 4),
];

/// Parameters of the network, with their numbers of elements.
const PARAMETERS: [(&str, usize); 8] = [
    ("fc_0.w_0", 192),
    ("fc_0.b_0", 32),
    ("batch_norm_0.w_0", 32),
    ("batch_norm_0.b_0", 32),
    ("fc_1.w_0", 16_384),
    ("fc_1.b_0", 512),
    ("fc_2.w_0", 512),
    ("fc_2.b_0", 1),
];

/// Returns the sums of gradients of all ranks together.
fn sums(fleet: &Fleet, session: &Session) -> Result<Vec<f64>> {
    let mut own = Vec::new();
    for (name, count) in PARAMETERS {
        let name = format!("{name}@GRAD@GradientMerge");
        match session.scope.contains(&name) {
            true => own.extend(session.scope.tensor(&name)?.to_vec::<f32>()?),
            false => own.extend(vec![0.0; count]),
        }
    }
    fleet.util().all_reduce(&own.into_iter().map(f64::from).collect::<Vec<_>>(), ReduceOp::Sum)
}

/// Saves one step after an update; the strategy is the folder's name.
pub fn save_sums(fleet: &Fleet, folder: &Path) -> Result<()> {
    let name = folder.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let mut session = session(fleet, name)?;
    go(fleet, &mut session, folder, 4, 4)?;
    let sums = sums(fleet, &session)?;
    assert!(sums.iter().any(|sum| sum.abs() > 1e-4), "{name}: gradients since the update");
    let text: Vec<String> = sums.iter().map(f64::to_string).collect();
    if fleet.is_first_worker() {
        std::fs::write(folder.join("sums"), text.join(" ")).unwrap();
    }
    fleet.finish()
}

/// Resumes under another strategy, which is the folder's name, from the folder that contains it.
pub fn load_sums(fleet: &Fleet, folder: &Path) -> Result<()> {
    let name = folder.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let saved = folder.parent().unwrap();
    let mut session = session(fleet, name)?;
    let mut checkpoints = fleet.checkpoints(saved, policy(4))?;
    assert_eq!(resume(fleet, &mut session, &mut checkpoints)?, 4);
    let text = std::fs::read_to_string(saved.join("sums")).unwrap();
    let expected = text.split(' ').map(|number| number.parse::<f64>().unwrap());
    let found = sums(fleet, &session)?;
    for (at, (found, expected)) in found.iter().zip(expected).enumerate() {
        let is_near = (found - expected).abs() <= 1e-6 * expected.abs().max(1e-3);
        assert!(is_near, "{}: {at}: {found} and {expected}", folder.display());
    }
    fleet.finish()
}

#[test]
fn sums_of_gradients_pass_to_other_layouts() {
    let scratch = scratch("sums");
    for (from, ranks) in MERGING {
        let folder = scratch.join(ranks.to_string()).join(from);
        assert_success(&run_in("save sums", ranks, folder.to_str().unwrap()));
        for (to, ranks) in MERGING {
            assert_success(&run_in("load sums", ranks, folder.join(to).to_str().unwrap()));
        }
    }
    std::fs::remove_dir_all(&scratch).unwrap();
}

/// Each rank has a disk of its own, so no save would ever be whole.
pub fn two_folders(fleet: &Fleet, folder: &Path) -> Result<()> {
    let own = folder.join(format!("disk-{}", fleet.worker_index()));
    fleet.checkpoints(own, policy(1)).map(|_| ())
}

const DEATH: u64 = 6;

/// Rank 1 is killed while it writes.
pub fn die_while_saving(fleet: &Fleet, folder: &Path) -> Result<()> {
    let mut session = session(fleet, "gradient_merge")?;
    let mut checkpoints = fleet.checkpoints(folder, policy(1))?;
    for number in 1.. {
        step(&mut session, fleet, number)?;
        let entries = || [("cursor".to_string(), "here".to_string())].into();
        checkpoints.after_step(number, &session.programs.main, &session.scope, entries)?;
        if fleet.worker_index() == 1 && number == DEATH {
            die_now();
        }
    }
    Ok(())
}

/// The newest checkpoint is whole, and the resumed job has the same bits as one that never stopped.
pub fn resume_after_death(fleet: &Fleet, folder: &Path) -> Result<()> {
    let mut checkpoints = fleet.checkpoints(folder, policy(1))?;
    let mut second = session(fleet, "gradient_merge")?;
    let Session { programs, scope, .. } = &mut second;
    let from = checkpoints.resume(&programs.main, scope)?.unwrap().step;
    assert!((DEATH - 2..=DEATH + 1).contains(&from), "{from}");
    let mut whole = session(fleet, "gradient_merge")?;
    (1..=LAST).try_for_each(|number| step(&mut whole, fleet, number))?;
    (from + 1..=LAST).try_for_each(|number| step(&mut second, fleet, number))?;
    assert!(state(&second) == state(&whole));
    fleet.finish()
}

#[test]
fn every_strategy_goes_on_at_four_ranks_and_at_others() {
    let folder = scratch("resume");
    let text = folder.to_str().unwrap();
    assert_success(&run_in("stop and resume", OLD_RANKS, text));
    // The test wants the checkpoint of four ranks at step 5, which is the newest.
    for ranks in [1, 2, 8] {
        assert_success(&run_in("resume elsewhere", ranks, text));
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_death_in_the_middle_of_a_save_leaves_the_one_before() {
    let folder = scratch("death");
    let text = folder.to_str().unwrap();
    let outputs = run_in("die while saving", 3, text);
    assert!(stderr_of(&outputs[0]).contains("rank 1 (host"), "{}", stderr_of(&outputs[0]));
    assert_success(&run_in("resume after death", 3, text));
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_folder_that_is_not_shared_is_refused_at_once() {
    let folder = scratch("two-folders");
    for output in run_in("save in two folders", 2, folder.to_str().unwrap()) {
        let text = stderr_of(&output);
        assert!(!output.status.success(), "{text}");
        assert!(text.contains("the ranks do not share the checkpoint folder"), "{text}");
        assert!(text.contains("files of rank 0 are not visible to rank 1"), "{text}");
    }
    // The mark files are removed; only the folders are left.
    let first = std::fs::read_dir(folder.join("disk-0")).unwrap();
    assert_eq!(first.count(), 0);
    std::fs::remove_dir_all(&folder).unwrap();
}
