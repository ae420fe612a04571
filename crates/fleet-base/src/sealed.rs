//! Small text files with a version and a checksum, which record the progress of a save or a job.
//!
//! ```text
//! fleet checkpoint, version 1
//! samples 2048
//! end 1c291ca3
//! ```
//!
//! The last line is the CRC-32 of all bytes before it.

use crate::disk::{Disk, RealDisk, read_file};
use crate::file::AtomicFile;
use crate::{Error, Result};
use std::io;
use std::path::Path;
use std::sync::Arc;

/// Size limit. The longest such files list the parameters of a network, with less than 100 bytes
/// each.
pub const SEALED_BYTES_MAX: u64 = 1 << 24;
const VERSION: &str = ", version ";
const END: &str = "end ";

/// A kind of file, identified by its first line.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    /// Start of the first line, which identifies the kind: `fleet checkpoint`.
    pub name: &'static str,
    /// Version of the format. Files of another version are rejected.
    pub version: u32,
    /// Help for errors about a file that is damaged or of another version.
    pub help: &'static str,
}

impl Kind {
    fn text(self, body: &str) -> String {
        let mut text = format!("{}{VERSION}{}\n{body}", self.name, self.version);
        let sum = crc32fast::hash(text.as_bytes());
        text += &format!("{END}{sum:08x}\n");
        text
    }

    /// Writes a file of this kind. `body` must consist of whole lines.
    ///
    /// ```
    /// use fleet_base::sealed::{Kind, Read};
    /// const MARK: Kind = Kind { name: "fleet example", version: 1, help: "write it again" };
    /// let path = std::env::temp_dir().join(format!("fleet-sealed-{}", std::process::id()));
    /// MARK.write(&path, "steps 98\n")?;
    /// assert_eq!(MARK.read(&path)?, Read::Body("steps 98\n".to_string()));
    /// std::fs::write(&path, std::fs::read_to_string(&path).unwrap().replace("98", "88")).unwrap();
    /// assert!(MARK.read(&path).unwrap_err().message().contains("is damaged"));
    /// # std::fs::remove_file(&path).unwrap();
    /// # Ok::<(), fleet_base::Error>(())
    /// ```
    pub fn write(self, path: &Path, body: &str) -> Result<()> {
        self.write_on(&RealDisk::handle(), path, body)
    }

    /// Like [`Kind::write`], on any disk.
    pub fn write_on(self, disk: &Arc<dyn Disk>, path: &Path, body: &str) -> Result<()> {
        AtomicFile::replace_on(disk, path)?.commit_with(self.text(body).as_bytes())
    }

    /// Reads a file of this kind.
    pub fn read(self, path: &Path) -> Result<Read> {
        self.read_on(&RealDisk, path)
    }

    /// Like [`Kind::read`], on any disk.
    pub fn read_on(self, disk: &dyn Disk, path: &Path) -> Result<Read> {
        let bytes = read_file(disk, path, SEALED_BYTES_MAX).map_err(|it| it.or_help(self.help))?;
        let missing = || Error::io("read", path, &io::ErrorKind::NotFound.into());
        let text = String::from_utf8(bytes.ok_or_else(missing)?)
            .map_err(|_| self.damaged(path, "not text"))?;
        let Some(rest) = text.strip_prefix(self.name).and_then(|rest| rest.strip_prefix(VERSION))
        else {
            return Ok(Read::Unsealed(text));
        };
        let end = text.trim_end_matches('\n').rfind('\n').map_or(0, |at| at + 1);
        let sum = format!("{END}{:08x}\n", crc32fast::hash(&text.as_bytes()[..end]));
        if text[end..] != sum {
            return Err(self.damaged(path, "checksum mismatch"));
        }
        let version = rest.lines().next().unwrap_or_default();
        if version != self.version.to_string() {
            return Err(Error::unsupported(format!("unsupported version of {}", path.display()))
                .expected(format!("version {}", self.version))
                .got(format!("version {version}"))
                .help(self.help));
        }
        let start = text.find('\n').map_or(end, |at| at + 1);
        Ok(Read::Body(text[start..end].to_string()))
    }

    /// An error for a file whose content differs from what was written.
    pub fn damaged(self, path: &Path, why: &str) -> Error {
        Error::invalid(format!("{} is damaged: {why}", path.display())).help(self.help)
    }
}

/// The content of a file.
#[derive(Debug, PartialEq, Eq)]
pub enum Read {
    /// The lines that were passed to [`Kind::write`].
    Body(String),
    /// Text of a file without name, version and checksum: damaged, or written by an older build.
    Unsealed(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    const MARK: Kind = Kind { name: "fleet example", version: 2, help: "write it again" };

    /// Flips every bit of every byte, and truncates at every length.
    #[test]
    fn no_changed_file_is_taken_for_what_was_written() {
        let path = std::env::temp_dir().join(format!("fleet-seal-{}", std::process::id()));
        let read = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            MARK.read(&path)
        };
        let bytes = MARK.text("samples 2048\nsteps 98 98\n").into_bytes();
        let body = "samples 2048\nsteps 98 98\n".to_string();
        assert_eq!(read(&bytes).unwrap(), Read::Body(body));
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut changed = bytes.clone();
                changed[at] ^= 1 << bit;
                assert!(!matches!(read(&changed), Ok(Read::Body(_))), "bit {bit} of byte {at}");
            }
            assert!(!matches!(read(&bytes[..at]), Ok(Read::Body(_))), "{at} bytes");
        }
        let other = Kind { version: 3, ..MARK }.text("");
        let error = read(other.as_bytes()).unwrap_err().to_string();
        assert!(error.contains("expected version 2, got version 3"), "{error}");
        std::fs::remove_file(&path).unwrap();
    }
}
