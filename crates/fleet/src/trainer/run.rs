//! The training loop.

use super::evaluate::{Evaluated, row_sum};
use super::event::Event;
use super::model::Model;
use super::progress::{Amount, Display};
use super::saves::Saves;
use super::scalars::{Row, ScalarFiles};
use super::server_barriers;
use super::settings::{Every, Settings};
use super::source::{Feeds, Pass, Position, Source};
use super::state::{Best, Start, State, state_at};
use super::stop::{Ended, Rounds, StopFlag, Team, Wish};
use crate::servers::Worker;
use crate::step_clock::Measured;
use crate::{Fleet, Resumed};
use fleet_base::{Error, Result};
use fleet_metrics::Reduce;
use fleet_tensor::Tensor;
use std::mem::swap;
use std::ops::ControlFlow;
use std::process::ExitCode;
use std::time::Duration;

/// Result of a training.
#[derive(Clone, Debug)]
pub struct Trained {
    /// Number of steps made, including those of earlier runs.
    pub step: u64,
    /// Number of whole epochs made, including those of earlier runs.
    pub epoch: u64,
    /// Rows trained by all workers, including those of earlier runs. Workers of parameter servers
    /// that do not wait for each other count their own.
    pub rows: u64,
    /// Duration in seconds, including that of earlier runs.
    pub seconds: f64,
    /// The best value of the goal.
    pub best: Option<Best>,
    /// Result of the last validation of this run.
    pub validated: Option<Evaluated>,
    /// The checkpoint from which this run has resumed.
    pub resumed: Option<Resumed>,
    /// Steps of all workers together before this run of the job.
    pub steps_before: u64,
    /// Reason for the end.
    pub ended: Ended,
    /// Barriers of the servers that all workers have passed.
    barriers: u64,
}

/// Exit code of a process that ends because of SIGTERM: 128 and the number of the signal.
const EXIT_TERMINATED: u8 = 143;

impl Trained {
    /// Returns the exit code for the process: 143 if it was requested to stop, as shells and
    /// clusters expect after SIGTERM, else 0.
    pub fn exit_code(&self) -> ExitCode {
        match self.ended {
            Ended::Requested => EXIT_TERMINATED.into(),
            Ended::Completed | Ended::EarlyStop | Ended::Callback => ExitCode::SUCCESS,
        }
    }

    /// Waits for all workers of parameter servers after their last step: at the first barrier after
    /// the training, at the second, and so on. A worker that was restarted does not wait at a
    /// barrier that its earlier process has passed with the others, as [`Worker::barrier`] would.
    ///
    /// ```no_run
    /// # use fleet::{Fleet, Result, Trainer, servers::Worker, trainer::Source};
    /// # fn work(fleet: &Fleet, worker: &mut Worker, data: impl Source) -> Result<()> {
    /// let trained = Trainer::new(fleet).steps(1000).run(&mut *worker, data)?;
    /// trained.wait(worker, 1)?; // all workers have sent their last gradients
    /// worker.flush()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn wait(&self, worker: &Worker, nth: u64) -> Result<()> {
        server_barriers::wait(worker, self.barriers + nth)
    }
}

/// Interval between counts of the workers that are left, for the speed that progress shows.
const COUNT_PERIOD: Duration = Duration::from_secs(2);

/// A training in progress.
pub(super) struct Run<'a, 'm> {
    settings: Settings<'a>,
    fleet: &'a Fleet,
    model: Model<'m>,
    team: Team<'a>,
    saves: Option<Saves>,
    resumed: Option<Resumed>,
    /// Whether this is a restarted worker, which has joined the others.
    has_joined: bool,
    scalars: Option<ScalarFiles>,
    display: Display<'a>,
    amount: Amount,
    rounds: Rounds,
    state: State,
    /// Time of the clock when the training would have begun without a break.
    begin: Duration,
    /// Time of the last count of workers.
    counted: Duration,
    /// The watched values of the last step.
    values: Vec<f64>,
    fetched: Vec<Tensor>,
    validated: Option<Evaluated>,
    /// Whether a callback has stopped the training.
    is_broken: bool,
}

