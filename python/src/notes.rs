//! Messages of Rust through the `logging` of Python.
//!
//! A thread of its own passes them on: the thread that has a message may hold locks of Rust, and
//! must not wait for the interpreter.

use crate::error::released;
use fleet_base::output::{error_line, send_notes_to};
use pyo3::prelude::*;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

enum Item {
    Note(String),
    /// Answered when all earlier notes have been logged.
    Flush(SyncSender<()>),
}

/// Messages that wait for the interpreter. More of them go to the standard error: their senders may
/// hold the interpreter's lock, and must not wait.
const WAITING_MAX: usize = 1024;
/// Time to log the last messages when the interpreter ends.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);

/// The queue of messages; none before the first import, and after the interpreter has ended.
static QUEUE: Mutex<Option<(u32, SyncSender<Item>)>> = Mutex::new(None);

fn queue() -> Option<SyncSender<Item>> {
    let queue = QUEUE.lock().ok()?;
    // A fork has the queue without the thread.
    queue.as_ref().filter(|(process, _)| *process == std::process::id()).map(|it| it.1.clone())
}

/// Passes messages to `log` from now on.
#[pyfunction]
pub fn log_notes(log: Py<PyAny>) {
    let (sender, receiver) = sync_channel(WAITING_MAX);
    let pass_on = move || pass_on(&receiver, &log);
    if std::thread::Builder::new().name("fleet-log".to_string()).spawn(pass_on).is_err() {
        return;
    }
    if let Ok(mut queue) = QUEUE.lock() {
        *queue = Some((std::process::id(), sender));
    }
    let _ = send_notes_to(|text| {
        let unsent = match queue() {
            Some(queue) => queue.try_send(Item::Note(text.to_string())).is_err(),
            None => true,
        };
        if unsent {
            error_line(format_args!("fleet: {text}"));
        }
    });
}

fn pass_on(receiver: &Receiver<Item>, log: &Py<PyAny>) {
    for item in receiver {
        match item {
            Item::Note(text) => {
                // A handler that fails prints its own error.
                let _ = Python::attach(|py| log.call1(py, (text,)).map(drop));
            }
            Item::Flush(done) => drop(done.send(())),
        }
    }
}

/// Waits until all messages have been logged. Later ones go to the standard error.
#[pyfunction]
pub fn end_notes(py: Python<'_>) -> PyResult<()> {
    let Some(queue) = queue() else { return Ok(()) };
    if let Ok(mut queue) = QUEUE.lock() {
        *queue = None;
    }
    released(py, move || {
        let (done, answer) = sync_channel(1);
        if queue.send(Item::Flush(done)).is_ok() {
            let _ = answer.recv_timeout(FLUSH_TIMEOUT);
        }
        Ok(())
    })
}
