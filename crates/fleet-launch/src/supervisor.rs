//! The processes of one machine, from start to end: watched, shown, restarted where that is the rule,
//! stopped in order.
//!
//! One thread, woken by signals, by the other machines and by a tick. Whatever it decides it decides
//! in [`Supervisor::run`]; what it does to children is in the functions below.

use crate::child::{self, Child};
use crate::cluster::{FIRST_LOG, Process};
use crate::console::Console;
use crate::guard::{self, Guard};
use crate::link::Link;
use crate::logs::{self, Follower};
use crate::oom::OomWatch;
use crate::options::{Follow, Mode};
use crate::words;
use fleet_base::Result;
use fleet_topology::{Role, names};
use rustix::io::Errno;
use rustix::process::{Signal, WaitOptions};
use signal_hook::consts::SIGCHLD;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

/// What wakes the supervisor.
pub enum Event {
    Signal(i32),
    /// The link to the other machines has something to look at.
    News,
}

/// How the processes of this machine ended.
pub enum End {
    /// All that were waited for, but for those that died and that the others could do without.
    Finished(Vec<Death>),
    Failed(Death),
    /// A signal to the launcher.
    Interrupted(i32),
    /// The leader wanted it, with the reason.
    Ordered(String),
}

/// A process that went wrong, and is not started again.
#[derive(Clone, Debug)]
pub struct Death {
    pub role: Role,
    pub rank: usize,
    /// What happened, and the last lines of its log.
    pub report: String,
    pub code: u8,
}

impl Death {
    /// What happened, without the log.
    pub fn line(&self) -> &str {
        self.report.lines().next().unwrap_or_default()
    }
}

/// A worker that has ended badly, for those of its job who wait for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    pub rank: usize,
    pub pid: u32,
    /// `killed by SIGKILL (9)`.
    pub how: String,
    /// As shells count.
    pub code: u8,
}

/// What the supervisor keeps to.
#[derive(Clone)]
pub struct Rules {
    pub mode: Mode,
    pub max_restart: Option<u32>,
    pub start_timeout: Option<Duration>,
    pub stop_timeout: Duration,
    pub follow: Follow,
    pub log_dir: PathBuf,
    pub new_logs: bool,
    /// Where the first worker says how far it is, when somebody sees it.
    pub progress: Option<PathBuf>,
}

pub struct Supervisor<'a> {
    pub rules: &'a Rules,
    pub argv: &'a [String],
    pub mark: &'a str,
    pub events: &'a Receiver<Event>,
    pub console: &'a mut Console,
    pub guard: &'a mut Guard,
    pub oom: &'a mut OomWatch,
    /// The other machines, and the generation that is run for them.
    pub link: Option<(&'a Link, u64)>,
    /// Tells the workers of the job, at once, that one of them has ended.
    pub tell_ended: &'a dyn Fn(&Ended),
    children: Vec<Child>,
    followers: Vec<(Role, usize, Follower)>,
    /// Workers that died and that the others go on without.
    lost: Vec<Death>,
    /// The leader knows that the workers of this machine are done.
    has_reported: bool,
    /// Deaths whose process is to be started again.
    due: Vec<(Instant, usize)>,
    begun: Instant,
    status_shown: Instant,
    disk_seen: Instant,
    is_full_said: bool,
}

impl<'a> Supervisor<'a> {
    pub fn new(
        rules: &'a Rules,
        argv: &'a [String],
        mark: &'a str,
        events: &'a Receiver<Event>,
        console: &'a mut Console,
        guard: &'a mut Guard,
        oom: &'a mut OomWatch,
        link: Option<(&'a Link, u64)>,
        tell_ended: &'a dyn Fn(&Ended),
    ) -> Supervisor<'a> {
        let now = Instant::now();
        Supervisor {
            rules,
            argv,
            mark,
            events,
            console,
            guard,
            oom,
            link,
            tell_ended,
            children: Vec::new(),
            followers: Vec::new(),
            lost: Vec::new(),
            has_reported: false,
            due: Vec::new(),
            begun: now,
            status_shown: now,
            disk_seen: now,
            is_full_said: false,
        }
    }