impl<'a, 'm> Run<'a, 'm> {
    /// Opens checkpoints and files, and resumes. All workers that make their steps together must
    /// call it.
    pub fn start(
        mut settings: Settings<'a>,
        fleet: &'a Fleet,
        mut model: Model<'m>,
        data: &dyn Source,
    ) -> Result<Run<'a, 'm>> {
        settings.check()?;
        let now = (settings.clock)();
        let watched = settings.watched.len();
        let meets = model.worker().is_none() || settings.has_agreements();
        let team = Team::new(fleet, model.is_in_step() && meets);
        let mut saves = Saves::open(fleet, &mut model, &settings, !team.is_alone(), now)?;
        let start = match &mut saves {
            None => None,
            Some(saves) => saves.resume(&mut model, watched, data)?,
        };
        let Start { state, resumed, has_joined } = match start {
            Some(start) => start,
            None => initial_state(&settings, &mut model, data)?,
        };
        let scalars = match &settings.scalars {
            Some(folder) if fleet.is_first_worker() => {
                Some(ScalarFiles::open(folder, settings.columns(), state.step)?)
            }
            _ => None,
        };
        let labels = settings.watched.iter().map(|(label, _)| label.clone()).collect();
        let progress = settings.take_progress(fleet);
        let display = Display::new(progress, labels, state.step, now);
        let amount = Amount {
            before: state.step,
            steps: settings.steps,
            epochs: settings.epochs,
            workers: model.session().copies(fleet.worker_num()) as u64,
        };
        let rounds = Rounds::new(state.step, now);
        let begin = now.saturating_sub(Duration::from_secs_f64(state.seconds.max(0.0)));
        Ok(Run {
            settings,
            fleet,
            model,
            team,
            saves,
            resumed,
            has_joined,
            scalars,
            display,
            amount,
            rounds,
            state,
            begin,
            counted: now,
            values: Vec::new(),
            fetched: Vec::new(),
            validated: None,
            is_broken: false,
        })
    }

    pub fn train(mut self, data: &mut dyn Source) -> Result<Trained> {
        self.show_start();
        if self.has_joined {
            // Its earlier process may have died at a checkpoint.
            self.save(false, (self.settings.clock)())?;
        }
        let ended = loop {
            if let Some(ended) = self.epoch(data)? {
                break ended;
            }
        };
        if let Some(saves) = &mut self.saves {
            saves.finish()?;
        }
        if let Some(worker) = self.model.worker() {
            worker.flush()?;
        }
        self.report_steps()?;
        self.display.end();
        let ranks = self.model.session().copies(self.fleet.worker_num()) as u64;
        let (steps_before, barriers) = match self.saves.as_ref().and_then(Saves::servers) {
            Some(saves) => (saves.before_of_all, saves.barriers_up_to(self.state.step)),
            None => (self.resumed.as_ref().map_or(0, |resumed| resumed.step * ranks), 0),
        };
        Ok(Trained {
            step: self.state.step,
            epoch: self.state.epoch,
            rows: self.state.rows,
            seconds: self.state.seconds,
            best: self.state.best,
            validated: self.validated,
            resumed: self.resumed,
            steps_before,
            ended,
            barriers,
        })
    }

    /// Prints what all ranks have measured, beside the prediction and the formula of a pipeline.
    fn report_steps(&mut self) -> Result<()> {
        let clock = self.model.session().clock().clone();
        if !(clock.is_watched() || clock.may_differ()) || self.team.is_alone() {
            return Ok(());
        }
        let mut watched = [f64::from(u8::from(clock.is_watched()))];
        if clock.may_differ() {
            self.team.reduce(Reduce::Max, &mut watched)?;
        }
        if watched == [0.0] {
            return Ok(());
        }
        let (own, count) = (self.fleet.worker_index(), self.fleet.worker_num());
        let mut numbers = vec![0.0; 4 * count];
        if let Some(it) = clock.measured() {
            let of_rank = [1.0, it.step_seconds, it.wait_seconds, it.memory_bytes];
            numbers[4 * own..][..4].copy_from_slice(&of_rank);
        }
        self.team.reduce(Reduce::Sum, &mut numbers)?;
        let (ranks, _) = numbers.as_chunks::<4>();
        if ranks.iter().any(|[is_measured, ..]| *is_measured == 0.0) {
            return Ok(());
        }
        let all = ranks.iter().map(|[_, step_seconds, wait_seconds, memory_bytes]| Measured {
            step_seconds: *step_seconds,
            wait_seconds: *wait_seconds,
            memory_bytes: *memory_bytes,
        });
        let lines = clock.report(own, &all.collect::<Vec<_>>());
        lines.iter().for_each(|line| self.display.print(line));
        Ok(())
    }

