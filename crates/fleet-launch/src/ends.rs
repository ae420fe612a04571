//! Decides what the end of a process means for its job: nothing, a restart, or the end of the job.
//! Also writes the report of it.

use crate::blame::{self, Cause, Fate};
use crate::child::{self, Child, HANG_CODE, USAGE_CODE};
use crate::display;
use crate::events::{Death, Ended};
use crate::logs;
use crate::options::Mode;
use crate::supervisor::{Supervisor, take_due};
use fleet_topology::{ProcessReport, Role, names};
use std::path::Path;
use std::time::Duration;

impl Supervisor<'_> {
    /// Handles processes that have just ended: ignores the end, schedules a restart, or returns the
    /// failure that ends the job.
    pub(crate) fn judge(&mut self, mut ended: Vec<usize>) -> Option<Death> {
        for index in &ended {
            self.look_at_end(*index);
        }
        let missed = self.missed_at_the_start();
        ended.extend(missed.into_iter().filter(|index| !ended.contains(index)).collect::<Vec<_>>());
        ended.retain(|index| self.children[*index].has_failed());
        // If several ended at once, a killed one is the likely cause of the others.
        ended.sort_by_key(|index| {
            self.children[*index].ended.and_then(|status| status.code()).is_some()
        });
        let mut fatal = None;
        for index in ended {
            let child = &self.children[index];
            let allowed = self.restarts_allowed(child.process.role);
            let futile = self.futile_restart(child);
            if child.restarts < allowed && futile.is_none() {
                self.announce_restart(index, allowed);
                let delay = restart_delay(self.children[index].restarts);
                self.due.push((self.now.plus(delay), index));
            } else if let Some(server) = self.stopped_server_behind(index) {
                fatal.get_or_insert(server);
            } else if self.is_expendable(index) {
                self.lose(index);
            } else if self.follows_from(index).is_some() {
                self.failed_first.get_or_insert((self.now, index));
            } else if fatal.is_none() {
                let mut death = self.death(index);
                if let Some(why) = futile.filter(|_| allowed > 0) {
                    death.add(&format!("\n  it is not started again: {why}"));
                }
                fatal = Some(death);
            }
        }
        fatal.or_else(|| self.cause_of_first())
    }

    /// Records how a child has ended, and notifies the other workers if they need to know.
    fn look_at_end(&mut self, index: usize) {
        let report = self.children[index].report();
        let child = &mut self.children[index];
        let Some(status) = child.ended else { return };
        if child::code(status) == KILLED_CODE {
            child.out_of_memory = self.oom.evidence(child.pid());
        }
        let is_collective = self.options.mode == Mode::Collective;
        if !status.success() {
            if is_collective {
                // In a collective job the failure of one worker makes all others fail.
                self.notify_end(index);
            }
            return;
        }
        let is_part = matches!(report, Some(ProcessReport::Joined | ProcessReport::Failed { .. }));
        match is_collective {
            _ if child.is_server() => {
                child.has_left = matches!(report, Some(ProcessReport::Failed { .. }));
            }
            // Gradients that it has not sent are lost, and servers wait for its stop message.
            false => child.has_left = is_part,
            // The other workers know whether they still need it. A process that does not use Fleet
            // needs no other.
            true if report != Some(ProcessReport::Finished) => {
                self.notify_end(index);
                if is_part {
                    self.leavers.push((self.now.plus(LEAVER_TIME), index));
                }
            }
            true => {}
        }
    }

    /// Returns workers and servers of a parameter-server job that exited with code 0 without
    /// joining, and servers that did before workers asked them to stop. They count as failed as
    /// soon as a worker that waits for them shows that it uses Fleet.
    fn missed_at_the_start(&mut self) -> Vec<usize> {
        let waits = |child: &Child| {
            let is_worker = child.process.role == Role::Worker;
            is_worker && child.is_running() && child.report().is_some()
        };
        let is_waited = || self.children.iter().any(waits) || self.state_of_job().has_joined;
        if self.options.mode == Mode::Collective || !is_waited() {
            return Vec::new();
        }
        let all = 0..self.children.len();
        let missed: Vec<usize> =
            all.filter(|index| left_before_its_part(&self.children[*index])).collect();
        missed.iter().for_each(|index| self.children[*index].has_left = true);
        missed
    }

    /// Whether other machines may need a process of this one that has exited without a report.
    /// Their workers may not have joined yet, or the job may not use Fleet.
    pub(crate) fn may_be_missed(&self) -> bool {
        let is_ps = self.options.mode != Mode::Collective;
        self.link.is_some() && is_ps && self.children.iter().any(left_before_its_part)
    }

    /// Returns the other worker that a failed one reports as the cause of its failure.
    fn follows_from(&self, index: usize) -> Option<usize> {
        let child = &self.children[index];
        let is_worker = child.process.role == Role::Worker;
        culprit(child).filter(|culprit| is_worker && *culprit != child.process.rank)
    }

    /// Returns the cause of the first failure that another worker caused, as soon as it is known.
    fn cause_of_first(&mut self) -> Option<Death> {
        let (since, first) = self.failed_first?;
        let waited = self.now.since(since) >= CAUSE_TIME;
        let worker = |rank: usize| {
            let is_it = |it: &Child| it.process.role == Role::Worker && it.process.rank == rank;
            self.children.iter().position(is_it)
        };
        let fate = |rank: usize| match worker(rank).map(|index| &self.children[index]) {
            None => Fate::Elsewhere,
            Some(child) if child.is_running() => Fate::Running,
            Some(child) if child.has_failed() => Fate::Failed { culprit: culprit(child) },
            Some(_) => Fate::Ended,
        };
        match blame::cause(self.children[first].process.rank, fate) {
            Cause::Ended(rank) => {
                let index = worker(rank)?;
                // It exited with code 0 while others needed it.
                self.children[index].has_left = !self.children[index].has_failed();
                Some(self.death(index))
            }
            Cause::Open(rank) => match worker(rank) {
                // The machine of that worker knows more and reports to the leader.
                None => Some(self.consequence(first, rank)),
                Some(index) if waited || self.children[index].is_stopped() => {
                    let why = match self.children[first].report() {
                        Some(ProcessReport::Failed { message, .. }) => message,
                        _ => String::new(),
                    };
                    let why = why.lines().next().unwrap_or_default();
                    let victim = self.children[first].process.name();
                    let death = self.unresponsive(index, &format!("\n  {victim} reports: {why}"));
                    Some(death)
                }
                Some(_) => None,
            },
        }
    }

    /// Warns of workers that exited while others still run. The others may not need them.
    pub(crate) fn report_leavers(&mut self) {
        for index in take_due(&mut self.leavers, self.now) {
            if self.children.iter().any(Child::is_running) {
                let death = self.death(index);
                self.warn_about(&death);
            }
        }
    }

    /// Reports processes that have been stopped (SIGSTOP) for too long. Returns a failure, which
    /// ends the job, if the other workers need the process.
    pub(crate) fn stopped(&mut self) -> Option<Death> {
        if self.now.since(self.stopped_seen) < STOPPED_PERIOD {
            return None;
        }
        self.stopped_seen = self.now;
        let uses_fleet = self.children.iter().any(|child| child.report().is_some())
            || self.state_of_job().has_joined;
        for index in 0..self.children.len() {
            let child = &mut self.children[index];
            if !child.is_stopped() {
                (child.stopped_since, child.is_stop_reported) = (None, false);
                continue;
            }
            let since = *child.stopped_since.get_or_insert(self.now);
            if self.now.since(since) < self.options.timeouts.silence || child.is_stop_reported {
                continue;
            }
            child.is_stop_reported = true;
            let is_done = child.report() == Some(ProcessReport::Finished);
            let is_needed = uses_fleet && !is_done && child.process.role == Role::Worker;
            let why = format!(" for {}", display::seconds(self.options.timeouts.silence));
            let death = self.unresponsive(index, &why);
            if is_needed && !self.is_expendable(index) {
                return Some(death);
            }
            self.warn_about(&death);
        }
        None
    }

    /// Shows a report that does not end the job, after the logs so far.
    pub(crate) fn warn_about(&mut self, death: &Death) {
        self.show_logs();
        self.console.warn(&death.report);
    }

    /// Gives up processes that are left over when their job is done and that can no longer
    /// contribute to it. Returns true if only such processes still run and `--leave_timeout` has
    /// passed.
    pub(crate) fn gives_up_left_over(&mut self) -> bool {
        let left: Vec<usize> =
            (0..self.children.len()).filter(|index| self.children[*index].is_running()).collect();
        let is_over = |index: &usize| {
            let child = &self.children[*index];
            let is_done = child.report() == Some(ProcessReport::Finished);
            child.process.role == Role::Worker && (!is_done || child.is_stopped())
        };
        if !self.is_job_done() || left.is_empty() || !left.iter().all(is_over) {
            self.done_since = None;
            return false;
        }
        let since = *self.done_since.get_or_insert(self.now);
        if self.now.since(since) < self.options.timeouts.leave {
            return false;
        }
        let span = display::seconds(self.options.timeouts.leave);
        let done = match self.options.mode {
            Mode::Collective => "another worker had finished",
            _ => "all servers had exited",
        };
        for index in left {
            let help = match self.children[index].is_stopped() {
                true => "",
                false => "\n  help: --leave_timeout SECONDS gives it more time",
            };
            let why = format!(" and was left over for {span} when its job was done: {done}{help}");
            let death = self.unresponsive(index, &why);
            self.show_logs();
            self.console.error(&death.report);
            self.lost.push(death);
        }
        true
    }

    /// Whether the work of the job is done: all servers have exited by themselves, or workers of a
    /// collective job have finished.
    fn is_job_done(&self) -> bool {
        self.is_done_here() || self.state_of_job().is_done
    }

    pub(crate) fn is_done_here(&self) -> bool {
        let ended_well = |child: &Child| child.ended.is_some() && !child.has_failed();
        let of = |role: Role| self.children.iter().filter(move |it| it.process.role == role);
        match self.options.mode {
            Mode::Collective => of(Role::Worker)
                .any(|child| ended_well(child) && child.report() == Some(ProcessReport::Finished)),
            _ => of(Role::Server).count() > 0 && of(Role::Server).all(ended_well),
        }
    }

    /// Returns the reason why restarting a failed server would not help, if one is known.
    fn futile_restart(&self, child: &Child) -> Option<&'static str> {
        use ProcessReport::{Failed, Finished, Serving, Starting};
        if !child.is_server() {
            return None;
        }
        let code = child.ended.and_then(|status| status.code());
        let is_own_end = code.is_some();
        let Some(report) = child.report() else {
            // Other programs may end with this code for another reason.
            let is_usage = self.program.is_builtin && code == Some(i32::from(USAGE_CODE));
            return (is_usage && self.options.max_restart.is_none()).then_some(
                "it refused its command line, and would again (--max_restart N does it all the \
                 same)",
            );
        };
        match report {
            Failed { is_final: true, .. } => Some("another start would end with the same error"),
            Serving { is_durable: false } => Some(
                "its tables were in memory only, and workers refuse one without them\n  help: \
                 durable servers resume (Rust: init_durable_server, Python: \
                 init_server(durable=FOLDER), built-in jobs: --durable FOLDER)",
            ),
            Finished => Some("its part of the job is done"),
            Starting | Failed { has_served: false, .. }
                if is_own_end && self.options.max_restart.is_none() =>
            {
                Some(
                    "it failed before it served, and would again (--max_restart N does it all the \
                     same)",
                )
            }
            _ => None,
        }
    }

    /// Returns the failure of a stopped server on this machine, if a worker has failed because it
    /// gave up waiting for servers.
    fn stopped_server_behind(&mut self, index: usize) -> Option<Death> {
        let worker = &self.children[index];
        let is_own_end = worker.ended.is_some_and(|status| status.code().is_some());
        if worker.process.role != Role::Worker || !is_own_end {
            return None;
        }
        let title = worker.process.name();
        let why = match worker.report() {
            Some(ProcessReport::Failed { culprit: None, is_final: false, message, .. }) => {
                format!("\n  {title} reports: {}", message.lines().next().unwrap_or_default())
            }
            _ => return None,
        };
        let server = self.children.iter().position(|it| it.is_server() && it.is_stopped())?;
        Some(self.unresponsive(server, &why))
    }

    /// Reports and returns servers that failed after the workers had finished.
    pub(crate) fn failed_at_their_end(&mut self) -> Vec<Death> {
        use ProcessReport::{Failed, Finished};
        let has_failed = |child: &Child| {
            let is_own_end =
                child.ended.is_some_and(|status| status.code().is_some_and(|it| it > 0));
            child.is_server()
                && is_own_end
                && matches!(child.report(), Some(Failed { .. } | Finished))
        };
        let failed: Vec<usize> =
            (0..self.children.len()).filter(|index| has_failed(&self.children[*index])).collect();
        let deaths: Vec<Death> = failed.into_iter().map(|index| self.death(index)).collect();
        for death in &deaths {
            self.show_logs();
            self.console.flush_partial();
            self.console.error(&death.report);
        }
        deaths
    }

    /// Whether the job can continue without a process. The servers handle anything that waits for
    /// it.
    fn is_expendable(&self, index: usize) -> bool {
        let env = &self.children[index].process.env;
        let file = env.iter().rev().find(|(name, _)| *name == names::FLEET_EXPENDABLE);
        let is_declared =
            file.and_then(|(_, path)| path.as_ref()).is_some_and(|it| Path::new(it).exists());
        let goes_on = |(at, child): (usize, &Child)| {
            at != index && child.process.role == Role::Worker && !child.has_failed()
        };
        let on_other_machines = self.link.is_some();
        let any = on_other_machines || self.children.iter().enumerate().any(goes_on);
        is_declared && any
    }

    fn lose(&mut self, index: usize) {
        self.notify_end(index);
        let death = self.death(index);
        self.show_logs();
        self.console.flush_partial();
        self.console.error(&death.report);
        let name = self.children[index].process.name();
        self.console.warn(&format!("the other workers go on without {name}"));
        self.follow_next(index);
        self.lost.push(death);
    }

    /// Notifies the other workers, which identify each other by rank.
    fn notify_end(&self, index: usize) {
        let child = &self.children[index];
        let Some(status) = child.ended.filter(|_| child.process.role == Role::Worker) else {
            return;
        };
        let said = child::describe(status);
        let mut how = said.strip_prefix("was ").unwrap_or(&said).to_string();
        if let Some(evidence) = &child.out_of_memory {
            how += &format!(", likely out of memory ({evidence})");
        }
        let code = if status.success() { 1 } else { child::code(status) };
        if status.success() {
            how += " before the job had finished";
        }
        let follows = self.follows_from(index);
        let (rank, pid) = (child.process.rank, child.pid());
        (self.notify_ended)(&Ended { rank, pid, how, code, follows });
    }

    /// Returns the number of restarts allowed for a process. A collective job restarts as a whole
    /// instead.
    fn restarts_allowed(&self, role: Role) -> u32 {
        match (self.options.mode, role) {
            (Mode::Collective, _) => 0,
            (_, Role::Server) => self.options.max_restart.unwrap_or(SERVER_RESTARTS),
            _ => self.options.max_restart.unwrap_or(0),
        }
    }

    fn announce_restart(&mut self, index: usize, allowed: u32) {
        let death = self.death(index);
        let again = self.children[index].restarts + 1;
        self.console.warn(&death.report);
        let memory = match death.role {
            Role::Server => "; its tables have the logged or saved state",
            _ => "",
        };
        self.console.warn(&format!(
            "{} {} is started again ({again} of {allowed}){memory}",
            death.role, death.rank
        ));
    }

    /// Returns the failure of a process that has neither written nor reported anything within
    /// `--start_timeout`.
    pub(crate) fn silent(&mut self) -> Option<Death> {
        let allowed = self.options.timeouts.start?;
        for index in 0..self.children.len() {
            let child = &mut self.children[index];
            if child.is_alive_seen || !child.is_running() {
                continue;
            }
            let length = std::fs::metadata(&child.log).map_or(0, |found| found.len());
            child.is_alive_seen = length > child.log_from || child.report().is_some();
            if !child.is_alive_seen && child.lived(self.now) >= allowed {
                let report = format!(
                    "{} hangs at its start: it wrote nothing to {} in {}",
                    child.title(),
                    child.log.display(),
                    display::seconds(allowed),
                );
                let (role, rank) = (child.process.role, child.process.rank);
                return Some(Death::new(role, rank, report, HANG_CODE));
            }
        }
        None
    }

    /// Returns the report of a child that has ended.
    fn death(&mut self, index: usize) -> Death {
        let report = self.ending(index);
        self.with_log(index, report)
    }

    /// Returns the report of a worker that failed because a worker on another machine did.
    fn consequence(&mut self, index: usize, culprit: usize) -> Death {
        let report = format!(
            "{}\n  it reports worker {culprit} of another machine as the cause",
            self.ending(index)
        );
        Death { follows: Some(culprit), ..self.with_log(index, report) }
    }

    /// Describes how a child has ended.
    fn ending(&self, index: usize) -> String {
        let child = &self.children[index];
        let what = match child.ended {
            Some(status) => child::describe(status),
            None => "ended".to_string(),
        };
        let mut report =
            format!("{} {what} after {:.1} s", child.title(), child.lived(self.now).as_secs_f64());
        if child.code() == KILLED_CODE {
            report += &match &child.out_of_memory {
                Some(evidence) => format!(", likely out of memory ({evidence})"),
                None => {
                    "; not for memory, as far as the kernel tells: a user, a program or a limit \
                         (ulimit -t) can do it"
                        .to_string()
                }
            };
        }
        if child.code() == CPU_LIMIT_CODE {
            report += "; it used up its limit of CPU time (ulimit -t)";
        }
        if child.ended.is_some_and(|status| status.success()) {
            report += ", before its part of the job was done";
            report += match (self.options.mode, child.is_server()) {
                (_, true) => "\n  help: a server must serve until all workers have stopped",
                (Mode::Collective, _) => {
                    "\n  help: call `finish` on every rank before it exits; a script of Python \
                     does so at its end"
                }
                _ => {
                    "\n  help: stop every worker before it exits: `stop` in Rust, `stop_worker` in \
                     Python"
                }
            };
        }
        report
    }

    /// Returns the report of a running child that does not do its part.
    fn unresponsive(&mut self, index: usize, why: &str) -> Death {
        let child = &self.children[index];
        let title = child.title();
        let report = match child.is_stopped() {
            true => format!(
                "{title} is stopped (SIGSTOP or a debugger){why}\n  help: kill -CONT {} if it was \
                 meant to go on",
                child.pid()
            ),
            // A process that does not use Fleet may be doing its part.
            false if child.report().is_none() => format!("{title} still runs{why}"),
            false => format!("{title} does not respond{why}"),
        };
        self.with_log(index, report)
    }

    /// Adds the last lines of a child's log that have not been shown yet.
    pub(crate) fn with_log(&mut self, index: usize, mut report: String) -> Death {
        if logs::is_disk_full(&self.options.log_dir) {
            report += &format!(
                "\n  the disk of {} is full: what it wrote last may be lost",
                self.options.log_dir.display()
            );
        }
        let child = &self.children[index];
        let (role, rank, code) = (child.process.role, child.process.rank, child.code());
        let follows = self.followers.iter().any(|(r, number, _)| (*r, *number) == (role, rank));
        let log = child.log.display();
        let elsewhere = match self.link {
            None => String::new(),
            Some(_) => {
                let lines = logs::last_lines(&child.log, child.log_from, LAST_LINES);
                let log = format!("{log} on {}", child.process.host);
                format!("{report}{}", shown_log(&log, &lines, false))
            }
        };
        let is_followed = follows && self.console.is_one_stream();
        let lines = match is_followed {
            true => Vec::new(),
            false => {
                let from = child.shown_to.unwrap_or(child.log_from);
                logs::last_lines(&child.log, from, LAST_LINES)
            }
        };
        let was_shown = is_followed || child.shown_to.is_some();
        report += &shown_log(&log.to_string(), &lines, was_shown);
        let length = std::fs::metadata(&child.log).map_or(0, |found| found.len());
        self.children[index].shown_to = Some(length);
        Death { role, rank, report, elsewhere, code, follows: None }
    }
}

