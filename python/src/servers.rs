//! A server or worker of a job with parameter servers.

use crate::error::{OrRaise, exception, released, waiting};
use crate::job::FleetCell;
use crate::program::ProgramCell;
use crate::session::{Job, Plan, Stage, Working, scope_of, scope_of_worker, with_variables};
use fleet::nn::Programs;
use fleet::ops::Registry;
use fleet::ps::{Durability, SaveFormat, SaveMode};
use fleet::servers::{ServerJob, Worker};
use fleet::{Error, ExecOptions, Executor, Result, Scope, Session, ir};
use pyo3::prelude::*;
use std::path::{Path, PathBuf};
use std::sync::{RwLock, RwLockWriteGuard};

/// Creates this server's part of the tables and listens. `dir` is a save, from which the tables of
/// rows are loaded: all that it has, or those of the named parameters. With `durable`, the tables
/// are kept in that folder instead.
#[pyfunction]
pub fn init_server(
    py: Python<'_>,
    cell: &Bound<'_, FleetCell>,
    dir: Option<PathBuf>,
    names: Option<Vec<String>>,
    durable: Option<PathBuf>,
) -> PyResult<()> {
    let (fleet, job) = (&cell.get().fleet, cell.get().job()?);
    let server = waiting(py, || {
        let job = server_job(&job)?;
        match (&dir, &names) {
            (None, _) => match &durable {
                Some(folder) => fleet.init_durable_server(job, Durability::in_folder(folder)),
                None => fleet.init_server(job),
            },
            (Some(dir), None) => fleet.init_server_incremental(job, dir),
            (Some(dir), Some(names)) => {
                let names: Vec<&str> = names.iter().map(String::as_str).collect();
                fleet.init_server_from(job, dir, Some(&names))
            }
        }
    })?;
    *cell.get().server.lock().map_err(|_| busy())? = Some(server);
    Ok(())
}

/// Serves until the last worker has stopped.
#[pyfunction]
pub fn run_server(py: Python<'_>, cell: &Bound<'_, FleetCell>) -> PyResult<()> {
    let server = cell.get().server.lock().map_err(|_| busy())?.take();
    let Some(server) = server else {
        let error = match cell.get().fleet.is_server() {
            true => Error::invalid("the server has no tables").help("call fleet.init_server first"),
            false => Error::invalid("this process is not a server")
                .got(cell.get().fleet.topology().role())
                .help("call run_server if fleet.is_server() is true, and init_worker otherwise"),
        };
        return Err(exception(&error));
    };
    waiting(py, || server.run())
}

/// Connects a worker whose startup program has run to the servers, and joins the other workers.
#[pyfunction]
pub fn init_worker(py: Python<'_>, cell: &Bound<'_, FleetCell>) -> PyResult<()> {
    let job = cell.get().job()?;
    server_job(&job).or_raise()?;
    let mut stage = job.stage().or_raise()?;
    let mut session = match std::mem::replace(&mut *stage, Stage::Stopped) {
        Stage::Started(session) => session,
        other => {
            let error = match &other {
                Stage::Working(_) => Error::invalid("the worker has joined the servers already"),
                Stage::Stopped => Error::invalid("the worker has left the job"),
                _ => Error::invalid("the startup program of the job has not run")
                    .help("run it first: exe.run(default_startup_program())"),
            };
            *stage = other;
            return Err(exception(&error));
        }
    };
    let scope = job.scope();
    let mut scope = match lock(&scope) {
        Ok(scope) => scope,
        Err(error) => {
            *stage = Stage::Started(session);
            return Err(error);
        }
    };
    let options = session.executor.options().clone();
    // A worker that fails to join drops its session, with the variables.
    let mut kept = copied(&scope).or_raise()?;
    std::mem::swap(&mut *scope, scope_of(&mut session));
    let join = || job.fleet.prepare_worker_with(*session, server_job(&job)?)?.start();
    match waiting(py, join) {
        Ok(mut worker) => {
            std::mem::swap(&mut *scope, scope_of_worker(&mut worker));
            *stage = Stage::Working(Box::new(Working::new(worker)));
            Ok(())
        }
        Err(error) => {
            std::mem::swap(&mut *scope, &mut kept);
            *stage = Stage::Written;
            let again =
                || job.fleet.worker_session(job.programs.clone(), server_job(&job)?, options);
            let mut session = released(py, again)?;
            session.scope = Scope::new();
            *stage = Stage::Started(Box::new(session));
            Err(error)
        }
    }
}

/// Returns a copy of all variables of a scope, and its step.
fn copied(scope: &Scope) -> Result<Scope> {
    let mut copy = Scope::new();
    for name in scope.names() {
        copy.set(name, scope.tensor(name)?);
    }
    copy.set_step(scope.step());
    Ok(copy)
}