    /// Starts everything, watches, and leaves nothing running.
    pub fn run(&mut self, processes: Vec<Process>) -> Result<End> {
        let end = self.start(processes).and_then(|()| self.watch());
        if let Ok(End::Failed(death)) = &end {
            // At once: stopping the others may take a while.
            self.show_logs();
            self.console.flush_partial();
            self.console.error(&death.report);
        }
        if let Ok(End::Ordered(reason)) = &end {
            let first = reason.lines().next().unwrap_or_default();
            self.console.say(&format!("fleetrun: {first}"));
        }
        let is_cut_short = matches!(end, Ok(End::Failed(_) | End::Ordered(_)));
        if is_cut_short && self.rules.mode == Mode::Collective {
            // Those who wait for the dead, here or on another machine, have been told, and write it
            // into their logs.
            self.await_all(LAST_WORDS_TIME, &mut None);
        }
        // An error must not leave children either.
        let stopped = self.stop(matches!(end, Ok(End::Finished(_))));
        self.show_logs();
        self.console.flush_partial();
        self.console.clear_status();
        match (end?, stopped) {
            // Ctrl-C while the rest is being stopped is still Ctrl-C.
            (End::Finished(_), Some(signal)) => Ok(End::Interrupted(signal)),
            (end, _) => Ok(end),
        }
    }

    fn start(&mut self, processes: Vec<Process>) -> Result<()> {
        for process in processes {
            let follows = match self.rules.follow {
                Follow::Nobody => false,
                Follow::All => true,
                Follow::First => process.log == FIRST_LOG,
            };
            let (role, rank) = (process.role, process.rank);
            let new_log = self.rules.new_logs;
            let child = Child::start(self.argv, process, &self.rules.log_dir, new_log, 0)?;
            self.guard.add(child.pid());
            self.console.debug(&format!("launch proc_id:{} idx:{}", child.pid(), rank));
            if follows {
                self.followers.push((role, rank, Follower::new(&child.log, child.log_from)));
            }
            self.children.push(child);
        }
        self.watch_memory();
        Ok(())
    }

    fn watch(&mut self) -> Result<End> {
        loop {
            match self.events.recv_timeout(TICK) {
                Ok(Event::Signal(SIGCHLD) | Event::News) | Err(RecvTimeoutError::Timeout) => {}
                Ok(Event::Signal(signal)) => return Ok(End::Interrupted(signal)),
                // Nobody can wake us any more; the tick still does.
                Err(RecvTimeoutError::Disconnected) => std::thread::sleep(TICK),
            }
            self.show_logs();
            let ended = self.reap();
            if let Some(death) = self.judge(ended) {
                return Ok(End::Failed(death));
            }
            if let Some(death) = self.silent() {
                return Ok(End::Failed(death));
            }
            self.restart_due()?;
            if self.is_finished() {
                return Ok(End::Finished(std::mem::take(&mut self.lost)));
            }
            self.report_workers();
            if let Some(reason) = self.ordered() {
                return Ok(End::Ordered(reason));
            }
            if self.oom.is_due() {
                self.watch_memory();
            }
            self.watch_disk();
            self.show_status();
        }
    }

    fn watch_memory(&mut self) {
        let running = self.children.iter().filter(|child| child.is_running());
        self.oom.look(running.map(Child::pid));
    }

    /// Processes often do not notice that their logs are cut off; somebody should.
    fn watch_disk(&mut self) {
        if self.is_full_said || self.disk_seen.elapsed() < DISK_PERIOD {
            return;
        }
        self.disk_seen = Instant::now();
        if logs::is_disk_full(&self.rules.log_dir) {
            self.is_full_said = true;
            self.console.warn(&format!(
                "the disk of {} is full: what processes write from now on is lost",
                self.rules.log_dir.display()
            ));
        }
    }

    /// Why the other machines want this one's processes stopped, if they do.
    fn ordered(&mut self) -> Option<String> {
        let (link, generation) = self.link?;
        for line in link.take_said() {
            self.console.say(&format!("fleetrun: {line}"));
        }
        link.stop_reason(generation)
    }

    /// Children that have just ended. Orphans that came to the launcher, which on Linux is the
    /// reaper of its descendants, are reaped beside.
    fn reap(&mut self) -> Vec<usize> {
        let mut ended = Vec::new();
        for _ in 0..REAPED_MAX {
            let reaped = rustix::process::wait(WaitOptions::NOHANG);
            // There is no child at all: somebody else reaped ours. Their status is lost, the fact is not.
            let (pid, status) = match reaped {
                Ok(Some((pid, status))) => (Some(pid.as_raw_pid() as u32), status.as_raw()),
                Err(Errno::CHILD) => (None, LOST_STATUS),
                Ok(None) | Err(_) => break,
            };
            for (index, child) in self.children.iter_mut().enumerate() {
                if child.is_running() && pid.is_none_or(|pid| pid == child.pid()) {
                    child.ended = Some(ExitStatus::from_raw(status));
                    ended.push(index);
                }
            }
            if pid.is_none() {
                break;
            }
        }
        for index in &ended {
            // What is left of its group has lost its leader.
            self.children[*index].signal(Signal::KILL);
            self.guard.remove(self.children[*index].pid());
        }
        ended
    }

