//! Disables signals that would kill a process where an error can be returned instead.

/// Makes a write beyond the file size limit (`ulimit -f`, `RLIMIT_FSIZE`) fail with `EFBIG`.
/// Without a handler, SIGXFSZ kills the process, and no message names the file.
///
/// Child processes get the default action again. A handler that the program itself has installed is
/// called as well.
///
/// ```
/// fleet_base::signals::ignore_file_size_signal();
/// ```
pub fn ignore_file_size_signal() {
    #[cfg(unix)]
    {
        use std::sync::atomic::AtomicBool;
        use std::sync::{Arc, Once};
        static IGNORED: Once = Once::new();
        IGNORED.call_once(|| {
            // No code reads the flag: an installed handler is enough to keep the process alive. If
            // installing it fails, the default action stays.
            let flag: Arc<AtomicBool> = Arc::default();
            let _ = signal_hook::flag::register(signal_hook::consts::SIGXFSZ, flag);
        });
    }
}
