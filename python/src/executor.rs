//! `Executor.run`.
//!
//! A program of one process runs on a plain executor. The programs of a job run in a session: the
//! startup program opens it, and steps of the main program move the scope into it and back. While
//! a worker of parameter servers trains, all other programs on its scope run on its executor, too,
//! so that lookups read the servers' tables.

use crate::arrays::{array, tensor};
use crate::dataset_pass::{PassSettings, Source, run_pass};
use crate::error::{OrRaise, exception, waiting_if};
use crate::program::ProgramCell;
use crate::scope::ScopeCell;
use crate::session::{Job, Plan, Stage, scope_of, scope_of_worker, with_variables};
use crate::trainer::{self, TrainSettings};
use fleet::nn::HostRate;
use fleet::ops::{Services, Tables};
use fleet::servers::Worker;
use fleet::{Error, ExecOptions, Executor, Result, Scope, Session, Tensor, ir, set_host_rates};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};

#[pyclass(module = "fleet._fleet", frozen)]
pub struct ExecutorCell {
    state: Mutex<Option<State>>,
}

pub struct State {
    /// The process that has the executor's threads: a fork of it has none.
    process: u32,
    executor: Executor,
    /// The saved rows that lookups of a program read, if it is a model of parameter servers.
    tables: Option<Arc<dyn Tables>>,
    options: ExecOptions,
    /// The jobs whose sessions this executor has opened.
    opened: Vec<Weak<Job>>,
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
pub struct Task {
    program: Arc<ir::Program>,
    pub host_rates: Vec<HostRate>,
    /// The job that the program was rewritten for.
    pub job: Option<Arc<Job>>,
    /// The job that the variables of the scope belong to.
    scope_job: Option<Arc<Job>>,
    /// The saved rows that its lookups read.
    tables: Option<Arc<dyn Tables>>,
    pub for_test: bool,
}

impl Task {
    fn new(program: &ProgramCell, scope: &ScopeCell) -> PyResult<Task> {
        let held = program.lock_whole()?;
        let program = Arc::clone(&held.program);
        let (host_rates, job) = (held.host_rates.clone(), held.job.clone());
        let (tables, for_test) = (held.tables.clone(), held.for_test);
        let scope_job = scope.job();
        if for_test && scope_job.as_ref().is_some_and(|job| job.plan.is_stage()) {
            return Err(exception(&stage_alone()));
        }
        Ok(Task { program, host_rates, job, scope_job, tables, for_test })
    }

    /// Returns the forward part, for evaluation, of a program that was not rewritten for a job.
    fn for_test(self) -> PyResult<Task> {
        if self.for_test || self.job.is_some() {
            return Ok(self);
        }
        let program = Arc::new(self.program.clone_for_test().or_raise()?);
        Ok(Task { program, host_rates: Vec::new(), for_test: true, ..self })
    }

    /// Returns whether a run may wait for other processes of its job.
    pub fn has_peers(&self) -> bool {
        let job = self.job.as_ref().or(self.scope_job.as_ref());
        job.is_some_and(|job| !job.fleet.topology().is_non_distributed())
    }

