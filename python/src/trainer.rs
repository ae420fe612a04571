//! `fleet.Trainer`: the training loop of Rust over a program, data and a callback of Python.

use crate::data::Held;
use crate::dataset_pass::{Source, supplied};
use crate::error::{Raised, waiting_if};
use crate::executor::{Runner, State, Task};
use fleet::data::Dataset;
use fleet::trainer::{
    Evaluated, Evaluation, Event, Every, Goal, Model, Progress, Trained, Trainer,
};
use fleet::{CheckpointPolicy, Error, Fleet, Scope, trainer};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::io::{self, Write};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::MutexGuard;
use std::time::Duration;

/// The arguments of a trainer.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub struct TrainSettings {
    epochs: Option<u64>,
    steps: Option<u64>,
    /// Labels and names of the watched variables.
    watched: Vec<(String, String)>,
    look_ahead: bool,
    /// Whether an `InMemoryDataset` is shuffled in each epoch.
    shuffle: bool,
    /// Metrics of the validation: label and variable; label, prediction and target.
    means: Vec<(String, String)>,
    aucs: Vec<(String, String, String)>,
    /// None validates at the end of each epoch.
    validate_steps: Option<u64>,
    /// Label, and whether the highest value is best.
    goal: Option<(String, bool)>,
    min_delta: f64,
    patience: Option<u64>,
    checkpoints: Option<PathBuf>,
    save_steps: Option<u64>,
    save_secs: Option<f64>,
    keep: usize,
    constants: Vec<(String, String)>,
    scalars: Option<PathBuf>,
    scalars_every: u64,
    /// Gets a dict for each event; a true result stops the training.
    callback: Option<Py<PyAny>>,
    /// "none", "auto", "lines", or "rewritten".
    progress: String,
    /// Writes the lines of progress, unless it is "auto".
    write: Py<PyAny>,
}

/// Trains the program of a task, which a job must have.
pub fn train<'py>(
    py: Python<'py>,
    state: &mut State,
    task: &Task,
    data: Source<'py>,
    validation: Option<Source<'py>>,
    scope: &mut Scope,
    settings: &TrainSettings,
) -> PyResult<Bound<'py, PyDict>> {
    let raised = Raised::default();
    let Some(job) = task.job.clone() else {
        let error = Error::invalid("the program was not written for a job").help(
            "call fleet.init(is_collective=True) and minimize with fleet.distributed_optimizer; \
             a script without a launcher is a job of one worker",
        );
        return Err(crate::error::exception(&error));
    };
    let mut data = Data::open(&data, &raised)?;
    let mut validation = validation.as_ref().map(|it| Data::open(it, &raised)).transpose()?;
    let mut data = data.used();
    let mut validation = validation.as_mut().map(Data::used);
    let trained = waiting_if(task.has_peers(), py, || {
        let source = data.source(settings.shuffle);
        let validation = validation.as_mut().map(|held| held.source(false));
        let trainer = settings.trainer(&job.fleet, validation, &raised);
        state.with_session(task, scope, |runner| {
            let model: Model<'_> = match runner {
                Runner::Session(session) => session.into(),
                Runner::Worker(worker) => worker.into(),
                Runner::Program { .. } => {
                    return Err(Error::internal("the program of a job runs outside of it"));
                }
            };
            trainer.run(model, source)
        })
    });
    result(py, &raised.or(trained)?)
}

/// Data of Python; no other call may use it meanwhile.
enum Data<'s> {
    Held(MutexGuard<'s, Held>),
    Supplied(Box<dyn Dataset + Send + Sync>),
}

/// The same without the lock, for another thread than that which has the interpreter.
enum Used<'d> {
    Held(&'d mut Held),
    Supplied(&'d (dyn Dataset + Send + Sync)),
}

impl<'s> Data<'s> {
    fn open(source: &'s Source<'_>, raised: &Raised) -> PyResult<Data<'s>> {
        Ok(match source {
            Source::Dataset(cell) => Data::Held(cell.get().lock()?),
            Source::Iterable((inputs, start)) => {
                let start = Python::attach(|py| start.clone_ref(py));
                Data::Supplied(Box::new(supplied(inputs.clone(), start, raised)?))
            }
        })
    }

    fn used(&mut self) -> Used<'_> {
        match self {
            Data::Held(held) => Used::Held(held),
            Data::Supplied(dataset) => Used::Supplied(&**dataset),
        }
    }
}

impl Used<'_> {
    fn source(&mut self, shuffle: bool) -> Box<dyn trainer::Source + '_> {
        match self {
            Used::Held(Held::Memory(dataset)) => match shuffle {
                true => Box::new(dataset),
                false => Box::new(&*dataset),
            },
            Used::Held(Held::Queue(dataset)) => Box::new(&*dataset),
            Used::Held(Held::Tensors(dataset)) => Box::new(dataset),
            Used::Supplied(dataset) => {
                let dataset: &dyn Dataset = *dataset;
                Box::new(dataset)
            }
        }
    }
}

