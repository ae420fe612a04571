//! Ensures that no process outlives the launcher, however it ends.
//!
//! Four mechanisms, each for processes that escape the previous one:
//! 1. Every child is the leader of a process group, which is signalled as a whole.
//! 2. On Linux the kernel kills a child when its launcher ends (parent-death signal).
//! 3. A guard, a second process of the same executable, reads from a pipe. If the pipe closes
//!    without a message from the launcher (kill -9, a crash), the guard kills the groups.
//! 4. Every process of a launch carries a mark in its environment. Processes that still carry it at
//!    the end, such as a daemon that left its group, are found in /proc and killed.

use fleet_base::{Error, Result};
use fleet_topology::names;
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};

/// The hidden first argument of a guard; the mark of the launch and its folder follow.
pub const ARGUMENT: &str = "__guard";

/// The launcher's end of the pipe.
pub struct Guard {
    executable: PathBuf,
    child: Child,
    pipe: Option<ChildStdin>,
    mark: String,
    scratch: PathBuf,
    /// Process groups that have not ended; a replacement guard gets this list.
    groups: BTreeSet<u32>,
    replaced: u32,
}

impl Guard {
    /// Starts a guard, with the launcher's own executable. The guard removes the folder `scratch`
    /// if the launcher cannot.
    pub fn start(executable: &Path, mark: &str, scratch: &Path) -> Result<Guard> {
        let (child, pipe) = spawn(executable, mark, scratch)?;
        let (executable, scratch) = (executable.to_path_buf(), scratch.to_path_buf());
        let (mark, groups) = (mark.to_string(), BTreeSet::new());
        Ok(Guard { executable, child, pipe, mark, scratch, groups, replaced: 0 })
    }

    /// Starts a guard in place of one that has ended, up to a limit.
    pub fn replace(&mut self) -> Result<()> {
        if self.replaced >= REPLACED_MAX {
            return Err(Error::exhausted(format!("{REPLACED_MAX} guards have ended before")));
        }
        self.replaced += 1;
        (self.child, self.pipe) = spawn(&self.executable, &self.mark, &self.scratch)?;
        let groups: Vec<String> = self.groups.iter().map(|group| format!("{group}\n")).collect();
        self.write(&groups.concat());
        Ok(())
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Adds a process group to kill if the launcher ends without cleaning up.
    pub fn add(&mut self, group: u32) {
        self.groups.insert(group);
        self.write(&format!("{group}\n"));
    }

    /// Removes a process group that has ended: the system may soon reuse its number.
    pub fn remove(&mut self, group: u32) {
        self.groups.remove(&group);
        self.write(&format!("-{group}\n"));
    }

    fn write(&mut self, line: &str) {
        // Losing the guard weakens the protection but is no reason to stop a job.
        if let Some(pipe) = &mut self.pipe {
            let _ = pipe.write_all(line.as_bytes());
        }
    }

    /// Kills every process that carries the mark, except the guard, and returns their number.
    pub fn sweep(&self) -> usize {
        sweep(&self.mark, &[self.pid()])
    }

    /// Ends the guard after the launcher has cleaned up.
    pub fn dismiss(mut self) {
        self.write("done\n");
        self.pipe = None;
        let _ = self.child.wait();
    }
}

fn spawn(executable: &Path, mark: &str, scratch: &Path) -> Result<(Child, Option<ChildStdin>)> {
    let mut command = Command::new(executable);
    command.arg(ARGUMENT).arg(mark).arg(scratch).env_remove(names::FLEET_LAUNCH);
    command.current_dir("/").process_group(0);
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command
        .spawn()
        .map_err(|error| Error::unavailable(format!("cannot start the guard: {error}")))?;
    let pipe = child.stdin.take();
    Ok((child, pipe))
}

/// Runs the guard process.
pub fn run(mark: &str, scratch: &Path) {
    // Ctrl-C at the terminal must not end the guard, which ends with its pipe. Registration may
    // fail; the guard then works without it.
    for signal in
        [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM, signal_hook::consts::SIGHUP]
    {
        let never = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
        let _ = signal_hook::flag::register(signal, never);
    }
    let mut groups: Vec<i32> = Vec::new();
    for line in BufReader::new(std::io::stdin()).lines() {
        let Ok(line) = line else { break };
        if line == "done" {
            return;
        }
        match line.parse::<i32>() {
            Ok(group) if group > 1 => groups.push(group),
            Ok(group) => groups.retain(|known| *known != -group),
            Err(_) => {}
        }
    }
    for group in groups.into_iter().filter_map(Pid::from_raw) {
        let _ = kill_process_group(group, Signal::KILL);
    }
    sweep(mark, &[]);
    // If this fails, the next launch removes the folder.
    let _ = std::fs::remove_dir_all(scratch);
}

/// Kills every process that carries the mark and returns their number.
fn sweep(mark: &str, spared: &[u32]) -> usize {
    let mut killed = BTreeSet::new();
    // A child that is forked during a search is found in the next round.
    for _ in 0..ROUNDS_MAX {
        let found = marked(mark, spared);
        if found.is_empty() {
            break;
        }
        for pid in found {
            if let Some(pid) = Pid::from_raw(pid as i32) {
                let _ = kill_process(pid, Signal::KILL);
            }
            killed.insert(pid);
        }
        std::thread::sleep(ROUND);
    }
    killed.len()
}

/// Returns the processes, except this one, whose environment has the mark. Empty on systems without
/// /proc.
pub fn marked(mark: &str, spared: &[u32]) -> Vec<u32> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    let wanted = format!("{}={mark}", names::FLEET_LAUNCH);
    let own = std::process::id();
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid: &u32| *pid != own && !spared.contains(pid))
        .filter(|pid| {
            let mut bytes = Vec::new();
            // Processes of other users, and those that have ended, are not ours.
            let Ok(file) = std::fs::File::open(format!("/proc/{pid}/environ")) else {
                return false;
            };
            let read = file.take(ENVIRON_BYTES_MAX).read_to_end(&mut bytes);
            read.is_ok() && bytes.split(|byte| *byte == 0).any(|item| item == wanted.as_bytes())
        })
        .collect()
}

/// Limit on replacement guards: a cause that ends this many would end the next one too.
const REPLACED_MAX: u32 = 3;
/// Limit on searches for marked processes; each round finds children of the previous one.
const ROUNDS_MAX: usize = 20;
const ROUND: std::time::Duration = std::time::Duration::from_millis(5);
/// Limit on bytes read from an environment. The system's default limit on arguments and environment
/// is 2 MiB.
const ENVIRON_BYTES_MAX: u64 = 8 << 20;
