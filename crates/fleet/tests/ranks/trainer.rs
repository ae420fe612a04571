//! The training loop at two ranks: resume, shares of different size, evaluation over all ranks, and
//! SIGTERM.

use crate::launch::{assert_success, run_in, stderr_of};
use crate::{BATCH, network, parameters, rows, scratch, session};
use fleet::prelude::*;
use fleet::trainer::{
    Ended, Evaluation, Event, Every, Feeds, Goal, Progress, Source, StopFlag, Trained, from_fn,
};
use fleet::{CheckpointPolicy, DistributedStrategy, Fleet, Trainer};
use std::ops::ControlFlow;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

fn set(feeds: &mut Feeds, step: usize, from: usize, count: usize) {
    let (x, y) = rows(step, from, count);
    feeds.set("x", x);
    feeds.set("y", y);
}

/// This rank's share of every batch; `batches` in an epoch, whose number is known or not.
fn share(fleet: &Fleet, batches: u64, is_known: bool) -> Box<dyn Source> {
    let (count, rank) = (BATCH / fleet.worker_num(), fleet.worker_index());
    let data = from_fn(move |epoch, batch, feeds| {
        set(feeds, (10 * epoch + batch) as usize, rank * count, count);
        Ok(batch < batches)
    });
    if is_known { Box::new(data.batches(batches)) } else { Box::new(data) }
}

/// Returns the name of the network's loss.
fn loss() -> String {
    network(&Net::new()).name()
}

fn every(steps: u64) -> CheckpointPolicy {
    CheckpointPolicy { every_steps: Some(steps), every: None, keep_last: 2 }
}

/// Trains two epochs of five batches. On rank 1, `stop` requests a stop in a step.
fn train(
    fleet: &Fleet,
    session: &mut Session,
    (folder, is_known): (&Path, bool),
    stop: Option<u64>,
) -> Result<Trained> {
    let (loss, flag) = (loss(), StopFlag::new());
    let stop = stop.filter(|_| fleet.worker_index() == 1);
    Trainer::new(fleet)
        .epochs(2)
        .watch("loss", &loss)
        .validate(Evaluation::new().mean("loss", &loss), share(fleet, 2, is_known), Every::Steps(4))
        .goal(Goal::lowest("loss"))
        .checkpoints(folder.join("saves"), every(3))
        .scalars(folder.join("scalars"))
        .scalars_every(2)
        .clock(|| Duration::ZERO)
        .stop_on(&flag)
        .on_event(|event, _| {
            if let Event::Step { step, .. } = event
                && Some(*step) == stop
            {
                flag.request();
            }
            Ok(ControlFlow::Continue(()))
        })
        .run(session, share(fleet, 5, is_known))
}

/// Stops after each of some steps, resumes, and compares with an uninterrupted training.
pub fn train_and_resume(fleet: &Fleet, folder: &Path) -> Result<()> {
    let plain = DistributedStrategy::new();
    for is_known in [true, false] {
        let folder = folder.join(is_known.to_string());
        let mut whole = session(fleet, &plain)?;
        let finished = train(fleet, &mut whole, (&folder.join("whole"), is_known), None)?;
        assert_eq!((finished.ended, finished.step), (Ended::Completed, 10));
        assert_eq!(finished.rows, 10 * BATCH as u64);
        for stop in [1, 3, 5] {
            let stopped = folder.join(stop.to_string());
            let first =
                train(fleet, &mut session(fleet, &plain)?, (&stopped, is_known), Some(stop))?;
            assert_eq!(first.ended, Ended::Requested);
            // The agreement has a step of its own.
            assert!((stop..stop + 4).contains(&first.step), "{} for {stop}", first.step);
            let mut second = session(fleet, &plain)?;
            let last = train(fleet, &mut second, (&stopped, is_known), None)?;
            assert_eq!(last.resumed.map(|it| it.step), Some(first.step));
            assert_eq!((last.step, last.rows, last.best), (10, finished.rows, finished.best));
            assert!(parameters(&second) == parameters(&whole), "stopped after {stop}");
            assert_eq!(last.validated, finished.validated);
            if fleet.is_first_worker() {
                let text = |folder: &Path, name: &str| {
                    std::fs::read_to_string(folder.join("scalars").join(name)).unwrap()
                };
                for name in ["scalars.csv", "scalars.jsonl"] {
                    assert_eq!(text(&stopped, name), text(&folder.join("whole"), name));
                }
            }
        }
    }
    fleet.finish()
}

