//! Errors of Fleet as exceptions of Python.

use fleet::{Error, ErrorKind};
use pyo3::PyErr;
use pyo3::exceptions::{PyNotImplementedError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;

/// Returns the exception for an error: `ValueError` for what the caller gave, `NotImplementedError`
/// (which is a `RuntimeError`) for what Fleet does not support, and `RuntimeError` for the rest.
pub fn exception(error: &Error) -> PyErr {
    let text = error.to_string();
    match error.kind() {
        ErrorKind::Invalid => PyValueError::new_err(text),
        ErrorKind::Unsupported => PyNotImplementedError::new_err(text),
        _ => PyRuntimeError::new_err(text),
    }
}

/// Conversion of results.
pub trait OrRaise<T> {
    fn or_raise(self) -> PyResult<T>;
}

impl<T> OrRaise<T> for fleet::Result<T> {
    fn or_raise(self) -> PyResult<T> {
        self.map_err(|error| exception(&error))
    }
}
