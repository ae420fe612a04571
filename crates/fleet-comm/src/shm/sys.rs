//! System calls: shared files, futexes, and the state of processes.
//!
//! Linux only. On other systems creating a segment is an error, and groups use the mesh.

#[cfg(target_os = "linux")]
pub(crate) use linux::*;
#[cfg(not(target_os = "linux"))]
pub(crate) use other::*;

#[cfg(target_os = "linux")]
mod linux {
    use fleet_base::{Error, Result};
    use std::fs::File;
    use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
    use std::os::unix::fs::OpenOptionsExt;
    use std::path::Path;
    use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
    use std::time::Duration;

    /// A file in memory that other processes can open.
    pub(crate) struct SharedFile {
        file: File,
        /// Path in `/dev/shm`, removed when this is dropped; `None` for an anonymous file.
        name: Option<String>,
    }

    impl SharedFile {
        pub fn create(bytes: usize, fallback: bool) -> Result<SharedFile> {
            let made = if fallback { Self::named()? } else { Self::anonymous()? };
            made.file.set_len(bytes as u64).map_err(|error| failed("size", bytes, &error))?;
            if fallback {
                // Reserve the pages: on a mount that is too small, the first access would kill the
                // process.
                // SAFETY: a call without pointers.
                let code = unsafe { libc::posix_fallocate(made.file.as_raw_fd(), 0, bytes as i64) };
                if code != 0 {
                    let error = std::io::Error::from_raw_os_error(code);
                    return Err(failed("reserve", bytes, &error));
                }
            }
            Ok(made)
        }

        fn anonymous() -> Result<SharedFile> {
            // SAFETY: the name is a C string; the returned descriptor is owned at once.
            let fd = unsafe { libc::memfd_create(c"fleet-comm".as_ptr(), libc::MFD_CLOEXEC) };
            if fd < 0 {
                return Err(failed("create", 0, &std::io::Error::last_os_error()));
            }
            // SAFETY: no other code owns the descriptor.
            Ok(SharedFile { file: unsafe { File::from_raw_fd(fd) }, name: None })
        }

        fn named() -> Result<SharedFile> {
            static COUNT: AtomicU64 = AtomicU64::new(0);
            let count = COUNT.fetch_add(1, Ordering::Relaxed);
            let name = format!("/dev/shm/fleet-comm.{}.{count}", std::process::id());
            let file = std::fs::OpenOptions::new()
                .read(true)
                .write(true)
                .create_new(true)
                .mode(0o600)
                .open(&name)
                .map_err(|error| Error::io("create", Path::new(&name), &error))?;
            Ok(SharedFile { file, name: Some(name) })
        }

        /// The path by which another process of this host opens it.
        pub fn path(&self) -> String {
            match &self.name {
                Some(name) => name.clone(),
                None => format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd()),
            }
        }

