//! Drops written log bytes from memory, and brings them to disk within seconds.
//!
//! The kernel keeps written pages in memory until it needs the memory for something else. A log
//! that grows to gigabytes takes fresh memory for every page, and the first touch of it costs
//! several times as much as the copy. So a thread writes the pages to disk in stretches and drops
//! them: a log is read once, if ever.
//!
//! Under [`Flush::Kernel`](super::Flush) no request waits for the disk. The same thread syncs the
//! log at intervals, which bounds the loss in a power cut.

use super::log_state::{Flush, LogState};
use crate::thread::Thread;
use fleet_base::Result;
use fleet_base::disk::DiskFile;
use fleet_base::sync::{lock, wait_for};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

/// Bytes written to disk and dropped at a time: few enough to stay in the caches, and enough for a
/// disk to be efficient.
pub(super) const STRETCH_BYTES: u64 = 16 << 20;
/// Interval between syncs of a log that no request waits for: a power cut loses about as much (see
/// [`Flush::Kernel`]).
pub(super) const SYNC_PERIOD: Duration = Duration::from_secs(2);

pub(super) struct WriteBack {
    shared: Arc<Shared>,
    _thread: Thread,
}

struct Shared {
    log: Arc<LogState>,
    flush: Flush,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// The newest file, and the range of its bytes that is written and still in memory.
    written: Option<(Arc<dyn DiskFile>, std::ops::Range<u64>)>,
    /// Records below this number are in that file, or on disk.
    records: u64,
    closed: bool,
}

impl WriteBack {
    pub fn start(log: Arc<LogState>, flush: Flush) -> Result<WriteBack> {
        let (state, changed) = (Mutex::default(), Condvar::new());
        let shared = Arc::new(Shared { log, flush, state, changed });
        let followed = shared.clone();
        let thread = Thread::start("fleet-log", move || followed.follow())?;
        Ok(WriteBack { shared, _thread: thread })
    }

    /// Reports that a file has `len` bytes now, and all records below `records`. An earlier file is
    /// on disk.
    pub fn grew(&self, file: &Arc<dyn DiskFile>, len: u64, records: u64) {
        let mut state = lock(&self.shared.state);
        state.records = records;
        match &mut state.written {
            Some((known, range)) if Arc::ptr_eq(known, file) => range.end = len,
            written => *written = Some((file.clone(), 0..len)),
        }
        if state.stretch().is_some() {
            self.shared.changed.notify_one();
        }
    }
}

impl Drop for WriteBack {
    fn drop(&mut self) {
        lock(&self.shared.state).closed = true;
        self.shared.changed.notify_one();
    }
}

impl State {
    /// Returns the next stretch, if it is complete.
    fn stretch(&self) -> Option<(Arc<dyn DiskFile>, u64)> {
        let (file, range) = self.written.as_ref()?;
        (range.end - range.start >= STRETCH_BYTES).then(|| (file.clone(), range.start))
    }
}

impl Shared {
    fn follow(&self) {
        let (mut state, mut last, mut synced) = (lock(&self.state), Instant::now(), 0);
        while !state.closed {
            if let Some((file, start)) = state.stretch() {
                if let Some((_, range)) = &mut state.written {
                    range.start += STRETCH_BYTES;
                }
                drop(state);
                write_and_drop(&*file, start);
                state = lock(&self.state);
            }
            let left = SYNC_PERIOD.saturating_sub(last.elapsed());
            if left.is_zero() {
                let (file, records) =
                    (state.written.as_ref().map(|it| it.0.clone()), state.records);
                if let Some(file) = file.filter(|_| records > synced && self.flush == Flush::Kernel)
                {
                    drop(state);
                    // A failure poisons the log, and the next request reports it.
                    let _ = self.log.sync(&*file, Path::new("of this server"), records);
                    state = lock(&self.state);
                }
                (last, synced) = (Instant::now(), records);
            } else if state.stretch().is_none() && !state.closed {
                state = wait_for(&self.changed, state, left).0;
            }
        }
    }
}

/// Writes a stretch to disk and drops its pages. The next sync reports a failure. No safe crate
/// wraps `sync_file_range`.
#[cfg(target_os = "linux")]
#[allow(unsafe_code)]
fn write_and_drop(file: &dyn DiskFile, start: u64) {
    use std::os::fd::AsRawFd;
    let Some(file) = file.system_file() else { return };
    let all = libc::SYNC_FILE_RANGE_WAIT_BEFORE
        | libc::SYNC_FILE_RANGE_WRITE
        | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    // SAFETY: the file is open, and the call neither reads nor changes memory of this process.
    unsafe {
        libc::sync_file_range(file.as_raw_fd(), start as i64, STRETCH_BYTES as i64, all);
    }
    let len = std::num::NonZeroU64::new(STRETCH_BYTES);
    let _ = rustix::fs::fadvise(file, start, len, rustix::fs::Advice::DontNeed);
}

#[cfg(not(target_os = "linux"))]
fn write_and_drop(_file: &dyn DiskFile, _start: u64) {}
