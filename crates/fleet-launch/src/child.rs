//! A child process: how it is started, and how its end is described.

use crate::cluster::Process;
use crate::logs;
use fleet_base::{Error, Result};
use fleet_net::{Member, Time};
use fleet_topology::{ProcessReport, Role, names};
use rustix::io::Errno;
use rustix::process::{Pid, Signal};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

/// A started process.
pub struct Child {
    pub process: Process,
    pub log: PathBuf,
    /// Offset in the log at which the output of this start begins.
    pub log_from: u64,
    pub started: Time,
    /// It has written or reported something.
    pub is_alive_seen: bool,
    pub ended: Option<ExitStatus>,
    /// Evidence that it was killed because memory ran out.
    pub out_of_memory: Option<String>,
    pub restarts: u32,
    /// It exited with code 0 before its work was done.
    pub has_left: bool,
    /// Length of its log that reports have already shown.
    pub shown_to: Option<u64>,
    /// Time at which it was first found stopped (SIGSTOP).
    pub stopped_since: Option<Time>,
    /// The stop has been reported.
    pub is_stop_reported: bool,
    /// A warning that the others wait for it has been printed.
    pub is_absence_reported: bool,
    pid: u32,
}

impl Child {
    /// Starts `argv` with the launcher's environment and, on top of it, the process's own. `before`
    /// is the ended child that this one replaces, if any.
    pub fn start(
        argv: &[String],
        process: Process,
        log_dir: &Path,
        is_new_log: bool,
        before: Option<&Child>,
    ) -> Result<Child> {
        if let Some(path) = process.variable(names::FLEET_REPORT) {
            // A restarted server that has already served finds this report and resumes in the
            // middle of the job.
            let _ = match before.and_then(Child::report_of_service) {
                Some(report) => std::fs::write(path, report.to_string()),
                // Report of an earlier start; there may be none to remove.
                None => std::fs::remove_file(path),
            };
        }
        let log = log_dir.join(&process.log);
        let file = logs::open(&log, is_new_log)?;
        let again = file.try_clone().map_err(|error| Error::io("write the log", &log, &error))?;
        let log_from = file.metadata().map_or(0, |found| found.len());
        let mut command = Command::new(&argv[0]);
        command.args(&argv[1..]).stdin(Stdio::null()).stdout(file).stderr(again);
        for (name, value) in &process.env {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command.process_group(0);
        die_with_parent(&mut command);
        let inner = command.spawn().map_err(|error| {
            let name = process.name();
            match Errno::from_io_error(&error) {
                Some(Errno::AGAIN | Errno::NOMEM | Errno::MFILE) => Error::exhausted(format!(
                    "cannot start {name}: {error}"
                ))
                .help("start fewer processes here, or raise the limits (ulimit -u, ulimit -n)"),
                _ => Error::invalid(format!("cannot start {name}: {}: {error}", argv[0])),
            }
        })?;
        let started = Time::now();
        Ok(Child {
            process,
            log,
            log_from,
            started,
            is_alive_seen: false,
            ended: None,
            out_of_memory: None,
            restarts: before.map_or(0, |before| before.restarts + 1),
            has_left: false,
            shown_to: None,
            stopped_since: None,
            is_stop_reported: false,
            is_absence_reported: false,
            pid: inner.id(),
        })
    }

    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Returns the title for messages: `worker 3 on node7 (pid 4711)`.
    pub fn title(&self) -> String {
        format!("{} on {} (pid {})", self.process.name(), self.process.host, self.pid)
    }

    pub fn is_running(&self) -> bool {
        self.ended.is_none()
    }

    /// Whether it has ended before its work was done.
    pub fn has_failed(&self) -> bool {
        self.ended.is_some_and(|status| self.has_left || !status.success())
    }

    /// Returns the exit code that counts for the job: leaving early is a failure.
    pub fn code(&self) -> u8 {
        match self.ended {
            Some(_) if self.has_left => 1,
            Some(status) => code(status),
            None => HANG_CODE,
        }
    }

    /// Returns the report that it has written; `None` for a process that does not use Fleet.
    pub fn report(&self) -> Option<ProcessReport> {
        let text = std::fs::read_to_string(self.process.variable(names::FLEET_REPORT)?).ok()?;
        ProcessReport::parse(&text)
    }

    pub fn is_server(&self) -> bool {
        self.process.role == Role::Server
    }

    /// Returns the report that its next start will find, if it is a server that has served.
    fn report_of_service(&self) -> Option<ProcessReport> {
        use ProcessReport::{Failed, Leaving, Serving};
        let has_served =
            matches!(self.report()?, Serving { .. } | Leaving | Failed { has_served: true, .. });
        has_served.then_some(Serving { is_durable: true })
    }

    /// Whether it is currently stopped, by a signal or a debugger.
    pub fn is_stopped(&self) -> bool {
        let own = fleet_net::host::own_member(self.process.rank);
        self.is_running() && fleet_net::host::is_stopped(&Member { pid: self.pid, ..own })
    }

    /// Signals the whole process group; a group that no longer exists is not an error.
    pub fn signal(&self, signal: Signal) {
        if let Some(group) = Pid::from_raw(self.pid as i32) {
            let _ = rustix::process::kill_process_group(group, signal);
        }
    }

    pub fn lived(&self, now: Time) -> Duration {
        now.since(self.started)
    }
}

/// Exit code of a process that has not ended by itself; the same as that of `timeout`.
pub const HANG_CODE: u8 = 124;
/// Exit code for invalid usage; the same as clap's.
pub const USAGE_CODE: u8 = 2;

/// Returns the exit code as a shell reports it: 128 + n for signal n.
pub fn code(status: ExitStatus) -> u8 {
    match (status.code(), status.signal()) {
        (Some(code), _) => code as u8,
        (None, Some(signal)) => (128 + signal) as u8,
        (None, None) => 1,
    }
}

/// Describes an exit status: `exited with code 3`, `was killed by SIGSEGV (11)`.
pub fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exited with code {code}"),
        (None, Some(number)) => {
            let name = signal_hook::low_level::signal_name(number).unwrap_or("a signal");
            let core = if status.core_dumped() { ", core dumped" } else { "" };
            format!("was killed by {name} ({number}{core})")
        }
        (None, None) => "ended in an unknown way".to_string(),
    }
}

/// Makes the kernel kill the child when the launcher ends. No safe crate wraps `pre_exec`.
#[cfg(target_os = "linux")]
#[allow(unsafe_code)]
fn die_with_parent(command: &mut Command) {
    let launcher = rustix::process::getpid();
    let arrange = move || {
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
        // The launcher may have ended before this call.
        match rustix::process::getppid() == Some(launcher) {
            true => Ok(()),
            false => Err(Errno::SRCH.into()),
        }
    };
    // SAFETY: between fork and exec the closure makes two system calls and neither allocates nor
    // takes a lock.
    unsafe {
        command.pre_exec(arrange);
    }
}

/// On other systems only the guard kills children.
#[cfg(not(target_os = "linux"))]
fn die_with_parent(_: &mut Command) {}
