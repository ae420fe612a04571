//! Errors of Fleet as exceptions of Python.

use fleet::{Error, ErrorKind};
use pyo3::PyErr;
use pyo3::exceptions::{PyNotImplementedError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

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

/// Runs a call of Rust without the interpreter's lock.
pub fn released<T: Send>(
    py: Python<'_>,
    call: impl FnOnce() -> fleet::Result<T> + Send,
) -> PyResult<T> {
    py.detach(|| guarded(call)).and_then(|made| made).or_raise()
}

/// Runs a call of Rust that may wait for long, without the interpreter's lock. A signal that raises
/// an exception, such as Ctrl-C, ends the wait; the call then goes on in a thread that nothing
/// waits for, until the process ends.
pub fn interruptible<T: Send + 'static>(
    py: Python<'_>,
    call: impl FnOnce() -> fleet::Result<T> + Send + 'static,
) -> PyResult<T> {
    let (send, mut receive) = channel();
    let body = move || drop(send.send(guarded(call).and_then(|made| made)));
    let spawned = std::thread::Builder::new().name("fleet-call".into()).spawn(body);
    spawned.map_err(|error| PyRuntimeError::new_err(format!("cannot start a thread: {error}")))?;
    loop {
        let waited;
        (receive, waited) = py.detach(move || {
            let waited = receive.recv_timeout(SIGNALS_EVERY);
            (receive, waited)
        });
        match waited {
            Ok(made) => return made.or_raise(),
            Err(RecvTimeoutError::Timeout) => py.check_signals()?,
            Err(RecvTimeoutError::Disconnected) => {
                return Err(PyRuntimeError::new_err("the thread of a call has ended"));
            }
        }
    }
}

/// Interval between checks for signals: Ctrl-C should feel immediate.
const SIGNALS_EVERY: Duration = Duration::from_millis(100);