    /// Returns the job whose session the program opens.
    fn opens(&self) -> Option<&Arc<Job>> {
        let opens =
            |job: &&Arc<Job>| self.program.fingerprint() == job.programs.startup.fingerprint();
        self.job.as_ref().filter(opens)
    }
}

fn stage_alone() -> Error {
    Error::unsupported("this worker has one stage of the model, which cannot evaluate alone")
        .help("let all workers call fleet.distributed.fleet.whole_model(): worker 0 evaluates")
}

/// The object that runs a program, with its variables in place.
pub enum Runner<'a> {
    /// A program of one process, or one that evaluates.
    Program { executor: &'a mut Executor, program: &'a ir::Program, scope: &'a mut Scope },
    /// The main program of a collective job.
    Session(&'a mut Session),
    /// The main program of a worker of parameter servers.
    Worker(&'a mut Worker),
}

impl Runner<'_> {
    fn run(self, feed: &[(&str, &Tensor)], fetch: &[&str], out: &mut Vec<Tensor>) -> Result<()> {
        match self {
            Runner::Program { executor, program, scope } => {
                return executor.run_into(program, scope, feed, fetch, out);
            }
            Runner::Session(session) => *out = session.run(feed, fetch)?,
            Runner::Worker(worker) => *out = worker.run(feed, fetch)?,
        }
        Ok(())
    }
}

impl ExecutorCell {
    /// Runs a call with the executor, unless it is closed or in use.
    fn with_state<T>(&self, call: impl FnOnce(&mut State) -> PyResult<T>) -> PyResult<T> {
        let mut state = self.state.try_lock().map_err(|_| busy())?;
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
        call(state)
    }
}

fn busy() -> PyErr {
    PyRuntimeError::new_err(
        "the executor is running\n  \
         help: create an Executor for each thread, and do not use it in a fetch handler",
    )
}

#[pymethods]
impl ExecutorCell {
    /// Creates an executor with a number of threads; 0 means one for each core.
    #[new]
    fn new(threads: usize) -> ExecutorCell {
        let options = ExecOptions::threads(threads);
        let executor = Executor::new(options.clone());
        let (opened, fed, fetched) = (Vec::new(), HashMap::new(), Vec::new());
        let process = std::process::id();
        let state = State { process, executor, tables: None, options, opened, fed, fetched };
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
        let task = Task::new(program.get(), scope.get())?;
        self.with_state(|state| {
            if let Some(job) = task.opens() {
                scope.get().belong_to(job);
                state.opened.push(Arc::downgrade(job));
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
            let arrays = waiting_if(task.has_peers(), py, run).and_then(|()| {
                fetched.iter().map(|tensor| array(py, tensor)).collect::<PyResult<Vec<_>>>()
            });
            state.fetched = fetched;
            state.fed.extend(feed.into_iter().map(|(name, _)| name).zip(tensors));
            arrays
        })
    }

    /// Runs a program on one pass of a dataset. `source` is a dataset, or the inputs of its batches
    /// and a function that returns an iterator over them. Returns the number of batches.
    fn run_dataset<'py>(
        &self,
        py: Python<'py>,
        program: &Bound<'py, ProgramCell>,
        source: Source<'py>,
        scope: &Bound<'py, ScopeCell>,
        settings: PassSettings,
    ) -> PyResult<u64> {
        let mut task = Task::new(program.get(), scope.get())?;
        if settings.infers {
            task = task.for_test()?;
        }
        self.with_state(|state| {
            run_pass(py, state, &task, source, &mut *scope.get().lock()?, settings)
        })
    }

    /// Trains the main program of a job by the loop of the trainer. Returns its result, as a dict.
    fn train<'py>(
        &self,
        py: Python<'py>,
        program: &Bound<'py, ProgramCell>,
        data: Source<'py>,
        validation: Option<Source<'py>>,
        scope: &Bound<'py, ScopeCell>,
        settings: TrainSettings,
    ) -> PyResult<Bound<'py, PyDict>> {
        let task = Task::new(program.get(), scope.get())?;
        self.with_state(|state| {
            let scope = &mut *scope.get().lock()?;
            trainer::train(py, state, &task, data, validation, scope, &settings)
        })
    }

    /// Ends the threads and frees the memory.
    fn close(&self) -> PyResult<()> {
        let state = self.state.try_lock().map_err(|_| busy())?.take();
        state.iter().flat_map(|state| &state.opened).filter_map(Weak::upgrade).for_each(|job| {
            job.close();
        });
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
        if let Some(job) = task.opens() {
            job.start(self.options.clone(), scope)?;
            *out = fetch.iter().map(|name| scope.tensor(name)).collect::<Result<_>>()?;
            return Ok(());
        }
        self.with_session(task, scope, |runner| runner.run(feed, fetch, out))
    }