/// Formats the last lines of a log as the end of a report.
fn shown_log(log: &str, lines: &[String], was_shown: bool) -> String {
    let title = match (lines.is_empty(), was_shown) {
        (true, true) => format!("\n  the end of {log} is shown above"),
        (true, false) => format!("\n  it wrote nothing to {log}"),
        (false, _) => format!("\n  the end of {log}:"),
    };
    lines.iter().fold(title, |text, line| format!("{text}\n  | {line}"))
}

/// Returns the worker that a failed one's report names as the cause.
fn culprit(child: &Child) -> Option<usize> {
    match child.report()? {
        ProcessReport::Failed { culprit, .. } => culprit,
        _ => None,
    }
}

/// Whether a process has exited with code 0 without a report, or is a server that no worker has
/// asked to stop. Scripts that do not train may do so, and processes that do not use Fleet.
fn left_before_its_part(child: &Child) -> bool {
    use ProcessReport::{Serving, Starting};
    let has_ended = child.ended.is_some() && !child.has_failed();
    has_ended
        && match child.process.role {
            Role::Worker => child.report().is_none(),
            Role::Server => matches!(child.report(), None | Some(Starting | Serving { .. })),
            _ => false,
        }
}

/// Returns the delay before a restart. It doubles with each restart, since an immediate crash is
/// likely to recur.
fn restart_delay(restarts: u32) -> Duration {
    RESTART_DELAY * 2u32.pow(restarts.min(5))
}

/// Limit on lines of a log in a report.
const LAST_LINES: usize = 20;
/// Default limit on restarts of a server.
const SERVER_RESTARTS: u32 = 3;
const RESTART_DELAY: Duration = Duration::from_millis(250);
/// Exit code of a process killed by SIGKILL.
const KILLED_CODE: u8 = 128 + signal_hook::consts::SIGKILL as u8;
/// Exit code of a process killed by SIGXCPU.
const CPU_LIMIT_CODE: u8 = 128 + signal_hook::consts::SIGXCPU as u8;
/// Time for the worker that others name as the cause of their failure to end: it may still be
/// printing its panic.
const CAUSE_TIME: Duration = Duration::from_secs(2);
/// Delay before a warning about workers that exited with code 0: the others are likely to end as
/// well.
const LEAVER_TIME: Duration = Duration::from_secs(2);
/// Interval between checks for stopped processes.
const STOPPED_PERIOD: Duration = Duration::from_millis(500);