    /// What the ends mean: nothing, another start, or the end of the job.
    fn judge(&mut self, mut ended: Vec<usize>) -> Option<Death> {
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

    fn restart_due(&mut self) -> Result<()> {
        let now = Instant::now();
        let (due, later) =
            std::mem::take(&mut self.due).into_iter().partition(|(at, _)| *at <= now);
        self.due = later;
        let due: Vec<(Instant, usize)> = due;
        let any = !due.is_empty();
        for (_, index) in due {
            let old = &self.children[index];
            let restarts = old.restarts + 1;
            let mut process = old.process.clone();
            process.env.push((names::FLEET_RESTART_COUNT, Some(restarts.to_string())));
            let child = Child::start(self.argv, process, &self.rules.log_dir, false, restarts)?;
            self.guard.add(child.pid());
            self.children[index] = child;
        }
        if any {
            self.watch_memory();
        }
        Ok(())
    }

    /// A process that has written nothing in the time allowed.
    fn silent(&mut self) -> Option<Death> {
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

    /// A parameter-server job is done when its workers are. Workers of other machines may still need the
    /// servers of this one: then all must have ended, or all machines have said that their workers are.
    fn is_finished(&self) -> bool {
        let is_done = match self.link {
            Some((link, _)) => link.is_done(),
            None => self.rules.mode != Mode::Collective && self.workers_have_ended(),
        };
        let all = || self.children.iter().all(|child| !child.is_running());
        self.due.is_empty() && (is_done || all())
    }

    /// There were workers here, and none is running.
    fn workers_have_ended(&self) -> bool {
        let mut workers =
            self.children.iter().filter(|it| it.process.role == Role::Worker).peekable();
        workers.peek().is_some() && workers.all(|child| !child.is_running())
    }

    /// Tells the leader once that the workers of this machine are done, while its servers go on.
    fn report_workers(&mut self) {
        let Some((link, generation)) = self.link else { return };
        let is_ps = self.rules.mode != Mode::Collective;
        if is_ps && !self.has_reported && self.due.is_empty() && self.workers_have_ended() {
            self.has_reported = true;
            let end = End::Finished(std::mem::take(&mut self.lost));
            link.report(generation, &end);
            if let End::Finished(lost) = end {
                self.lost = lost;
            }
            if self.children.iter().any(Child::is_running) {
                self.show_logs();
                self.console.say(
                    "fleetrun: the workers of this machine have ended; its servers stay for those of others",
                );
            }
        }
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

    /// SIGTERM, time to save, SIGKILL; then whatever still carries the mark. Gives the signal of an
    /// impatient user.
    fn stop(&mut self, is_finished: bool) -> Option<i32> {
        let mut interrupted = None;
        let running = self.children.iter().filter(|child| child.is_running()).count();
        if running > 0 && is_finished {
            self.console
                .debug("all workers exit, going to finish parameter server and heter_worker.");
            // Workers tell servers to stop, which then leave by themselves.
            self.await_all(LEAVE_TIME, &mut interrupted);
        }
        let running = self.children.iter().filter(|child| child.is_running()).count();
        if running > 0 {
            if !is_finished {
                let s = if running == 1 { "" } else { "es" };
                self.console.say(&format!("fleetrun: stopping {running} process{s}"));
            }
            self.signal_all(Signal::TERM);
            // A process that is stopped hears nothing before it goes on.
            self.signal_all(Signal::CONT);
            let in_time = self.await_all(self.rules.stop_timeout, &mut interrupted);
            if !in_time && interrupted.is_none() {
                let names: Vec<String> = self
                    .children
                    .iter()
                    .filter(|it| it.is_running())
                    .map(|it| it.process.name())
                    .collect();
                self.console.warn(&format!(
                    "{} did not end within {} of SIGTERM and is killed",
                    names.join(", "),
                    words::seconds(self.rules.stop_timeout)
                ));
            }
        }
        self.signal_all(Signal::KILL);
        self.await_all(KILL_TIME, &mut interrupted);
        let left = guard::sweep(self.mark, &[self.guard.pid()]);
        if left > 0 {
            self.console.debug(&format!("{left} processes had left their groups and were killed"));
        }
        self.reap();
        if is_finished && self.rules.mode != Mode::Collective {
            self.console.debug("all parameter server are killed");
        }
        interrupted
    }

    fn signal_all(&self, signal: Signal) {
        for child in self.children.iter().filter(|child| child.is_running()) {
            child.signal(signal);
        }
    }

    /// True when all have ended in time. A second signal to the launcher ends the waiting.
    fn await_all(&mut self, time: Duration, interrupted: &mut Option<i32>) -> bool {
        let until = Instant::now() + time;
        loop {
            self.show_logs();
            self.reap();
            if self.children.iter().all(|child| !child.is_running()) {
                return true;
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            match self.events.recv_timeout(left.min(TICK)) {
                Ok(Event::Signal(SIGCHLD) | Event::News) => {}
                Ok(Event::Signal(signal)) => {
                    *interrupted = Some(signal);
                    return false;
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => std::thread::sleep(TICK),
            }
        }
    }

    fn show_logs(&mut self) {
        for (role, rank, follower) in &mut self.followers {
            let bytes = follower.more();
            self.console.follow(*role, *rank, &bytes);
        }
    }

    /// What the first worker says of how far it is.
    fn progress(&self) -> Option<String> {
        use std::io::Read;
        let file = std::fs::File::open(self.rules.progress.as_ref()?).ok()?;
        let mut bytes = Vec::new();
        file.take(PROGRESS_BYTES_MAX).read_to_end(&mut bytes).ok()?;
        one_line(&String::from_utf8_lossy(&bytes))
    }

    fn show_status(&mut self) {
        let progress = self.progress();
        let period = if progress.is_some() { PROGRESS_PERIOD } else { STATUS_PERIOD };
        if self.status_shown.elapsed() < period {
            return;
        }
        self.status_shown = Instant::now();
        if let Some(progress) = progress {
            return self.console.status(&progress, self.begun.elapsed());
        }
        let count = |role: Role| {
            self.children.iter().filter(|it| it.is_running() && it.process.role == role).count()
        };
        let roles = [Role::Worker, Role::Server, Role::HeterWorker, Role::Coordinator];
        let running: Vec<String> = roles
            .into_iter()
            .map(|role| (role, count(role)))
            .filter(|(_, count)| *count > 0)
            .map(|(role, count)| words::counted(role, count))
            .collect();
        self.console.status(&format!("{} running", running.join(", ")), self.begun.elapsed());
    }
}

/// The first line of a text that anybody may have written.
fn one_line(text: &str) -> Option<String> {
    let line: String =
        text.lines().next()?.chars().filter(|c| !c.is_control()).take(LINE_CHARS_MAX).collect();
    (!line.trim().is_empty()).then_some(line)
}

/// A crash at once is likely to happen again: each start waits longer.
fn restart_delay(restarts: u32) -> Duration {
    RESTART_DELAY * 2u32.pow(restarts.min(5))
}

/// How often logs and children are looked at when nothing wakes us.
const TICK: Duration = Duration::from_millis(50);
const STATUS_PERIOD: Duration = Duration::from_secs(1);
/// How often it is looked whether logs have room.
const DISK_PERIOD: Duration = Duration::from_millis(500);
/// How often the line of the first worker is drawn.
const PROGRESS_PERIOD: Duration = Duration::from_millis(200);
/// Longer than any terminal is wide.
const LINE_CHARS_MAX: usize = 500;
/// More than a line.
const PROGRESS_BYTES_MAX: u64 = 1 << 10;
/// Lines of a log in a report.
const LAST_LINES: usize = 20;
/// Restarts of a server when nothing was said.
const SERVER_RESTARTS: u32 = 3;
const RESTART_DELAY: Duration = Duration::from_millis(250);
/// Servers end by themselves when workers have told them to; this long is waited for that.
const LEAVE_TIME: Duration = Duration::from_millis(500);
/// After SIGKILL only a process inside a broken driver is still there.
const KILL_TIME: Duration = Duration::from_secs(5);
/// Exit code 1.
const LOST_STATUS: i32 = 1 << 8;
/// Reaped at once; the next tick takes more.
const REAPED_MAX: usize = 10_000;
/// How long the others of a collective job may take to say what they wait for, before they are stopped.
const LAST_WORDS_TIME: Duration = Duration::from_millis(300);
/// Of a process that SIGKILL ended.
const KILLED_CODE: u8 = 128 + signal_hook::consts::SIGKILL as u8;
/// What `timeout` exits with.
const HANG_CODE: u8 = 124;

#[cfg(test)]
mod tests {
    use super::{LINE_CHARS_MAX, one_line};

    #[test]
    fn a_line_of_progress_is_one_line() {
        assert_eq!(one_line("40 %\nmore").as_deref(), Some("40 %"));
        assert_eq!(one_line("\x1b[2J\r40 %").as_deref(), Some("[2J40 %"));
        assert_eq!(one_line(&"x".repeat(900)).unwrap().len(), LINE_CHARS_MAX);
        assert_eq!((one_line(""), one_line(" \n")), (None, None));
    }
}
