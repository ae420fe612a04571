//! The state that the threads of a log share: what is written, what is on disk, and whether the log
//! can still be trusted.

use fleet_base::disk::DiskFile;
use fleet_base::{Error, Result};
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// The durability that a push must have before it is acknowledged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Flush {
    /// The kernel has it: killing a server loses nothing. A power cut loses at most the pushes of
    /// the last 2 s and of the sync in progress.
    #[default]
    Kernel,
    /// The disk has it: neither loses anything.
    Disk,
}

/// State that the threads of a log share.
pub(super) struct LogState {
    /// Records below this number are in the log.
    written: AtomicU64,
    /// Records below this number are on disk.
    synced: AtomicU64,
    poison: OnceLock<Error>,
}

impl LogState {
    /// Returns the state of a log that starts with record `first`, all earlier ones being on disk.
    pub fn of_empty_log(first: u64) -> LogState {
        let first = || AtomicU64::new(first);
        LogState { written: first(), synced: first(), poison: OnceLock::new() }
    }

    pub fn check(&self) -> Result<()> {
        self.poison.get().map_or(Ok(()), |error| Err(error.clone()))
    }

    /// Makes the log reject all requests; returns the first reason.
    pub fn poison(&self, error: Error) -> Error {
        self.poison.get_or_init(|| error).clone()
    }

    pub fn written(&self) -> u64 {
        self.written.load(SeqCst)
    }

    pub fn set_written(&self, written: u64) {
        self.written.store(written, SeqCst);
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
            Err(error) => Err(self.poison(Error::io("flush the log", path, &error).help(
                "check the disk and restart this server; acknowledged pushes may not be on disk",
            ))),
        }
    }
}
