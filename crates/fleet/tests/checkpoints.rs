//! Jobs that stop and resume.

use fleet::Checkpoints;
use fleet::prelude::*;
use std::path::{Path, PathBuf};

/// Random numbers (dropout), optimizer state and a schedule, all of which must be restored.
fn session() -> Session {
    let net = Net::new();
    let x = net.data("x", [-1, 8], DType::F32);
    let hidden = x.fc(Fc::new(16).act(Act::Relu)).dropout(0.5);
    net.minimize(hidden.fc(1).mean(), Adam::new(LrSchedule::exponential(0.1, 0.9))).unwrap();
    Session::new(net.build().unwrap(), ExecOptions::threads(1)).unwrap()
}

fn train(session: &mut Session, step: u64) {
    let x: Vec<f32> = (0..32).map(|at| ((at * 7 + step * 13) % 11) as f32 * 0.1).collect();
    let x = Tensor::from_slice(&x, [4, 8]).unwrap();
    session.run(&[("x", &x)], &[]).unwrap();
}

fn state(session: &Session) -> Vec<(String, Vec<u8>)> {
    let names = session.scope.names().map(str::to_string).collect::<Vec<_>>();
    names
        .into_iter()
        .map(|name| {
            let bytes = session.scope.tensor(&name).unwrap().as_bytes().to_vec();
            (name, bytes)
        })
        .collect()
}

fn scratch(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("fleet-job-{}-{name}", std::process::id()));
    std::fs::remove_dir_all(&folder).ok();
    folder
}

fn every(steps: u64, keep_last: usize) -> CheckpointPolicy {
    CheckpointPolicy { every_steps: Some(steps), every: None, keep_last }
}

/// Runs steps `from..=to`, saving as the policy requires.
fn go(session: &mut Session, checkpoints: &mut Checkpoints, from: u64, to: u64) {
    for step in from..=to {
        train(session, step);
        let entries = || [("cursor".to_string(), step.to_string())].into();
        let Session { programs, scope, .. } = session;
        checkpoints.after_step(step, &programs.main, scope, entries).unwrap();
    }
    checkpoints.finish().unwrap();
}

fn steps(folder: &Path) -> Vec<u64> {
    let checkpoints = Checkpoints::open(folder, every(1, 1)).unwrap();
    checkpoints.list().unwrap().into_iter().map(|(step, _)| step).collect()
}

#[test]
fn a_resumed_job_computes_the_bits_of_one_that_never_stopped() {
    let mut whole = session();
    (1..=12).for_each(|step| train(&mut whole, step));

    let folder = scratch("bits");
    let mut first = session();
    go(&mut first, &mut Checkpoints::open(&folder, every(4, 2)).unwrap(), 1, 10);
    drop(first); // steps 9 and 10 are lost

    let mut second = session();
    let mut checkpoints = Checkpoints::open(&folder, every(4, 2)).unwrap();
    let Session { programs, scope, .. } = &mut second;
    let resumed = checkpoints.resume(&programs.main, scope).unwrap().unwrap();
    assert_eq!((resumed.step, &*resumed.entries["cursor"]), (8, "8"));
    assert!(resumed.skipped.is_empty());
    go(&mut second, &mut checkpoints, 9, 12);
    assert_eq!(state(&second), state(&whole));
    assert_eq!(second.scope.step(), whole.scope.step());
    assert_eq!(steps(&folder), [8, 12]);
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn damaged_checkpoints_are_passed_over_and_named() {
    let folder = scratch("damaged");
    let mut job = session();
    go(&mut job, &mut Checkpoints::open(&folder, every(2, 3)).unwrap(), 1, 6);
    // The newest checkpoint is incomplete, and the one before has a changed byte.
    let path = |step: u64| folder.join(format!("step-{step:012}"));
    std::fs::remove_file(path(6).join("checkpoint.json")).unwrap();
    let part = std::fs::read_dir(path(4)).unwrap().flatten().map(|entry| entry.path());
    let part = part.filter(|path| path.extension().is_some_and(|it| it == "safetensors"));
    for part in part {
        let mut bytes = std::fs::read(&part).unwrap();
        let last = bytes.len() - 1;
        bytes[last] ^= 1;
        std::fs::write(&part, bytes).unwrap();
    }
    let mut checkpoints = Checkpoints::open(&folder, every(2, 2)).unwrap();
    let Session { programs, scope, .. } = &mut job;
    let resumed = checkpoints.resume(&programs.main, scope).unwrap().unwrap();
    assert_eq!(resumed.step, 2);
    assert_eq!(resumed.skipped.len(), 2, "{:?}", resumed.skipped);

    // Without the last good checkpoint, resuming is an error.
    std::fs::remove_dir_all(path(2)).unwrap();
    let error = checkpoints.resume(&programs.main, scope).unwrap_err().to_string();
    assert!(error.contains("no readable checkpoint in the folder"), "{error}");
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn what_cannot_be_is_refused() {
    let folder = scratch("refused");
    assert!(Checkpoints::open(&folder, every(0, 1)).is_err());
    assert!(Checkpoints::open(&folder, every(1, 0)).is_err());
    let mut checkpoints = Checkpoints::open(&folder, every(1, 1)).unwrap();
    let mut job = session();
    let Session { programs, scope, .. } = &mut job;
    assert_eq!(checkpoints.resume(&programs.main, scope).unwrap(), None);
    // An unwritable folder is an error of the save, at the latest of `finish`.
    std::fs::remove_dir_all(&folder).unwrap();
    std::fs::write(&folder, "a file").unwrap();
    let saved = checkpoints.save(1, &programs.main, scope, Default::default());
    assert!(saved.and_then(|()| checkpoints.finish()).is_err());
    std::fs::remove_file(&folder).unwrap();
}

/// A rate that was changed in the program is reported on resume. A rate that a schedule sets is not
/// a constant.
#[test]
fn numbers_that_a_program_begins_with_are_told() {
    let folder = scratch("numbers");
    let session = |optimizer: Sgd| {
        let net = Net::new();
        let x = net.data("x", [-1, 8], DType::F32);
        net.minimize(x.fc(1).mean(), optimizer).unwrap();
        Session::new(net.build().unwrap(), ExecOptions::threads(1)).unwrap()
    };
    let resume = |optimizer: Sgd, expected: &[&str]| {
        let mut checkpoints = Checkpoints::open(&folder, every(1, 1)).unwrap();
        let mut job = session(optimizer);
        let Session { programs, scope, .. } = &mut job;
        let resumed = checkpoints.resume(&programs.main, scope).unwrap();
        assert_eq!(resumed.map_or(Vec::new(), |it| it.changed_constants), expected);
        train(&mut job, 1);
        checkpoints.save(1, &job.programs.main, &job.scope, Default::default()).unwrap();
        checkpoints.finish().unwrap();
    };
    resume(Sgd::new(0.1), &[]);
    resume(Sgd::new(0.1), &[]);
    let other = "'learning_rate_0' is 0.1 from the checkpoint, not 0.05 as in the program";
    resume(Sgd::new(0.05), &[other]);
    std::fs::remove_dir_all(&folder).unwrap();
    let halves = || Sgd::new(LrSchedule::lambda(0.8, |step| 0.5f64.powi(step as i32)));
    resume(halves(), &[]);
    resume(halves(), &[]);
    std::fs::remove_dir_all(&folder).unwrap();
}
