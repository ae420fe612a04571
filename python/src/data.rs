//! Datasets of Python: record files that are streamed or loaded, and tensors in memory.

use crate::arrays::{array, tensor};
use crate::error::{OrRaise, Raised, guarded, released, waiting};
use crate::job::FleetCell;
use crate::program::ProgramCell;
use fleet::Tensor;
use fleet::data::{
    Batch, Dataset, DatasetOptions, InMemoryDataset, InProcessExchange, Prefetch, QueueDataset,
    Schema, TensorDataset, TextFiles, sum_over,
};
use pyo3::exceptions::{PyNotImplementedError, PyRuntimeError};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A dataset. A call holds it, so that a second thread gets an error instead.
#[pyclass(module = "fleet._fleet", frozen)]
pub struct DatasetCell {
    held: Mutex<Held>,
}

pub enum Held {
    Queue(QueueDataset),
    Memory(InMemoryDataset),
    Tensors(TensorDataset),
}

impl Held {
    pub fn dataset(&self) -> &dyn Dataset {
        match self {
            Held::Queue(dataset) => dataset,
            Held::Memory(dataset) => dataset,
            Held::Tensors(dataset) => dataset,
        }
    }
}

/// Settings of a dataset of files.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct Settings {
    batch_size: usize,
    thread_num: usize,
    pipe_command: String,
    download_cmd: String,
    drop_last: bool,
    seed: u64,
}

impl Settings {
    fn format(&self, schema: &Arc<Schema>) -> TextFiles {
        TextFiles::multi_slot(schema)
            .pipe_command(&self.pipe_command)
            .download_command(&self.download_cmd)
    }

    fn apply(&self, options: &mut DatasetOptions) {
        options.batch_size = self.batch_size;
        options.threads = self.thread_num;
        options.drop_last = self.drop_last;
        options.seed = self.seed;
    }
}

impl DatasetCell {
    fn of(held: Held) -> DatasetCell {
        DatasetCell { held: Mutex::new(held) }
    }

    pub fn lock(&self) -> PyResult<MutexGuard<'_, Held>> {
        self.held.try_lock().map_err(|_| {
            PyRuntimeError::new_err(
                "the dataset is in use by another call\n  \
                 help: use a dataset for each thread, and not in its own fetch handler",
            )
        })
    }

    /// Runs a call on a dataset in memory.
    fn in_memory<T>(&self, call: impl FnOnce(&mut InMemoryDataset) -> PyResult<T>) -> PyResult<T> {
        match &mut *self.lock()? {
            Held::Memory(dataset) => call(dataset),
            _ => Err(PyNotImplementedError::new_err("only an InMemoryDataset holds records")),
        }
    }
}

#[pymethods]
impl DatasetCell {
    /// Creates a dataset of files that hold records for these inputs of a program.
    #[staticmethod]
    fn of_files(
        in_memory: bool,
        program: &Bound<'_, ProgramCell>,
        inputs: Vec<String>,
        record_ids: bool,
        settings: Settings,
    ) -> PyResult<DatasetCell> {
        let program = program.get().whole()?;
        let make = || {
            let names: Vec<&str> = inputs.iter().map(String::as_str).collect();
            let mut schema = fleet::slots_of(&program, &names)?;
            if record_ids {
                schema = Schema::with_record_ids(schema.slots().to_vec())?;
            }
            let mut options = DatasetOptions::new(settings.format(&schema))?;
            settings.apply(&mut options);
            Ok(match in_memory {
                true => Held::Memory(InMemoryDataset::new(options)?),
                false => Held::Queue(QueueDataset::new(options)?),
            })
        };
        Ok(DatasetCell::of(guarded(make).and_then(|made| made).or_raise()?))
    }

