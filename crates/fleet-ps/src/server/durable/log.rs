//! The log of a server: every request that changed something since a snapshot, in order.
//!
//! A record is written before its request is done. What was written is in the kernel's hands and
//! survives the process; [`Flush::Disk`] waits for the disk too, one sync for all that wait.
//!
//! A log that cannot be trusted any more is poisoned: a sync that failed may have lost pages that a
//! second one does not miss, and half a record that cannot be cut off hides all that follow it.
//! From then on every append and commit is refused, and the server ends with the reason.

use super::record::{CLOSE, LOG_HEADER_BYTES, LogHeader, RECORD_HEADER_BYTES, RecordHeader};
use super::trail::Trail;
use crate::server::{Caller, lock};
use fleet_base::disk::{Disk, DiskFile};
use fleet_base::file::AtomicFile;
use fleet_base::{Error, Result};
use std::io::{IoSlice, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};

/// What a push waits for before it is acknowledged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Flush {
    /// The kernel has it: a killed server loses nothing. A power cut loses at most the pushes of
    /// the last 2 s and of the sync then under way.
    #[default]
    Kernel,
    /// The disk has it: neither loses anything.
    Disk,
}

pub(super) struct Log {
    disk: Arc<dyn Disk>,
    folder: PathBuf,
    flush: Flush,
    writer: Mutex<Writer>,
    state: Arc<LogState>,
    flushing: Mutex<bool>,
    changed: Condvar,
    trail: Option<Trail>,
}

/// What the threads of a log share.
#[derive(Default)]
pub(super) struct LogState {
    /// Records below this number are in the log.
    written: AtomicU64,
    /// Records below this number are on disk.
    synced: AtomicU64,
    poison: OnceLock<Error>,
}

struct Writer {
    file: Arc<dyn DiskFile>,
    path: PathBuf,
    header: LogHeader,
    /// The seed of the records' checksums.
    seed: u32,
    /// Bytes of this file.
    len: u64,
    /// Bytes of the logs before it that no snapshot has replaced.
    older: u64,
}

/// Requests are shorter: what a frame may hold.
const REQUEST_BYTES_MAX: usize = u32::MAX as usize;

pub(super) fn path(folder: &Path, number: u64) -> PathBuf {
    folder.join(format!("log-{number}"))
}

impl LogState {
    pub fn check(&self) -> Result<()> {
        self.poison.get().map_or(Ok(()), |error| Err(error.clone()))
    }

    /// No request is taken any more; returns the first reason.
    pub fn poison(&self, error: Error) -> Error {
        self.poison.get_or_init(|| error).clone()
    }

    pub fn written(&self) -> u64 {
        self.written.load(SeqCst)
    }

    pub fn synced(&self) -> u64 {
        self.synced.load(SeqCst)
    }

    /// Syncs a file that has all records below `written`. A failure is final.
    pub fn sync(&self, file: &dyn DiskFile, path: &Path, written: u64) -> Result<()> {
        self.check()?;
        match file.sync() {
            Ok(()) => {
                self.synced.fetch_max(written, SeqCst);
                Ok(())
            }
            Err(error) => {
                Err(self.poison(Error::io("flush the log", path, &error).help(
                    "acknowledged pushes may not be on disk: check the disk, then start again",
                )))
            }
        }
    }
}

/// Makes an empty log; it is there whole or not at all.
pub(super) fn create(
    disk: &Arc<dyn Disk>,
    folder: &Path,
    header: &LogHeader,
) -> Result<(Arc<dyn DiskFile>, u32)> {
    let path = path(folder, header.number);
    let bytes = header.encode();
    let mut file = AtomicFile::create_on(disk, &path)?;
    file.write_all(&bytes).map_err(|error| file.error("write", &error))?;
    let seed = u32::from_le_bytes([bytes[60], bytes[61], bytes[62], bytes[63]]);
    Ok((file.commit_open()?, seed))
}

impl Log {
    /// Begins a log of this header; `older` are the bytes of those that it follows, which are on
    /// disk.
    pub fn begin(
        disk: &Arc<dyn Disk>,
        folder: &Path,
        header: LogHeader,
        older: u64,
        flush: Flush,
    ) -> Result<Log> {
        let (file, seed) = create(disk, folder, &header)?;
        let state = Arc::<LogState>::default();
        state.written.store(header.first, SeqCst);
        state.synced.store(header.first, SeqCst);
        let path = path(folder, header.number);
        // A simulated disk is written by one thread at a time.
        let trails = file.system_file().is_some();
        let trail = if trails { Some(Trail::start(state.clone(), flush)?) } else { None };
        let writer = Writer { file, path, header, seed, len: LOG_HEADER_BYTES as u64, older };
        Ok(Log {
            disk: disk.clone(),
            folder: folder.to_path_buf(),
            flush,
            writer: Mutex::new(writer),
            state,
            flushing: Mutex::new(false),
            changed: Condvar::new(),
            trail,
        })
    }