    fn show_start(&mut self) {
        let step = self.state.step;
        if self.has_joined {
            self.display.print(&format!("joined the training in progress after step {step}"));
        }
        let Some(resumed) = &self.resumed else { return };
        for skipped in &resumed.skipped {
            self.display.print(&format!("skipped a checkpoint: {skipped}"));
        }
        for constant in &resumed.changed_constants {
            self.display.print(&format!("note: {constant}"));
        }
        let of = self.settings.steps.map_or(String::new(), |steps| format!(" of {steps}"));
        let path = resumed.path.display();
        self.display.print(&format!("resumed after step {step}{of} from {path}"));
    }

    /// Runs the rest of an epoch. Returns the reason if the training ends.
    fn epoch(&mut self, data: &mut dyn Source) -> Result<Option<Ended>> {
        if self.is_complete() {
            return Ok(Some(Ended::Completed));
        }
        let from = self.state.position;
        let own = [Position::default(), from].map(|from| data.batches_after(from));
        let [whole, left] = self.team.batches(own)?;
        self.set_amount(whole, left);
        let mut pass = Batches { pass: data.pass(self.state.epoch, from)?, left, taken: 0 };
        let (mut feeds, mut next) = (Feeds::default(), Feeds::default());
        if !pass.next(&self.team, &mut feeds)? {
            if from.batches == 0 {
                return Err(Error::invalid("the training data has no batches")
                    .help("check the list of files, the batch size and drop_last"));
            }
            return self.end_step(true);
        }
        loop {
            // The next batch is fetched first: then the last step of an epoch is known as such.
            let ahead = pass.next(&self.team, &mut next)?;
            self.step(&feeds, ahead.then_some(&next)).map_err(|error| {
                let (step, epoch) = (self.state.step + 1, self.state.epoch);
                error.at(format!("step {step}, in epoch {epoch} of the training"))
            })?;
            let ended = self.end_step(!ahead)?;
            if ended.is_some() || !ahead {
                return Ok(ended);
            }
            swap(&mut feeds, &mut next);
        }
    }

    fn is_complete(&self) -> bool {
        self.settings.steps.is_some_and(|steps| self.state.step >= steps)
            || self.settings.epochs.is_some_and(|epochs| self.state.epoch >= epochs)
    }

    /// Computes the number of steps of the whole training, if the data is of known length.
    fn set_amount(&mut self, whole: Option<u64>, left: Option<u64>) {
        let by_epochs = || {
            let epochs = self.settings.epochs?.saturating_sub(self.state.epoch + 1);
            Some((self.state.step + left?).saturating_add(epochs.saturating_mul(whole?)))
        };
        self.amount.steps = match (self.settings.steps, by_epochs()) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
    }

