//! `fleet.Job`: job files, which train on a user's own data.

use crate::error::{OrRaise, waiting};
use fleet::Fleet;
use fleet::topology::Env;
use fleet_job::embed;
use fleet_job::train::TrainArgs;
use numpy::{PyArray1, PyArrayMethods};
use pyo3::prelude::*;
use std::path::PathBuf;

/// Returns the warnings about a job file and its data; errors raise.
#[pyfunction]
pub fn job_check(py: Python<'_>, file: PathBuf, rows: u64) -> PyResult<Vec<String>> {
    waiting(py, || embed::check(&file, &Env::process(), rows))
}

/// Returns the model folder of a job file.
#[pyfunction]
pub fn job_folder(file: PathBuf) -> PyResult<PathBuf> {
    embed::folder(&file).or_raise()
}

/// Trains a job in this process. `write` gets the lines of the report.
#[pyfunction]
pub fn job_train(
    py: Python<'_>,
    file: PathBuf,
    output: PathBuf,
    threads: u16,
    fresh: bool,
    quiet: bool,
    write: Py<PyAny>,
) -> PyResult<()> {
    let mut lines = Vec::new();
    let (threads, output) = (threads.into(), Some(output));
    let args = TrainArgs { file, threads, output, fresh, quiet, ..TrainArgs::default() };
    waiting(py, || {
        let fleet = Fleet::join(&embed::store_settings(&Env::process()))?;
        embed::train(&args, &fleet, &mut |line| {
            lines.push(line.to_string());
            Ok(())
        })
    })?;
    lines.iter().try_for_each(|line| write.call1(py, (line,)).map(drop))
}

/// Returns the scores of files, with one row for each of their rows.
#[pyfunction]
pub fn job_predict<'py>(
    py: Python<'py>,
    folder: PathBuf,
    files: Vec<String>,
    is_by_name: bool,
    threads: usize,
) -> PyResult<Bound<'py, PyAny>> {
    let scores =
        waiting(py, || embed::predict(&folder, &Env::process(), &files, is_by_name, threads))?;
    let (rows, width) = (scores.values.len() / scores.width.max(1), scores.width);
    let array = PyArray1::from_vec(py, scores.values);
    match width {
        1 => Ok(array.into_any()),
        width => Ok(array.reshape([rows, width])?.into_any()),
    }
}
