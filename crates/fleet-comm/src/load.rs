//! Helpers for libraries that are loaded at run time: functions by name, texts, and waits.

use fleet_base::{Error, Result};
use fleet_net::{Limits, Time};
use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_LOCAL, RTLD_NOW};
use std::ffi::{CStr, c_char};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Time that a wait polls before it starts to sleep.
const POLL_TIME: Duration = Duration::from_millis(1);
/// Sleep between polls after that: about the time of a short collective. MPI makes progress only
/// inside calls.
const SLEEP: Duration = Duration::from_micros(50);

/// Declares a struct with the functions used from a library, and loads them by name.
macro_rules! functions {
    ($(#[$doc:meta])* $Functions:ident:
     $($name:ident = $symbol:literal ($($arg:ty),*) -> $result:ty;)*) => {
        $(#[$doc])*
        pub(super) struct $Functions {
            $(pub(super) $name: unsafe extern "C" fn($($arg),*) -> $result,)*
        }

        impl $Functions {
            /// Loads the library and its functions. The library stays loaded: it may have started
            /// threads in this process.
            fn load(
                spec: &crate::load::LibrarySpec<'_>,
                path: Option<&std::path::Path>,
            ) -> fleet_base::Result<($Functions, crate::load::Loaded)> {
                let library = spec.load(path)?;
                let functions = $Functions {
                    $($name: {
                        // SAFETY: the signature is that of the library's header.
                        let symbol = unsafe {
                            library.get::<unsafe extern "C" fn($($arg),*) -> $result>($symbol)
                        };
                        *symbol.map_err(|_| {
                            let symbol = String::from_utf8_lossy($symbol);
                            let text = format!("{} lacks the function {symbol}", spec.name);
                            fleet_base::Error::unsupported(text).expected(spec.version)
                        })?
                    },)*
                };
                Ok((functions, library))
            }
        }
    };
}
pub(crate) use functions;

/// A library that a feature needs at run time but not at build time.
pub(crate) struct LibrarySpec<'a> {
    /// Name for messages.
    pub name: &'a str,
    /// The versions that have all functions, for messages.
    pub version: &'a str,
    /// File names to try.
    pub file_names: &'a [&'a str],
    /// Whether its plugins look up its symbols in the global namespace.
    pub is_global: bool,
    pub help: &'a str,
}

/// A library that is never unloaded.
pub(crate) type Loaded = std::mem::ManuallyDrop<Library>;

impl LibrarySpec<'_> {
    /// Loads the library. `path` is its file or folder; the default is the system's search path.
    pub fn load(&self, path: Option<&Path>) -> Result<Loaded> {
        let names = self.file_names.iter();
        let tried: Vec<PathBuf> = match path {
            Some(folder) if folder.is_dir() => names.map(|name| folder.join(name)).collect(),
            Some(path) => vec![path.to_path_buf()],
            None => names.map(PathBuf::from).collect(),
        };
        let flags = RTLD_NOW | if self.is_global { RTLD_GLOBAL } else { RTLD_LOCAL };
        let mut failures = Vec::new();
        for path in &tried {
            // SAFETY: loading runs the library's initialisers, as linking with it would.
            match unsafe { Library::open(Some(path), flags) } {
                Ok(library) => return Ok(Loaded::new(library)),
                Err(error) => {
                    let why =
                        std::error::Error::source(&error).map(|source| format!(" ({source})"));
                    let why = why.unwrap_or_default();
                    failures.push(format!("{}: {error}{why}", path.display()));
                }
            }
        }
        let failures = failures.join("; ");
        Err(Error::unavailable(format!("cannot load {}: {failures}", self.name)).help(self.help))
    }
}

/// Reads a text that `write` writes to a buffer of `bytes` bytes.
pub(crate) fn written_text<E>(
    bytes: usize,
    write: impl FnOnce(*mut c_char) -> std::result::Result<(), E>,
) -> std::result::Result<String, E> {
    let mut buffer = vec![0u8; bytes];
    write(buffer.as_mut_ptr().cast())?;
    let text = CStr::from_bytes_until_nul(&buffer).unwrap_or_default();
    Ok(text.to_string_lossy().into_owned())
}

/// Copies a text that a library owns; empty for null.
///
/// # Safety
/// `text` is null or ends with a zero byte.
pub(crate) unsafe fn owned_text(text: *const c_char) -> String {
    match text.is_null() {
        true => String::new(),
        // SAFETY: guaranteed by the caller.
        false => unsafe { CStr::from_ptr(text) }.to_string_lossy().trim().to_string(),
    }
}

/// The pauses of a wait for a library, which has no blocking call that could end early.
#[derive(Default)]
pub(crate) struct Pauses {
    idle_since: Option<Time>,
}

impl Pauses {
    /// Begins again with short pauses, after progress.
    pub fn reset(&mut self) {
        self.idle_since = None;
    }

    /// Pauses until the next poll. Returns the error that ends the wait: the fired token's, or that
    /// of `timeout` after the deadline.
    pub fn pause(&mut self, limits: &Limits, timeout: impl FnOnce() -> Error) -> Result<()> {
        limits.abort.check()?;
        let now = Time::now();
        if limits.deadline.is_past(now) {
            return Err(timeout());
        }
        match now.since(*self.idle_since.get_or_insert(now)) < POLL_TIME {
            true => std::thread::yield_now(),
            false => std::thread::sleep(SLEEP),
        }
        Ok(())
    }
}

/// The error of a call that takes too long inside `library`.
pub(crate) fn timeout_in(library: &str) -> Error {
    Error::unavailable(format!("the deadline passed while waiting for other ranks in {library}"))
}