    /// Calls `call` with the runner of a program that is not the startup program of a job.
    pub fn with_session<T>(
        &mut self,
        task: &Task,
        scope: &mut Scope,
        call: impl FnOnce(Runner<'_>) -> Result<T>,
    ) -> Result<T> {
        if let Some(job) = &task.job {
            if task.program.fingerprint() != job.programs.main.fingerprint() {
                return Err(Error::invalid("the program was changed after minimize")
                    .help("write the network first, then minimize, then run"));
            }
            return with_job(job, scope, call);
        }
        let step = scope.step();
        let made = match &task.scope_job {
            Some(job) if matches!(job.plan, Plan::Servers(_)) && task.tables.is_none() => {
                self.beside_training(job, task, scope, call)
            }
            Some(job) if task.for_test && job.plan.divides_state() => {
                evaluate_divided(job, task, scope, call)
            }
            _ => self.alone(task, scope, call),
        };
        if task.for_test {
            scope.set_step(step);
        }
        made
    }

    /// Makes a worker's evaluation see all that it has trained: sends its pending gradients, and
    /// pulls the parameters.
    pub fn settle(&mut self, task: &Task, scope: &mut Scope) -> Result<()> {
        let job = task.job.as_ref().or(task.scope_job.as_ref());
        let Some(job) = job.filter(|_| task.tables.is_none()) else { return Ok(()) };
        match &mut *job.stage()? {
            Stage::Working(working) => {
                with_variables(scope, &mut working.worker, scope_of_worker, Worker::flush)
            }
            _ => Ok(()),
        }
    }

    fn alone<T>(
        &mut self,
        task: &Task,
        scope: &mut Scope,
        call: impl FnOnce(Runner<'_>) -> Result<T>,
    ) -> Result<T> {
        if !task.for_test {
            set_host_rates(&task.host_rates, scope)?;
        }
        if let Some(tables) = &task.tables {
            self.read_from(tables);
        }
        call(Runner::Program { executor: &mut self.executor, program: &task.program, scope })
    }

    /// Sets the tables of lookups. Prepared programs have those of their preparation, so others
    /// than before end them.
    fn read_from(&mut self, tables: &Arc<dyn Tables>) {
        if self.tables.as_ref().is_some_and(|held| Arc::ptr_eq(held, tables)) {
            return;
        }
        let services = Services::none().with_tables(Arc::clone(tables));
        let idle = Executor::new(ExecOptions::threads(1));
        self.executor = std::mem::replace(&mut self.executor, idle).services(services);
        self.tables = Some(Arc::clone(tables));
    }

    /// Runs a program that is not trained, on a scope whose other variables a worker trains.
    fn beside_training<T>(
        &mut self,
        job: &Job,
        task: &Task,
        scope: &mut Scope,
        call: impl FnOnce(Runner<'_>) -> Result<T>,
    ) -> Result<T> {
        let mut stage = job.stage()?;
        let Stage::Working(working) = &mut *stage else {
            return self.alone(task, scope, call);
        };
        let program = working.reading_tables(&task.program)?;
        with_variables(scope, &mut working.worker, scope_of_worker, |worker| {
            let Session { executor, scope, .. } = &mut worker.session;
            call(Runner::Program { executor, program: &program, scope })
        })
    }
}

/// Runs a program that evaluates a model whose state workers divide: its ops communicate.
fn evaluate_divided<T>(
    job: &Job,
    task: &Task,
    scope: &mut Scope,
    call: impl FnOnce(Runner<'_>) -> Result<T>,
) -> Result<T> {
    let whole = "workers divide the model: copy the program after minimize, and run it on all \
        workers; or evaluate the whole model on worker 0: fleet.distributed.fleet.whole_model()";
    let Stage::Started(session) = &mut *job.stage()? else {
        return Err(Error::invalid("the startup program of the job has not run")
            .help("run it first: exe.run(default_startup_program())"));
    };
    with_variables(scope, &mut **session, scope_of, |session| {
        let Session { executor, scope, .. } = session;
        call(Runner::Program { executor, program: &task.program, scope })
    })
    .map_err(|error| error.or_help(whole))
}

/// Calls `call` with the session of a job.
fn with_job<T>(
    job: &Job,
    scope: &mut Scope,
    call: impl FnOnce(Runner<'_>) -> Result<T>,
) -> Result<T> {
    match (&mut *job.stage()?, &job.plan) {
        (Stage::Started(session), Plan::Collective(_)) => {
            with_variables(scope, &mut **session, scope_of, |session| {
                call(Runner::Session(session))
            })
        }
        (Stage::Working(working), _) => {
            with_variables(scope, &mut working.worker, scope_of_worker, |worker| {
                call(Runner::Worker(worker))
            })
        }
        (Stage::Started(_), Plan::Servers(_)) => {
            Err(Error::invalid("the worker has not joined the servers")
                .help("call fleet.init_worker() after the startup program has run"))
        }
        (Stage::Written, _) => Err(Error::invalid("the startup program of the job has not run")
            .help("run it first: exe.run(default_startup_program())")),
        (Stage::Stopped, _) => Err(Error::invalid("the worker has left the job")
            .help("train before fleet.stop_worker(); its variables are still in the scope")),
    }
}