/// Sends all pending gradients and leaves the job; the last worker stops the servers. A worker that
/// has not joined, or has left, only leaves the group of workers.
#[pyfunction]
pub fn stop_worker(py: Python<'_>, cell: &Bound<'_, FleetCell>) -> PyResult<()> {
    let fleet = &cell.get().fleet;
    if !fleet.is_worker() {
        let error = Error::invalid("this process is not a worker").got(fleet.topology().role());
        return Err(exception(&error.help("call stop_worker on workers; servers then end")));
    }
    let Ok(job) = cell.get().job() else { return waiting(py, || fleet.finish()) };
    let mut stage = job.stage().or_raise()?;
    if let (Stage::Working(working), Plan::Servers(_)) = (&mut *stage, &job.plan) {
        let scope = job.scope();
        let mut scope = lock(&scope)?;
        let (scope, worker) = (&mut *scope, &mut working.worker);
        waiting(py, || with_variables(scope, worker, scope_of_worker, Worker::stop))?;
        let left = std::mem::replace(&mut *stage, Stage::Stopped);
        py.detach(|| drop(left));
    }
    drop(stage);
    waiting(py, || fleet.finish())
}

/// Continues a worker that was started again. Returns the number of its steps that all tables have.
#[pyfunction]
pub fn resume(py: Python<'_>, cell: &Bound<'_, FleetCell>) -> PyResult<u64> {
    with_worker(py, cell, |worker| Ok(worker.resume()?.map_or(0, |progress| progress.complete)))
}

/// Saves all tables and this worker's own variables. Returns the numbers of rows and bytes.
#[pyfunction]
pub fn save_tables(
    py: Python<'_>,
    cell: &Bound<'_, FleetCell>,
    main: Option<&Bound<'_, ProgramCell>>,
    dir: PathBuf,
    mode: i64,
    format: &str,
) -> PyResult<(u64, u64)> {
    check_main(cell, main)?;
    let (mode, format) = save_options(mode, format)?;
    let save = |worker: &mut Worker| worker.save_persistables(dir, mode, format);
    with_worker(py, cell, save).map(|saved| (saved.row_count, saved.bytes))
}

/// Saves all tables, and the part of the program that computes `targets`.
#[pyfunction]
pub fn save_model(
    py: Python<'_>,
    cell: &Bound<'_, FleetCell>,
    main: Option<&Bound<'_, ProgramCell>>,
    dir: PathBuf,
    targets: Vec<String>,
    mode: i64,
) -> PyResult<()> {
    check_main(cell, main)?;
    let format = "binary";
    let (mode, format) = save_options(mode, format)?;
    let targets: Vec<&str> = targets.iter().map(String::as_str).collect();
    let save = |worker: &mut Worker| worker.save_inference_model(dir, &targets, mode, format);
    with_worker(py, cell, save).map(drop)
}

/// Refuses a save of another program than the one that the worker trains, or its forward part.
fn check_main(cell: &Bound<'_, FleetCell>, main: Option<&Bound<'_, ProgramCell>>) -> PyResult<()> {
    let Some(main) = main else { return Ok(()) };
    let (given, job) = (main.get().program()?.fingerprint(), cell.get().job()?);
    let trained = &job.programs.main;
    let is_trained = given == trained.fingerprint()
        || trained.clone_for_test().is_ok_and(|test| test.fingerprint() == given);
    match is_trained {
        true => Ok(()),
        false => Err(exception(
            &Error::invalid("main_program: a save in a job with servers is of the job's program")
                .expected("None, or the main program of minimize")
                .got("another program"),
        )),
    }
}

/// Loads a save over all tables, on the first worker, or takes over what that has loaded.
#[pyfunction]
pub fn load_model(py: Python<'_>, cell: &Bound<'_, FleetCell>, dir: PathBuf) -> PyResult<()> {
    let is_first = cell.get().fleet.is_first_worker();
    with_worker(py, cell, |worker| match is_first {
        true => worker.load_persistables(dir).map(drop),
        false => worker.adopt_loaded(dir),
    })
}

/// Saves the rows of one table.
#[pyfunction]
pub fn save_table(
    py: Python<'_>,
    cell: &Bound<'_, FleetCell>,
    table: &str,
    dir: PathBuf,
    mode: i64,
    format: &str,
) -> PyResult<(u64, u64)> {
    let (mode, format) = save_options(mode, format)?;
    let save = |worker: &mut Worker| worker.save_table(table, dir, mode, format);
    with_worker(py, cell, save).map(|saved| (saved.row_count, saved.bytes))
}

/// Loads the rows of one table. Returns their number.
#[pyfunction]
pub fn load_table(
    py: Python<'_>,
    cell: &Bound<'_, FleetCell>,
    table: &str,
    dir: PathBuf,
) -> PyResult<u64> {
    with_worker(py, cell, |worker| worker.load_table(table, dir))
}

