//! Log files: opens them for children, follows them, and reads their last lines for reports.

use fleet_base::{Error, Result, file, input};
use rustix::fs::OFlags;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Creates the log folder.
pub fn make_folder(folder: &Path) -> Result<()> {
    let place = || format!("log folder {}", folder.display());
    file::make_folder(folder).map_err(|error| error.at(place()).help(FOLDER_HELP))
}

/// Opens a log for appending; empties it first if `is_new`.
///
/// Only regular files are accepted: a pipe would block the job until it is read, and a device has
/// no last lines to read back.
pub fn open(path: &Path, is_new: bool) -> Result<File> {
    let cannot = |error: std::io::Error| Error::io("write the log", path, &error).help(FOLDER_HELP);
    let refused = || {
        Error::invalid(format!("cannot write the log {}", path.display()))
            .expected("a regular file")
            .got("a folder, a pipe or a device")
            .help("remove it, or name another log folder: --log_dir FOLDER")
    };
    let mut options = File::options();
    options.create(true).append(true).custom_flags(OFlags::NONBLOCK.bits() as i32);
    let file = options.open(path).map_err(|error| match path.metadata() {
        Ok(about) if !about.is_file() => refused(),
        _ => cannot(error),
    })?;
    if !file.metadata().map_err(cannot)?.is_file() {
        return Err(refused());
    }
    // Children inherit a file without the flag for non-blocking access.
    rustix::fs::fcntl_setfl(&file, OFlags::APPEND).map_err(|error| cannot(error.into()))?;
    if is_new {
        file.set_len(0).map_err(cannot)?;
    }
    Ok(file)
}

/// Writes a whole file of the log folder.
pub fn write(path: &Path, text: &str) -> Result<()> {
    let written = open(path, true)?.write_all(text.as_bytes());
    written.map_err(|error| Error::io("write", path, &error).help(FOLDER_HELP))
}

/// Opens a log for reading and returns it with its length. A process may have replaced it, so only
/// a regular file is accepted.
fn open_written(path: &Path) -> Option<(File, u64)> {
    let file = input::open_now(path).ok()?;
    let about = file.metadata().ok().filter(|about| about.is_file())?;
    Some((file, about.len()))
}

/// Help for a log that cannot be written.
pub const FOLDER_HELP: &str = "set another log folder: --log_dir FOLDER";

/// Whether the log folder has so little free space that output of processes may be lost.
pub fn is_disk_full(folder: &Path) -> bool {
    let Ok(found) = rustix::fs::statvfs(folder) else { return false };
    let left = found.f_bavail.saturating_mul(found.f_frsize);
    // Some file systems report no sizes.
    found.f_blocks > 0 && left < LEFT_BYTES_MIN
}

/// Minimum of free space: a few lines of a log. A disk in use rarely has so little left by chance.
const LEFT_BYTES_MIN: u64 = 16 << 10;

/// Reads the output of a process while it runs.
pub struct Follower {
    path: PathBuf,
    offset: u64,
}

impl Follower {
    /// Follows a log from `offset` on.
    pub fn new(path: &Path, offset: u64) -> Follower {
        Follower { path: path.to_path_buf(), offset }
    }

    /// Returns the output since the last call, up to a limit.
    pub fn more(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let Some((mut file, length)) = open_written(&self.path) else { return bytes };
        if length < self.offset {
            // The script truncated its own log.
            self.offset = 0;
        }
        if length > self.offset && file.seek(SeekFrom::Start(self.offset)).is_ok() {
            // Bytes read before an error are kept.
            let _ = file.take(MORE_BYTES_MAX).read_to_end(&mut bytes);
            self.offset += bytes.len() as u64;
        }
        bytes
    }
}

/// Returns the last lines of a log after `offset`, printable and of bounded length.
pub fn last_lines(path: &Path, offset: u64, count: usize) -> Vec<String> {
    let Some((mut file, length)) = open_written(path) else { return Vec::new() };
    let from = offset.max(length.saturating_sub(TAIL_BYTES_MAX)).min(length);
    let mut bytes = Vec::new();
    let found = file.seek(SeekFrom::Start(from));
    if found.and_then(|_| file.take(TAIL_BYTES_MAX).read_to_end(&mut bytes)).is_err() {
        return Vec::new();
    }
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text.lines().collect();
    ending(&lines, count).into_iter().map(printable).collect()
}

/// Returns the last lines. If they are the backtrace of a panic, the panic message comes first.
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

/// Removes characters that would move the cursor. Of a redrawn progress bar, keeps the last state.
fn printable(line: &str) -> String {
    let line = line.trim_end_matches('\r').rsplit('\r').next().unwrap_or_default();
    let plain = line.chars().filter(|c| !c.is_control() || *c == '\t');
    let mut plain: String = plain.take(LINE_CHARS_MAX + 1).collect();
    if plain.chars().count() > LINE_CHARS_MAX {
        plain = plain.chars().take(LINE_CHARS_MAX).chain("...".chars()).collect();
    }
    plain
}

/// Limit on bytes read from a followed log at once; the next read gets the rest.
const MORE_BYTES_MAX: u64 = 256 << 10;
/// Limit on bytes searched for the last lines of a log.
const TAIL_BYTES_MAX: u64 = 64 << 10;
/// Limit on lines of a panic message before its backtrace.
const PANIC_LINES_MAX: usize = 8;
/// Limit on characters of a line in a report; longer lines are dumps.
const LINE_CHARS_MAX: usize = 400;

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn only_regular_files_are_logs() {
        let folder = std::env::temp_dir().join(format!("fleet-logs-{}", std::process::id()));
        make_folder(&folder).unwrap();
        let path = |name: &str| folder.join(name);
        let made = std::process::Command::new("mkfifo").arg(path("fifo")).status().unwrap();
        assert!(made.success());
        symlink("/dev/full", path("full")).unwrap();
        make_folder(&path("folder")).unwrap();
        for name in ["fifo", "full", "folder"] {
            let error = open(&path(name), true).unwrap_err().to_string();
            let begin = format!("cannot write the log {}", path(name).display());
            assert!(error.starts_with(&begin), "{error}");
            assert!(error.contains("expected a regular file"), "{error}");
            // Such a file in place of a log is not read either.
            assert_eq!(Follower::new(&path(name), 0).more(), b"");
            assert_eq!(last_lines(&path(name), 0, 10), [""; 0]);
        }
        write(&path("log"), "first\n").unwrap();
        symlink("log", path("link")).unwrap();
        open(&path("link"), false).unwrap().write_all(b"second\n").unwrap();
        assert_eq!(last_lines(&path("link"), 0, 10), ["first", "second"]);
        assert_eq!(Follower::new(&path("log"), 6).more(), b"second\n");
        std::fs::remove_dir_all(&folder).unwrap();
    }

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
