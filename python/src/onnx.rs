//! Export to ONNX files.

use crate::error::released;
use crate::program::ProgramCell;
use crate::scope::ScopeCell;
use fleet::OnnxOptions;
use pyo3::prelude::*;
use std::path::PathBuf;

/// Writes the part of a program that computes `targets` from `feeds`, with its variables. Options
/// are the op set and the limit on rows.
#[pyfunction]
pub fn export_onnx(
    py: Python<'_>,
    path: PathBuf,
    program: &Bound<'_, ProgramCell>,
    feeds: Vec<String>,
    targets: Vec<String>,
    scope: &Bound<'_, ScopeCell>,
    options: (i64, u64),
) -> PyResult<()> {
    let (program, scope) = (program.get().whole()?, scope.get().lock()?);
    let (scope, targets) = (&*scope, targets.iter().map(String::as_str).collect::<Vec<_>>());
    let (opset, table_rows_max) = options;
    let options = OnnxOptions { opset, table_rows_max, feeds };
    released(py, || fleet::export_onnx(path, &program, &targets, scope, &options)).map(drop)
}

/// Writes a saved model, or the model folder of a job.
#[pyfunction]
pub fn export_onnx_model(
    py: Python<'_>,
    dir: PathBuf,
    path: PathBuf,
    options: (Option<i64>, u64),
) -> PyResult<()> {
    let (opset, table_rows_max) = options;
    let options = OnnxOptions { table_rows_max, ..OnnxOptions::default() };
    released(py, || fleet_job::onnx::export(&dir, &path, opset, options)).map(drop)
}