/// Deletes rows that were not seen for this number of days. Returns their number.
#[pyfunction]
pub fn shrink(py: Python<'_>, cell: &Bound<'_, FleetCell>, days: Option<u8>) -> PyResult<u64> {
    with_worker(py, cell, |worker| worker.shrink(days))
}

/// Returns the forward part of a network, whose lookups read the tables of the job. Variables that
/// the training does not have, such as counts of metrics, get their initial values.
#[pyfunction]
pub fn infer_program(
    py: Python<'_>,
    cell: &Bound<'_, FleetCell>,
    main: &Bound<'_, ProgramCell>,
    startup: &Bound<'_, ProgramCell>,
) -> PyResult<ProgramCell> {
    let test = main.get().whole()?.clone_for_test().or_raise()?;
    let startup = ir::Program::clone(&*startup.get().program()?);
    let mut programs = Programs { main: test, startup, ..Programs::new() };
    let made = with_worker(py, cell, |worker| {
        worker.flush()?;
        worker.job().plan.read_tables(&mut programs, Registry::standard())?;
        let Session { scope, .. } = &mut worker.session;
        add_missing(&programs, scope)?;
        Ok(programs.main)
    })?;
    Ok(ProgramCell::of_test(made))
}

/// Returns the names of the parameters that are in no table of rows.
#[pyfunction]
pub fn dense_parameters(cell: &Bound<'_, FleetCell>) -> PyResult<Vec<String>> {
    let job = cell.get().job()?;
    let tables = &server_job(&job).or_raise()?.plan.tables.dense;
    let params = tables.iter().flat_map(|table| &table.params);
    Ok(params.map(|(name, _)| name.clone()).collect())
}

/// Adds the variables that the scope lacks, with their initial values.
fn add_missing(programs: &Programs, scope: &mut Scope) -> Result<()> {
    let kept = programs.main.vars().filter(|(_, var)| var.persistable);
    let missing: Vec<_> = kept.filter(|(_, var)| !scope.contains(&var.name)).collect();
    if let Some((_, var)) = missing.iter().find(|(_, var)| var.is_parameter()) {
        return Err(Error::invalid(format!("parameter '{}' was not trained", var.name)).help(
            "build both networks in the same order, each in unique_name.guard(), or name the \
             parameters: they are matched by name",
        ));
    }
    if missing.is_empty() {
        return Ok(());
    }
    let mut made = Scope::new();
    Executor::new(ExecOptions::default()).run(&programs.startup, &mut made, &[], &[])?;
    for (_, var) in missing {
        if let Some(tensor) = made.remove(&var.name) {
            scope.set(&var.name, tensor);
        }
    }
    Ok(())
}

/// Calls `call` with the worker of the job, which has its variables.
fn with_worker<T: Send>(
    py: Python<'_>,
    cell: &Bound<'_, FleetCell>,
    call: impl FnOnce(&mut Worker) -> Result<T> + Send,
) -> PyResult<T> {
    let job = cell.get().job()?;
    server_job(&job).or_raise()?;
    let mut stage = job.stage().or_raise()?;
    let Stage::Working(working) = &mut *stage else {
        let error = Error::invalid("the worker has not joined the servers, or has left them");
        return Err(exception(&error.help("call it between fleet.init_worker and stop_worker")));
    };
    let scope = job.scope();
    let mut scope = lock(&scope)?;
    let (scope, worker) = (&mut *scope, &mut working.worker);
    waiting(py, || with_variables(scope, worker, scope_of_worker, call))
}

fn server_job(job: &Job) -> Result<&ServerJob> {
    match &job.plan {
        Plan::Servers(job) => Ok(job),
        Plan::Collective(_) => Err(Error::invalid("this job has no parameter servers")
            .help("call fleet.init() without is_collective for a job with servers")),
    }
}

fn save_options(mode: i64, format: &str) -> PyResult<(SaveMode, SaveFormat)> {
    let format = match format {
        "binary" => SaveFormat::Binary,
        "text" => SaveFormat::Text,
        other => {
            let error = Error::invalid("unknown format of a save").got(format!("'{other}'"));
            return Err(exception(&error.expected("'binary' or 'text'")));
        }
    };
    Ok((SaveMode::parse(mode).or_raise()?, format))
}

fn lock(scope: &RwLock<Scope>) -> PyResult<RwLockWriteGuard<'_, Scope>> {
    scope.try_write().map_err(|_| busy())
}

fn busy() -> PyErr {
    exception(&Job::busy())
}

/// Loads variables from a save into the scope, before the worker joins.
pub fn load_vars_of_job(
    job: &Job,
    dir: &Path,
    program: &ir::Program,
    scope: &mut Scope,
    names: &[&str],
) -> Result<()> {
    server_job(job)?.load_vars(Some(job.fleet.env()), dir, program, scope, names)
}
