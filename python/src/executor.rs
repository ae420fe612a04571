//! `Executor.run`.
//!
//! A program of one process runs on a plain executor. The programs of a job run in a session: the
//! startup program opens it, and steps of the main program move the scope into it and back.

use crate::arrays::{array, tensor};
use crate::error::{OrRaise, released};
use crate::job::Job;
use crate::program::ProgramCell;
use crate::scope::ScopeCell;
use fleet::nn::HostRate;
use fleet::{ExecOptions, Executor, Result, Scope, Session, Tensor, ir};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

#[pyclass(module = "fleet._fleet", frozen)]
pub struct ExecutorCell {
    state: Mutex<Option<State>>,
}

struct State {
    /// The process that has the executor's threads: a fork of it has none.
    process: u32,
    executor: Executor,
    options: ExecOptions,
    sessions: Vec<(Arc<Job>, Session)>,
    /// Fed tensors of the last run, whose memory the next run reuses.
    fed: HashMap<String, Tensor>,
    /// Fetched tensors of the last run.
    fetched: Vec<Tensor>,
}

impl Drop for ExecutorCell {
    fn drop(&mut self) {
        let state = self.state.get_mut().ok().and_then(Option::take);
        // In a fork there are no threads to wait for.
        if let Some(state) = state.filter(|state| state.process != std::process::id()) {
            std::mem::forget(state);
        }
    }
}

/// A program to run, as it was when the run began.
struct Task {
    program: Arc<ir::Program>,
    host_rates: Vec<HostRate>,
    job: Option<Arc<Job>>,
    for_test: bool,
}

#[pymethods]
impl ExecutorCell {
    /// Creates an executor with a number of threads; 0 means one for each core.
    #[new]
    fn new(threads: usize) -> ExecutorCell {
        let options = ExecOptions::threads(threads);
        let executor = Executor::new(options.clone());
        let (sessions, fed, fetched) = (Vec::new(), HashMap::new(), Vec::new());
        let process = std::process::id();
        let state = State { process, executor, options, sessions, fed, fetched };
        ExecutorCell { state: Mutex::new(Some(state)) }
    }

    /// Runs a program, without the interpreter's lock, and returns the fetched variables.
    fn run<'py>(
        &self,
        py: Python<'py>,
        program: &Bound<'py, ProgramCell>,
        feed: Vec<(String, Bound<'py, PyAny>)>,
        fetch: Vec<String>,
        scope: &Bound<'py, ScopeCell>,
    ) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let task = {
            let held = program.get().lock()?;
            let program = Arc::clone(&held.program);
            let (host_rates, job) = (held.host_rates.clone(), held.job.clone());
            Task { program, host_rates, job, for_test: held.for_test }
        };
        let mut state = self.state.try_lock().map_err(|_| {
            PyRuntimeError::new_err(
                "the executor runs in another thread\n  help: create an Executor for each thread",
            )
        })?;
        let Some(state) = state.as_mut() else {
            return Err(PyRuntimeError::new_err(
                "the executor is closed\n  help: create another Executor",
            ));
        };
        if state.process != std::process::id() {
            return Err(PyRuntimeError::new_err(
                "the executor belongs to the process that forked this one\n  \
                 help: create the Executor after the fork",
            ));
        }
        let mut scope = scope.get().lock()?;
        let mut tensors = Vec::with_capacity(feed.len());
        for (name, value) in &feed {
            let var = task.program.var(task.program.var_named(name).or_raise()?);
            let what = format!("the value fed for '{name}'");
            let old = state.fed.remove(name);
            tensors.push(tensor(&what, value, var.dtype, old)?);
        }
        let names: Vec<&str> = feed.iter().map(|(name, _)| name.as_str()).collect();
        let feeds: Vec<(&str, &Tensor)> = names.iter().copied().zip(&tensors).collect();
        let fetch: Vec<&str> = fetch.iter().map(String::as_str).collect();
        let mut fetched = std::mem::take(&mut state.fetched);
        let scope = &mut *scope;
        let run = || state.run(&task, scope, &feeds, &fetch, &mut fetched);
        let arrays = released(py, run).and_then(|()| {
            fetched.iter().map(|tensor| array(py, tensor)).collect::<PyResult<Vec<_>>>()
        });
        state.fetched = fetched;
        state.fed.extend(feed.into_iter().map(|(name, _)| name).zip(tensors));
        arrays
    }

    /// Ends the threads and frees the memory.
    fn close(&self) -> PyResult<()> {
        let busy = |_| PyRuntimeError::new_err("the executor runs in another thread");
        *self.state.try_lock().map_err(busy)? = None;
        Ok(())
    }
}