    /// Creates a dataset of the rows of arrays: name, array and type of each.
    #[staticmethod]
    fn of_arrays(
        columns: Vec<(String, Bound<'_, PyAny>, String)>,
        batch_size: usize,
        drop_last: bool,
        threads: usize,
    ) -> PyResult<DatasetCell> {
        let column = |(name, value, dtype): (String, Bound<'_, PyAny>, String)| {
            let dtype = fleet::DType::parse(&dtype).or_raise()?;
            let made = tensor(&format!("the column for '{name}'"), &value, dtype, None)?;
            Ok((name, made))
        };
        let columns: PyResult<Vec<(String, Tensor)>> = columns.into_iter().map(column).collect();
        let dataset = TensorDataset::new(columns?, batch_size).or_raise()?;
        let dataset = dataset.drop_last(drop_last).threads(threads).or_raise()?;
        Ok(DatasetCell::of(Held::Tensors(dataset)))
    }

    /// Changes the settings, from the next load or pass on.
    fn update(&self, settings: Settings) -> PyResult<()> {
        let change = |options: &mut DatasetOptions| {
            options.format = Arc::new(settings.format(options.format.schema()));
            settings.apply(options);
        };
        match &mut *self.lock()? {
            Held::Queue(dataset) => dataset.update_settings(change).or_raise(),
            Held::Memory(dataset) => dataset.update_settings(change).or_raise(),
            Held::Tensors(_) => Ok(()),
        }
    }

    fn set_filelist(&self, files: Vec<PathBuf>) -> PyResult<()> {
        match &mut *self.lock()? {
            Held::Queue(dataset) => dataset.set_filelist(files).or_raise(),
            Held::Memory(dataset) => dataset.set_filelist(files).or_raise(),
            Held::Tensors(_) => Ok(()),
        }
    }

    fn set_date(&self, date: &str) -> PyResult<()> {
        match &mut *self.lock()? {
            Held::Queue(dataset) => dataset.set_date(date).or_raise(),
            Held::Memory(dataset) => dataset.set_date(date).or_raise(),
            Held::Tensors(_) => Ok(()),
        }
    }

    fn preload(&self) -> PyResult<()> {
        self.in_memory(|dataset| dataset.preload_into_memory().or_raise())
    }

    /// Waits for a load. A signal cancels the load.
    fn wait_preload_done(&self, py: Python<'_>) -> PyResult<()> {
        self.in_memory(|dataset| {
            while !dataset.preload_is_done() {
                if let Err(signal) = py.check_signals() {
                    dataset.cancel_preload();
                    return Err(signal);
                }
                py.detach(|| std::thread::sleep(LOAD_CHECK_PERIOD));
            }
            released(py, || dataset.wait_preload_done())
        })
    }

    fn local_shuffle(&self, py: Python<'_>) -> PyResult<()> {
        self.in_memory(|dataset| {
            released(py, || {
                dataset.local_shuffle();
                Ok(())
            })
        })
    }

    /// Exchanges records with the other workers of a job; without one this worker is alone.
    fn global_shuffle(&self, py: Python<'_>, job: Option<&Bound<'_, FleetCell>>) -> PyResult<()> {
        let job = job.map(|job| &job.get().fleet);
        self.in_memory(|dataset| {
            waiting(py, || match job {
                Some(fleet) => dataset.global_shuffle(&mut fleet.exchange()?),
                None => dataset.global_shuffle(&mut InProcessExchange::group(1).remove(0)),
            })
        })
    }

    fn slots_shuffle(&self, py: Python<'_>, slots: Vec<String>) -> PyResult<()> {
        let slots: Vec<&str> = slots.iter().map(String::as_str).collect();
        self.in_memory(|dataset| released(py, || dataset.slots_shuffle(&slots)))
    }

    fn release_memory(&self) -> PyResult<()> {
        self.in_memory(|dataset| {
            dataset.release_memory();
            Ok(())
        })
    }

    /// Returns the number of records in memory, or of those that a global shuffle has given; of all
    /// workers of a job, if there is one.
    fn data_size(
        &self,
        py: Python<'_>,
        shuffled: bool,
        job: Option<&Bound<'_, FleetCell>>,
    ) -> PyResult<u64> {
        let job = job.map(|job| &job.get().fleet);
        self.in_memory(|dataset| {
            let count = match shuffled {
                true => dataset.shuffle_data_size(),
                false => dataset.memory_data_size(),
            };
            match job {
                None => Ok(count as u64),
                Some(fleet) => waiting(py, || sum_over(&mut fleet.exchange()?, count as u64)),
            }
        })
    }

    /// Shuffles the rows of arrays for an epoch.
    fn shuffle_for_epoch(&self, py: Python<'_>, seed: u64, epoch: u64) -> PyResult<()> {
        match &mut *self.lock()? {
            Held::Tensors(dataset) => py.detach(|| dataset.shuffle_for_epoch(seed, epoch)),
            Held::Memory(dataset) => py.detach(|| dataset.shuffle_for_epoch(epoch)),
            Held::Queue(_) => {}
        }
        Ok(())
    }

    /// Sets the seed by which a trainer shuffles the rows of arrays in each epoch.
    fn shuffle_by(&self, seed: Option<u64>) -> PyResult<()> {
        if let Held::Tensors(dataset) = &mut *self.lock()? {
            dataset.shuffle_by(seed);
        }
        Ok(())
    }

    /// Returns the number of batches of a pass, if it is known.
    fn batch_count(&self) -> PyResult<Option<u64>> {
        Ok(self.lock()?.dataset().batch_count())
    }

    /// Starts a pass.
    fn batches(&self, py: Python<'_>) -> PyResult<BatchesCell> {
        // The first array imports NumPy, which a signal must not interrupt: that panics.
        array(py, &Tensor::empty())?;
        let held: &Held = &*self.lock()?;
        released(py, || {
            let dataset = held.dataset();
            let batches = Prefetch::start(dataset.sources(0)?, dataset.layout(), 1)?;
            let batch = Batch::new(dataset.layout());
            let process = std::process::id();
            Ok(BatchesCell { process, state: Mutex::new(Some((batches, batch))) })
        })
    }
}

/// The batches of one pass, as dicts of arrays.
#[pyclass(module = "fleet._fleet", frozen)]
pub struct BatchesCell {
    /// The process that has the threads of the pass: a fork of it has none.
    process: u32,
    state: Mutex<Option<(Prefetch, Batch)>>,
}

#[pymethods]
impl BatchesCell {
    fn __iter__(this: Bound<'_, Self>) -> Bound<'_, Self> {
        this
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        let mut state = self
            .state
            .try_lock()
            .map_err(|_| PyRuntimeError::new_err("another thread takes batches of this pass"))?;
        if self.process != std::process::id() {
            return Err(PyRuntimeError::new_err(
                "the pass belongs to the process that forked this one\n  \
                 help: start a pass after the fork",
            ));
        }
        let Some((batches, batch)) = &mut *state else { return Ok(None) };
        let raised = Raised::default();
        let taken = released(py, || batches.next_batch_or(batch, &mut || raised.check()));
        if !raised.or(taken)? {
            return Ok(None);
        }
        let feed = PyDict::new(py);
        for (name, tensor) in batch.feeds() {
            feed.set_item(name, array(py, tensor)?)?;
        }
        Ok(Some(feed))
    }

    /// Ends the pass.
    fn close(&self) {
        if let Ok(mut state) = self.state.try_lock()
            && let Some((batches, _)) = state.take()
        {
            batches.detach();
        }
    }
}

impl Drop for BatchesCell {
    fn drop(&mut self) {
        // Its threads are not waited for: a loop may leave the pass at any batch.
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some((batches, _)) = state.take() {
            batches.detach();
        }
    }
}

/// Interval between checks for signals while a load is waited for.
const LOAD_CHECK_PERIOD: Duration = Duration::from_millis(20);
