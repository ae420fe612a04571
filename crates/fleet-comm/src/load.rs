//! Loads system libraries at run time.

use fleet_base::{Error, Result};
use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_LOCAL, RTLD_NOW};
use std::path::{Path, PathBuf};

/// Declares a struct with the functions used from a library, and loads them by name.
macro_rules! functions {
    ($(#[$doc:meta])* $Functions:ident of $what:literal, $expected:literal:
     $($name:ident = $symbol:literal ($($arg:ty),*) -> $result:ty;)*) => {
        $(#[$doc])*
        pub(super) struct $Functions {
            $(pub(super) $name: unsafe extern "C" fn($($arg),*) -> $result,)*
        }

        impl $Functions {
            fn load(library: &libloading::os::unix::Library) -> fleet_base::Result<$Functions> {
                Ok($Functions {
                    $($name: {
                        // SAFETY: the signature is that of the library's header.
                        let symbol = unsafe {
                            library.get::<unsafe extern "C" fn($($arg),*) -> $result>($symbol)
                        };
                        *symbol.map_err(|_| {
                            let name = String::from_utf8_lossy($symbol);
                            let text = format!("{} lacks the function {name}", $what);
                            fleet_base::Error::unsupported(text).expected($expected)
                        })?
                    },)*
                })
            }
        }
    };
}
pub(crate) use functions;

/// A library that a feature needs at run time but not at build time.
pub(crate) struct LibrarySpec<'a> {
    /// Name for messages.
    pub name: &'a str,
    /// File names to try.
    pub file_names: &'a [&'a str],
    /// Whether its plugins look up its symbols in the global namespace.
    pub is_global: bool,
    pub help: &'a str,
}

impl LibrarySpec<'_> {
    /// Loads the library. `path` is its file or folder; the default is the system's search path.
    pub fn load(&self, path: Option<&Path>) -> Result<Library> {
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
                Ok(library) => return Ok(library),
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
