//! `fleetrun` with real processes: how jobs end, what is reported, and that no process is left.
//!
//! The scripts are shell scripts, so that no other interpreter is needed. No test depends on
//! timing: each wait has a generous deadline.

mod clicks;
mod combinations;
mod demos;
mod documented;
mod drawn;
mod endings;
mod etcd;
mod grpc;
mod hdfs;
mod help;
mod knobs;
mod machines;
mod memory;
mod orphans;
mod programs;
mod refusals;
mod rejoin;
mod roles;
mod servers;
mod servers_apart;
mod shown;
mod strangers;
mod strategies;
mod tls;
mod transpiled;
mod worlds;

use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// A test's own folder with a script. Processes started in it do not outlive it.
struct Place {
    folder: PathBuf,
}

impl Place {
    fn new(name: &str, script: &str) -> Place {
        let folder: PathBuf = [env!("CARGO_TARGET_TMPDIR"), "fleetrun", name].iter().collect();
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("job.py"), script).unwrap();
        Place { folder }
    }

    /// Returns `fleetrun` in the folder, with the shell as the interpreter of `job.py`.
    fn command(&self, line: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fleetrun"));
        command.current_dir(&self.folder).args(["--python", "sh"]);
        command.args(line.split_whitespace()).stdin(Stdio::null());
        for (name, _) in std::env::vars_os() {
            let name = name.to_string_lossy();
            if ["PADDLE_", "FLAGS_", "FLEET_"].iter().any(|prefix| name.starts_with(prefix)) {
                command.env_remove(&*name);
            }
        }
        command.env(PLACE, self.mark());
        command
    }

    /// Returns a mark unique to this run, since other runs of these tests may use the same folder
    /// name.
    fn mark(&self) -> String {
        format!("{} {}", std::process::id(), self.folder.display())
    }

    fn run(&self, line: &str) -> Said {
        Said::new(self.command(line).output().unwrap())
    }

    fn start(&self, line: &str) -> Child {
        self.command(line).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    /// Returns the number of files whose names start with `prefix`.
    fn count(&self, prefix: &str) -> usize {
        let entries = std::fs::read_dir(&self.folder).unwrap().flatten();
        entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix)).count()
    }
}

/// Ends the job however the test ends; a failed test would leave it running.
impl Drop for Place {
    fn drop(&mut self) {
        let running = || carrying(PLACE, &self.mark());
        let own = std::process::id();
        let launchers = || running().into_iter().filter(|pid| parent(*pid) == Some(own));
        launchers().for_each(kill);
        // Their guards end all other processes, and remove temporary folders.
        let begun = Instant::now();
        while !running().is_empty() && begun.elapsed() < GUARDS_TIME {
            std::thread::sleep(Duration::from_millis(10));
        }
        running().into_iter().for_each(kill);
    }
}

/// Variable that marks all processes of a place.
const PLACE: &str = "TEST_PLACE";
/// Timeout for the guards, which need milliseconds.
const GUARDS_TIME: Duration = Duration::from_secs(60);

/// Output and exit code of a launcher.
struct Said {
    code: Option<i32>,
    out: String,
    err: String,
}

impl Said {
    fn new(output: Output) -> Said {
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        Said { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
    }

    #[track_caller]
    fn check(&self, code: i32, parts: &[&str]) {
        assert_eq!(self.code, Some(code), "{}\n{}", self.out, self.err);
        for part in parts {
            assert!(self.err.contains(part), "'{part}' is not in:\n{}", self.err);
        }
    }
}

/// Waits until a condition holds.
#[track_caller]
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{what} did not happen");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Returns the processes that carry the mark of a launch.
#[cfg(target_os = "linux")]
fn marked(mark: &str) -> Vec<u32> {
    carrying("FLEET_LAUNCH", mark)
}

/// Returns the processes with this variable in their environment; none without `/proc`.
fn carrying(name: &str, value: &str) -> Vec<u32> {
    let wanted = format!("{name}={value}");
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid: &u32| {
        let environ = std::fs::read(format!("/proc/{pid}/environ"));
        environ.is_ok_and(|bytes| bytes.split(|byte| *byte == 0).any(|it| it == wanted.as_bytes()))
    })
    .collect()
}

fn parent(pid: u32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The process name before it may contain spaces and brackets.
    stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()
}

fn signal(pid: u32, name: &str) {
    let sent = Command::new("kill").args(["-s", name, &pid.to_string()]).status().unwrap();
    assert!(sent.success());
}

/// Kills a process that may already have ended.
fn kill(pid: u32) {
    let pid = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw);
    if let Some(pid) = pid {
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
    }
}
