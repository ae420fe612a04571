//! Detects processes that have not joined the job while others wait for them: they may be loading
//! data, or hang before they connect. Also reports the state of this machine, by which other
//! machines do the same.

use crate::child::{Child, HANG_CODE};
use crate::display;
use crate::events::Death;
use crate::options::Mode;
use crate::protocol::MachineState;
use crate::supervisor::Supervisor;
use fleet_topology::{ProcessReport, Role};
use std::time::Duration;

impl Supervisor<'_> {
    /// Warns of processes that have not joined while workers wait for them. After `--start_timeout`
    /// returns a failure, which ends the job.
    pub(crate) fn absent(&mut self) -> Option<Death> {
        if self.now.since(self.absent_seen) < ABSENT_PERIOD {
            return None;
        }
        self.absent_seen = self.now;
        let waiting = self.children.iter().filter(|child| has_joined(child)).count();
        let elsewhere = self.state_of_job().has_joined;
        if waiting == 0 && !elsewhere {
            self.joined_since = None;
            return None;
        }
        let since = *self.joined_since.get_or_insert(self.now);
        for index in 0..self.children.len() {
            let child = &self.children[index];
            let waited = self.now.since(since).min(child.lived(self.now));
            if !self.is_awaited(child) {
                if child.is_absence_reported && child.is_running() {
                    self.console.info(&format!("{} has joined", child.title()));
                }
                self.children[index].is_absence_reported = false;
                continue;
            }
            if self.options.timeouts.start.is_some_and(|allowed| waited >= allowed) {
                let mut death = self.absence(index, waiting, waited);
                death.code = HANG_CODE;
                return Some(death);
            }
            if waited >= self.options.timeouts.silence / WARNINGS_IN_SILENCE
                && !child.is_absence_reported
            {
                let mut death = self.absence(index, waiting, waited);
                death.add("\n  help: --start_timeout SECONDS ends the job instead");
                self.warn_about(&death);
                self.children[index].is_absence_reported = true;
            }
        }
        None
    }

    /// Whether workers need this process and it has not joined. A restarted worker of a
    /// parameter-server job delays no other worker.
    fn is_awaited(&self, child: &Child) -> bool {
        let is_absent = matches!(child.report(), None | Some(ProcessReport::Starting));
        let is_again = child.restarts > 0 && self.options.mode != Mode::Collective;
        let is_needed = match child.process.role {
            Role::Worker => !is_again,
            Role::Server => true,
            Role::HeterWorker | Role::Coordinator => false,
        };
        is_needed && child.is_running() && is_absent
    }

    fn absence(&mut self, index: usize, waiting: usize, waited: Duration) -> Death {
        let child = &self.children[index];
        let state = match child.process.role {
            Role::Server => "does not serve yet",
            _ => "has not joined the job",
        };
        let who = match waiting {
            0 => "workers of other machines".to_string(),
            count => display::counted(Role::Worker, count),
        };
        let (verb, span) = (if waiting == 1 { "waits" } else { "wait" }, display::seconds(waited));
        let report = format!("{} {state} after {span}, and {who} {verb} for it", child.title());
        self.with_log(index, report)
    }

    /// Returns the state of all machines as the leader reports it.
    pub(crate) fn state_of_job(&self) -> MachineState {
        self.link
            .map_or(MachineState::default(), |(link, generation)| link.state_of_job(generation))
    }

    /// Reports the state of this machine to the leader when it changes.
    pub(crate) fn report_state(&mut self) {
        let Some((link, generation)) = self.link else { return };
        let before = self.state_reported;
        let state = MachineState {
            has_joined: before.has_joined || self.children.iter().any(has_joined),
            // Not for ever: a server that exited without a report is started again once it is
            // missed.
            is_done: self.is_done_here(),
        };
        if state != before {
            self.state_reported = state;
            link.report_state(generation, state);
        }
    }
}

/// Whether a process runs and has joined the job, so that it waits for those that have not.
fn has_joined(child: &Child) -> bool {
    child.is_running() && child.report() == Some(ProcessReport::Joined)
}

/// Interval between checks for processes that have not joined.
const ABSENT_PERIOD: Duration = Duration::from_millis(500);
/// The warning appears after this fraction of `--silence_timeout`: after 10 s of 30 s.
const WARNINGS_IN_SILENCE: u32 = 3;
