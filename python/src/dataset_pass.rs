//! `Executor.train_from_dataset` and `infer_from_dataset`: one pass of a dataset through a program,
//! without the interpreter's lock. Python code runs in between: handlers of signals, the fetch
//! handler, the function that prints, and iterators that make batches.

use crate::arrays::{array, tensor};
use crate::data::{DatasetCell, Held};
use crate::error::{OrRaise, Raised, waiting_if};
use crate::executor::{Runner, State, Task};
use fleet::data::{Batch, BatchSource, Dataset, SuppliedBatches};
use fleet::{DType, DatasetRun, Fetched, Scope, Tensor, set_host_rates};
use pyo3::exceptions::{PyStopIteration, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::sync::Arc;
use std::time::Duration;

/// The batches of a pass.
#[derive(FromPyObject)]
pub enum Source<'py> {
    Dataset(Bound<'py, DatasetCell>),
    /// Names and types of the inputs, and a function that starts an iterator of dicts of arrays.
    Iterable((Vec<(String, String)>, Py<PyAny>)),
}

/// The arguments of a pass.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub struct PassSettings {
    /// Whether nothing is trained.
    pub infers: bool,
    threads: usize,
    debug: bool,
    /// Labels and names of the variables to print.
    fetch: Vec<(String, String)>,
    print_period: u64,
    /// Prints a line.
    print: Py<PyAny>,
    /// Labels and names of the variables for the handler.
    watched: Vec<(String, String)>,
    period_secs: f64,
    /// Gets a dict of arrays by label.
    handler: Option<Py<PyAny>>,
}

pub fn run_pass(
    py: Python<'_>,
    state: &mut State,
    task: &Task,
    source: Source<'_>,
    scope: &mut Scope,
    settings: PassSettings,
) -> PyResult<u64> {
    let raised = Raised::default();
    let pass = match source {
        Source::Dataset(cell) => {
            let held: &Held = &*cell.get().lock()?;
            waiting_if(task.has_peers(), py, || {
                run(state, task, held.dataset(), scope, &settings, &raised)
            })
        }
        Source::Iterable((inputs, start)) => {
            let dataset = supplied(inputs, start, &raised)?;
            waiting_if(task.has_peers(), py, || {
                run(state, task, &dataset, scope, &settings, &raised)
            })
        }
    };
    raised.or(pass)
}

/// Returns the batches of an iterator of Python that each pass starts.
pub fn supplied(
    inputs: Vec<(String, String)>,
    start: Py<PyAny>,
    raised: &Raised,
) -> PyResult<impl Dataset + Send + Sync + use<>> {
    let (inputs, raised) = (typed(inputs)?, raised.clone());
    let named = Arc::clone(&inputs);
    Ok(SuppliedBatches::new(&named, move || {
        let iterator = raised.keep(Python::attach(|py| start.call0(py)))?;
        let (inputs, raised) = (Arc::clone(&inputs), raised.clone());
        Ok(Box::new(IteratorSource { iterator, inputs, raised }))
    }))
}

fn typed(inputs: Vec<(String, String)>) -> PyResult<Arc<Vec<(String, DType)>>> {
    let parsed = |(name, dtype): (String, String)| Ok((name, DType::parse(&dtype).or_raise()?));
    Ok(Arc::new(inputs.into_iter().map(parsed).collect::<PyResult<_>>()?))
}

fn run(
    state: &mut State,
    task: &Task,
    dataset: &dyn Dataset,
    scope: &mut Scope,
    settings: &PassSettings,
    raised: &Raised,
) -> fleet::Result<u64> {
    let print = |line: &str| {
        // The next check returns the exception.
        let _ = raised.keep(Python::attach(|py| settings.print.call1(py, (line,))));
    };
    let mut run = DatasetRun::new()
        .threads(settings.threads)
        .debug(settings.debug)
        .print_period(settings.print_period)
        .print(print)
        .interrupt(|| raised.check());
    for (label, name) in &settings.fetch {
        run = run.fetch(label, name);
    }
    for (label, name) in &settings.watched {
        run = run.watch(label, name);
    }
    if let Some(handler) = &settings.handler {
        let first = settings.fetch.len();
        let period = Duration::try_from_secs_f64(settings.period_secs).unwrap_or(Duration::MAX);
        run = run.handler(period, move |fetched| {
            raised.keep(Python::attach(|py| handle(py, handler, fetched, first)))
        });
    }
    let infers = settings.infers;
    if infers {
        state.settle(task, scope)?;
    }
    let report = state.with_session(task, scope, |runner| match runner {
        Runner::Program { executor, program, scope } => {
            fleet::run_batches(program, dataset, run, |batch, fetch, out| {
                if !task.for_test {
                    set_host_rates(&task.host_rates, scope)?;
                }
                executor.run_into(program, scope, &batch.feeds(), fetch, out)
            })
        }
        Runner::Session(session) if infers => session.infer_from_dataset(dataset, run),
        Runner::Session(session) => {
            // All workers make the same number of steps, since each step communicates.
            let run = task.job.iter().fold(run, |run, job| run.together(&job.fleet));
            session.train_from_dataset(dataset, run)
        }
        Runner::Worker(worker) if infers => worker.infer_from_dataset(dataset, run),
        Runner::Worker(worker) => worker.train_from_dataset(dataset, run),
    })?;
    if !infers {
        state.settle(task, scope)?;
    }
    raised.check()?;
    Ok(report.batches)
}

/// Calls a fetch handler with the values after the first ones, which are printed.
fn handle(
    py: Python<'_>,
    handler: &Py<PyAny>,
    fetched: &Fetched<'_>,
    first: usize,
) -> PyResult<()> {
    let values = PyDict::new(py);
    for (label, value) in &fetched.values[first..] {
        values.set_item(label, array(py, value)?)?;
    }
    handler.call1(py, (values,)).map(drop)
}

/// Takes batches from an iterator of Python.
struct IteratorSource {
    iterator: Py<PyAny>,
    inputs: Arc<Vec<(String, DType)>>,
    raised: Raised,
}

impl BatchSource for IteratorSource {
    fn next_batch(&mut self, batch: &mut Batch) -> fleet::Result<bool> {
        let taken = self.raised.keep(Python::attach(|py| self.take(py)))?;
        match taken {
            Some(tensors) => batch.set_tensors(tensors).map(|()| true),
            None => Ok(false),
        }
    }
}

impl IteratorSource {
    fn take(&self, py: Python<'_>) -> PyResult<Option<Vec<Tensor>>> {
        let feed = match self.iterator.bind(py).call_method0("__next__") {
            Err(error) if error.is_instance_of::<PyStopIteration>(py) => return Ok(None),
            feed => feed?,
        };
        let feed = feed.cast::<PyDict>().map_err(|_| {
            PyTypeError::new_err("the batches of a loader must be dicts of arrays by name")
        })?;
        let tensor = |(name, dtype): &(String, DType)| {
            let value = feed.get_item(name)?.ok_or_else(|| {
                PyTypeError::new_err(format!("a batch of the loader has no input '{name}'"))
            })?;
            tensor(&format!("the value fed for '{name}'"), &value, *dtype, None)
        };
        self.inputs.iter().map(tensor).collect::<PyResult<_>>().map(Some)
    }
}