    fn step(&mut self, feeds: &Feeds, next: Option<&Feeds>) -> Result<()> {
        let Settings { watched, looks_ahead, .. } = &self.settings;
        let fetch: Vec<&str> = watched.iter().map(|(_, variable)| variable.as_str()).collect();
        let next = next.filter(|_| *looks_ahead);
        self.model.step(feeds, next, &fetch, &mut self.fetched)?;
        let rows = feeds.rows();
        self.values.clear();
        for (tensor, variable) in self.fetched.iter().zip(&fetch) {
            let sum = row_sum(tensor, rows, variable)?;
            self.values.push(sum / rows.max(1) as f64);
        }
        let State { step, position, sums, .. } = &mut self.state;
        *step += 1;
        *position = Position { batches: position.batches + 1, cursor: feeds.cursor() };
        let weighted = self.values.iter().map(|value| value * rows as f64);
        sums.iter_mut().zip(weighted.chain([rows as f64])).for_each(|(sum, value)| *sum += value);
        let now = (self.settings.clock)();
        self.count_workers(now)?;
        let at = (self.state.step, self.state.epoch);
        let mean = |values: &mut [f64]| self.team.mean(values);
        self.display.step(&self.amount, at, (rows, &self.values), now, mean)?;
        let values = std::mem::take(&mut self.values);
        let event = Event::Step { step: at.0, epoch: at.1, rows, values: &values };
        let told = self.emit(&event);
        self.values = values;
        told
    }

    /// Updates the number of workers, of which those of parameter servers may lose some.
    fn count_workers(&mut self, now: Duration) -> Result<()> {
        let is_due = now.saturating_sub(self.counted) >= COUNT_PERIOD;
        if !is_due || self.fleet.worker_num() == 1 {
            return Ok(());
        }
        self.counted = now;
        if let Some(worker) = self.model.worker() {
            let left = worker.workers()?.iter().filter(|seen| !seen.is_lost()).count();
            self.amount.workers = left as u64;
        }
        Ok(())
    }

    /// Validates, writes scalars, agrees with the other workers and saves, each if it is due.
    fn end_step(&mut self, ends_epoch: bool) -> Result<Option<Ended>> {
        let (step, epoch) = (self.state.step, self.state.epoch);
        if ends_epoch {
            self.state.epoch += 1;
            self.state.position = Position::default();
            self.emit(&Event::Epoch { step, epoch })?;
        }
        let is_complete = self.is_complete();
        let is_end = ends_epoch || is_complete;
        self.state.seconds = (self.settings.clock)().saturating_sub(self.begin).as_secs_f64();
        let mut row = None;
        if is_end || step.is_multiple_of(self.settings.scalars_every) {
            self.train_scalars(row.get_or_insert_with(|| self.row(epoch)))?;
        }
        let due = match self.settings.validation.as_ref().map(|it| it.every) {
            None => false,
            Some(Every::Epoch) => is_end,
            Some(Every::Steps(every)) => is_complete || step.is_multiple_of(every),
        };
        let is_early = due && self.validate(row.get_or_insert_with(|| self.row(epoch)))?;
        if let (Some(row), Some(files)) = (&row, &mut self.scalars) {
            files.write(row);
        }
        let now = (self.settings.clock)();
        let is_requested = self.settings.stop.as_ref().is_some_and(StopFlag::is_requested);
        let stop = match (is_requested, self.is_broken) {
            (true, _) => Some(Ended::Requested),
            (false, true) => Some(Ended::Callback),
            (false, false) => None,
        };
        let own = Wish { stop, save: self.saves.as_ref().is_some_and(|it| it.is_time(now)) };
        let agreed = self.rounds.agree(&self.team, (step, is_end || due), now, own)?;
        let early = is_early.then_some(Ended::EarlyStop);
        let ended = is_complete.then_some(Ended::Completed).or(early).or(agreed.stop);
        self.save(agreed.save || ended.is_some(), now)?;
        Ok(ended)
    }

    fn row(&self, epoch: u64) -> Row {
        let State { step, rows, seconds, .. } = self.state;
        let validation = self.settings.validation.as_ref();
        let metrics = validation.map_or(0, |it| it.evaluation.labels().count());
        let values = vec![None; self.settings.watched.len() + metrics];
        Row { step, epoch, rows, seconds, values }
    }

    /// Fills in the means of the watched values since the last row, over all workers.
    fn train_scalars(&mut self, row: &mut Row) -> Result<()> {
        let mut sums = self.state.sums.clone();
        self.team.reduce(Reduce::Sum, &mut sums)?;
        self.state.sums.fill(0.0);
        let Some(rows) = sums.pop() else { return Ok(()) };
        self.state.rows += rows as u64;
        row.rows = self.state.rows;
        if rows > 0.0 {
            row.values.iter_mut().zip(sums).for_each(|(value, sum)| *value = Some(sum / rows));
        }
        Ok(())
    }

