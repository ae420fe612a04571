//! The trainer: settings of a training, one call each.

use super::evaluate::Evaluation;
use super::event::Event;
use super::model::Model;
use super::progress::Progress;
use super::run::{Run, Trained};
use super::settings::{Every, Goal, Settings, Validation};
use super::source::Source;
use super::stop::StopFlag;
use crate::{CheckpointPolicy, Fleet};
use fleet_base::Result;
use fleet_net::Time;
use std::fmt::Display;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::Duration;

/// A training loop: epochs, validation, early stop, checkpoints, scalars and progress.
///
/// The same trainer runs in one process, as a rank of a collective job, and as a worker of
/// parameter servers. All workers of a job must use the same settings.
///
/// ```
/// use fleet::prelude::*;
/// use fleet::Fleet;
/// use fleet::trainer::{Evaluation, Every, Goal, Progress, Trainer, from_fn};
/// let fleet = Fleet::collective()?;
/// let net = Net::new();
/// let (x, y) = (net.data("x", [-1, 1], DType::F32), net.data("y", [-1, 1], DType::F32));
/// let loss = x.fc(1).mse_loss(y, Reduction::Mean);
/// net.minimize(loss, Sgd::new(0.1))?;
/// let loss = loss.name();
/// let mut session = Session::new(net.build()?, ExecOptions::default())?;
///
/// // y = 2 x + 1, in 20 batches of 2 rows.
/// let data = || {
///     let batch = |_epoch, batch: u64, feeds: &mut fleet::trainer::Feeds| {
///         let x = [batch as f32 * 0.05, 1.0 - batch as f32 * 0.05];
///         feeds.set("x", Tensor::from_slice(&x, [2, 1])?);
///         feeds.set("y", Tensor::from_slice(&x.map(|x| 2.0 * x + 1.0), [2, 1])?);
///         Ok(true)
///     };
///     from_fn(batch).batches(20)
/// };
/// let trained = Trainer::new(&fleet)
///     .epochs(20)
///     .watch("loss", &loss)
///     .validate(Evaluation::new().mean("loss", &loss), data(), Every::Epoch)
///     .goal(Goal::lowest("loss"))
///     .early_stop(3)
///     .progress(Progress::none())
///     .run(&mut session, data())?;
/// assert_eq!((trained.step, trained.epoch), (400, 20));
/// assert!(trained.best.unwrap().value < 1e-3);
/// # Ok::<(), fleet::Error>(())
/// ```
pub struct Trainer<'a> {
    fleet: &'a Fleet,
    settings: Settings<'a>,
}

/// Default interval between rows of scalars, in steps.
const SCALARS_EVERY: u64 = 100;

