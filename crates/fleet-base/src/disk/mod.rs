//! The file system calls of logs, snapshots and other durable files.
//!
//! [`Disk`] is the port. [`RealDisk`] calls the operating system. [`SimDisk`] keeps files in
//! memory: it loses unsynced writes at a power cut, chosen by a seed, and fails calls on request.
//! Code that promises to survive a crash takes a `Disk`, so that tests run the same code on the
//! simulated disk.
//!
//! Callers may rely on what POSIX guarantees. Later reads see a write at once, and it survives the
//! death of the process. It survives a power cut after [`DiskFile::sync`]. New names, renames and
//! removals survive a power cut after [`Disk::sync_folder`]. A failed sync must not be retried: the
//! kernel may have dropped the pages, and the next sync succeeds without them.

mod real;
mod sim;

pub use real::RealDisk;
pub(crate) use real::parent;
pub use sim::{Call, Fault, SimDisk};

use crate::{Error, Result};
use std::fs::File;
use std::io::{self, IoSlice, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A file system.
pub trait Disk: Send + Sync {
    /// Creates a file, which must not exist.
    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>>;
    /// Opens an existing regular file.
    fn open(&self, path: &Path, access: Access) -> io::Result<Arc<dyn DiskFile>>;
    /// Renames a file, replacing `to` if it exists.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Removes a file or a symbolic link.
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Removes an empty folder.
    fn remove_folder(&self, folder: &Path) -> io::Result<()>;
    /// The kind of object at a path. Follows symbolic links.
    fn kind(&self, path: &Path) -> io::Result<PathKind>;
    /// Whether a path is a symbolic link.
    fn is_link(&self, _path: &Path) -> bool {
        false
    }
    /// The file that a write to `path` replaces, with symbolic links resolved.
    fn target(&self, path: &Path) -> PathBuf {
        path.to_path_buf()
    }
    /// Sorted names of the files and folders in a folder.
    fn list(&self, folder: &Path) -> io::Result<Vec<String>>;
    /// Creates a folder and its parents, durably.
    fn create_folder(&self, folder: &Path) -> io::Result<()>;
    /// Makes earlier creations, renames and removals in a folder durable.
    fn sync_folder(&self, folder: &Path) -> io::Result<()>;
    /// Id of the machine's current boot. It changes at a power cut; 0 if unknown.
    fn boot(&self) -> u64;
    /// Takes a lock that ends with the process; `None` if another process or caller holds it.
    fn lock(&self, path: &Path) -> io::Result<Option<DiskLock>>;
}

/// The kind of object at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathKind {
    /// A regular file.
    File,
    /// A folder.
    Folder,
    /// A device or a pipe.
    Other,
}

/// How to open a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// For reading only.
    Read,
    /// For reading and writing.
    Write,
}

