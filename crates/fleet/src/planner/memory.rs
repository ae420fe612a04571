//! Memory of this process and of its machine, as Linux reports it. Other systems report nothing.

use std::fs::read_to_string;

/// Returns the memory that only this process has, in bytes.
pub fn private_bytes() -> Option<u64> {
    let text = read_to_string("/proc/self/smaps_rollup").ok()?;
    private_of(&text)
}

fn private_of(smaps: &str) -> Option<u64> {
    let kib = |line: &str| {
        let rest = line.strip_prefix("Private_")?;
        rest.split_whitespace().nth(1)?.parse::<u64>().ok()
    };
    let found: Vec<u64> = smaps.lines().filter_map(kib).collect();
    (!found.is_empty()).then(|| found.iter().sum::<u64>() * 1024)
}

/// Returns the memory that a rank may use in bytes, if `ranks` share this machine: its share of the
/// machine or of its container, or less if the process has a limit of its own.
pub fn rank_memory(ranks: usize) -> Option<u64> {
    let machine = read_to_string("/proc/meminfo").ok().and_then(|text| total_of(&text));
    let container = ["/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"];
    let container = container.into_iter().find_map(|path| read_to_string(path).ok());
    let container = container.and_then(|text| text.trim().parse::<u64>().ok());
    let share = machine.into_iter().chain(container).min().map(|all| all / ranks.max(1) as u64);
    let own = read_to_string("/proc/self/limits").ok().and_then(|text| limit_of(&text));
    share.into_iter().chain(own).min()
}

fn total_of(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? * 1024)
}

/// Returns the limit of the address space (`ulimit -v`), or of the data, if one is set.
fn limit_of(limits: &str) -> Option<u64> {
    let of = |name: &str| {
        let line = limits.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse::<u64>().ok()
    };
    ["Max address space", "Max data size"].into_iter().filter_map(of).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_the_kernel_are_read() {
        let smaps = "55d0-7ffc ---p 00000000 00:00 0 [rollup]\nRss:     5000 kB\n\
                     Private_Clean:   16 kB\nPrivate_Dirty:  100 kB\nPrivate_Hugetlb: 0 kB\n";
        assert_eq!((private_of(smaps), private_of("")), (Some(116 * 1024), None));
        assert_eq!(total_of("MemTotal:       2048 kB\nMemFree: 1 kB\n"), Some(2 << 20));
        let limits = "Max data size     unlimited   unlimited   bytes\n\
                      Max address space 4096        unlimited   bytes\n";
        assert_eq!((limit_of(limits), limit_of("")), (Some(4096), None));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn this_process_has_memory() {
        let (own, all) = (private_bytes().unwrap(), rank_memory(1).unwrap());
        assert!(own > 0 && own < all, "{own} {all}");
    }
}
