//! Saving and loading variables and models.

use crate::error::released;
use crate::program::ProgramCell;
use crate::scope::ScopeCell;
use crate::servers::load_vars_of_job;
use crate::session::Plan;
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
    let (program, scope) = (program.get().program()?, scope.get().lock()?);
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
    let (program, mut scope) = (program.get().program()?, scope.get().lock()?);
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
    let (program, scope) = (program.get().program()?, scope.get().lock()?);
    let (scope, targets) = (&*scope, targets.iter().map(String::as_str).collect::<Vec<_>>());
    released(py, || fleet::save_inference_model(path, &program, &targets, scope))
}

/// Loads a model, and puts its variables into the scope. Returns the program, the names of its
/// inputs, and its targets.
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
    Ok((ProgramCell::of_test(model.program), model.feeds, model.targets))
}
