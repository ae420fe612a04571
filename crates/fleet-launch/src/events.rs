//! The events for which the supervisor waits, and the ends of processes.

use fleet_topology::Role;
use signal_hook::consts::SIGCHLD;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

/// Event that wakes the supervisor.
pub enum Event {
    Signal(i32),
    /// The link to the other machines has a new plan, message or error.
    News,
}

/// Waits for an event, up to `time`. Returns the signal that stops the launcher, if that is the
/// event.
pub fn stop_signal(events: &Receiver<Event>, time: Duration) -> Option<i32> {
    match events.recv_timeout(time) {
        Ok(Event::Signal(signal)) if signal != SIGCHLD => return Some(signal),
        Ok(Event::Signal(_) | Event::News) | Err(RecvTimeoutError::Timeout) => {}
        // No event can arrive after this; the time between calls stays the same.
        Err(RecvTimeoutError::Disconnected) => std::thread::sleep(time),
    }
    None
}

/// How the processes of this machine ended.
pub enum End {
    /// All required processes have ended. The list holds the failures of processes that the job
    /// could do without.
    Finished(Vec<Death>),
    Failed(Death),
    /// The launcher received this signal.
    Interrupted(i32),
    /// The leader ordered the stop, for this reason.
    Ordered(String),
}

/// A process that failed and is not restarted.
#[derive(Clone, Debug)]
pub struct Death {
    pub role: Role,
    pub rank: usize,
    /// The failure, with the last lines of the process's log.
    pub report: String,
    /// The same report for the terminals of other machines, which have not shown any of the log.
    pub elsewhere: String,
    pub code: u8,
    /// Worker on another machine that this process reports as the cause of its failure.
    pub follows: Option<usize>,
}

impl Death {
    /// Returns the failure of a process, with a report that has no lines of its log.
    pub fn new(role: Role, rank: usize, report: String, code: u8) -> Death {
        Death { role, rank, elsewhere: report.clone(), report, code, follows: None }
    }

    /// Returns the first line of the report: the failure without the log.
    pub fn line(&self) -> &str {
        self.report.lines().next().unwrap_or_default()
    }

    /// Adds lines to both reports.
    pub fn add(&mut self, lines: &str) {
        self.report += lines;
        self.elsewhere += lines;
    }
}

/// A failed worker, as announced to the workers that wait for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    pub rank: usize,
    pub pid: u32,
    /// Description of its end, such as `killed by SIGKILL (9)`.
    pub how: String,
    /// Exit code as a shell reports it: 128 + n for signal n.
    pub code: u8,
    /// Other worker that this one reports as the cause of its failure.
    pub follows: Option<usize>,
}
