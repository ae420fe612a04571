//! Reads files that users name: opened without blocking, read up to a limit.
//!
//! Pipes are supported, so that `<(command)` works in a shell. A pipe that delivers no data for
//! [`DATA_TIMEOUT`] is an error.

use crate::{Error, Result, text};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::OFlags;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;

/// Limit of the wait for data from a pipe. It is long because the command that writes the data may
/// first prompt for a passphrase.
pub const DATA_TIMEOUT: Duration = Duration::from_secs(30);

/// Opens a file for reading without blocking, even if it is a pipe that has no writer yet.
pub fn open_now(path: &Path) -> io::Result<File> {
    File::options().read(true).custom_flags(OFlags::NONBLOCK.bits() as i32).open(path)
}

/// Reads a file, a pipe or a device to its end, up to `bytes_max` bytes. `what` names the content
/// in errors, such as "a strategy".
///
/// ```
/// # fn main() -> fleet_base::Result<()> {
/// use std::path::Path;
/// assert!(fleet_base::input::read(Path::new("/dev/null"), "a strategy", 16)?.is_empty());
/// let error = fleet_base::input::read(Path::new("/dev/zero"), "a strategy", 16).unwrap_err();
/// assert!(error.message().starts_with("the file is too large for a strategy"));
/// # Ok(())
/// # }
/// ```
pub fn read(path: &Path, what: &str, bytes_max: u64) -> Result<Vec<u8>> {
    read_within(path, what, bytes_max, DATA_TIMEOUT)
}

fn read_within(path: &Path, what: &str, bytes_max: u64, wait: Duration) -> Result<Vec<u8>> {
    let cannot = |error: io::Error| Error::io("read", path, &error);
    let mut file = open_now(path).map_err(cannot)?;
    let about = file.metadata().map_err(cannot)?;
    check_bytes(about.len(), what, bytes_max).map_err(|error| error.at(path.display()))?;
    let mut bytes = Vec::new();
    // Reading a pipe before its writer has connected would return end of file, so poll first. This
    // happens once only: if the writer has already closed the pipe, only a read detects the end.
    let mut must_wait = about.file_type().is_fifo();
    loop {
        if std::mem::take(&mut must_wait) && !has_data(&file, wait).map_err(cannot)? {
            let (path, seconds) = (path.display(), wait.as_secs_f64());
            let message = format!("cannot read {path}: no data for {seconds} s");
            return Err(Error::unavailable(message)
                .help("start the program that writes to this pipe, or name a regular file"));
        }
        let room = bytes_max.saturating_add(1) - bytes.len() as u64;
        match file.by_ref().take(room.min(CHUNK_BYTES)).read_to_end(&mut bytes) {
            Ok(0) => return Ok(bytes),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => must_wait = true,
            Err(error) => return Err(cannot(error)),
        }
        check_bytes(bytes.len() as u64, what, bytes_max)
            .map_err(|error| error.at(path.display()))?;
    }
}

/// Rejects content of more than `bytes_max` bytes.
pub fn check_bytes(bytes: u64, what: &str, bytes_max: u64) -> Result<()> {
    if bytes <= bytes_max {
        return Ok(());
    }
    Err(Error::invalid(format!("the file is too large for {what}"))
        .expected(format!("at most {}", text::bytes(bytes_max)))
        .got(text::bytes_over(bytes, bytes_max)))
}

/// Waits until data or the end of the file can be read; false on timeout.
fn has_data(file: &File, wait: Duration) -> io::Result<bool> {
    let timeout = Timespec::try_from(wait).map_err(|_| io::ErrorKind::InvalidInput)?;
    loop {
        let mut asked = [PollFd::new(file, PollFlags::IN)];
        match rustix::event::poll(&mut asked, Some(&timeout)) {
            Ok(ready) => return Ok(ready > 0),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Size of one read. Memory grows with the content, not with the limit.
const CHUNK_BYTES: u64 = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn pipes_are_read_to_their_end_and_not_waited_for_without_limit() {
        let folder = std::env::temp_dir().join(format!("fleet-base-input-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let fifo = folder.join("fifo");
        let made = std::process::Command::new("mkfifo").arg(&fifo).status().unwrap();
        assert!(made.success());

        let error = read_within(&fifo, "a token", 8, Duration::from_millis(1)).unwrap_err();
        assert!(error.to_string().contains(": no data for 0.001 s"), "{error}");

        let written = |bytes: &'static [u8], limit| {
            let path = fifo.clone();
            let writer = std::thread::spawn(move || {
                let mut pipe = File::options().write(true).open(path).unwrap();
                // The reader closes the pipe early if the content is too large.
                let _ = bytes.chunks(3).try_for_each(|part| pipe.write_all(part));
            });
            let read = read_within(&fifo, "a token", limit, Duration::from_secs(60));
            writer.join().unwrap();
            read
        };
        assert_eq!(written(b"12345678", 8).unwrap(), b"12345678");
        assert_eq!(written(b"", 8).unwrap(), b"");
        let error = written(b"123456789", 8).unwrap_err().to_string();
        assert!(error.contains("too large for a token: expected at most 8 B, got 9 B"), "{error}");

        // A writer that has already closed the pipe: its data is read without waiting for more.
        let held = open_now(&fifo).unwrap();
        File::options().write(true).open(&fifo).unwrap().write_all(b"left").unwrap();
        assert_eq!(read_within(&fifo, "a token", 8, Duration::from_secs(60)).unwrap(), b"left");
        drop(held);
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
