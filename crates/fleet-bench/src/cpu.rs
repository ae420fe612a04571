//! CPU time of this process's threads, as Linux counts it. On a machine with fewer cores than
//! threads, it limits the speed of a job, and it hardly depends on other processes.

use std::collections::BTreeMap;
use std::fs;

/// Returns CPU seconds by name of thread. Threads of one name are added up; threads that have ended
/// are missing.
pub fn by_thread() -> BTreeMap<String, f64> {
    let mut all = BTreeMap::new();
    for task in fs::read_dir("/proc/self/task").into_iter().flatten().flatten() {
        let read = |name: &str| fs::read_to_string(task.path().join(name)).unwrap_or_default();
        let nanos = read("schedstat").split(' ').next().and_then(|text| text.parse::<f64>().ok());
        *all.entry(read("comm").trim().to_string()).or_default() += nanos.unwrap_or(0.0) / 1e9;
    }
    all
}

/// Prints the CPU time since `before`, in microseconds per sample.
pub fn print_since(process: &str, before: &BTreeMap<String, f64>, samples: usize) {
    let mut spent: Vec<(f64, String)> = by_thread()
        .into_iter()
        .map(|(name, now)| (now - before.get(&name).unwrap_or(&0.0), name))
        .collect();
    spent.sort_by(|a, b| b.0.total_cmp(&a.0));
    let text: Vec<String> = spent
        .iter()
        .map(|(seconds, name)| format!("{name} {:.2}", seconds * 1e6 / samples as f64))
        .collect();
    let sum: f64 = spent.iter().map(|(seconds, _)| seconds).sum();
    let sum = sum * 1e6 / samples as f64;
    eprintln!("{process}: CPU microseconds per sample {sum:.2}: {}", text.join(", "));
}

/// Returns the CPU seconds of all threads since the process started, including those that have
/// ended.
pub fn total() -> f64 {
    /// Fields with the times of user mode and of the kernel in `/proc/self/stat`, after the name.
    const TIMES: std::ops::Range<usize> = 11..13;
    /// Unit of these times.
    const TICKS_PER_SECOND: f64 = 100.0;
    let text = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = text.rsplit(") ").next().unwrap_or_default().split(' ').collect::<Vec<_>>();
    let ticks = fields.get(TIMES).unwrap_or_default().iter();
    ticks.filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>() / TICKS_PER_SECOND
}
