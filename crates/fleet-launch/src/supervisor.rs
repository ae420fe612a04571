//! Supervises the processes of one machine from start to end: watches them, shows their logs,
//! restarts them where the rules allow it, and stops them in order.
//!
//! One thread does this. Signals, messages from the other machines and a timer tick wake it.
//! [`Supervisor::run`] makes all decisions; the functions below it act on the children.

use crate::child::{self, Child};
use crate::cluster::{FIRST_LOG, Process};
use crate::console::Console;
use crate::display;
use crate::events::{Death, End, Ended, Event, stop_signal};
use crate::guard::Guard;
use crate::link::Link;
use crate::logs::{self, Follower};
use crate::oom::OomWatch;
use crate::options::{Follow, Mode, Options};
use crate::protocol::MachineState;
use crate::script::Program;
use fleet_base::Result;
use fleet_net::{Deadline, Time};
use fleet_topology::{ProcessReport, Role, names};
use rustix::io::Errno;
use rustix::process::{Signal, WaitOptions};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::ExitStatus;
use std::sync::mpsc::Receiver;
use std::time::Duration;

/// Resources of the launcher, which all attempts share.
pub struct Resources {
    pub console: Console,
    pub guard: Guard,
    pub oom: OomWatch,
    pub events: Receiver<Event>,
    /// Logs are emptied when a process is started for the first time.
    pub new_logs: bool,
}

pub struct Supervisor<'a> {
    pub(crate) options: &'a Options,
    pub(crate) program: &'a Program,
    pub(crate) console: &'a mut Console,
    guard: &'a mut Guard,
    pub(crate) oom: &'a mut OomWatch,
    events: &'a Receiver<Event>,
    new_logs: bool,
    /// Link to the other machines, and the generation that these processes belong to.
    pub(crate) link: Option<(&'a Link, u64)>,
    /// Notifies the other workers of the job immediately that a worker has ended.
    pub(crate) notify_ended: &'a dyn Fn(&Ended),
    /// Time of the current pass over the processes.
    pub(crate) now: Time,
    pub(crate) children: Vec<Child>,
    pub(crate) followers: Vec<(Role, usize, Follower)>,
    /// Workers that failed while the others continue.
    pub(crate) lost: Vec<Death>,
    /// The end of the workers of this machine has been reported to the leader.
    has_reported: bool,
    /// Restarts that are scheduled: the time and the index of the child.
    pub(crate) due: Vec<(Time, usize)>,
    /// First worker whose failure was caused by another worker's, and when it was detected.
    pub(crate) failed_first: Option<(Time, usize)>,
    /// Workers of a collective job that exited with code 0 before `Fleet::finish`, and the time of
    /// the warning about each.
    pub(crate) leavers: Vec<(Time, usize)>,
    /// Time of the last check for stopped processes.
    pub(crate) stopped_seen: Time,
    /// Start of the time in which processes are left over although the job is done.
    pub(crate) done_since: Option<Time>,
    /// Time of the last check for processes that have not joined.
    pub(crate) absent_seen: Time,
    /// Start of the time in which workers wait for processes that have not joined.
    pub(crate) joined_since: Option<Time>,
    /// State of this machine as last reported to the leader.
    pub(crate) state_reported: MachineState,
    begun: Time,
    status_shown: Time,
    disk_seen: Time,
    is_full_reported: bool,
}

impl<'a> Supervisor<'a> {
    #[allow(clippy::too_many_arguments, reason = "the parts of a launcher, in one call")]
    pub fn new(
        options: &'a Options,
        program: &'a Program,
        resources: &'a mut Resources,
        link: Option<(&'a Link, u64)>,
        notify_ended: &'a dyn Fn(&Ended),
    ) -> Supervisor<'a> {
        let now = Time::now();
        let Resources { console, guard, oom, events, new_logs } = resources;
        Supervisor {
            options,
            program,
            console,
            guard,
            oom,
            events,
            new_logs: *new_logs,
            link,
            notify_ended,
            now,
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
            state_reported: MachineState::default(),
            begun: now,
            status_shown: now,
            disk_seen: now,
            is_full_reported: false,
        }
    }

