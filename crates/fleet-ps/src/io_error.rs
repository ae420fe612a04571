//! Errors of the file system.

use fleet_base::Error;
use std::io;
use std::path::Path;

/// Returns what makes the error of an action on a file, for `map_err`.
pub(crate) fn io_error(action: &str, path: &Path) -> impl Fn(io::Error) -> Error {
    move |error| Error::io(action, path, &error)
}