impl<'a> Trainer<'a> {
    /// Creates a trainer of one epoch.
    pub fn new(fleet: &'a Fleet) -> Trainer<'a> {
        let settings = Settings {
            epochs: None,
            steps: None,
            watched: Vec::new(),
            looks_ahead: true,
            resume_after: None,
            validation: None,
            goal: None,
            patience: None,
            checkpoints: None,
            constants: Vec::new(),
            scalars: None,
            scalars_every: SCALARS_EVERY,
            callbacks: Vec::new(),
            progress: None,
            stop: None,
            clock: Box::new(|| Time::now().since(Time::default())),
        };
        Trainer { fleet, settings }
    }

    /// Sets the number of passes over the data. Without [`Trainer::epochs`] and
    /// [`Trainer::steps`] it is 1.
    pub fn epochs(mut self, count: u64) -> Self {
        self.settings.epochs = Some(count);
        self
    }

    /// Sets the number of steps of the whole training, including those of earlier runs. Passes are
    /// repeated as often as needed, up to [`Trainer::epochs`] if both are set.
    pub fn steps(mut self, count: u64) -> Self {
        self.settings.steps = Some(count);
        self
    }

    /// Fetches a variable in each step, for scalars, progress and callbacks. It is a mean over its
    /// batch, such as the loss, or has one value for each row.
    pub fn watch(mut self, label: &str, variable: &str) -> Self {
        self.settings.watched.push((label.to_string(), variable.to_string()));
        self
    }

    /// Sets whether workers of parameter servers request the rows of the next step while one
    /// computes (default true). The most frequent rows then lack the latest update.
    pub fn look_ahead(mut self, looks_ahead: bool) -> Self {
        self.settings.looks_ahead = looks_ahead;
        self
    }

    /// Evaluates the model on other data at an interval. Each worker brings its share of the data.
    pub fn validate(
        mut self,
        evaluation: Evaluation,
        data: impl Source + 'a,
        every: Every,
    ) -> Self {
        self.settings.validation = Some(Validation { evaluation, data: Box::new(data), every });
        self
    }

    /// Sets the metric of the validation that tells which model is best.
    pub fn goal(mut self, goal: Goal) -> Self {
        self.settings.goal = Some(goal);
        self
    }

    /// Stops after this many validations in a row without a better value of the goal.
    pub fn early_stop(mut self, patience: u64) -> Self {
        self.settings.patience = Some(patience);
        self
    }

    /// Saves checkpoints to a folder and resumes from the newest one in it. The last step is always
    /// saved. With a goal, the best model's checkpoint is in `best/` in the folder. All ranks must
    /// see the same folder; with parameter servers, all workers and servers.
    ///
    /// Workers of parameter servers that do not agree on their steps wait for each other at each
    /// save: in the modes async, half-async and GEO, and in sync mode without a validation and a
    /// stop flag. They need [`CheckpointPolicy::every_steps`] and [`Trainer::steps`], and the
    /// interval in time does not apply to them.
    pub fn checkpoints(mut self, folder: impl Into<PathBuf>, policy: CheckpointPolicy) -> Self {
        self.settings.checkpoints = Some((folder.into(), policy));
        self
    }

    /// Begins after this step, with a model that the program itself has restored. A checkpoint of
    /// [`Trainer::checkpoints`] takes precedence.
    pub fn resume_after(mut self, step: u64) -> Self {
        self.settings.resume_after = Some(step);
        self
    }

    /// Keeps a value in the checkpoints, such as the batch size. A training whose value differs
    /// does not resume from them.
    pub fn constant(mut self, name: &str, value: impl Display) -> Self {
        self.settings.constants.push((name.to_string(), value.to_string()));
        self
    }

    /// Writes `scalars.csv` and `scalars.jsonl` to a folder, on the first worker: means of the
    /// watched values over all workers since the last row, and results of validations. A resumed
    /// training continues the files; otherwise they are replaced.
    pub fn scalars(mut self, folder: impl Into<PathBuf>) -> Self {
        self.settings.scalars = Some(folder.into());
        self
    }

    /// Sets the interval of [`Trainer::scalars`] in steps (default 100). There is also a row at the
    /// end of each epoch.
    pub fn scalars_every(mut self, steps: u64) -> Self {
        self.settings.scalars_every = steps;
        self
    }

    /// Calls a function at each event, with access to the model. If it returns `Break`, the
    /// training stops: at once in one process, and within half a second in a job whose workers make
    /// their steps together, so that all of them stop after the same step.
    pub fn on_event(
        mut self,
        call: impl FnMut(&Event<'_>, &mut Model<'_>) -> Result<ControlFlow<()>> + 'a,
    ) -> Self {
        self.settings.callbacks.push(Box::new(call));
        self
    }

    /// Sets the display of progress on this worker; [`Progress::auto`] by default.
    pub fn progress(mut self, progress: Progress<'a>) -> Self {
        self.settings.progress = Some(progress);
        self
    }

    /// Stops and saves when this flag is set, as by SIGTERM ([`StopFlag::on_terminate`]). If it is
    /// set on one worker, all workers that make their steps together stop after the same step.
    pub fn stop_on(mut self, flag: &StopFlag) -> Self {
        self.settings.stop = Some(flag.clone());
        self
    }

    /// Replaces the clock: the time since any fixed moment.
    pub fn clock(mut self, clock: impl Fn() -> Duration + 'a) -> Self {
        self.settings.clock = Box::new(clock);
        self
    }

    /// Trains a session or a worker, from the beginning or from the newest checkpoint.
    pub fn run<'m>(
        mut self,
        model: impl Into<Model<'m>>,
        mut data: impl Source,
    ) -> Result<Trained> {
        if self.settings.steps.is_none() {
            self.settings.epochs = self.settings.epochs.or(Some(1));
        }
        Run::start(self.settings, self.fleet, model.into(), &data)?.train(&mut data)
    }
}
