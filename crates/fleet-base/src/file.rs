//! Files that are replaced atomically: readers see the old content or the new one, never a part.

use crate::disk::{Disk, DiskFile, PathKind, RealDisk, moved, parent};
use crate::{Error, Result};
use std::io::{self, IoSlice, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A file that is written under a temporary name next to its target. [`AtomicFile::commit`] renames
/// it to the target; dropping it without a commit removes it. If the target is a symbolic link, the
/// file that the link leads to is replaced and the link stays.
pub struct AtomicFile {
    disk: Arc<dyn Disk>,
    file: Arc<dyn DiskFile>,
    position: u64,
    temporary: PathBuf,
    target: PathBuf,
    committed: bool,
}

/// Limit of temporary names to try. If all are taken, something else is wrong.
const ATTEMPTS_MAX: u32 = 1000;

/// Suffix of temporary files. A crash may leave some.
pub const TEMPORARY_SUFFIX: &str = ".tmp";

impl AtomicFile {
    /// Starts to write a file that replaces `target` at the commit. Fails if `target` is a folder,
    /// a device or a pipe.
    pub fn create(target: &Path) -> Result<AtomicFile> {
        let disk: Arc<dyn Disk> = Arc::new(RealDisk);
        AtomicFile::replace_on(&disk, target)
    }

    /// Like [`AtomicFile::create`], on any disk.
    pub fn replace_on(disk: &Arc<dyn Disk>, target: &Path) -> Result<AtomicFile> {
        let target = disk.target(target);
        // Renaming over a device or a pipe would replace it with a file.
        let got = match disk.kind(&target) {
            Ok(PathKind::Folder) => "a folder",
            Ok(PathKind::Other) => "a device or a pipe",
            // If the path cannot be read, creating the file fails as well and reports the reason.
            Ok(PathKind::File) | Err(_) => return AtomicFile::create_on(disk, &target),
        };
        Err(Error::invalid(format!("cannot write {}", target.display()))
            .expected("a regular file")
            .got(got))
    }

    /// Like [`AtomicFile::create`], on any disk. `target` must not be a link or a device.
    pub fn create_on(disk: &Arc<dyn Disk>, target: &Path) -> Result<AtomicFile> {
        let Some(name) = target.file_name() else {
            return Err(Error::invalid(format!("not a file name: {}", target.display())));
        };
        let (name, process) = (name.to_string_lossy(), std::process::id());
        for attempt in 0..ATTEMPTS_MAX {
            let hidden = format!(".{name}.{process}-{attempt}{TEMPORARY_SUFFIX}");
            let temporary = target.with_file_name(hidden);
            match disk.create(&temporary) {
                Ok(file) => {
                    let (disk, target) = (disk.clone(), target.to_path_buf());
                    let (position, committed) = (0, false);
                    return Ok(AtomicFile { disk, file, position, temporary, target, committed });
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    return Err(Error::io("create", target, &error)
                        .help("the folder does not exist; create it first"));
                }
                Err(error) => return Err(Error::io("create", target, &error)),
            }
        }
        Err(Error::unavailable(format!(
            "cannot create a temporary file next to {}",
            target.display()
        ))
        .got(format!("{ATTEMPTS_MAX} existing temporary files")))
    }

    /// Writes a whole file on any disk.
    pub fn write_on(disk: &Arc<dyn Disk>, path: &Path, bytes: &[u8]) -> Result<()> {
        AtomicFile::create_on(disk, path)?.commit_with(bytes)
    }

    /// Writes the rest of the file and commits it.
    pub fn commit_with(mut self, bytes: &[u8]) -> Result<()> {
        self.write_all(bytes).map_err(|error| self.error("write", &error))?;
        self.commit()
    }

    /// Syncs the content to disk and renames the file to its target.
    pub fn commit(self) -> Result<()> {
        self.commit_open().map(drop)
    }

    /// Like [`AtomicFile::commit`]; returns the file, still open.
    pub fn commit_open(mut self) -> Result<Arc<dyn DiskFile>> {
        self.put()?;
        Ok(self.file.clone())
    }

    /// Like [`AtomicFile::commit`]; on an error the temporary file stays until `self` is dropped.
    pub fn put(&mut self) -> Result<()> {
        self.file.sync().map_err(|error| self.error("flush", &error))?;
        let renamed = self.disk.rename(&self.temporary, &self.target);
        renamed.map_err(|error| self.error("write", &error))?;
        self.committed = true;
        let folder = parent(&self.target);
        self.disk.sync_folder(folder).map_err(|error| Error::io("flush", folder, &error))
    }

    /// Leaves the temporary file behind, as a crash would.
    pub fn leave(&mut self) {
        self.committed = true;
    }

    /// An error of this write that names the target.
    pub fn error(&self, action: &str, error: &io::Error) -> Error {
        Error::io(action, &self.target, error)
    }
}

impl Write for AtomicFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write_at(self.position, &mut [IoSlice::new(bytes)])?;
        self.position += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for AtomicFile {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.position = moved(&*self.file, self.position, to)?;
        Ok(self.position)
    }
}