    /// Bytes of all logs that no snapshot has replaced.
    pub fn len(&self) -> u64 {
        let writer = lock(&self.writer);
        writer.older + writer.len
    }

    /// Whether a snapshot has everything.
    pub fn is_empty(&self) -> bool {
        let writer = lock(&self.writer);
        writer.older == 0 && writer.is_empty()
    }

    /// The present file, its path, and its number.
    pub fn place(&self) -> (Arc<dyn DiskFile>, PathBuf, u64) {
        let writer = lock(&self.writer);
        (writer.file.clone(), writer.path.clone(), writer.header.number)
    }

    pub fn state(&self) -> &LogState {
        &self.state
    }

    /// Writes a request; what fails leaves no trace.
    pub fn append(&self, caller: Caller, method: u8, request: &[u8]) -> Result<()> {
        if request.len() > REQUEST_BYTES_MAX {
            return Err(Error::exhausted("a request is too long for the log").got(request.len()));
        }
        let request_sum = crc32fast::hash(request);
        let mut writer = lock(&self.writer);
        self.state.check()?;
        let sequence = self.state.written();
        let synced = self.state.synced();
        let len = request.len() as u32;
        let header = RecordHeader { len, sequence, synced, caller, method, request_sum };
        self.put(&mut writer, header, request)?;
        self.state.written.store(sequence + 1, SeqCst);
        if let Some(trail) = &self.trail {
            trail.grew(&writer.file, writer.len, sequence + 1);
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
        // Half a record would hide all that come after it.
        match writer.file.set_len(writer.len) {
            Ok(()) => Err(failed.help("nothing was changed; make room and try again")),
            Err(cut) => Err(self.state.poison(
                failed
                    .got(format!("half a record that cannot be cut off: {cut}"))
                    .help("make room and start this server again"),
            )),
        }
    }

    /// The number below which records are as safe as they are to be.
    pub fn kept(&self) -> u64 {
        match self.flush {
            Flush::Kernel => self.state.written(),
            Flush::Disk => self.state.synced(),
        }
    }

    /// Waits until everything that was written is as safe as it is to be.
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
            flushing = self.changed.wait(flushing).unwrap_or_else(PoisonError::into_inner);
        }
        *flushing = true;
        drop(flushing);
        let result = self.sync();
        *lock(&self.flushing) = false;
        self.changed.notify_all();
        result
    }

    /// Syncs what is written now.
    pub fn sync(&self) -> Result<()> {
        let (file, path, written) = {
            let writer = lock(&self.writer);
            (writer.file.clone(), writer.path.clone(), self.state.written())
        };
        // Files before this one were synced when it was begun.
        self.state.sync(&*file, &path, written)
    }

    /// Begins the next file, while no request is written; returns its number, from 1. An empty one
    /// stays.
    ///
    /// The old file is synced first: the next one must not outlive what stands before it.
    pub fn rotate(&self) -> Result<u64> {
        let mut writer = lock(&self.writer);
        self.state.check()?;
        // There is no snapshot of number 0.
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
                // An empty log behind one that grows on is passed over, should it stay.
                let _ = self.disk.remove(&path(&self.folder, number));
                return Err(error);
            }
        };
        // Says that there is a next one, in case that gets lost.
        let (caller, method) = (Caller { worker: 0, client: 0 }, CLOSE);
        let request_sum = crc32fast::hash(&[]);
        let close =
            RecordHeader { len: 0, sequence: first, synced: first, caller, method, request_sum };
        self.put(&mut writer, close, &[])?;
        let older = writer.older + writer.len;
        let (len, path) = (LOG_HEADER_BYTES as u64, path(&self.folder, number));
        *writer = Writer { file, path, header, seed, len, older };
        Ok(number)
    }

    /// A snapshot has replaced the logs before the present one.
    pub fn forget_older(&self) {
        lock(&self.writer).older = 0;
    }
}

impl Writer {
    fn is_empty(&self) -> bool {
        self.len == LOG_HEADER_BYTES as u64
    }
}