    /// Validates, and keeps the best model. Returns whether the training should stop.
    fn validate(&mut self, row: &mut Row) -> Result<bool> {
        let Some(validation) = &mut self.settings.validation else { return Ok(false) };
        let data = &mut *validation.data;
        let result = validation.evaluation.evaluate(self.fleet, &mut self.model, data)?;
        let step = self.state.step;
        let values = row.values.iter_mut().skip(self.settings.watched.len());
        values.zip(&result.scalars).for_each(|(to, (_, value))| *to = Some(*value));
        let goal = self.settings.goal.as_ref();
        let reached = goal.and_then(|goal| Some((goal, result.get(goal.label())?)));
        let best = self.state.best.map(|best| best.value);
        let is_best = reached.is_some_and(|(goal, value)| goal.is_better(value, best));
        if let (Some((_, value)), true) = (reached, is_best) {
            self.state.best = Some(Best { step, value });
            self.state.misses = 0;
        } else {
            self.state.misses += 1;
        }
        self.display.print(&validation_line(step, &result, is_best));
        if let (Some(saves), true) = (&mut self.saves, is_best)
            && saves.best(&self.state, &mut self.model)?
        {
            self.emit(&Event::Saved { step, is_best })?;
        }
        self.emit(&Event::Validated { step, result: &result, is_best })?;
        self.validated = Some(result);
        Ok(self.settings.patience.is_some_and(|patience| self.state.misses >= patience))
    }

    fn save(&mut self, must: bool, now: Duration) -> Result<()> {
        let Some(saves) = &mut self.saves else { return Ok(()) };
        if saves.after_step(&self.state, &mut self.model, must, now)? {
            self.emit(&Event::Saved { step: self.state.step, is_best: false })?;
        }
        Ok(())
    }

    fn emit(&mut self, event: &Event<'_>) -> Result<()> {
        for call in &mut self.settings.callbacks {
            if call(event, &mut self.model)? == ControlFlow::Break(()) {
                self.is_broken = true;
            }
        }
        Ok(())
    }
}

/// A pass, of which all workers of a team make the same number of batches.
struct Batches<'d> {
    pass: Box<dyn Pass + 'd>,
    /// Number of batches on which the team has agreed.
    left: Option<u64>,
    taken: u64,
}

impl Batches<'_> {
    fn next(&mut self, team: &Team<'_>, feeds: &mut Feeds) -> Result<bool> {
        if self.left == Some(self.taken) {
            return Ok(false);
        }
        let made = self.pass.next(feeds);
        let more = match self.left {
            Some(left) => match made? {
                true => true,
                false => {
                    return Err(Error::invalid("the training data has ended early")
                        .expected(format!("{left} batches in this pass"))
                        .got(self.taken));
                }
            },
            None => team.all_have_next(made)?,
        };
        self.taken += u64::from(more);
        Ok(more)
    }
}

/// Returns the start of a training that resumes from no checkpoint: before the first step, after
/// the step that the program gives, or after the last step of a restarted worker of parameter
/// servers.
fn initial_state(
    settings: &Settings<'_>,
    model: &mut Model<'_>,
    data: &dyn Source,
) -> Result<Start> {
    let progress = match (settings.resume_after, model.worker()) {
        (None, Some(worker)) => worker.resume()?,
        _ => None,
    };
    let step = settings.resume_after.or(progress.as_ref().map(|it| it.complete)).unwrap_or(0);
    let state = state_at(step, data, settings.watched.len())?;
    Ok(Start { state, resumed: None, has_joined: progress.is_some() })
}

fn validation_line(step: u64, result: &Evaluated, is_best: bool) -> String {
    let mut line = format!("validation after step {step}:");
    for (label, value) in &result.scalars {
        line += &format!("  {label} {value:.4}");
    }
    if is_best {
        line += "  (best)";
    }
    line
}
