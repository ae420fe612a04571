//! Whether the kernel says that memory ran out. It tells nobody directly: the process is killed with
//! SIGKILL, and a counter or the kernel's log has the reason.

use std::path::PathBuf;

/// Counters as they were when the job began.
pub struct OomWatch {
    counters: Vec<(PathBuf, u64)>,
}

impl OomWatch {
    pub fn new() -> OomWatch {
        let files = [cgroup_events(), Some(PathBuf::from("/proc/vmstat"))];
        let counted = files.into_iter().flatten().filter_map(|path| {
            let count = kills(&std::fs::read_to_string(&path).ok()?)?;
            Some((path, count))
        });
        OomWatch { counters: counted.collect() }
    }

    /// The evidence that `pid` was killed for memory, in words.
    pub fn evidence(&self, pid: u32) -> Option<String> {
        if kernel_log_names(pid) {
            return Some("the kernel's log says so".to_string());
        }
        let grown = self.counters.iter().find(|(path, before)| {
            let now = std::fs::read_to_string(path).ok().and_then(|text| kills(&text));
            now.is_some_and(|now| now > *before)
        });
        grown.map(|(path, _)| format!("oom_kill in {} went up", path.display()))
    }
}

/// The memory events of the own control group (version 2).
fn cgroup_events() -> Option<PathBuf> {
    let own = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let path = own.lines().find_map(|line| line.strip_prefix("0::"))?;
    let path = PathBuf::from("/sys/fs/cgroup").join(path.trim_start_matches('/'));
    Some(path.join("memory.events"))
}

/// `oom_kill 3`, a line that control groups and the virtual memory statistics share.
fn kills(text: &str) -> Option<u64> {
    let mut lines = text.lines();
    lines.find_map(|line| line.strip_prefix("oom_kill "))?.trim().parse().ok()
}

/// Whether the kernel's log, where it may be read, says that the process was killed for memory.
fn kernel_log_names(pid: u32) -> bool {
    use std::io::Read;
    use std::os::unix::fs::OpenOptionsExt;
    let mut options = std::fs::OpenOptions::new();
    let log = options.read(true).custom_flags(nix::libc::O_NONBLOCK).open("/dev/kmsg");
    let Ok(mut log) = log else { return false };
    // A record a read.
    let mut record = [0; 8192];
    for _ in 0..RECORDS_MAX {
        match log.read(&mut record) {
            Ok(0) => return false,
            Ok(length) => {
                if names(&String::from_utf8_lossy(&record[..length]), pid) {
                    return true;
                }
            }
            // Overwritten while it was read: the next one is there.
            Err(error) if error.raw_os_error() == Some(nix::libc::EPIPE) => {}
            Err(_) => return false,
        }
    }
    false
}

fn names(record: &str, pid: u32) -> bool {
    record.contains(&format!("Killed process {pid} "))
}

/// More than a kernel's ring holds.
const RECORDS_MAX: usize = 100_000;

#[cfg(test)]
mod tests {
    #[test]
    fn counters_and_records_are_read() {
        assert_eq!(super::kills("low 0\noom 4\noom_kill 3\noom_group_kill 0\n"), Some(3));
        assert_eq!(super::kills("nr_free_pages 1\n"), None);
        let record = "6,1,2,-;Out of memory: Killed process 4711 (python3) total-vm:1kB";
        assert!(super::names(record, 4711) && !super::names(record, 471));
    }
}
