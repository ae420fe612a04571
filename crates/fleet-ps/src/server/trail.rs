//! What a log has written behind it leaves memory: a log is read once, if ever, and the memory of its pages is
//! better used again for the next ones.
//!
//! The kernel keeps what is written to a file until it needs the memory for something else. A log that grows
//! to gigabytes takes fresh memory for every page, and touching that costs several times what the copy does.
//! So a thread writes pages out in stretches, and lets them go. It promises nothing about a machine that loses
//! its power: that is what [`Flush::Disk`](super::Flush) is for.

use super::lock;
use fleet_base::{Error, Result};
use std::fs::File;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

/// Bytes that are written out and let go at a time: few enough to stay in the caches, enough for a disk.
pub(super) const STRETCH_BYTES: u64 = 16 << 20;

pub(super) struct Trail {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// The newest file, and which of its bytes have been written to it and are still in memory.
    written: Option<(Arc<File>, std::ops::Range<u64>)>,
    closed: bool,
}

impl Trail {
    pub fn start() -> Result<Trail> {
        let shared = Arc::<Shared>::default();
        let thread = {
            let shared = shared.clone();
            std::thread::Builder::new()
                .name("fleet-log".to_string())
                .spawn(move || shared.follow())
                .map_err(|error| Error::exhausted(format!("cannot start a thread: {error}")))?
        };
        Ok(Trail { shared, thread: Some(thread) })
    }

    /// A file has so many bytes now. The file before it, if there was one, is left as it is: it is about to be
    /// deleted.
    pub fn grew(&self, file: &Arc<File>, len: u64) {
        let mut state = lock(&self.shared.state);
        match &mut state.written {
            Some((known, range)) if Arc::ptr_eq(known, file) => range.end = len,
            written => *written = Some((file.clone(), 0..len)),
        }
        if state.stretch().is_some() {
            self.shared.changed.notify_one();
        }
    }
}

impl Drop for Trail {
    fn drop(&mut self) {
        lock(&self.shared.state).closed = true;
        self.shared.changed.notify_one();
        if let Some(thread) = self.thread.take() {
            // A panic has been reported by its thread.
            let _ = thread.join();
        }
    }
}

impl State {
    /// The next stretch, if it is whole.
    fn stretch(&self) -> Option<(Arc<File>, u64)> {
        let (file, range) = self.written.as_ref()?;
        (range.end - range.start >= STRETCH_BYTES).then(|| (file.clone(), range.start))
    }
}

impl Shared {
    fn follow(&self) {
        let mut state = lock(&self.state);
        while !state.closed {
            let Some((file, start)) = state.stretch() else {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            if let Some((_, range)) = &mut state.written {
                range.start += STRETCH_BYTES;
            }
            drop(state);
            let_go(&file, start);
            state = lock(&self.state);
        }
    }
}

/// Writes a stretch out and forgets its pages. Failures are told by whoever needs the bytes on the disk.
#[cfg(target_os = "linux")]
fn let_go(file: &File, start: u64) {
    use std::os::fd::AsRawFd;
    let (descriptor, start, len) = (file.as_raw_fd(), start as i64, STRETCH_BYTES as i64);
    let all = libc::SYNC_FILE_RANGE_WAIT_BEFORE
        | libc::SYNC_FILE_RANGE_WRITE
        | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    // SAFETY: the file is open; the calls read and change no memory of ours.
    unsafe {
        libc::sync_file_range(descriptor, start, len, all);
        libc::posix_fadvise(descriptor, start, len, libc::POSIX_FADV_DONTNEED);
    }
}

#[cfg(not(target_os = "linux"))]
fn let_go(_file: &File, _start: u64) {}