        pub fn map(&self, bytes: usize) -> Result<Map> {
            Map::new(&self.file, bytes)
        }
    }

    impl Drop for SharedFile {
        fn drop(&mut self) {
            if let Some(name) = &self.name {
                // No rank needs the name now, and it does not matter if it is already removed.
                let _ = std::fs::remove_file(name);
            }
        }
    }

    pub(crate) fn open_map(path: &str, bytes: usize) -> Result<Map> {
        let file = std::fs::OpenOptions::new()
            .read(true)
            .write(true)
            .open(path)
            .map_err(|error| Error::io("open", Path::new(path), &error))?;
        let found =
            file.metadata().map_err(|error| Error::io("inspect", Path::new(path), &error))?;
        if found.len() != bytes as u64 {
            return Err(Error::unavailable(format!("{path} is not this group's shared memory"))
                .expected(format!("{bytes} bytes"))
                .got(found.len()));
        }
        Map::new(&file, bytes)
    }

    fn failed(what: &str, bytes: usize, error: &std::io::Error) -> Error {
        Error::exhausted(format!("cannot {what} {bytes} bytes of shared memory: {error}"))
    }

    /// A mapping that other processes may change at any time.
    pub(crate) struct Map {
        start: *mut u8,
        bytes: usize,
    }

    // SAFETY: any thread may use the pointer; the counters of the segment guard the content.
    unsafe impl Send for Map {}
    // SAFETY: as above.
    unsafe impl Sync for Map {}

    impl Map {
        fn new(file: &File, bytes: usize) -> Result<Map> {
            // SAFETY: a new mapping at an address chosen by the kernel.
            let start = unsafe {
                libc::mmap(
                    std::ptr::null_mut(),
                    bytes,
                    libc::PROT_READ | libc::PROT_WRITE,
                    libc::MAP_SHARED | libc::MAP_NORESERVE,
                    file.as_raw_fd(),
                    0,
                )
            };
            if start == libc::MAP_FAILED {
                return Err(failed("map", bytes, &std::io::Error::last_os_error()));
            }
            Ok(Map { start: start.cast(), bytes })
        }

        pub fn start(&self) -> *mut u8 {
            self.start
        }
    }

    impl Drop for Map {
        fn drop(&mut self) {
            // SAFETY: this value owns the mapping, and all users of it hold this value.
            unsafe { libc::munmap(self.start.cast(), self.bytes) };
        }
    }

    /// Sleeps while `word` holds `value`, for at most `span`.
    pub(crate) fn futex_wait(word: &AtomicU32, value: u32, span: Duration) {
        let span = libc::timespec {
            tv_sec: span.as_secs() as libc::time_t,
            tv_nsec: span.subsec_nanos() as _,
        };
        // SAFETY: the word outlives the call; after any result the caller checks it again.
        unsafe {
            libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, value, &raw const span)
        };
    }

    pub(crate) fn futex_wake(word: &AtomicU32) {
        // SAFETY: no pointer is kept.
        unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
    }

    /// CPU time that this process has used.
    pub(crate) fn cpu_time() -> Option<Duration> {
        let mut span = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the pointer is valid for the duration of the call.
        let code = unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut span) };
        (code == 0).then(|| Duration::new(span.tv_sec as u64, span.tv_nsec as u32))
    }

    /// A process whose state can be checked.
    pub(crate) struct Process {
        pid: u32,
        /// `None` for this process, and if the kernel does not support pidfds.
        handle: Option<OwnedFd>,
    }

    impl Process {
        pub fn new(pid: u32) -> Process {
            if pid == std::process::id() {
                return Process { pid, handle: None };
            }
            // SAFETY: a call without pointers; the descriptor is owned at once.
            let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
            // SAFETY: no other code owns the descriptor.
            let handle = (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd as i32) });
            Process { pid, handle }
        }

        pub fn is_dead(&self) -> bool {
            if self.pid == std::process::id() {
                return false;
            }
            let Some(handle) = &self.handle else {
                return !Path::new(&format!("/proc/{}", self.pid)).exists();
            };
            let mut poll =
                libc::pollfd { fd: handle.as_raw_fd(), events: libc::POLLIN, revents: 0 };
            // SAFETY: one descriptor, and no waiting.
            unsafe { libc::poll(&raw mut poll, 1, 0) > 0 && poll.revents & libc::POLLIN != 0 }
        }

        /// Whether it is stopped by a signal or a debugger.
        pub fn is_stopped(&self) -> bool {
            let text = std::fs::read_to_string(format!("/proc/{}/stat", self.pid));
            let text = text.unwrap_or_default();
            // The process name may contain any character, so look after the last parenthesis.
            let state = text.rsplit(')').next().and_then(|rest| rest.trim_start().chars().next());
            matches!(state, Some('T' | 't'))
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod other {
    use fleet_base::{Error, Result};
    use std::sync::atomic::AtomicU32;
    use std::time::Duration;

    pub(crate) struct SharedFile;

    impl SharedFile {
        pub fn create(_: usize, _: bool) -> Result<SharedFile> {
            Err(absent())
        }
        pub fn path(&self) -> String {
            String::new()
        }
        pub fn map(&self, _: usize) -> Result<Map> {
            Err(absent())
        }
    }

    pub(crate) fn open_map(_: &str, _: usize) -> Result<Map> {
        Err(absent())
    }

    fn absent() -> Error {
        Error::unsupported("shared memory between processes is supported on Linux only")
    }

    /// Cannot be constructed on this system.
    pub(crate) enum Map {}

    impl Map {
        pub fn start(&self) -> *mut u8 {
            match *self {}
        }
    }

    pub(crate) fn futex_wait(_: &AtomicU32, _: u32, _: Duration) {}
    pub(crate) fn futex_wake(_: &AtomicU32) {}

    pub(crate) fn cpu_time() -> Option<Duration> {
        None
    }

    pub(crate) struct Process;

    impl Process {
        pub fn new(_: u32) -> Process {
            Process
        }
        pub fn is_dead(&self) -> bool {
            false
        }
        pub fn is_stopped(&self) -> bool {
            false
        }
    }
}
