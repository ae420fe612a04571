//! The log of a server: every request that changed something since a snapshot, in order.
//!
//! A record is a header of 24 bytes, length, CRC-32, client, worker, method, and the request as it
//! came. It is written before the request is done. What was written is in the kernel's hands and
//! survives the process; [`Flush::Disk`] waits for the disk too, one flush for all who wait.

use super::trail::Trail;
use super::{Caller, lock};
use fleet_base::{Error, Result};
use std::fs::{File, OpenOptions};
use std::io::{IoSlice, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

/// What a push waits for before it is acknowledged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Flush {
    /// The kernel has it: a server that dies loses nothing, a machine that dies the last seconds.
    #[default]
    Kernel,
    /// The disk has it.
    Disk,
}

pub(super) struct Log {
    folder: PathBuf,
    flush: Flush,
    writer: Mutex<Writer>,
    synced: Mutex<Synced>,
    changed: Condvar,
    trail: Trail,
}

struct Writer {
    file: Arc<File>,
    number: u64,
    /// Bytes of this file.
    len: u64,
    /// Bytes of all files since the server started.
    written: u64,
}

#[derive(Default)]
struct Synced {
    /// Of [`Writer::written`].
    bytes: u64,
    flushing: bool,
}

const HEADER_BYTES: usize = 24;
/// Requests are shorter: what a frame may hold.
const REQUEST_BYTES_MAX: usize = u32::MAX as usize;

/// A request of the log.
pub(super) struct Record {
    pub caller: Caller,
    pub method: u8,
    pub request: Vec<u8>,
}

pub(super) fn path(folder: &Path, number: u64) -> PathBuf {
    folder.join(format!("log-{number}"))
}

impl Log {
    /// Goes on at the end of log `number`, whose first `len` bytes are good.
    pub fn open(folder: &Path, number: u64, len: u64, flush: Flush) -> Result<Log> {
        let path = path(folder, number);
        let file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&path)
            .and_then(|file| file.set_len(len).map(|()| file))
            .map_err(|error| Error::io("open", &path, &error))?;
        let writer = Writer { file: Arc::new(file), number, len, written: 0 };
        Ok(Log {
            folder: folder.to_path_buf(),
            flush,
            writer: Mutex::new(writer),
            synced: Mutex::default(),
            changed: Condvar::new(),
            trail: Trail::start()?,
        })
    }

    /// Bytes since the last snapshot.
    pub fn len(&self) -> u64 {
        lock(&self.writer).len
    }

    /// Writes a request; what fails leaves no trace.
    pub fn append(&self, caller: Caller, method: u8, request: &[u8]) -> Result<()> {
        if request.len() > REQUEST_BYTES_MAX {
            return Err(Error::exhausted("a request is too long for the log").got(request.len()));
        }
        let mut header = [0; HEADER_BYTES];
        header[..4].copy_from_slice(&(request.len() as u32).to_le_bytes());
        header[8..16].copy_from_slice(&caller.client.to_le_bytes());
        header[16..20].copy_from_slice(&(caller.worker as u32).to_le_bytes());
        header[20] = method;
        let mut sum = crc32fast::Hasher::new();
        sum.update(&header[8..]);
        sum.update(request);
        header[4..8].copy_from_slice(&sum.finalize().to_le_bytes());
        let mut writer = lock(&self.writer);
        let Writer { file, len, written, number } = &mut *writer;
        if let Err(error) = write_parts(file, &mut [IoSlice::new(&header), IoSlice::new(request)]) {
            // Half a record would hide all that come after it.
            let cut = file.set_len(*len);
            let failed = Error::io("write", &path(&self.folder, *number), &error);
            return Err(match cut {
                Ok(()) => failed.help("nothing was changed; make room and try again"),
                Err(_) => failed.help("the log is damaged; stop this server and start it again"),
            });
        }
        let bytes = (HEADER_BYTES + request.len()) as u64;
        *len += bytes;
        *written += bytes;
        self.trail.grew(file, *len);
        Ok(())
    }

    /// Waits until everything that was written is as safe as it is to be.
    pub fn commit(&self) -> Result<()> {
        if self.flush == Flush::Kernel {
            return Ok(());
        }
        let (file, wanted) = {
            let writer = lock(&self.writer);
            (writer.file.clone(), writer.written)
        };
        let mut synced = lock(&self.synced);
        loop {
            if synced.bytes >= wanted {
                return Ok(());
            }
            if !synced.flushing {
                break;
            }
            synced = self.changed.wait(synced).unwrap_or_else(PoisonError::into_inner);
        }
        synced.flushing = true;
        drop(synced);
        // Files before this one were flushed when it was begun.
        let result = file.sync_data();
        let mut synced = lock(&self.synced);
        synced.flushing = false;
        if result.is_ok() {
            synced.bytes = synced.bytes.max(wanted);
        }
        self.changed.notify_all();
        result.map_err(|error| Error::io("flush the log in", &self.folder, &error))
    }

    /// Begins the next file, while nobody writes; returns its number.
    pub fn rotate(&self) -> Result<u64> {
        let mut writer = lock(&self.writer);
        let number = writer.number + 1;
        let path = path(&self.folder, number);
        if self.flush == Flush::Disk {
            let flushed = writer.file.sync_data();
            flushed.map_err(|error| Error::io("flush the log in", &self.folder, &error))?;
        }
        let file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&path)
            .and_then(|file| file.set_len(0).map(|()| file))
            .map_err(|error| Error::io("open", &path, &error))?;
        (writer.file, writer.number, writer.len) = (Arc::new(file), number, 0);
        Ok(number)
    }
}

/// Writes all of `parts` without joining them.
fn write_parts(mut file: &File, mut parts: &mut [IoSlice<'_>]) -> std::io::Result<()> {
    while parts.iter().any(|part| !part.is_empty()) {
        match file.write_vectored(parts) {
            Ok(0) => return Err(std::io::ErrorKind::WriteZero.into()),
            Ok(count) => IoSlice::advance_slices(&mut parts, count),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Visits the records of a log; returns how many of its bytes are good, and how many there are.
pub(super) fn read(path: &Path, mut visit: impl FnMut(Record) -> Result<()>) -> Result<(u64, u64)> {
    let failed = |error: &std::io::Error| Error::io("read", path, error);
    let file = File::open(path).map_err(|error| failed(&error))?;
    let total = file.metadata().map_err(|error| failed(&error))?.len();
    let mut reader = std::io::BufReader::with_capacity(1 << 20, file);
    let mut good = 0;
    loop {
        let mut header = [0; HEADER_BYTES];
        let left = total - good;
        if left < HEADER_BYTES as u64 {
            return Ok((good, total));
        }
        reader.read_exact(&mut header).map_err(|error| failed(&error))?;
        let word = |at: usize| {
            u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
        };
        let length = u64::from(word(0));
        if left < HEADER_BYTES as u64 + length {
            return Ok((good, total));
        }
        let mut request = vec![0; length as usize];
        reader.read_exact(&mut request).map_err(|error| failed(&error))?;
        let mut sum = crc32fast::Hasher::new();
        sum.update(&header[8..]);
        sum.update(&request);
        if sum.finalize() != word(4) {
            return Ok((good, total));
        }
        let client = u64::from(word(8)) | u64::from(word(12)) << 32;
        let caller = Caller { worker: word(16) as usize, client };
        visit(Record { caller, method: header[20], request })?;
        good += HEADER_BYTES as u64 + length;
    }
}
