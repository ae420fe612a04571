//! What the end of a process means for its job: nothing, another start, or the end of the job; and
//! the report of it.

use crate::child::{self, Child};
use crate::logs;
use crate::options::Mode;
use crate::supervisor::{Death, Ended, Supervisor};
use crate::words;
use fleet_topology::{Role, names};
use std::path::Path;
use std::time::{Duration, Instant};

impl Supervisor<'_> {
    /// What the ends mean: nothing, another start, or the end of the job.
    pub(crate) fn judge(&mut self, mut ended: Vec<usize>) -> Option<Death> {
        ended.retain(|index| self.children[*index].ended.is_some_and(|status| !status.success()));
        for index in &ended {
            let child = &mut self.children[*index];
            if child.ended.is_some_and(|status| child::code(status) == KILLED_CODE) {
                child.out_of_memory = self.oom.evidence(child.pid());
            }
            if self.rules.mode == Mode::Collective {
                // They stand or fall together.
                self.tell(*index);
            }
        }
        // Of several at once, one that was killed explains those that then failed.
        ended.sort_by_key(|index| {
            self.children[*index].ended.and_then(|status| status.code()).is_some()
        });
        let mut fatal = None;
        for index in ended {
            let child = &self.children[index];
            let allowed = self.restarts_allowed(child.process.role);
            let is_hopeless = self.failed_at_its_start(child);
            if child.restarts < allowed && !is_hopeless {
                self.announce_restart(index, allowed);
                self.due
                    .push((Instant::now() + restart_delay(self.children[index].restarts), index));
            } else if self.is_expendable(index) {
                self.lose(index);
            } else if fatal.is_none() {
                let mut death = self.death(index);
                if is_hopeless {
                    death.report += "\n  it failed before it served, and would again: it is not started \
                                     again (--max_restart N does it all the same)";
                }
                fatal = Some(death);
            }
        }
        fatal
    }

    /// Whether a server has said that it starts, has never said that it serves, and has ended by itself: what
    /// it could not do it cannot do the next time either. Who does not use Fleet says nothing.
    fn failed_at_its_start(&self, child: &Child) -> bool {
        let is_own_end = child.ended.is_some_and(|status| status.code().is_some());
        let said = child.process.variable(names::FLEET_SERVES);
        let said = said.and_then(|path| std::fs::read_to_string(path).ok());
        self.rules.max_restart.is_none() && is_own_end && said.as_deref() == Some(names::STARTS)
    }

    /// Whether there are others who can go on without a process: what waits for it is the servers' business.
    fn is_expendable(&self, index: usize) -> bool {
        let env = &self.children[index].process.env;
        let file = env.iter().rev().find(|(name, _)| *name == names::FLEET_EXPENDABLE);
        let has_said =
            file.and_then(|(_, path)| path.as_ref()).is_some_and(|it| Path::new(it).exists());
        let goes_on = |(at, child): (usize, &Child)| {
            let is_well = child.ended.is_none_or(|status| status.success());
            at != index && child.process.role == Role::Worker && is_well
        };
        let on_other_machines = self.link.is_some();
        let any = on_other_machines || self.children.iter().enumerate().any(goes_on);
        has_said && any
    }

    fn lose(&mut self, index: usize) {
        self.tell(index);
        let death = self.death(index);
        self.show_logs();
        self.console.flush_partial();
        self.console.error(&death.report);
        let name = self.children[index].process.name();
        self.console.warn(&format!("the other workers go on without {name}"));
        self.lost.push(death);
    }

    /// Tells the other workers, who know each other by rank.
    fn tell(&self, index: usize) {
        let child = &self.children[index];
        let Some(status) = child.ended.filter(|_| child.process.role == Role::Worker) else {
            return;
        };
        let said = child::describe(status);
        let mut how = said.strip_prefix("was ").unwrap_or(&said).to_string();
        if let Some(evidence) = &child.out_of_memory {
            how += &format!(", likely out of memory ({evidence})");
        }
        let code = child::code(status);
        (self.tell_ended)(&Ended { rank: child.process.rank, pid: child.pid(), how, code });
    }

    /// Processes of a collective job are started again together, by the job.
    fn restarts_allowed(&self, role: Role) -> u32 {
        match (self.rules.mode, role) {
            (Mode::Collective, _) => 0,
            (_, Role::Server) => self.rules.max_restart.unwrap_or(SERVER_RESTARTS),
            _ => self.rules.max_restart.unwrap_or(0),
        }
    }

    fn announce_restart(&mut self, index: usize, allowed: u32) {
        let death = self.death(index);
        let again = self.children[index].restarts + 1;
        self.console.warn(&death.report);
        let memory = match death.role {
            Role::Server => "; of its tables it has what was kept by durability, or saved",
            _ => "",
        };
        self.console.warn(&format!(
            "{} {} is started again ({again} of {allowed}){memory}",
            death.role, death.rank
        ));
    }

    /// A process that has written nothing in the time allowed.
    pub(crate) fn silent(&mut self) -> Option<Death> {
        let allowed = self.rules.start_timeout?;
        for index in 0..self.children.len() {
            let child = &mut self.children[index];
            if child.is_alive_seen || !child.is_running() {
                continue;
            }
            let length = std::fs::metadata(&child.log).map_or(0, |found| found.len());
            child.is_alive_seen = length > child.log_from;
            if !child.is_alive_seen && child.lived() >= allowed {
                let report = format!(
                    "{} on {} (pid {}) hangs at its start: it wrote nothing to {} in {}",
                    child.process.name(),
                    child.process.host,
                    child.pid(),
                    child.log.display(),
                    words::seconds(allowed),
                );
                return Some(Death {
                    role: child.process.role,
                    rank: child.process.rank,
                    report,
                    code: HANG_CODE,
                });
            }
        }
        None
    }

    fn death(&self, index: usize) -> Death {
        let child = &self.children[index];
        let (what, code) = match child.ended {
            Some(status) => (child::describe(status), child::code(status)),
            None => ("ended".to_string(), 1),
        };
        let mut report = format!(
            "{} on {} (pid {}) {what} after {:.1} s",
            child.process.name(),
            child.process.host,
            child.pid(),
            child.lived().as_secs_f64(),
        );
        if code == KILLED_CODE {
            report += &match &child.out_of_memory {
                Some(evidence) => format!(", likely out of memory ({evidence})"),
                None => "; the kernel says nothing of memory, so that it was a user or a program"
                    .to_string(),
            };
        }
        if logs::is_disk_full(&self.rules.log_dir) {
            report += &format!(
                "\n  the disk of {} is full: what it wrote last may be lost",
                self.rules.log_dir.display()
            );
        }
        let lines = logs::last_lines(&child.log, child.log_from, LAST_LINES);
        match lines.is_empty() {
            true => report += &format!("\n  it wrote nothing to {}", child.log.display()),
            false => report += &format!("\n  the end of {}:", child.log.display()),
        }
        for line in lines {
            report += &format!("\n  | {line}");
        }
        let process = &child.process;
        Death { role: process.role, rank: process.rank, report, code }
    }
}

/// A crash at once is likely to happen again: each start waits longer.
fn restart_delay(restarts: u32) -> Duration {
    RESTART_DELAY * 2u32.pow(restarts.min(5))
}

/// Lines of a log in a report.
const LAST_LINES: usize = 20;
/// Restarts of a server when nothing was said.
const SERVER_RESTARTS: u32 = 3;
const RESTART_DELAY: Duration = Duration::from_millis(250);
/// Of a process that SIGKILL ended.
const KILLED_CODE: u8 = 128 + signal_hook::consts::SIGKILL as u8;
/// What `timeout` exits with.
const HANG_CODE: u8 = 124;
