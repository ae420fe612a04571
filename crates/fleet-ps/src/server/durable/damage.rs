//! A place in a stored file that is not as it was written.

use fleet_base::Error;
use std::fmt;
use std::path::PathBuf;

/// A damaged place in a durable folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// The damaged file.
    pub file: PathBuf,
    /// The first byte that cannot be trusted.
    pub offset: u64,
    /// Description of the damage.
    pub what: String,
}

impl Damage {
    pub(super) fn new(file: impl Into<PathBuf>, offset: u64, what: impl Into<String>) -> Damage {
        Damage { file: file.into(), offset, what: what.into() }
    }

    pub(super) fn missing(file: impl Into<PathBuf>, what: impl Into<String>) -> Damage {
        Damage::new(file, 0, what)
    }
}

impl From<Damage> for Error {
    /// Returns the error of a server that must not serve from such a folder.
    fn from(damage: Damage) -> Error {
        let folder = damage.file.parent().unwrap_or(&damage.file).display().to_string();
        Error::invalid(damage.to_string()).help(format!(
            "run fleet durable inspect {folder} to see what is left, or with --accept-loss to \
             resume from the last good state; or remove the folder and load a save"
        ))
    }
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is damaged at byte {}: {}", self.file.display(), self.offset, self.what)
    }
}