/// Rank 1 has one batch less for training, and one row instead of three for the validation.
pub fn share_unequally(fleet: &Fleet) -> Result<()> {
    let rank = fleet.worker_index();
    for is_known in [true, false] {
        let mut session = session(fleet, &DistributedStrategy::new())?;
        let loss = loss();
        let validation = from_fn(|_, batch, feeds| {
            set(feeds, 0, 3 * rank, if rank == 0 { 3 } else { 1 });
            Ok(batch < 1)
        });
        let evaluation = Evaluation::new().mean("loss", &loss).mean("y", "y");
        let trained = Trainer::new(fleet)
            .epochs(3)
            .watch("loss", &loss)
            .validate(evaluation, validation, Every::Epoch)
            .run(&mut session, share(fleet, 4 - rank as u64, is_known))?;
        assert_eq!((trained.step, trained.ended), (9, Ended::Completed));
        let found = trained.validated.unwrap();
        assert_eq!((found.rows, found.batches), (4, 2));
        let y = rows(0, 0, 4).1.to_vec::<f32>()?;
        let mean = f64::from(y.iter().sum::<f32>()) / 4.0;
        assert!((found.get("y").unwrap() - mean).abs() < 1e-6);
        let out = session.evaluate(&feed(&rows(0, 0, 4)), &[&loss])?;
        let all = f64::from(out[0].item::<f32>()?);
        assert!((found.get("loss").unwrap() - all).abs() < 1e-6);
    }
    fleet.finish()
}

fn feed((x, y): &(Tensor, Tensor)) -> [(&'static str, &Tensor); 2] {
    [("x", x), ("y", y)]
}

/// Rank 1 gets SIGTERM in step 7 of an endless training.
pub fn train_until_terminated(fleet: &Fleet, folder: &Path) -> Result<()> {
    let mut session = session(fleet, &DistributedStrategy::new())?;
    let flag = StopFlag::on_terminate()?;
    let trained = Trainer::new(fleet)
        .epochs(u64::MAX)
        .checkpoints(folder, every(1000))
        .stop_on(&flag)
        .on_event(|event, _| {
            if let Event::Step { step: 7, .. } = event
                && fleet.worker_index() == 1
            {
                let own = std::process::id().to_string();
                assert!(Command::new("kill").args(["-TERM", &own]).status().unwrap().success());
                while !flag.is_requested() {
                    std::thread::yield_now();
                }
            }
            Ok(ControlFlow::Continue(()))
        })
        .progress(Progress::none())
        .run(&mut session, share(fleet, 5, true))?;
    println!("last step {}", trained.step);
    fleet.finish()?;
    assert_eq!(trained.exit_code(), 143.into());
    std::process::exit(143);
}

#[test]
fn a_resumed_training_of_two_ranks_computes_the_same_bits() {
    let folder = scratch("trainer-resume");
    assert_success(&run_in("train and resume", 2, folder.to_str().unwrap()));
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn shares_may_differ_in_size() {
    assert_success(&run_in("share unequally", 2, ""));
}

#[cfg(unix)]
#[test]
fn ranks_stop_after_the_same_step_when_one_is_terminated() {
    let folder = scratch("trainer-term");
    let outputs = run_in("train until terminated", 2, folder.to_str().unwrap());
    let last = |at: usize| {
        let text = String::from_utf8_lossy(&outputs[at].stdout).into_owned();
        let line = text.lines().find_map(|line| line.split("last step ").nth(1));
        line.expect("a last step").parse::<u64>().unwrap()
    };
    for output in &outputs {
        assert_eq!(output.status.code(), Some(143), "{}", stderr_of(output));
    }
    assert_eq!(last(0), last(1));
    // The only checkpoint is that of both ranks, at this step.
    let path = folder.join(format!("step-{:012}", last(0)));
    for part in [path.clone(), path.join("rank-00000"), path.join("rank-00001")] {
        let entries = fleet::format::load_tensors(&part).unwrap().meta.entries;
        assert_eq!(entries["fleet.step"], last(0).to_string());
    }
    std::fs::remove_dir_all(&folder).unwrap();
}
