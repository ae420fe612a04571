//! Log of events in the wire layer that no call reports, such as rejected or lost connections. The
//! owner chooses the sink. A flood of lines is counted, not printed.

use crate::Time;
use fleet_base::output::note;
use fleet_base::sync::lock;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Maximum number of lines printed per [`WINDOW`], so that a port scan does not fill a disk.
const LINES_MAX: u32 = 20;
const WINDOW: Duration = Duration::from_secs(10);

/// A log with a limited rate. A clone writes to the same sink.
///
/// ```
/// use fleet_net::Log;
/// let (log, lines) = Log::collect();
/// log.line("a stranger was here");
/// assert_eq!(lines(), ["a stranger was here"]);
/// ```
#[derive(Clone)]
pub struct Log(Arc<Inner>);

struct Inner {
    sink: Box<dyn Fn(&str) + Send + Sync>,
    window: Mutex<Window>,
}

#[derive(Default)]
struct Window {
    start: Time,
    lines: u32,
    suppressed: u32,
}

impl Log {
    /// Returns a log that passes its lines to `sink`.
    pub fn new(sink: impl Fn(&str) + Send + Sync + 'static) -> Log {
        Log(Arc::new(Inner { sink: Box::new(sink), window: Mutex::default() }))
    }

    /// Writes lines to standard error, prefixed with `fleet:`.
    pub fn stderr() -> Log {
        Log::new(|line| note(line))
    }

    /// Drops all lines.
    pub fn silent() -> Log {
        Log::new(|_| {})
    }

    /// A log for tests, and a function that returns its lines.
    pub fn collect() -> (Log, impl Fn() -> Vec<String>) {
        let lines = Arc::new(Mutex::new(Vec::new()));
        let seen = lines.clone();
        let log = Log::new(move |line| {
            lock(&lines).push(line.to_string());
        });
        (log, move || lock(&seen).clone())
    }

    /// Writes a line. Beyond 20 lines in 10 seconds, lines are only counted.
    pub fn line(&self, text: impl std::fmt::Display) {
        let mut window = lock(&self.0.window);
        let now = Time::now();
        if now.since(window.start) > WINDOW {
            let left_out = window.suppressed;
            *window = Window { start: now, ..Window::default() };
            if left_out > 0 {
                (self.0.sink)(&format!("{left_out} more lines were suppressed"));
            }
        }
        window.lines += 1;
        if window.lines > LINES_MAX {
            window.suppressed += 1;
            return;
        }
        // Lines may quote bytes of unauthenticated peers.
        (self.0.sink)(&fleet_base::text::printable(&text.to_string()));
    }
}

impl std::fmt::Debug for Log {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Log")
    }
}