    /// Starts the processes, supervises them, and leaves none running.
    pub fn run(&mut self, processes: Vec<Process>) -> Result<End> {
        let mut end = self.start(processes).and_then(|()| self.watch());
        if let Ok(End::Failed(death)) = &end {
            // Reported before the others are stopped, since that may take a while.
            self.show_logs();
            self.console.flush_partial();
            match death.follows {
                // The leader determines the cause, and every machine then shows it as the error.
                Some(_) => self.console.warn(&death.report),
                None => self.console.error(&death.report),
            }
        }
        if let Ok(End::Ordered(reason)) = &end {
            let first = reason.lines().next().unwrap_or_default();
            self.console.info(first);
        }
        let is_cut_short = matches!(end, Ok(End::Failed(_) | End::Ordered(_)));
        if is_cut_short && self.options.mode == Mode::Collective {
            // Workers that wait for the failed one, here or on another machine, have been notified.
            // This gives them time to write the reason to their logs.
            self.await_all(LAST_LOGS_TIME, &mut None);
        }
        // Children must not outlive an error either.
        let stopped = self.stop(matches!(end, Ok(End::Finished(_))));
        if let Ok(End::Finished(lost)) = &mut end {
            lost.extend(self.failed_at_their_end());
        }
        self.show_logs();
        self.console.flush_partial();
        self.console.clear_status();
        match (end?, stopped) {
            // A Ctrl-C that arrives while the rest is stopped still counts as an interrupt.
            (End::Finished(_), Some(signal)) => Ok(End::Interrupted(signal)),
            (end, _) => Ok(end),
        }
    }

    fn start(&mut self, processes: Vec<Process>) -> Result<()> {
        for process in processes {
            let follows = match self.options.follow {
                Follow::None => false,
                Follow::All => true,
                Follow::First => process.log == FIRST_LOG,
            };
            let (role, rank) = (process.role, process.rank);
            let (argv, folder) = (&self.program.argv, &self.options.log_dir);
            let child = Child::start(argv, process, folder, self.new_logs, None)?;
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
            if let Some(signal) = stop_signal(self.events, TICK) {
                return Ok(End::Interrupted(signal));
            }
            self.now = Time::now();
            self.show_logs();
            let ended = self.reap();
            if let Some(death) = self.judge(ended) {
                return Ok(End::Failed(death));
            }
            let hung = self.silent().or_else(|| self.stopped()).or_else(|| self.absent());
            if let Some(death) = hung {
                return Ok(End::Failed(death));
            }
            self.report_leavers();
            self.restart_due()?;
            self.report_state();
            if self.is_finished() || self.gives_up_left_over() {
                return Ok(End::Finished(std::mem::take(&mut self.lost)));
            }
            self.report_workers();
            if let Some(reason) = self.ordered() {
                return Ok(End::Ordered(reason));
            }
            if self.oom.is_due(self.now) {
                self.watch_memory();
            }
            self.watch_disk();
            self.show_status();
        }
    }

    fn watch_memory(&mut self) {
        let running: Vec<u32> = self.running().map(Child::pid).collect();
        self.oom.look(&running, self.now);
    }

    /// Warns once when the log disk is full: processes often do not notice that their logs are cut
    /// off.
    fn watch_disk(&mut self) {
        if self.is_full_reported || self.now.since(self.disk_seen) < DISK_PERIOD {
            return;
        }
        self.disk_seen = self.now;
        if logs::is_disk_full(&self.options.log_dir) {
            self.is_full_reported = true;
            self.console.warn(&format!(
                "the disk of {} is full: what processes write from now on is lost",
                self.options.log_dir.display()
            ));
        }
    }

    /// Returns the reason for which the leader wants the processes of this machine stopped, if any.
    fn ordered(&mut self) -> Option<String> {
        let (link, generation) = self.link?;
        for line in link.take_messages() {
            self.console.info(&line);
        }
        link.stop_reason(generation)
    }

    /// Reaps ended processes and returns the indices of the children among them. On Linux the
    /// launcher is the subreaper of its descendants, so this also reaps orphans.
    fn reap(&mut self) -> Vec<usize> {
        let mut ended = Vec::new();
        for _ in 0..REAPED_MAX {
            let reaped = rustix::process::wait(WaitOptions::NOHANG);
            // There is no child left: other code reaped ours. Their exit status is lost, but they
            // have ended.
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
            // The rest of its process group has lost its leader.
            self.children[*index].signal(Signal::KILL);
            self.guard.remove(self.children[*index].pid());
        }
        ended
    }

