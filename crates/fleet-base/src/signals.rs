//! Signals that would end a process which has a better way to fail.

/// Lets a write beyond the limit of a file's size (`ulimit -f`, `RLIMIT_FSIZE`) fail with `EFBIG`.
/// Without a handler the system ends the process with SIGXFSZ, and nothing says which file it was.
///
/// Programs that the process starts have the system's default again. A handler that the program has
/// installed itself is called as well.
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
            // The flag is read by none: the handler alone keeps the process alive. Should it be
            // refused, the system's default holds.
            let flag: Arc<AtomicBool> = Arc::default();
            let _ = signal_hook::flag::register(signal_hook::consts::SIGXFSZ, flag);
        });
    }
}
