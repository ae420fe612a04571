//! Scopes: the variables that persist between runs.

use crate::arrays::{array, long_name, tensor};
use crate::error::{OrRaise, spelled};
use crate::session::Job;
use fleet::{Scope, Tensor};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, RwLock, RwLockWriteGuard, Weak};
use std::time::Duration;

/// Size from which a variable is copied without the interpreter's lock: about 0.1 ms.
const UNLOCKED_MIN_BYTES: usize = 1 << 20;
/// Interval between checks whether such a copy of another thread has ended.
const COPY_INTERVAL: Duration = Duration::from_micros(200);

#[pyclass(module = "fleet._fleet", frozen)]
#[derive(Default)]
pub struct ScopeCell {
    scope: Arc<RwLock<Scope>>,
    /// Number of copies, which may hold the scope without the interpreter's lock.
    copies: AtomicUsize,
    /// The job that the variables belong to.
    job: Mutex<Weak<Job>>,
}

impl ScopeCell {
    pub fn of(scope: Scope) -> ScopeCell {
        ScopeCell { scope: Arc::new(RwLock::new(scope)), ..ScopeCell::default() }
    }

    /// Returns the job that the variables belong to.
    pub fn job(&self) -> Option<Arc<Job>> {
        self.job.lock().ok().and_then(|job| job.upgrade())
    }

    /// Makes this the scope of a job, whose session uses its variables.
    pub fn belong_to(&self, job: &Arc<Job>) {
        if let Ok(mut held) = self.job.lock() {
            *held = Arc::downgrade(job);
        }
        job.keep_scope(Arc::clone(&self.scope));
    }

    /// Locks the scope, unless a run uses it. Waits for copies of other threads, which do not wait
    /// for anything.
    pub fn lock(&self) -> PyResult<RwLockWriteGuard<'_, Scope>> {
        loop {
            if let Ok(scope) = self.scope.try_write() {
                return Ok(scope);
            }
            if self.copies.load(SeqCst) == 0 {
                return Err(busy());
            }
            Python::attach(|py| py.detach(|| std::thread::sleep(COPY_INTERVAL)));
        }
    }

    /// Returns a copy of a large variable, made without the interpreter's lock.
    fn copy_unlocked(&self, py: Python<'_>, name: &str) -> PyResult<Tensor> {
        loop {
            // Fails if a run uses the scope. Another call may begin when this thread releases the
            // interpreter's lock, so the copy is tried again.
            drop(self.lock()?);
            self.copies.fetch_add(1, SeqCst);
            let copied = py.detach(|| self.scope.try_read().ok().map(|scope| scope.tensor(name)));
            self.copies.fetch_sub(1, SeqCst);
            if let Some(copied) = copied {
                return copied.or_raise();
            }
        }
    }
}

fn busy() -> PyErr {
    PyRuntimeError::new_err(spelled(
        "the scope is in use by a run\n  help: use a scope for each thread, \
         fleet.static.scope_guard(fleet.static.Scope()); \
         a fetch handler reads the values in its argument"
            .to_string(),
    ))
}

#[pymethods]
impl ScopeCell {
    #[new]
    fn new() -> ScopeCell {
        ScopeCell::default()
    }

    fn names(&self) -> PyResult<Vec<String>> {
        Ok(self.lock()?.names().map(str::to_string).collect())
    }

    fn contains(&self, name: &str) -> PyResult<bool> {
        Ok(self.lock()?.contains(name))
    }

    /// Returns the shape and the type of a variable.
    fn meta(&self, name: &str) -> PyResult<Option<(Vec<i64>, &'static str)>> {
        let meta = self.lock()?.meta(name);
        Ok(meta.map(|(dtype, shape)| (shape.to_vec(), long_name(dtype))))
    }

    /// Returns a copy of a variable.
    fn value<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
        let bytes = {
            let scope = self.lock()?;
            let meta = scope.meta(name);
            meta.map_or(0, |(dtype, shape)| shape.len().saturating_mul(dtype.size()))
        };
        let tensor = match bytes >= UNLOCKED_MIN_BYTES {
            true => self.copy_unlocked(py, name)?,
            false => self.lock()?.tensor(name).or_raise()?,
        };
        array(py, &tensor)
    }

    /// Assigns a variable, which must have this shape and type already.
    fn assign(&self, name: &str, value: &Bound<'_, PyAny>) -> PyResult<()> {
        let mut scope = self.lock()?;
        let Some((dtype, _)) = scope.meta(name) else {
            // The error names the nearest variable.
            return scope.tensor(name).or_raise().map(drop);
        };
        let given = tensor(&format!("'{name}'"), value, dtype, None)?;
        scope.assign(name, &given).or_raise()
    }

    /// Adds a variable, or replaces it.
    fn set(&self, name: &str, value: &Bound<'_, PyAny>, dtype: &str) -> PyResult<()> {
        let dtype = fleet::DType::parse(dtype).or_raise()?;
        let given = tensor(&format!("'{name}'"), value, dtype, None)?;
        self.lock()?.set(name, given);
        Ok(())
    }

    fn erase(&self, names: Vec<String>) -> PyResult<()> {
        let mut scope = self.lock()?;
        for name in names {
            if scope.remove(&name).is_none() {
                return Err(PyValueError::new_err(format!("the scope has no variable '{name}'")));
            }
        }
        Ok(())
    }

    #[getter]
    fn step(&self) -> PyResult<u64> {
        Ok(self.lock()?.step())
    }
}
