//! Collective training of a demo: every worker takes its share of every batch.

use super::{Demo, DemoArgs, Share};
use fleet::trainer::{Ended, Event, StopFlag};
use fleet::{CheckpointPolicy, Fleet, Result, Session};
use fleet_base::text;
use fleet_job::trace::Tracing;
use std::ops::ControlFlow;
use std::time::Instant;

/// Result of a training.
pub struct Trained {
    /// Samples of all workers in this run.
    pub samples: f64,
    pub seconds: f64,
    pub workers: usize,
    /// Samples trained by an earlier run.
    pub before: f64,
    /// Whether SIGTERM has ended it.
    pub is_terminated: bool,
}

impl Trained {
    pub fn amount(&self) -> String {
        let mut text = format!("{} samples in {:.1} s", text::count(self.samples), self.seconds);
        if self.before > 0.0 {
            text += &format!(", after {} of an earlier run", text::count(self.before));
        }
        text
    }

    pub fn speed(&self) -> String {
        let rate = text::count(self.samples / self.seconds.max(1e-9));
        match self.workers {
            1 => format!("{rate} samples/s, including data generation"),
            workers => {
                format!("{rate} samples/s over all {workers} workers, including data generation")
            }
        }
    }
}

/// Trains from the beginning, or from the newest checkpoint. Copy `copy` of `copies` of the model
/// has its share of each batch.
pub fn run(
    demo: &Demo,
    args: &DemoArgs,
    fleet: &Fleet,
    session: &mut Session,
    (copy, copies): (usize, usize),
    tracing: &mut Tracing,
) -> Result<Trained> {
    let workers = fleet.worker_num();
    let rows = demo.batch / copies;
    let first = (copy * rows) as u64;
    let share = Share { rows, stride: demo.batch as u64, first };
    let mut trainer = demo.trainer(fleet, demo.steps).on_event(|event, model| {
        if let Event::Step { step, .. } = event {
            tracing.after_step(*step, &model.session().executor);
        }
        Ok(ControlFlow::Continue(()))
    });
    if let Some(folder) = &args.flags.checkpoint {
        let every_steps = Some(args.flags.checkpoint_every.unwrap_or(demo.steps.div_ceil(20)));
        let policy = CheckpointPolicy { every_steps, every: None, ..CheckpointPolicy::default() };
        trainer = trainer
            .checkpoints(folder, policy)
            .constant("batch size", format!("batches of {}", demo.batch))
            .stop_on(&StopFlag::on_terminate()?);
    }
    let begin = Instant::now();
    let trained = trainer.run(session, demo.batches(share))?;
    let seconds = begin.elapsed().as_secs_f64();
    let before = trained.resumed.map_or(0, |resumed| resumed.step).min(demo.steps);
    let samples = |steps: u64| (steps * demo.batch as u64) as f64;
    Ok(Trained {
        samples: samples(trained.step.saturating_sub(before)),
        seconds,
        workers,
        before: samples(before),
        is_terminated: trained.ended == Ended::Requested,
    })
}