impl State {
    fn run(
        &mut self,
        task: &Task,
        scope: &mut Scope,
        feed: &[(&str, &Tensor)],
        fetch: &[&str],
        out: &mut Vec<Tensor>,
    ) -> Result<()> {
        match &task.job {
            Some(job) => self.run_in_job(job, task, scope, feed, fetch, out),
            None if task.for_test => {
                let step = scope.step();
                let ran = self.executor.run_into(&task.program, scope, feed, fetch, out);
                scope.set_step(step);
                ran
            }
            None => {
                set_rates(&task.host_rates, scope)?;
                self.executor.run_into(&task.program, scope, feed, fetch, out)
            }
        }
    }

    fn run_in_job(
        &mut self,
        job: &Arc<Job>,
        task: &Task,
        scope: &mut Scope,
        feed: &[(&str, &Tensor)],
        fetch: &[&str],
        out: &mut Vec<Tensor>,
    ) -> Result<()> {
        let fingerprint = task.program.fingerprint();
        let found = self.sessions.iter().position(|(other, _)| Arc::ptr_eq(other, job));
        if fingerprint == job.programs.startup.fingerprint() {
            if let Some(found) = found {
                self.sessions.remove(found);
            }
            let mut session =
                job.fleet.session(job.programs.clone(), &job.distributed, self.options.clone())?;
            replace_all(scope, &mut session.scope);
            self.sessions.push((Arc::clone(job), session));
            *out = fetch.iter().map(|name| scope.tensor(name)).collect::<Result<_>>()?;
            return Ok(());
        }
        if fingerprint != job.programs.main.fingerprint() {
            return Err(fleet::Error::invalid("the program was changed after minimize")
                .help("write the network first, then minimize, then run"));
        }
        let Some(found) = found else {
            return Err(fleet::Error::invalid("the startup program of the job has not run")
                .help("run it first, with this executor: exe.run(default_startup_program())"));
        };
        let session = &mut self.sessions[found].1;
        std::mem::swap(scope, &mut session.scope);
        let ran = session.run(feed, fetch);
        std::mem::swap(scope, &mut session.scope);
        *out = ran?;
        Ok(())
    }
}

/// Moves all variables of `made` to `scope`, which keeps its other variables.
fn replace_all(scope: &mut Scope, made: &mut Scope) {
    let others: Vec<String> =
        scope.names().filter(|name| !made.contains(name)).map(str::to_string).collect();
    for name in others {
        if let Some(tensor) = scope.remove(&name) {
            made.set(name, tensor);
        }
    }
    std::mem::swap(scope, made);
}

/// Sets the learning rates of the next step that are functions of Python.
fn set_rates(rates: &[HostRate], scope: &mut Scope) -> Result<()> {
    for rate in rates {
        let done = match scope.contains(HostRate::COUNTER) {
            true => scope.tensor(HostRate::COUNTER)?.to_vec::<i64>()?.first().copied(),
            false => None,
        };
        let value = rate.value_after(done) as f32;
        if !(value.is_finite() && value >= 0.0) {
            let name = &rate.variable;
            return Err(fleet::Error::invalid(format!("invalid learning rate '{name}'"))
                .expected("a finite number, at least 0")
                .got(value)
                .help("return such a number from the schedule's function"));
        }
        scope.assign(&rate.variable, &Tensor::from_slice(&[value], [1])?)?;
    }
    Ok(())
}