impl TrainSettings {
    fn trainer<'a>(
        &'a self,
        fleet: &'a Fleet,
        validation: Option<Box<dyn trainer::Source + 'a>>,
        raised: &'a Raised,
    ) -> Trainer<'a> {
        let mut trainer = Trainer::new(fleet)
            .look_ahead(self.look_ahead)
            .scalars_every(self.scalars_every)
            .progress(self.progress(fleet, raised));
        if let Some(epochs) = self.epochs {
            trainer = trainer.epochs(epochs);
        }
        if let Some(steps) = self.steps {
            trainer = trainer.steps(steps);
        }
        for (label, variable) in &self.watched {
            trainer = trainer.watch(label, variable);
        }
        if let Some(data) = validation {
            let every = self.validate_steps.map_or(Every::Epoch, Every::Steps);
            trainer = trainer.validate(self.evaluation(), data, every);
        }
        if let Some((label, highest)) = &self.goal {
            let goal = if *highest { Goal::highest(label) } else { Goal::lowest(label) };
            trainer = trainer.goal(goal.by_at_least(self.min_delta));
        }
        if let Some(patience) = self.patience {
            trainer = trainer.early_stop(patience);
        }
        if let Some(folder) = &self.checkpoints {
            trainer = trainer.checkpoints(folder, self.policy());
        }
        if let Some(folder) = &self.scalars {
            trainer = trainer.scalars(folder);
        }
        for (name, value) in &self.constants {
            trainer = trainer.constant(name, value);
        }
        // Also for Ctrl-C, which ends the training after a step.
        trainer.on_event(move |event, _| {
            raised.check()?;
            let Some(callback) = &self.callback else { return Ok(ControlFlow::Continue(())) };
            let stops = raised.keep(Python::attach(|py| self.call(py, callback, event)))?;
            Ok(if stops { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        })
    }

    fn evaluation(&self) -> Evaluation {
        let means = self.means.iter();
        let evaluation = means.fold(Evaluation::new(), |it, (label, name)| it.mean(label, name));
        let aucs = self.aucs.iter();
        aucs.fold(evaluation, |it, (label, prediction, target)| it.auc(label, prediction, target))
    }

    fn policy(&self) -> CheckpointPolicy {
        let every = self.save_secs.map(Duration::try_from_secs_f64);
        let every = every.map(|span| span.unwrap_or(Duration::MAX));
        CheckpointPolicy { every_steps: self.save_steps, every, keep_last: self.keep }
    }

    fn progress<'a>(&'a self, fleet: &Fleet, raised: &'a Raised) -> Progress<'a> {
        let out = Printed { write: &self.write, raised };
        match self.progress.as_str() {
            "auto" => Progress::auto(fleet),
            "lines" if fleet.is_first_worker() => Progress::lines(out),
            "rewritten" if fleet.is_first_worker() => Progress::rewritten(out),
            _ => Progress::none(),
        }
    }

    fn call(&self, py: Python<'_>, callback: &Py<PyAny>, event: &Event<'_>) -> PyResult<bool> {
        let dict = PyDict::new(py);
        match event {
            Event::Step { step, epoch, rows, values } => {
                dict.set_item("kind", "step")?;
                dict.set_item("step", step)?;
                dict.set_item("epoch", epoch)?;
                dict.set_item("rows", rows)?;
                for ((label, _), value) in self.watched.iter().zip(*values) {
                    dict.set_item(label, value)?;
                }
            }
            Event::Epoch { step, epoch } => {
                dict.set_item("kind", "epoch")?;
                dict.set_item("step", step)?;
                dict.set_item("epoch", epoch)?;
            }
            Event::Validated { step, result, is_best } => {
                dict.set_item("kind", "validated")?;
                dict.set_item("step", step)?;
                dict.set_item("is_best", is_best)?;
                add(&dict, result)?;
            }
            Event::Saved { step, is_best, .. } => {
                dict.set_item("kind", "saved")?;
                dict.set_item("step", step)?;
                dict.set_item("is_best", is_best)?;
            }
            _ => return Ok(false),
        }
        callback.call1(py, (dict,))?.is_truthy(py)
    }
}

fn add(dict: &Bound<'_, PyDict>, result: &Evaluated) -> PyResult<()> {
    result.scalars.iter().try_for_each(|(label, value)| dict.set_item(label, value))
}

fn result<'py>(py: Python<'py>, trained: &Trained) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("step", trained.step)?;
    dict.set_item("epoch", trained.epoch)?;
    dict.set_item("rows", trained.rows)?;
    dict.set_item("seconds", trained.seconds)?;
    dict.set_item("ended", format!("{:?}", trained.ended))?;
    dict.set_item("resumed_step", trained.resumed.as_ref().map(|resumed| resumed.step))?;
    let best = trained.best.as_ref();
    dict.set_item("best", best.map(|best| best.value))?;
    dict.set_item("best_step", best.map(|best| best.step))?;
    let validated = PyDict::new(py);
    if let Some(result) = &trained.validated {
        add(&validated, result)?;
    }
    dict.set_item("validated", validated)?;
    Ok(dict)
}

/// A writer that calls a function of Python.
struct Printed<'a> {
    write: &'a Py<PyAny>,
    raised: &'a Raised,
}

impl Write for Printed<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(bytes);
        // The next event returns the exception.
        let _ = self.raised.keep(Python::attach(|py| self.write.call1(py, (text,)).map(drop)));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
