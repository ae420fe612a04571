//! Checks that all ranks see one folder. A checkpoint whose parts lie on different disks is never
//! whole, which should not be found out after a crash.

use fleet_base::{Error, Result};
use fleet_comm::Group;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

/// Timeout for a file of rank 0 to appear on another machine: network file systems cache folder
/// listings for some seconds.
const APPEAR_TIMEOUT: Duration = Duration::from_secs(5);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Checks the folder on all ranks; all get the same verdict. `made` is the result of creating the
/// folder on this rank.
pub(super) fn check(folder: &Path, group: &Group, run: &str, made: Result<()>) -> Result<()> {
    let mark = folder.join(format!(".fleet-run-{run}"));
    let wrote = made.and_then(|()| match group.rank() {
        0 => fs::write(&mark, run).map_err(|error| Error::io("write", &mark, &error)),
        _ => Ok(()),
    });
    let outcome = agree(folder, group, &mark, wrote);
    if group.rank() == 0 {
        // The mark has served its purpose, and one that stays does no harm.
        let _ = fs::remove_file(&mark);
    }
    outcome
}

fn agree(folder: &Path, group: &Group, mark: &Path, wrote: Result<()>) -> Result<()> {
    let failed = ranks_where_false(group, "checkpoints: folder", wrote.is_ok())?;
    wrote?;
    if !failed.is_empty() {
        return Err(Error::unavailable("other ranks cannot use the checkpoint folder")
            .got(ranks(&failed))
            .at(folder.display()));
    }
    let blind = ranks_where_false(group, "checkpoints: one folder", appears(mark))?;
    if blind.is_empty() {
        return Ok(());
    }
    Err(Error::invalid("the ranks do not share the checkpoint folder")
        .expected("a folder that all ranks see")
        .got(format!("files of rank 0 are not visible to {}", ranks(&blind)))
        .at(folder.display())
        .help("put it on storage that all machines share"))
}

/// Returns the ranks on which `mine` is false.
fn ranks_where_false(group: &Group, what: &str, mine: bool) -> Result<Vec<usize>> {
    let mut all = vec![0u8; group.size()];
    group.all_gather(what, &[u8::from(mine)], &mut all)?;
    Ok((0..all.len()).filter(|rank| all[*rank] == 0).collect())
}

fn ranks(which: &[usize]) -> String {
    let numbers: Vec<String> = which.iter().map(usize::to_string).collect();
    format!("rank{} {}", if which.len() == 1 { "" } else { "s" }, numbers.join(", "))
}

fn appears(mark: &Path) -> bool {
    let begin = Instant::now();
    while !mark.exists() {
        if begin.elapsed() > APPEAR_TIMEOUT {
            return false;
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    true
}
