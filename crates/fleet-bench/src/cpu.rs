//! What the threads of this process have computed, as Linux counts it: on a machine with fewer
//! cores than threads it is this that bounds a job, and it hardly depends on what else runs.

use std::collections::BTreeMap;
use std::fs;

/// Seconds by name of thread; threads of one name together, those that have ended not at all.
pub fn by_thread() -> BTreeMap<String, f64> {
    let mut all = BTreeMap::new();
    for task in fs::read_dir("/proc/self/task").into_iter().flatten().flatten() {
        let read = |name: &str| fs::read_to_string(task.path().join(name)).unwrap_or_default();
        let nanos = read("schedstat").split(' ').next().and_then(|text| text.parse::<f64>().ok());
        *all.entry(read("comm").trim().to_string()).or_default() += nanos.unwrap_or(0.0) / 1e9;
    }
    all
}

/// Prints what was computed since, in microseconds a sample.
pub fn print_since(who: &str, before: &BTreeMap<String, f64>, samples: usize) {
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
    eprintln!("{who}: CPU microseconds a sample {sum:.2}: {}", text.join(", "));
}

/// Seconds of all threads since the process began, those that have ended too.
pub fn total() -> f64 {
    /// Of user mode and of the kernel, in `/proc/self/stat` behind the name.
    const TIMES: std::ops::Range<usize> = 11..13;
    /// What Linux counts in.
    const TICKS_PER_SECOND: f64 = 100.0;
    let text = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = text.rsplit(") ").next().unwrap_or_default().split(' ').collect::<Vec<_>>();
    let ticks = fields.get(TIMES).unwrap_or_default().iter();
    ticks.filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>() / TICKS_PER_SECOND
}
