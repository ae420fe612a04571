//! Detects whether the kernel killed a process because memory ran out. The kernel notifies no other
//! process: it sends SIGKILL and records the reason in its log or in a counter.
//!
//! Each control group counts its processes that were killed for memory, at its own limit, at that
//! of an ancestor, or at that of the machine. The group of a process must be known before it ends,
//! since control groups of version 1 show an ended process in the root. Without such a counter only
//! the machine-wide one is left, which does not identify the process.

use fleet_net::Time;
use rustix::fs::OFlags;
use std::collections::HashMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Control groups of the job's processes, and earlier values of their counters.
pub struct OomWatch {
    /// Value of each counter file when it was first read.
    before: HashMap<PathBuf, u64>,
    /// Counter file of each process.
    of: HashMap<u32, PathBuf>,
    /// Machine-wide counter at the last two reads.
    machine: [Option<u64>; 2],
    looked: Time,
    log: Option<File>,
    /// Processes that the kernel's log names as killed.
    named: Vec<u32>,
}

impl OomWatch {
    pub fn new(now: Time) -> OomWatch {
        OomWatch {
            before: HashMap::new(),
            of: HashMap::new(),
            machine: [count(Path::new(MACHINE)); 2],
            looked: now,
            log: kernel_log(),
            named: Vec::new(),
        }
    }

    /// Updates groups and counters. Must be called after processes start, and regularly, since they
    /// may move.
    pub fn look(&mut self, pids: &[u32], now: Time) {
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let find = |pid: &u32| {
            let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
            Some((*pid, counters(&groups, &mounts).into_iter().find(|path| path.exists())?))
        };
        self.of = pids.iter().filter_map(find).collect();
        for path in self.of.values() {
            if let (false, Some(count)) = (self.before.contains_key(path), count(path)) {
                self.before.insert(path.clone(), count);
            }
        }
        if self.is_due(now) {
            self.looked = now;
            self.machine = [self.machine[1], count(Path::new(MACHINE))];
        }
    }

    pub fn is_due(&self, now: Time) -> bool {
        now.since(self.looked) >= PERIOD
    }

    /// Returns the evidence that `pid`, which has just ended, was killed for memory.
    pub fn evidence(&mut self, pid: u32) -> Option<String> {
        let grown = |path: &Path, before: u64| count(path).is_some_and(|now| now > before);
        let went_up = |path: &Path| {
            Some(format!("the kernel says so: oom_kill in {} went up", path.display()))
        };
        if let Some(path) = self.of.get(&pid)
            && self.before.get(path).is_some_and(|before| grown(path, *before))
        {
            return went_up(path);
        }
        if let Some(log) = &mut self.log {
            self.named.extend(newly_named(log));
        }
        if self.named.contains(&pid) {
            return Some("the kernel says so in its log".to_string());
        }
        let machine = Path::new(MACHINE);
        self.machine[0].filter(|before| grown(machine, *before)).and_then(|_| went_up(machine))
    }
}

