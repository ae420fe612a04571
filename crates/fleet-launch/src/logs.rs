//! Log files: opened for children, followed, and read back when something went wrong.

use fleet_base::{Error, Result};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// Makes the log folder, or says why not.
pub fn make_folder(folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder)
        .map_err(|error| Error::io("make the log folder", folder, &error).help(FOLDER_HELP))
}

/// Opens a log for writing at its end; emptied first when it is to be new.
pub fn open(path: &Path, is_new: bool) -> Result<File> {
    let mut options = File::options();
    options.create(true).append(true);
    let opened = options.open(path).and_then(|file| {
        if is_new {
            file.set_len(0)?;
        }
        Ok(file)
    });
    opened.map_err(|error| Error::io("write the log", path, &error).help(FOLDER_HELP))
}

/// What to do about a log that cannot be written.
pub const FOLDER_HELP: &str = "say where logs may go: --log_dir FOLDER";

/// Whether so little is left where logs are that what processes write may be lost.
pub fn is_disk_full(folder: &Path) -> bool {
    let Ok(found) = rustix::fs::statvfs(folder) else { return false };
    let left = found.f_bavail.saturating_mul(found.f_frsize);
    // Some file systems do not count.
    found.f_blocks > 0 && left < LEFT_BYTES_MIN
}

/// A few lines of a log; no disk that is in use has so little left by chance.
const LEFT_BYTES_MIN: u64 = 16 << 10;

/// Lets what a process writes be seen while it runs.
pub struct Follower {
    path: PathBuf,
    offset: u64,
}

impl Follower {
    /// Follows a log from `offset` on.
    pub fn new(path: &Path, offset: u64) -> Follower {
        Follower { path: path.to_path_buf(), offset }
    }

    /// What was written since the last time, up to a limit a call.
    pub fn more(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let Ok(mut file) = File::open(&self.path) else { return bytes };
        let length = file.metadata().map_or(0, |found| found.len());
        if length < self.offset {
            // The script emptied its own log.
            self.offset = 0;
        }
        if length > self.offset && file.seek(SeekFrom::Start(self.offset)).is_ok() {
            // What was read before an error counts.
            let _ = file.take(MORE_BYTES_MAX).read_to_end(&mut bytes);
            self.offset += bytes.len() as u64;
        }
        bytes
    }
}

/// The last lines of a log after `offset`: printable, each of a bounded length.
pub fn last_lines(path: &Path, offset: u64, count: usize) -> Vec<String> {
    let Ok(mut file) = File::open(path) else { return Vec::new() };
    let length = file.metadata().map_or(0, |found| found.len());
    let from = offset.max(length.saturating_sub(TAIL_BYTES_MAX)).min(length);
    let mut bytes = Vec::new();
    if file.seek(SeekFrom::Start(from)).is_err() || file.read_to_end(&mut bytes).is_err() {
        return Vec::new();
    }
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text.lines().collect();
    ending(&lines, count).into_iter().map(printable).collect()
}

/// The last lines. Where they are the backtrace of a panic, what the panic says comes first.
fn ending<'a>(lines: &[&'a str], count: usize) -> Vec<&'a str> {
    let from = lines.len().saturating_sub(count);
    let panics = |line: &&str| line.starts_with("thread '") && line.contains(" panicked at ");
    let Some(at) = lines.iter().rposition(panics).filter(|at| *at < from) else {
        return lines[from..].to_vec();
    };
    let says = lines[at..from].iter().take_while(|line| !line.starts_with("stack backtrace:"));
    let mut shown: Vec<&str> = says.take(PANIC_LINES_MAX).copied().collect();
    shown.push("..");
    shown.extend(&lines[(from + shown.len()).min(lines.len())..]);
    shown
}

/// Without what would move the cursor. Of a bar that was drawn over, the last state.
fn printable(line: &str) -> String {
    let line = line.trim_end_matches('\r').rsplit('\r').next().unwrap_or_default();
    let plain = line.chars().filter(|c| !c.is_control() || *c == '\t');
    let mut plain: String = plain.take(LINE_CHARS_MAX + 1).collect();
    if plain.chars().count() > LINE_CHARS_MAX {
        plain = plain.chars().take(LINE_CHARS_MAX).chain("...".chars()).collect();
    }
    plain
}

/// Read from a followed log at once; the rest comes a moment later.
const MORE_BYTES_MAX: u64 = 256 << 10;
/// Looked at for the last lines of a log.
const TAIL_BYTES_MAX: u64 = 64 << 10;
/// Of what a panic says before its backtrace.
const PANIC_LINES_MAX: usize = 8;
/// A line of a report; longer ones are dumps.
const LINE_CHARS_MAX: usize = 400;

#[cfg(test)]
mod tests {
    use super::ending;

    #[test]
    fn what_a_panic_says_comes_before_its_backtrace() {
        let mut lines = vec!["step 1", "thread 'main' (7) panicked at a.rs:1:", "the data ended"];
        lines.push("stack backtrace:");
        lines.extend(["frame"; 30]);
        let shown = ending(&lines, 10);
        assert_eq!(&shown[..4], [lines[1], lines[2], "..", "frame"]);
        assert_eq!(shown.len(), 10);
        assert_eq!(ending(&lines[..3], 10), lines[..3], "all of a short log");
        assert_eq!(ending(&["a", "b", "c"], 2), ["b", "c"]);
    }
}