/// An open file.
pub trait DiskFile: Send + Sync {
    /// Returns the length in bytes.
    fn len(&self) -> io::Result<u64>;
    /// Returns whether the file has no bytes.
    fn is_empty(&self) -> io::Result<bool> {
        self.len().map(|len| len == 0)
    }
    /// Reads up to `bytes.len()` bytes at an offset; returns 0 at the end.
    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<usize>;
    /// Writes all parts, one after the other, at an offset. After an error, any part of them may
    /// have been written.
    fn write_at(&self, offset: u64, parts: &mut [IoSlice<'_>]) -> io::Result<()>;
    /// Truncates the file, or extends it with zeros, to `len` bytes.
    fn set_len(&self, len: u64) -> io::Result<()>;
    /// Makes content and length durable.
    fn sync(&self) -> io::Result<()>;
    /// Whether `path` still names this file.
    fn is_at(&self, path: &Path) -> io::Result<bool>;
    /// The first offset >= `offset` that may hold a byte other than 0; `None` if there is none.
    fn data_from(&self, offset: u64) -> io::Result<Option<u64>> {
        Ok((offset < self.len()?).then_some(offset))
    }
    /// The file of the operating system, for calls that only apply to real files.
    fn system_file(&self) -> Option<&File> {
        None
    }
}

/// A lock, held until it is dropped.
pub struct DiskLock(#[expect(dead_code, reason = "held for its drop")] Box<dyn Send + Sync>);

impl DiskLock {
    /// Wraps the object that holds the lock until it is dropped.
    pub fn new(held: impl Send + Sync + 'static) -> DiskLock {
        DiskLock(Box::new(held))
    }
}

/// Reads a file from its beginning.
pub struct DiskReader {
    file: Arc<dyn DiskFile>,
    offset: u64,
}

impl DiskReader {
    /// Returns a reader at offset 0.
    pub fn new(file: Arc<dyn DiskFile>) -> DiskReader {
        DiskReader { file, offset: 0 }
    }
}

impl Read for DiskReader {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read_at(self.offset, bytes)?;
        self.offset += count as u64;
        Ok(count)
    }
}

impl Seek for DiskReader {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.offset = moved(&*self.file, self.offset, to)?;
        Ok(self.offset)
    }
}

/// The position that `to` denotes in a file whose position is `offset`.
pub(crate) fn moved(file: &dyn DiskFile, offset: u64, to: SeekFrom) -> io::Result<u64> {
    let (from, by) = match to {
        SeekFrom::Start(at) => (at, 0),
        SeekFrom::Current(by) => (offset, by),
        SeekFrom::End(by) => (file.len()?, by),
    };
    from.checked_add_signed(by).ok_or(io::ErrorKind::InvalidInput.into())
}

/// Whether anything exists at a path.
pub fn exists(disk: &dyn Disk, path: &Path) -> io::Result<bool> {
    match disk.kind(path) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Whether a folder exists at a path. Returns an error for anything else, including a link to a
/// folder: files written there would end up elsewhere.
pub fn own_folder(disk: &dyn Disk, path: &Path) -> Result<bool> {
    let got = match disk.kind(path) {
        _ if disk.is_link(path) => "a link",
        Ok(PathKind::Folder) => return Ok(true),
        Ok(PathKind::File) => "a file",
        Ok(PathKind::Other) => "a device or a pipe",
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(Error::io("inspect", path, &error)),
    };
    Err(Error::invalid(format!("{} is not a folder", path.display()))
        .expected("a folder or nothing")
        .got(got))
}

/// Creates a folder and its parents. An existing folder is not an error.
pub fn make_folder(disk: &dyn Disk, folder: &Path) -> Result<()> {
    disk.create_folder(folder).map_err(|error| {
        let is_file =
            |path: &&Path| matches!(disk.kind(path), Ok(kind) if kind != PathKind::Folder);
        match folder.ancestors().find(is_file) {
            Some(path) => Error::invalid(format!("{} is not a folder", path.display()))
                .help("use another folder, or remove the file of this name"),
            None => Error::io("create the folder", folder, &error),
        }
    })
}

/// Removes a folder with everything in it. Stops at the first error.
pub fn remove_folder_all(disk: &dyn Disk, folder: &Path) -> io::Result<()> {
    for name in disk.list(folder)? {
        let path = folder.join(name);
        match disk.kind(&path) {
            Ok(PathKind::Folder) if disk.target(&path) == path => remove_folder_all(disk, &path)?,
            _ => disk.remove(&path)?,
        }
    }
    disk.remove_folder(folder)
}

/// Reads exactly `bytes.len()` bytes at an offset.
pub fn read_exact_at(file: &dyn DiskFile, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
    let mut done = 0;
    while done < bytes.len() {
        match file.read_at(offset + done as u64, &mut bytes[done..])? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            count => done += count,
        }
    }
    Ok(())
}

/// Reads a whole small file; `None` if it does not exist.
///
/// ```
/// use fleet_base::disk::{SimDisk, read_file};
/// use fleet_base::file::AtomicFile;
/// let disk = SimDisk::new(7);
/// let path = std::path::Path::new("folder/name");
/// AtomicFile::write_on(&disk.handle(), path, b"content")?;
/// disk.power_cut();
/// assert_eq!(read_file(&*disk.handle(), path, 100)?, Some(b"content".to_vec()));
/// # Ok::<(), fleet_base::Error>(())
/// ```
pub fn read_file(disk: &dyn Disk, path: &Path, bytes_max: u64) -> Result<Option<Vec<u8>>> {
    let failed = |error: &io::Error| Error::io("read", path, error);
    let file = match disk.open(path, Access::Read) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(&error)),
    };
    let len = file.len().map_err(|error| failed(&error))?;
    if len > bytes_max {
        return Err(Error::invalid(format!("{} is too long", path.display()))
            .expected(format!("up to {bytes_max} bytes"))
            .got(len));
    }
    let mut bytes = vec![0; len as usize];
    read_exact_at(&*file, 0, &mut bytes).map_err(|error| failed(&error))?;
    Ok(Some(bytes))
}
