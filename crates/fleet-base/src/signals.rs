//! Signals: those that would kill a process where an error can be returned instead, and the request
//! to stop.

use crate::{Error, Result};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

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
        use std::sync::Once;
        static IGNORED: Once = Once::new();
        IGNORED.call_once(|| {
            // No code reads the flag: an installed handler is enough to keep the process alive. If
            // installing it fails, the default action stays.
            let flag: Arc<AtomicBool> = Arc::default();
            let _ = signal_hook::flag::register(signal_hook::consts::SIGXFSZ, flag);
        });
    }
}

/// Returns a flag that SIGTERM sets, the request of launchers and clusters to stop. The signal no
/// longer ends the process, which must look at the flag. Child processes get the default action
/// again.
///
/// ```
/// use std::sync::atomic::Ordering::Relaxed;
/// let flag = fleet_base::signals::terminate_flag()?;
/// assert!(!flag.load(Relaxed));
/// # Ok::<(), fleet_base::Error>(())
/// ```
pub fn terminate_flag() -> Result<Arc<AtomicBool>> {
    let flag: Arc<AtomicBool> = Arc::default();
    #[cfg(unix)]
    signal_hook::flag::register(signal_hook::consts::SIGTERM, Arc::clone(&flag))
        .map_err(|error| Error::unavailable("cannot handle SIGTERM").got(error))?;
    Ok(flag)
}
