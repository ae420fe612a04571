//! Saving and loading variables and models.

use crate::error::{exception, released};
use crate::program::ProgramCell;
use crate::scope::ScopeCell;
use crate::servers::load_vars_of_job;
use crate::session::Plan;
use fleet::{Error, Result, ir};
use pyo3::prelude::*;
use std::collections::HashSet;
use std::path::PathBuf;

/// Saves the variables that the program keeps between runs: all, or those of these names.
#[pyfunction]
pub fn save_vars(
    py: Python<'_>,
    path: PathBuf,
    program: &Bound<'_, ProgramCell>,
    scope: &Bound<'_, ScopeCell>,
    names: Option<HashSet<String>>,
) -> PyResult<()> {
    check_is_whole(program.get(), scope.get(), "save_persistables(exe, folder)")?;
    let (program, scope) = (program.get().whole()?, scope.get().lock()?);
    let scope = &*scope;
    released(py, || match names {
        None => fleet::save_persistables(path, &program, scope),
        Some(names) => fleet::save_vars(path, &program, scope, |var| names.contains(&var.name)),
    })
}

/// Loads the variables that the program keeps between runs: all and the step, or those of these
/// names. A worker of parameter servers also loads from a save of servers.
#[pyfunction]
pub fn load_vars(
    py: Python<'_>,
    path: PathBuf,
    program: &Bound<'_, ProgramCell>,
    scope: &Bound<'_, ScopeCell>,
    names: Option<HashSet<String>>,
) -> PyResult<()> {
    let job = program.get().lock()?.job.clone();
    let (program, mut scope) = (program.get().whole()?, scope.get().lock()?);
    let scope = &mut *scope;
    released(py, || match (names, job) {
        (None, _) => fleet::load_persistables(path, &program, scope),
        (Some(names), Some(job)) if matches!(job.plan, Plan::Servers(_)) => {
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            load_vars_of_job(&job, &path, &program, scope, &names)
        }
        (Some(names), _) => {
            fleet::load_vars_where(path, &program, scope, |var| names.contains(&var.name))
        }
    })
}

/// Saves the part of a program that computes `targets`, with its variables.
#[pyfunction]
pub fn save_inference_model(
    py: Python<'_>,
    path: PathBuf,
    program: &Bound<'_, ProgramCell>,
    targets: Vec<String>,
    scope: &Bound<'_, ScopeCell>,
) -> PyResult<()> {
    let on_all = "save_inference_model(exe, folder, feed_vars, target_vars)";
    check_is_whole(program.get(), scope.get(), on_all)?;
    let (program, scope) = (program.get().whole()?, scope.get().lock()?);
    let (scope, targets) = (&*scope, targets.iter().map(String::as_str).collect::<Vec<_>>());
    released(py, || {
        check_has_rows(&program, &targets)?;
        fleet::save_inference_model(path, &program, &targets, scope)
    })
}

/// Refuses to save what this worker has of a model that workers divide. `on_all` is the call that
/// saves the whole model.
fn check_is_whole(program: &ProgramCell, scope: &ScopeCell, on_all: &str) -> PyResult<()> {
    let job = program.lock()?.job.clone().or_else(|| scope.job());
    if job.is_some_and(|job| job.plan.divides_state()) {
        let error = Error::invalid("workers divide the model: this one has a part of it")
            .help(format!("let all workers call fleet.distributed.fleet.{on_all}: worker 0 saves"));
        return Err(exception(&error));
    }
    Ok(())
}

/// Refuses a model whose rows are on parameter servers: a save of the program would lack them.
fn check_has_rows(program: &ir::Program, targets: &[&str]) -> Result<()> {
    let ids = targets.iter().map(|name| program.var_named(name)).collect::<Result<Vec<_>>>()?;
    match fleet::reads_tables(&program.prune(&ids)) {
        false => Ok(()),
        true => Err(Error::invalid("the model reads tables of parameter servers")
            .got("static.save_inference_model, which saves no tables")
            .help(
                "save it with fleet.distributed.fleet.save_inference_model(exe, folder, \
                 feed_vars, target_vars)",
            )),
    }
}

/// Loads a model, with its tables if servers saved it, and puts its variables into the scope.
/// Returns the program, the names of its inputs, and its targets.
#[pyfunction]
pub fn load_inference_model(
    py: Python<'_>,
    path: PathBuf,
    scope: &Bound<'_, ScopeCell>,
) -> PyResult<(ProgramCell, Vec<String>, Vec<String>)> {
    let mut model = released(py, || fleet::load_inference_model(path))?;
    let mut scope = scope.get().lock()?;
    let names: Vec<String> = model.scope.names().map(str::to_string).collect();
    for name in names {
        if let Some(tensor) = model.scope.remove(&name) {
            scope.set(name, tensor);
        }
    }
    Ok((ProgramCell::of_model(model.program, model.tables), model.feeds, model.targets))
}
