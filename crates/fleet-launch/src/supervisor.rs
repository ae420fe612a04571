//! The processes of one machine, from start to end: watched, shown, restarted where that is the
//! rule, stopped in order.
//!
//! One thread, woken by signals, by the other machines and by a tick. Whatever it decides it
//! decides in [`Supervisor::run`]; what it does to children is in the functions below.

use crate::child::{self, Child};
use crate::cluster::{FIRST_LOG, Process};
use crate::console::Console;
use crate::guard::{self, Guard};
use crate::link::{Link, MachineState};
use crate::logs::{self, Follower};
use crate::oom::OomWatch;
use crate::options::{Follow, Mode};
use crate::words;
use fleet_base::Result;
use fleet_topology::{ProcessReport, Role, names};
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
    /// The same for the terminals of other machines, which have shown nothing of the log.
    pub elsewhere: String,
    pub code: u8,
    /// The worker of another machine that it reports as the cause of its failure.
    pub follows: Option<usize>,
}

impl Death {
    /// What happened, without the log.
    pub fn line(&self) -> &str {
        self.report.lines().next().unwrap_or_default()
    }

    /// Adds lines to the report.
    pub fn add(&mut self, lines: &str) {
        self.report += lines;
        self.elsewhere += lines;
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
    /// The other worker that it reports as the cause of its failure.
    pub follows: Option<usize>,
}

/// What the supervisor keeps to.
#[derive(Clone)]
pub struct Rules {
    pub mode: Mode,
    pub max_restart: Option<u32>,
    pub start_timeout: Option<Duration>,
    pub stop_timeout: Duration,
    pub silence_timeout: Duration,
    pub leave_timeout: Duration,
    pub follow: Follow,
    pub log_dir: PathBuf,
    pub new_logs: bool,
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
    pub(crate) children: Vec<Child>,
    pub(crate) followers: Vec<(Role, usize, Follower)>,
    /// Workers that died and that the others go on without.
    pub(crate) lost: Vec<Death>,
    /// The leader knows that the workers of this machine are done.
    has_reported: bool,
    /// Deaths whose process is to be started again.
    pub(crate) due: Vec<(Instant, usize)>,
    /// The first worker whose failure follows from another's, and when it was seen.
    pub(crate) failed_first: Option<(Instant, usize)>,
    /// Workers of a collective job that exited with code 0 without having finished.
    pub(crate) leavers: Vec<(Instant, usize)>,
    /// When it was looked last which processes are stopped.
    pub(crate) stopped_seen: Instant,
    /// Since when the job is done, as far as processes are left over.
    pub(crate) done_since: Option<Instant>,
    /// When it was looked last which processes are absent.
    pub(crate) absent_seen: Instant,
    /// Since when workers wait for the processes that have not joined.
    pub(crate) joined_since: Option<Instant>,
    /// The state of this machine, as the leader knows it.
    pub(crate) state_told: MachineState,
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
            failed_first: None,
            leavers: Vec::new(),
            stopped_seen: now,
            done_since: None,
            absent_seen: now,
            joined_since: None,
            state_told: MachineState::default(),
            begun: now,
            status_shown: now,
            disk_seen: now,
            is_full_said: false,
        }
    }

    /// Starts everything, watches, and leaves nothing running.
    pub fn run(&mut self, processes: Vec<Process>) -> Result<End> {
        let mut end = self.start(processes).and_then(|()| self.watch());
        if let Ok(End::Failed(death)) = &end {
            // At once: stopping the others may take a while.
            self.show_logs();
            self.console.flush_partial();
            match death.follows {
                // The leader finds the cause, which every machine then shows as the error.
                Some(_) => self.console.warn(&death.report),
                None => self.console.error(&death.report),
            }
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
        if let Ok(End::Finished(lost)) = &mut end {
            lost.extend(self.failed_at_their_end());
        }
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
            let child = Child::start(self.argv, process, &self.rules.log_dir, new_log, None)?;
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
            let hung = self.silent().or_else(|| self.stopped()).or_else(|| self.absent());
            if let Some(death) = hung {
                return Ok(End::Failed(death));
            }
            self.say_leavers();
            self.restart_due()?;
            self.tell_state();
            if self.is_finished() || self.gives_up_left_over() {
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
            // There is no child at all: somebody else reaped ours. Their status is lost, the fact
            // is not.
            let (pid, status) = match reaped {
                Ok(Some((pid, status))) => (Some(pid.as_raw_pid() as u32), status.as_raw()),
                Err(Errno::CHILD) => (None, LOST_STATUS),
                Ok(None) | Err(_) => break,
            };
            if pid == Some(self.guard.pid()) {
                self.replace_guard(ExitStatus::from_raw(status));
            }
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

    /// Starts another guard, or says what does not hold without one.
    fn replace_guard(&mut self, status: ExitStatus) {
        let how = format!("the guard of this launch (pid {})", self.guard.pid());
        let how = format!("{how} {}", child::describe(status));
        self.console.warn(&match self.guard.replace() {
            Ok(()) => format!("{how}; another one was started (pid {})", self.guard.pid()),
            Err(error) => format!(
                "{how}, and there is no other one ({}): if fleetrun is killed, what its processes \
                 have started may run on",
                error.message()
            ),
        });
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
            let mut process = old.process.clone();
            let restarts = (old.restarts + 1).to_string();
            process.env.push((names::FLEET_RESTART_COUNT, Some(restarts)));
            let child = Child::start(self.argv, process, &self.rules.log_dir, false, Some(old))?;
            self.guard.add(child.pid());
            self.children[index] = child;
        }
        if any {
            self.watch_memory();
        }
        Ok(())
    }

    /// A parameter-server job is done when its workers are. Workers of other machines may still
    /// need the servers of this one: then all must have ended, or all machines have said that their
    /// workers are.
    fn is_finished(&self) -> bool {
        let is_done = match self.link {
            Some((link, _)) => link.is_done(),
            None => self.rules.mode != Mode::Collective && self.workers_have_ended(),
        };
        let all = || self.children.iter().all(|child| !child.is_running());
        self.due.is_empty() && (is_done || all() && !self.may_be_missed())
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
            let leaves = |child: &Child| {
                child.is_running() && child.report() == Some(ProcessReport::Leaving)
            };
            if interrupted.is_none() && self.children.iter().any(leaves) {
                // A last snapshot takes as long as the tables are large.
                self.await_all(self.rules.leave_timeout, &mut interrupted);
            }
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

    pub(crate) fn show_logs(&mut self) {
        for (role, rank, follower) in &mut self.followers {
            for _ in 0..FOLLOWED_AT_ONCE {
                let bytes = follower.more();
                if bytes.is_empty() {
                    break;
                }
                self.console.follow(*role, *rank, &bytes);
            }
        }
    }

    /// Shows the log of the next worker where the one that is shown is lost and the job goes on.
    pub(crate) fn follow_next(&mut self, lost: usize) {
        let key = |child: &Child| (child.process.role, child.process.rank);
        let lost = key(&self.children[lost]);
        let is_shown = self.followers.iter().any(|(role, rank, _)| (*role, *rank) == lost);
        let mut running = self.children.iter().filter(|child| child.is_running());
        let next = running.find(|child| child.process.role == Role::Worker);
        let Some(next) = next.filter(|_| self.rules.follow == Follow::First && is_shown) else {
            return;
        };
        let (role, rank) = key(next);
        let from = std::fs::metadata(&next.log).map_or(0, |found| found.len());
        self.followers.push((role, rank, Follower::new(&next.log, from)));
        let line = format!("{} is shown from here on", next.log.display());
        self.console.say(&format!("fleetrun: {line}"));
    }

    /// How far the first worker is that runs, as it reports.
    fn progress(&self) -> Option<String> {
        use std::io::Read;
        let mut running = self.children.iter().filter(|child| child.is_running());
        let path = running.find_map(|child| child.process.variable(names::FLEET_PROGRESS))?;
        let file = fleet_base::input::open_now(Path::new(path)).ok()?;
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

/// How often logs and children are looked at when nothing wakes us.
const TICK: Duration = Duration::from_millis(50);
const STATUS_PERIOD: Duration = Duration::from_secs(1);
/// How often it is looked whether logs have room.
const DISK_PERIOD: Duration = Duration::from_millis(500);
/// Pieces of a log that are shown at once; the rest is shown at the next tick.
const FOLLOWED_AT_ONCE: usize = 64;
/// How often the line of the first worker is drawn.
const PROGRESS_PERIOD: Duration = Duration::from_millis(200);
/// Longer than any terminal is wide.
const LINE_CHARS_MAX: usize = 500;
/// More than a line.
const PROGRESS_BYTES_MAX: u64 = 1 << 10;
/// Grace period for servers to exit after the workers asked them to stop. One that says that it
/// still writes its tables gets `--leave_timeout`.
const LEAVE_TIME: Duration = Duration::from_millis(500);
/// After SIGKILL only a process inside a broken driver is still there.
const KILL_TIME: Duration = Duration::from_secs(5);
/// Exit code 1.
const LOST_STATUS: i32 = 1 << 8;
/// Reaped at once; the next tick takes more.
const REAPED_MAX: usize = 10_000;
/// How long the others of a collective job may take to say what they wait for, before they are
/// stopped.
const LAST_WORDS_TIME: Duration = Duration::from_millis(300);

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
