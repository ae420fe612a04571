//! Errors of Fleet as exceptions of Python.

use crate::interrupt::{self, Wait};
use fleet::{Error, ErrorKind};
use pyo3::PyErr;
use pyo3::exceptions::{PyNotImplementedError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};

/// Returns the exception for an error: `ValueError` for what the caller gave, `NotImplementedError`
/// (which is a `RuntimeError`) for what Fleet does not support, and `RuntimeError` for the rest.
pub fn exception(error: &Error) -> PyErr {
    // The error is only what Rust makes of an exception of the user's function.
    if let Some(raised) = RAISED.take() {
        return raised;
    }
    let text = spelled(in_python(error.to_string()));
    match error.kind() {
        ErrorKind::Invalid => PyValueError::new_err(text),
        ErrorKind::Unsupported => PyNotImplementedError::new_err(text),
        _ => PyRuntimeError::new_err(text),
    }
}

/// Names in the errors of Rust, and their spellings in Python.
const SPELLINGS: &[(&str, &str)] = &[
    ("attribute 'axes' of squeeze2", "axis of squeeze"),
    ("attribute 'axes' of unsqueeze2", "axis of unsqueeze"),
    ("attribute 'axis' of transpose2", "perm of transpose"),
    ("attribute 'shape' of reshape2", "shape of reshape"),
    ("DatasetRun::print_period", "print_period"),
    ("DistributedInfer::stop", "DistributedInfer.stop"),
    ("ExecOptions::offload_folder", "the variable TMPDIR"),
    (
        "set Embedding::padding_idx, or lay out the batch by hand (BatchLayout)",
        "set padding_idx of the embedding",
    ),
    ("create the tensor with Feeds::set in the first batch", "feed the input in the first batch"),
    ("Fleet::finish", "fleet.stop_worker"),
    (
        "implement Samples::batch_layout, which a trainer creates batches from",
        "pass a dataset, a loader or a function that returns an iterator of feeds",
    ),
    (
        "give the dataset a layout with this input: feed_layout, BatchLayout::new",
        "add the input to use_var of the dataset",
    ),
    (
        "increase the width, or truncate with Input::padded_or_cut",
        "increase the width of the input, or shorten the rows",
    ),
    ("ParamAttr::trainable(false)", "ParamAttr(trainable=False)"),
    ("Trainer::goal", "goal=(metric, 'max')"),
    ("Worker::save_inference_model", "fleet.save_inference_model"),
    ("Worker::save_persistables", "fleet.save_persistables"),
    ("Worker::stop", "fleet.stop_worker"),
];

/// Returns the text of an error with the names that a user of Python can call.
fn in_python(text: String) -> String {
    SPELLINGS.iter().fold(text, |text, (rust, python)| match text.contains(rust) {
        true => text.replace(rust, python),
        false => text,
    })
}

/// Returns a text with the names of modules as scripts write them (`fleet/_absent.py`).
pub fn spelled(text: String) -> String {
    if !text.contains("fleet.") {
        return text;
    }
    let spelled = Python::attach(|py| {
        py.import("fleet._absent")?.call_method1("spelled", (&text,))?.extract::<String>()
    });
    spelled.unwrap_or(text)
}

thread_local! {
    /// The exception of a function of Python that Rust has called in this thread, and that had to
    /// return a value.
    static RAISED: Cell<Option<PyErr>> = const { Cell::new(None) };
}

/// Keeps the exception of a function of Python. It takes the place of the next error of this
/// thread.
pub fn raise_later(exception: PyErr) {
    RAISED.set(Some(exception));
}

/// Forgets an exception that no error has followed.
pub fn forget_raised() {
    RAISED.set(None);
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

/// Runs a call of Rust. A panic in it, which is a fault of Fleet, is an error like others, so that
/// the caller can restore what the call has changed.
pub fn guarded<T>(call: impl FnOnce() -> T) -> fleet::Result<T> {
    catch_unwind(AssertUnwindSafe(call)).map_err(|panic| {
        let panic: &(dyn Any + Send) = &*panic;
        let text = panic.downcast_ref::<&str>().map(ToString::to_string);
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
        Error::internal(format!("panic: {}", text.unwrap_or_default()))
    })
}

/// Runs a call of Rust without the interpreter's lock. If Ctrl-C has ended it, that is its error.
pub fn released<T: Send>(
    py: Python<'_>,
    call: impl FnOnce() -> fleet::Result<T> + Send,
) -> PyResult<T> {
    forget_raised();
    let ended = py.detach(|| guarded(call)).and_then(|made| made);
    if ended.is_err() {
        py.check_signals()?;
    }
    ended.or_raise()
}

/// Like [`released`], for a call that may wait for another process: then Ctrl-C ends this one.
pub fn waiting<T: Send>(
    py: Python<'_>,
    call: impl FnOnce() -> fleet::Result<T> + Send,
) -> PyResult<T> {
    interrupt::watch(py)?;
    released(py, || {
        let _wait = Wait::begin();
        call()
    })
}

/// Calls [`waiting`] or [`released`].
pub fn waiting_if<T: Send>(
    waits: bool,
    py: Python<'_>,
    call: impl FnOnce() -> fleet::Result<T> + Send,
) -> PyResult<T> {
    if waits { waiting(py, call) } else { released(py, call) }
}

/// The exception of Python code that Rust has called, which takes the place of the error that then
/// comes back from Rust.
#[derive(Clone, Default)]
pub struct Raised {
    first: Arc<Mutex<Option<PyErr>>>,
}

impl Raised {
    /// Keeps the exception of a call, and returns an error in place of it.
    pub fn keep<T>(&self, called: PyResult<T>) -> fleet::Result<T> {
        called.map_err(|exception| {
            let error = Error::unavailable(format!("exception in Python: {exception}"));
            if let Ok(mut first) = self.first.lock() {
                first.get_or_insert(exception);
            }
            error
        })
    }

    /// Runs the handlers of signals, such as Ctrl-C. Returns an error if they or an earlier call
    /// have raised an exception.
    pub fn check(&self) -> fleet::Result<()> {
        if self.first.lock().is_ok_and(|first| first.is_some()) {
            return Err(Error::unavailable("exception in Python"));
        }
        self.keep(Python::attach(|py| py.check_signals()))
    }

    /// Returns the exception if there was one, else the result.
    pub fn or<T>(&self, result: PyResult<T>) -> PyResult<T> {
        match self.first.lock().ok().and_then(|mut first| first.take()) {
            Some(exception) if result.is_err() => Err(exception),
            _ => result,
        }
    }
}
