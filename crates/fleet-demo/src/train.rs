//! Training loop of the demos: every worker takes its share of every batch.

use super::{Demo, DemoArgs, fed, number, producer};
use crate::progress::Progress;
use fleet::{
    CheckpointPolicy, Checkpoints, Error, Executor, Fleet, ReduceOp, Result, Session, Shares, Trace,
};
use fleet_base::file::write_file;
use fleet_base::output::{ExitReason, Output};
use fleet_base::{file::make_folder, text};
use std::collections::BTreeMap;
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

/// Trains from the beginning, or from the newest checkpoint.
pub fn run(
    demo: &Demo,
    args: &DemoArgs,
    fleet: &Fleet,
    session: &mut Session,
    out: &mut Output,
) -> Result<Trained, ExitReason> {
    let workers = fleet.worker_num();
    let mut checkpoints = JobCheckpoints::open(demo, args, fleet, session, out)?;
    let done = checkpoints.done.min(demo.steps);
    let fetch = demo.fetch();
    let mut progress = Progress::of(demo, fleet, done, demo.steps, demo.batch);
    let mean = |values: &[f64]| fleet.util().all_reduce(values, ReduceOp::Avg);
    let rows = demo.batch / workers;
    let share = producer::Share {
        rows,
        stride: demo.batch as u64,
        first: (fleet.worker_index() * rows) as u64,
    };
    let mut tracing = Tracing { folder: args.trace.as_deref(), ..Tracing::default() };
    let begin = Instant::now();
    let mut fetched = Vec::new();
    producer::run(&*demo.source, &share, done..demo.steps, |step, batch| {
        let Session { programs, scope, executor, .. } = session;
        executor.run_into(&programs.main, scope, &fed(batch), &fetch, &mut fetched)?;
        tracing.after_step(step, demo.steps, executor);
        let score = fetched.get(1).map(number).transpose()?;
        progress.step(step, number(&fetched[0])?, score, mean, out)?;
        Ok(checkpoints.after_step(step, session)?)
    })?;
    checkpoints.finish()?;
    let seconds = begin.elapsed().as_secs_f64();
    tracing.finish(fleet, out)?;
    Ok(Trained {
        samples: ((demo.steps - done) * demo.batch as u64) as f64,
        seconds,
        workers,
        before: (done * demo.batch as u64) as f64,
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

/// Checkpoints, if enabled: the first worker writes the state that all have in common, and every
/// worker writes its own state.
struct JobCheckpoints {
    /// Steps completed by an earlier run.
    done: u64,
    checkpoints: Option<Checkpoints>,
    batch: usize,
}

/// Entry with the samples per step, which give meaning to a number of steps.
const BATCH_ENTRY: &str = "batch";

impl JobCheckpoints {
    fn open(
        demo: &Demo,
        args: &DemoArgs,
        fleet: &Fleet,
        session: &mut Session,
        out: &mut Output,
    ) -> Result<JobCheckpoints, ExitReason> {
        let mut opened = JobCheckpoints { done: 0, checkpoints: None, batch: demo.batch };
        let Some(folder) = &args.checkpoint else { return Ok(opened) };
        let every = args.checkpoint_every.unwrap_or(demo.steps.div_ceil(20));
        let policy = CheckpointPolicy {
            every_steps: Some(every),
            every: None,
            ..CheckpointPolicy::default()
        };
        let mut checkpoints = fleet.checkpoints(folder, policy)?;
        let resumed = checkpoints.resume(&session.programs.main, &mut session.scope)?;
        opened.done = resumed.as_ref().map_or(0, |resumed| resumed.step);
        if let Some(resumed) = &resumed {
            for skipped in &resumed.skipped {
                out.line(format!("skipped a checkpoint: {skipped}"))?;
            }
            for note in &resumed.changed_constants {
                out.line(format!("note: {note}"))?;
            }
            check_batch(&resumed.entries, demo.batch, folder)?;
            let (step, path) = (resumed.step, resumed.path.display());
            out.line(format!("resumed after step {step} of {} from {path}", demo.steps))?;
        }
        opened.checkpoints = Some(checkpoints);
        Ok(opened)
    }

    fn after_step(&mut self, step: u64, session: &Session) -> Result<()> {
        let Some(checkpoints) = &mut self.checkpoints else { return Ok(()) };
        let entries = || BTreeMap::from([(BATCH_ENTRY.to_string(), self.batch.to_string())]);
        checkpoints.after_step(step, &session.programs.main, &session.scope, entries)
    }

    fn finish(&mut self) -> Result<()> {
        self.checkpoints.as_mut().map_or(Ok(()), Checkpoints::finish)
    }
}

fn check_batch(entries: &BTreeMap<String, String>, batch: usize, folder: &Path) -> Result<()> {
    let saved = entries.get(BATCH_ENTRY).map_or("another", String::as_str);
    if saved == batch.to_string() {
        return Ok(());
    }
    Err(Error::invalid("the checkpoints have another batch size")
        .expected(format!("batches of {batch}"))
        .got(format!("batches of {saved}"))
        .at(folder.display())
        .help("use another --checkpoint folder, or a number of workers that divides the batch"))
}
