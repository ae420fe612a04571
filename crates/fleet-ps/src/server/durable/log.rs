//! The log of a server: every changing request since a snapshot, in order.
//!
//! A record is written before its request runs. Written data is in the kernel and survives the
//! process; [`Flush::Disk`] also waits for the disk, with one sync for all waiting requests.
//!
//! A log that cannot be trusted is poisoned. After a failed sync, pages may be lost that the next
//! sync does not report. Half a record that cannot be cut off hides all that follow it. From then
//! on every append and commit fails, and the server ends with the reason.

use super::log_state::{Flush, LogState};
use super::record::{LOG_HEADER_BYTES, LogHeader, RECORD_HEADER_BYTES, RecordHeader};
use super::write_back::WriteBack;
use crate::server::Caller;
use fleet_base::disk::{Disk, DiskFile};
use fleet_base::file::AtomicFile;
use fleet_base::sync::{lock, wait};
use fleet_base::{Error, Result};
use std::io::{IoSlice, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex};

pub(super) struct Log {
    disk: Arc<dyn Disk>,
    folder: PathBuf,
    flush: Flush,
    writer: Mutex<Writer>,
    state: Arc<LogState>,
    flushing: Mutex<bool>,
    changed: Condvar,
    write_back: Option<WriteBack>,
}

struct Writer {
    file: Arc<dyn DiskFile>,
    path: PathBuf,
    header: LogHeader,
    /// The seed of the records' checksums.
    seed: u32,
    /// Length of this file, in bytes.
    len: u64,
    /// Length of earlier logs that no snapshot has replaced, in bytes.
    older: u64,
}

/// Limit on a request, in bytes: its length has 32 bits in a record.
const REQUEST_BYTES_MAX: usize = u32::MAX as usize;

pub(super) fn path(folder: &Path, number: u64) -> PathBuf {
    folder.join(format!("log-{number}"))
}

/// Makes an empty log, which appears whole or not at all.
pub(super) fn create(
    disk: &Arc<dyn Disk>,
    folder: &Path,
    header: &LogHeader,
) -> Result<(Arc<dyn DiskFile>, u32)> {
    let path = path(folder, header.number);
    let (bytes, seed) = header.encode();
    let mut file = AtomicFile::create_on(disk, &path)?;
    file.write_all(&bytes).map_err(|error| file.error("write", &error))?;
    Ok((file.commit_open()?, seed))
}

impl Log {
    /// Starts a log with this header; `older` is the length of the earlier ones, which are on disk.
    pub fn begin(
        disk: &Arc<dyn Disk>,
        folder: &Path,
        header: LogHeader,
        older: u64,
        flush: Flush,
    ) -> Result<Log> {
        let (file, seed) = create(disk, folder, &header)?;
        let state = Arc::new(LogState::of_empty_log(header.first));
        let path = path(folder, header.number);
        // A simulated disk may be written by one thread only.
        let is_real = file.system_file().is_some();
        let write_back = if is_real { Some(WriteBack::start(state.clone(), flush)?) } else { None };
        let writer = Writer { file, path, header, seed, len: LOG_HEADER_BYTES as u64, older };
        Ok(Log {
            disk: disk.clone(),
            folder: folder.to_path_buf(),
            flush,
            writer: Mutex::new(writer),
            state,
            flushing: Mutex::new(false),
            changed: Condvar::new(),
            write_back,
        })
    }

    /// Returns the length of all logs that no snapshot has replaced, in bytes.
    pub fn len(&self) -> u64 {
        let writer = lock(&self.writer);
        writer.older + writer.len
    }

    /// Returns whether a snapshot contains everything.
    pub fn is_empty(&self) -> bool {
        let writer = lock(&self.writer);
        writer.older == 0 && writer.is_empty()
    }

    /// Returns the current file, its path, and its number.
    pub fn place(&self) -> (Arc<dyn DiskFile>, PathBuf, u64) {
        let writer = lock(&self.writer);
        (writer.file.clone(), writer.path.clone(), writer.header.number)
    }

    pub fn state(&self) -> &LogState {
        &self.state
    }

