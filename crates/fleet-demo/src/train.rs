//! Collective training of a demo: every worker takes its share of every batch.

use super::{Demo, DemoArgs, Share};
use fleet::trainer::{Ended, Event, StopFlag};
use fleet::{CheckpointPolicy, Executor, Fleet, Session, Shares, Trace};
use fleet_base::file::write_file;
use fleet_base::output::{ExitReason, Output};
use fleet_base::{file::make_folder, text};
use std::ops::ControlFlow;
use std::path::Path;
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
    out: &mut Output,
) -> Result<Trained, ExitReason> {
    let workers = fleet.worker_num();
    let rows = demo.batch / copies;
    let first = (copy * rows) as u64;
    let share = Share { rows, stride: demo.batch as u64, first };
    let mut tracing = Tracing { folder: args.trace.as_deref(), ..Tracing::default() };
    let mut trainer = demo.trainer(fleet, demo.steps).on_event(|event, model| {
        if let Event::Step { step, .. } = event {
            tracing.after_step(*step, demo.steps, &model.session().executor);
        }
        Ok(ControlFlow::Continue(()))
    });
    if let Some(folder) = &args.checkpoint {
        let every_steps = Some(args.checkpoint_every.unwrap_or(demo.steps.div_ceil(20)));
        let policy = CheckpointPolicy { every_steps, every: None, ..CheckpointPolicy::default() };
        trainer = trainer
            .checkpoints(folder, policy)
            .constant("batch size", format!("batches of {}", demo.batch))
            .stop_on(&StopFlag::on_terminate()?);
    }
    let begin = Instant::now();
    let trained = trainer.run(session, demo.batches(share))?;
    let seconds = begin.elapsed().as_secs_f64();
    tracing.finish(fleet, out)?;
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

/// Time shares of the last steps, with `--trace`.
#[derive(Default)]
struct Tracing<'a> {
    folder: Option<&'a Path>,
    /// Sum over the traced steps.
    shares: Shares,
    steps: u64,
    last: Trace,
}

/// Number of traced steps. The first steps plan and warm up; the last ones are representative.
const STEPS_TRACED: u64 = 20;

impl Tracing<'_> {
    fn after_step(&mut self, step: u64, steps: u64, executor: &Executor) {
        if self.folder.is_some() && step + STEPS_TRACED > steps {
            self.last = executor.trace();
            self.shares.add(&self.last.shares());
            self.steps += 1;
        }
    }

    /// Writes the trace of the last step, and prints the mean duration and exposed communication of
    /// the last ones.
    fn finish(&self, fleet: &Fleet, out: &mut Output) -> Result<(), ExitReason> {
        let Some(folder) = self.folder else { return Ok(()) };
        make_folder(folder)?;
        let rank = fleet.worker_index();
        let path = folder.join(format!("rank-{rank}.json"));
        write_file(&path, self.last.to_chrome_json(rank).as_bytes())?;
        let all = &self.shares;
        let mean = |us: f64| us / self.steps.max(1) as f64;
        let step = Shares {
            total_us: mean(all.total_us),
            compute_us: mean(all.compute_us),
            other_us: mean(all.other_us),
            exposed_us: mean(all.exposed_us),
        };
        let (count, path) = (self.steps, path.display());
        out.line(format!("trace     rank {rank}, mean of the last {count} steps: {step} ({path})"))
    }
}