/// Returns the counter file of a process's group, followed by those of its ancestors, which count
/// if the group itself does not. Uses `/proc/PID/cgroup` and the mounts as this process sees them.
fn counters(groups: &str, mounts: &str) -> Vec<PathBuf> {
    let of = |line: &str| -> Option<(String, String, String)> {
        let (_, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        let (kind, file) = match controllers.split(',').any(|name| name == "memory") {
            true => ("cgroup", "memory.oom_control"),
            false if controllers.is_empty() => ("cgroup2", "memory.events"),
            false => return None,
        };
        Some((kind.to_string(), file.to_string(), path.to_string()))
    };
    let mut found: Vec<_> = groups.lines().filter_map(of).collect();
    // If both versions are mounted, version 1 counts memory.
    found.sort_by_key(|(kind, ..)| kind != "cgroup");
    let Some((kind, file, path)) = found.into_iter().next() else { return Vec::new() };
    let Some((root, mount)) = mounts.lines().find_map(|line| mounted(line, &kind)) else {
        return Vec::new();
    };
    // In a container the mount starts at the container's own group. Paths start there or at the
    // machine's root.
    let inner = Path::new(&path).strip_prefix(&root).unwrap_or(Path::new(""));
    inner.ancestors().map(|inner| mount.join(inner).join(&file)).collect()
}

/// Returns root and mount point of a mount of control groups that count memory.
fn mounted(line: &str, kind: &str) -> Option<(PathBuf, PathBuf)> {
    let (place, what) = line.split_once(" - ")?;
    let (mut place, mut what) = (place.split(' ').skip(3), what.split(' '));
    let is_it = what.next()? == kind
        && (kind == "cgroup2" || what.nth(1)?.split(',').any(|option| option == "memory"));
    is_it.then_some(())?;
    Some((place.next()?.into(), place.next()?.into()))
}

fn count(path: &Path) -> Option<u64> {
    kills(&std::fs::read_to_string(path).ok()?)
}

/// Parses `oom_kill 3`, a line in the files of control groups and in `/proc/vmstat`.
fn kills(text: &str) -> Option<u64> {
    let mut lines = text.lines();
    lines.find_map(|line| line.strip_prefix("oom_kill "))?.trim().parse().ok()
}

/// Opens the kernel's log at its end, if it is readable.
fn kernel_log() -> Option<File> {
    use std::os::unix::fs::OpenOptionsExt;
    let mut options = File::options();
    let mut log =
        options.read(true).custom_flags(OFlags::NONBLOCK.bits() as i32).open("/dev/kmsg").ok()?;
    // Earlier records may concern another process with the same id.
    log.seek(SeekFrom::End(0)).ok()?;
    Some(log)
}

/// Returns the processes that new records of the log name as killed for memory.
fn newly_named(log: &mut File) -> Vec<u32> {
    let mut found = Vec::new();
    // Each read returns one record.
    let mut record = [0; 8192];
    for _ in 0..RECORDS_MAX {
        match log.read(&mut record) {
            Ok(length) if length > 0 => {
                found.extend(named(&String::from_utf8_lossy(&record[..length])));
            }
            // The record was overwritten; the next read returns the next one.
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => {}
            _ => break,
        }
    }
    found
}

fn named(record: &str) -> Option<u32> {
    record.split_once("Killed process ")?.1.split(' ').next()?.parse().ok()
}

/// Counters of the whole machine, also inside a container.
const MACHINE: &str = "/proc/vmstat";
/// Interval between updates of groups and counters.
const PERIOD: Duration = Duration::from_secs(1);
/// Limit on records read at once; more than the kernel's ring buffer holds.
const RECORDS_MAX: usize = 100_000;

#[cfg(test)]
mod tests {
    use super::{counters, kills, named};

    #[test]
    fn counters_and_records_are_read() {
        assert_eq!(kills("low 0\noom 4\noom_kill 3\noom_group_kill 0\n"), Some(3));
        assert_eq!(kills("oom_kill_disable 0\nunder_oom 0\noom_kill 2\n"), Some(2));
        assert_eq!(kills("nr_free_pages 1\n"), None);
        let record = "6,1,2,-;Out of memory: Killed process 4711 (python3) total-vm:1kB";
        assert_eq!((named(record), named("6,1,2,-;eth0: link up")), (Some(4711), None));
    }

    #[test]
    fn a_process_is_counted_where_it_is() {
        let v2 = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";
        let v1 = "33 31 0:30 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
                  35 31 0:32 / /sys/fs/cgroup/memory rw shared:9 - cgroup cgroup rw,memory\n\
                  41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
        let inside_v1 =
            "35 31 0:32 /docker/ab /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n";
        let inside_v2 = "30 23 0:26 /../.. /sys/fs/cgroup ro - cgroup2 cgroup rw\n";
        let memory = "/sys/fs/cgroup/memory";
        for (groups, mounts, first, count) in [
            ("0::/user.slice/a.scope\n", v2, "/sys/fs/cgroup/user.slice/a.scope/memory.events", 3),
            (
                "9:cpu:/x\n4:memory:/job/7\n0::/\n",
                v1,
                &*format!("{memory}/job/7/memory.oom_control"),
                3,
            ),
            ("5:hugetlb,memory:/\n", v1, &format!("{memory}/memory.oom_control"), 1),
            // Containers: version 1 without a cgroup namespace, version 2 with one.
            ("4:memory:/docker/ab/c\n", inside_v1, &format!("{memory}/c/memory.oom_control"), 2),
            ("0::/\n", inside_v2, "/sys/fs/cgroup/memory.events", 1),
        ] {
            let all = counters(groups, mounts);
            assert_eq!(all.first().and_then(|path| path.to_str()), Some(first), "{groups}");
            assert_eq!(all.len(), count, "{groups}: {all:?}");
        }
        assert!(counters("9:cpu:/x\n", v1).is_empty() && counters("0::/a\n", "").is_empty());
    }
}