    /// Writes a request; a failed write leaves no trace.
    pub fn append(&self, caller: Caller, method: u8, request: &[u8]) -> Result<()> {
        if request.len() > REQUEST_BYTES_MAX {
            return Err(Error::exhausted("request is too long for the log").got(request.len()));
        }
        let request_sum = crc32fast::hash(request);
        let mut writer = lock(&self.writer);
        self.state.check()?;
        let sequence = self.state.written();
        let synced = self.state.synced();
        let len = request.len() as u32;
        let header = RecordHeader { len, sequence, synced, caller, method, request_sum };
        self.put(&mut writer, header, request)?;
        self.state.set_written(sequence + 1);
        if let Some(write_back) = &self.write_back {
            write_back.grew(&writer.file, writer.len, sequence + 1);
        }
        Ok(())
    }

    fn put(&self, writer: &mut Writer, header: RecordHeader, request: &[u8]) -> Result<()> {
        let bytes = header.encode(writer.seed);
        let mut parts = [IoSlice::new(&bytes), IoSlice::new(request)];
        let Err(error) = writer.file.write_at(writer.len, &mut parts) else {
            writer.len += (RECORD_HEADER_BYTES + request.len()) as u64;
            return Ok(());
        };
        let failed = Error::io("write", &writer.path, &error);
        // Half a record would hide all records after it.
        match writer.file.set_len(writer.len) {
            Ok(()) => Err(failed.help("free disk space and try again; nothing was changed")),
            Err(cut) => Err(self.state.poison(
                failed
                    .got(format!("an incomplete record that cannot be truncated: {cut}"))
                    .help("free disk space and restart this server"),
            )),
        }
    }

    /// Returns the number below which records are as safe as [`Flush`] requires.
    pub fn kept(&self) -> u64 {
        match self.flush {
            Flush::Kernel => self.state.written(),
            Flush::Disk => self.state.synced(),
        }
    }

    /// Waits until all written records are as safe as [`Flush`] requires.
    pub fn commit(&self) -> Result<()> {
        self.state.check()?;
        let wanted = self.state.written();
        if self.flush == Flush::Kernel {
            return Ok(());
        }
        let mut flushing = lock(&self.flushing);
        loop {
            self.state.check()?;
            if self.state.synced() >= wanted {
                return Ok(());
            }
            if !*flushing {
                break;
            }
            flushing = wait(&self.changed, flushing);
        }
        *flushing = true;
        drop(flushing);
        let result = self.sync();
        *lock(&self.flushing) = false;
        self.changed.notify_all();
        result
    }

    /// Syncs everything written so far.
    pub fn sync(&self) -> Result<()> {
        let (file, path, written) = {
            let writer = lock(&self.writer);
            (writer.file.clone(), writer.path.clone(), self.state.written())
        };
        // Earlier files were synced when this one was started.
        self.state.sync(&*file, &path, written)
    }

    /// Starts the next file, while no request is written; returns its number, from 1. An empty file
    /// is kept as the next one.
    ///
    /// The old file is synced first: the next one must not outlive the records before it.
    pub fn rotate(&self) -> Result<u64> {
        let mut writer = lock(&self.writer);
        self.state.check()?;
        // Snapshots are numbered from 1.
        if writer.is_empty() && writer.header.number > 0 {
            return Ok(writer.header.number);
        }
        let first = self.state.written();
        self.state.sync(&*writer.file, &writer.path, first)?;
        let number = writer.header.number + 1;
        let header = LogHeader { number, first, accepts_loss: false, ..writer.header };
        let (file, seed) = match create(&self.disk, &self.folder, &header) {
            Ok(made) => made,
            Err(error) => {
                // If it stays, readers ignore it: it is empty, and the log before it grows on.
                let _ = self.disk.remove(&path(&self.folder, number));
                return Err(error);
            }
        };
        // Announces the next log, in case that gets lost.
        self.put(&mut writer, RecordHeader::close(first), &[])?;
        let older = writer.older + writer.len;
        let (len, path) = (LOG_HEADER_BYTES as u64, path(&self.folder, number));
        *writer = Writer { file, path, header, seed, len, older };
        Ok(number)
    }

    /// Records that a snapshot has replaced the logs before the current one.
    pub fn forget_older(&self) {
        lock(&self.writer).older = 0;
    }
}

impl Writer {
    fn is_empty(&self) -> bool {
        self.len == LOG_HEADER_BYTES as u64
    }
}