    /// Starts a new guard in place of one that has ended, or warns that there is none.
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
        let due = take_due(&mut self.due, self.now);
        if due.is_empty() {
            return Ok(());
        }
        for index in due {
            let old = &self.children[index];
            let mut process = old.process.clone();
            let restarts = (old.restarts + 1).to_string();
            process.env.push((names::FLEET_RESTART_COUNT, Some(restarts)));
            let (argv, folder) = (&self.program.argv, &self.options.log_dir);
            let child = Child::start(argv, process, folder, false, Some(old))?;
            self.guard.add(child.pid());
            self.children[index] = child;
        }
        self.watch_memory();
        Ok(())
    }

    /// Whether the processes of this machine have nothing left to do. A parameter-server job is
    /// done when its workers are. Workers of other machines may still need the servers of this one.
    /// So with several machines all processes must have ended, or the leader has reported the end
    /// of the job.
    fn is_finished(&self) -> bool {
        let is_done = match self.link {
            Some((link, _)) => link.is_done(),
            None => self.options.mode != Mode::Collective && self.workers_have_ended(),
        };
        let is_none_left = || self.running().next().is_none() && !self.may_be_missed();
        self.due.is_empty() && (is_done || is_none_left())
    }

    pub(crate) fn running(&self) -> impl Iterator<Item = &Child> {
        self.children.iter().filter(|child| child.is_running())
    }

    /// Whether this machine had workers and none is running.
    fn workers_have_ended(&self) -> bool {
        let mut workers =
            self.children.iter().filter(|it| it.process.role == Role::Worker).peekable();
        workers.peek().is_some() && workers.all(|child| !child.is_running())
    }

    /// Reports to the leader, once, that the workers of this machine are done while its servers
    /// keep running.
    fn report_workers(&mut self) {
        let Some((link, generation)) = self.link else { return };
        let is_ps = self.options.mode != Mode::Collective;
        if is_ps && !self.has_reported && self.due.is_empty() && self.workers_have_ended() {
            self.has_reported = true;
            let end = End::Finished(std::mem::take(&mut self.lost));
            link.report(generation, &end);
            if let End::Finished(lost) = end {
                self.lost = lost;
            }
            if self.running().next().is_some() {
                self.show_logs();
                self.console.info("the workers of this machine have ended; its servers still run");
            }
        }
    }

    /// Stops all processes: SIGTERM, a grace period to save, SIGKILL; then kills every process that
    /// still carries the mark. Returns the signal if the user interrupts the launcher meanwhile.
    fn stop(&mut self, is_finished: bool) -> Option<i32> {
        let mut interrupted = None;
        let running = self.running().count();
        if running > 0 && is_finished {
            self.console
                .debug("all workers exit, going to finish parameter server and heter_worker.");
            // Workers ask servers to stop, and the servers then exit by themselves.
            self.await_all(LEAVE_TIME, &mut interrupted);
            let leaves = |child: &Child| child.report() == Some(ProcessReport::Leaving);
            if interrupted.is_none() && self.running().any(leaves) {
                // The time of a last snapshot grows with the size of the tables.
                self.await_all(self.options.timeouts.leave, &mut interrupted);
            }
        }
        let running = self.running().count();
        if running > 0 {
            if !is_finished {
                let s = if running == 1 { "" } else { "es" };
                self.console.info(&format!("stopping {running} process{s}"));
            }
            self.signal_all(Signal::TERM);
            // A stopped process handles SIGTERM only after it is continued.
            self.signal_all(Signal::CONT);
            let in_time = self.await_all(self.options.timeouts.stop, &mut interrupted);
            if !in_time && interrupted.is_none() {
                let names: Vec<String> = self.running().map(|it| it.process.name()).collect();
                self.console.warn(&format!(
                    "{} did not end within {} of SIGTERM and is killed",
                    names.join(", "),
                    display::seconds(self.options.timeouts.stop)
                ));
            }
        }
        self.signal_all(Signal::KILL);
        self.await_all(KILL_TIME, &mut interrupted);
        let left = self.guard.sweep();
        if left > 0 {
            self.console.debug(&format!("{left} processes had left their groups and were killed"));
        }
        self.reap();
        if is_finished && self.options.mode != Mode::Collective {
            self.console.debug("all parameter server are killed");
        }
        interrupted
    }

    fn signal_all(&self, signal: Signal) {
        self.running().for_each(|child| child.signal(signal));
    }

    /// Waits until all children have ended; returns false on timeout. A second signal to the
    /// launcher ends the wait.
    fn await_all(&mut self, time: Duration, interrupted: &mut Option<i32>) -> bool {
        let deadline = Deadline::within(time);
        loop {
            self.now = Time::now();
            self.show_logs();
            self.reap();
            if self.running().next().is_none() {
                return true;
            }
            let left = deadline.remaining(self.now).unwrap_or_default();
            if left.is_zero() {
                return false;
            }
            if let Some(signal) = stop_signal(self.events, left.min(TICK)) {
                *interrupted = Some(signal);
                return false;
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

    /// Follows the log of another worker when the followed worker is lost and the job continues.
    pub(crate) fn follow_next(&mut self, lost: usize) {
        let key = |child: &Child| (child.process.role, child.process.rank);
        let lost = key(&self.children[lost]);
        let is_shown = self.followers.iter().any(|(role, rank, _)| (*role, *rank) == lost);
        let next = self.running().find(|child| child.process.role == Role::Worker);
        let Some(next) = next.filter(|_| self.options.follow == Follow::First && is_shown) else {
            return;
        };
        let (role, rank) = key(next);
        let from = std::fs::metadata(&next.log).map_or(0, |found| found.len());
        let follower = Follower::new(&next.log, from);
        let line = format!("{} is shown from here on", next.log.display());
        self.followers.push((role, rank, follower));
        self.console.info(&line);
    }

    /// Returns the progress line of the first running worker that reports one.
    fn progress(&self) -> Option<String> {
        use std::io::Read;
        let mut running = self.running();
        let path = running.find_map(|child| child.process.variable(names::FLEET_PROGRESS))?;
        let file = fleet_base::input::open_now(Path::new(path)).ok()?;
        let mut bytes = Vec::new();
        file.take(PROGRESS_BYTES_MAX).read_to_end(&mut bytes).ok()?;
        one_line(&String::from_utf8_lossy(&bytes))
    }

    fn show_status(&mut self) {
        let progress = self.progress();
        let period = if progress.is_some() { PROGRESS_PERIOD } else { STATUS_PERIOD };
        if self.now.since(self.status_shown) < period {
            return;
        }
        self.status_shown = self.now;
        if let Some(progress) = progress {
            return self.console.status(&progress, self.now.since(self.begun));
        }
        let count = |role: Role| self.running().filter(|it| it.process.role == role).count();
        let roles = [Role::Worker, Role::Server, Role::HeterWorker, Role::Coordinator];
        let running = display::counted_roles(roles, count).join(", ");
        self.console.status(&format!("{running} running"), self.now.since(self.begun));
    }
}

/// Removes the entries whose time has come and returns their indices.
pub(crate) fn take_due(list: &mut Vec<(Time, usize)>, now: Time) -> Vec<usize> {
    list.extract_if(.., |(at, _)| *at <= now).map(|(_, index)| index).collect()
}

/// Returns the first line of untrusted text without control characters, or `None` if it is blank.
fn one_line(text: &str) -> Option<String> {
    let line: String =
        text.lines().next()?.chars().filter(|c| !c.is_control()).take(LINE_CHARS_MAX).collect();
    (!line.trim().is_empty()).then_some(line)
}

/// Interval between checks of logs and children when no event arrives.
const TICK: Duration = Duration::from_millis(50);
const STATUS_PERIOD: Duration = Duration::from_secs(1);
/// Interval between checks for free space in the log folder.
const DISK_PERIOD: Duration = Duration::from_millis(500);
/// Pieces of a log shown per tick.
const FOLLOWED_AT_ONCE: usize = 64;
/// Interval between redraws of the first worker's progress line.
const PROGRESS_PERIOD: Duration = Duration::from_millis(200);
/// Limit on a progress line; wider than any terminal.
const LINE_CHARS_MAX: usize = 500;
/// Limit on bytes read from a progress file; more than a line needs.
const PROGRESS_BYTES_MAX: u64 = 1 << 10;
/// Grace period for servers to exit after the workers asked them to stop. A server that reports
/// that it is still writing its tables gets `--leave_timeout`.
const LEAVE_TIME: Duration = Duration::from_millis(500);
/// Wait for children to end after SIGKILL. Only a process that hangs inside a driver takes longer.
const KILL_TIME: Duration = Duration::from_secs(5);
/// Wait status of a child whose real status is lost: exit code 1.
const LOST_STATUS: i32 = 1 << 8;
/// Limit on processes reaped per tick.
const REAPED_MAX: usize = 10_000;
/// Time for the other workers of a collective job to log what they wait for, before they are
/// stopped.
const LAST_LOGS_TIME: Duration = Duration::from_millis(300);

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