impl Drop for AtomicFile {
    fn drop(&mut self) {
        if !self.committed {
            // The write has already failed, so failing to remove the leftover is ignored.
            let _ = self.disk.remove(&self.temporary);
        }
    }
}

/// Writes a whole file atomically.
pub fn write_file(path: &Path, bytes: &[u8]) -> Result<()> {
    AtomicFile::create(path)?.commit_with(bytes)
}

/// Creates a folder and its parents. An existing folder is not an error.
pub fn make_folder(folder: &Path) -> Result<()> {
    crate::disk::make_folder(&crate::disk::RealDisk, folder)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_file_in_place_of_a_folder_is_named() {
        let folder = std::env::temp_dir().join(format!("fleet-base-folder-{}", std::process::id()));
        make_folder(&folder).unwrap();
        make_folder(&folder).unwrap();
        let file = folder.join("file");
        fs::write(&file, "").unwrap();
        for path in [file.clone(), file.join("below/it")] {
            let error = make_folder(&path).unwrap_err().to_string();
            assert!(error.starts_with(&format!("{} is not a folder", file.display())), "{error}");
        }
        let error = make_folder(Path::new("/proc/no-such")).unwrap_err().to_string();
        assert!(error.starts_with("cannot create the folder /proc/no-such: "), "{error}");
        fs::remove_dir_all(&folder).unwrap();
    }

    #[cfg(unix)]
    #[test]
    fn links_and_devices_stay_what_they_are() {
        let folder = std::env::temp_dir().join(format!("fleet-base-file-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let (file, link) = (folder.join("file"), folder.join("link"));
        fs::write(&file, "old").unwrap();
        std::os::unix::fs::symlink("file", &link).unwrap();
        write_file(&link, b"new").unwrap();
        assert!(link.is_symlink());
        assert_eq!(fs::read(&file).unwrap(), b"new");

        let socket = folder.join("socket");
        let _open = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        let error = write_file(&socket, b"new").unwrap_err().to_string();
        assert!(error.contains("a regular file, got a device or a pipe"), "{error}");
        assert!(!socket.is_file() && socket.exists());
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 3, "a temporary file was left");

        let error = write_file(&folder.join("no-such/file"), b"new").unwrap_err().to_string();
        assert!(
            error.contains("no-such/file: ") && error.contains("folder does not exist"),
            "{error}"
        );

        // A dangling link is replaced itself.
        let dangling = folder.join("dangling");
        std::os::unix::fs::symlink("nothing", &dangling).unwrap();
        write_file(&dangling, b"new").unwrap();
        assert_eq!(fs::read(&dangling).unwrap(), b"new");
        fs::remove_dir_all(&folder).unwrap();
    }
}
