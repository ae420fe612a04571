//! Ctrl-C during calls that release the interpreter's lock.
//!
//! Python raises `KeyboardInterrupt` when the call returns: after a training step, and within loops
//! that call `Python::check_signals`. A wait for another process may take long: then the signal
//! ends this process, as it ends programs that are not written in Python. Notebooks keep their
//! process, and scripts with a handler of their own decide themselves.

use pyo3::prelude::*;
use signal_hook::consts::SIGINT;
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};
use std::thread::{self, ThreadId};
use std::time::Duration;

/// Time that a wait has to end by itself after Ctrl-C.
const GRACE: Duration = Duration::from_millis(700);

static MAIN_THREAD: OnceLock<ThreadId> = OnceLock::new();
/// The process whose watcher has started: a fork has none.
static WATCHED: AtomicU32 = AtomicU32::new(0);
/// Number of begun and ended waits of the main thread: odd during one.
static WAITS: AtomicU64 = AtomicU64::new(0);

/// Notes whether this thread, which imports the module, is the main thread.
pub fn remember_main_thread(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let threading = module.py().import("threading")?;
    let main = threading.call_method0("main_thread")?;
    if threading.call_method0("current_thread")?.is(&main) {
        let _ = MAIN_THREAD.set(thread::current().id());
    }
    Ok(())
}

/// Starts to watch for Ctrl-C, unless it is watched already.
pub fn watch(py: Python<'_>) -> PyResult<()> {
    let process = std::process::id();
    if WATCHED.swap(process, SeqCst) == process {
        return Ok(());
    }
    // Without a watcher, Ctrl-C takes effect when the wait ends.
    let Ok(mut signals) = Signals::new([SIGINT]) else { return Ok(()) };
    // Blocking calls of Python must end at a signal, as with its own handler.
    py.import("signal")?.call_method1("siginterrupt", (SIGINT, true))?;
    let watcher = move || signals.forever().for_each(|_| end_long_wait());
    let _ = thread::Builder::new().name("fleet-ctrl-c".to_string()).spawn(watcher);
    Ok(())
}

fn end_long_wait() {
    let wait = WAITS.load(SeqCst);
    if wait.is_multiple_of(2) {
        return;
    }
    thread::sleep(GRACE);
    if WAITS.load(SeqCst) == wait && Python::attach(ends_process).unwrap_or(false) {
        fleet_base::output::error_line("fleet: interrupted");
        let _ = emulate_default_handler(SIGINT);
    }
}

/// Returns whether Ctrl-C ends the process: in a script without a handler of its own.
fn ends_process(py: Python<'_>) -> PyResult<bool> {
    let signal = py.import("signal")?;
    let handler = signal.call_method1("getsignal", (SIGINT,))?;
    let sys = py.import("sys")?;
    let notebook = sys.getattr("modules")?.contains("ipykernel")?;
    let interactive =
        sys.hasattr("ps1")? || sys.getattr("flags")?.getattr("interactive")?.is_truthy()?;
    Ok(handler.is(&signal.getattr("default_int_handler")?) && !notebook && !interactive)
}

/// Returns whether the main thread is in a call that may wait for another process.
#[pyfunction]
pub fn is_waiting() -> bool {
    !WAITS.load(SeqCst).is_multiple_of(2)
}

/// A call that may wait for another process.
pub struct Wait(bool);

impl Wait {
    pub fn begin() -> Wait {
        let is_main = MAIN_THREAD.get() == Some(&thread::current().id());
        if is_main {
            WAITS.fetch_add(1, SeqCst);
        }
        Wait(is_main)
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        if self.0 {
            WAITS.fetch_add(1, SeqCst);
        }
    }
}
