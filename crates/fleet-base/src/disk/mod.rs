//! The calls to a file system that logs, snapshots and other kept files make.
//!
//! [`Disk`] is the port: [`RealDisk`] makes the system's calls, [`SimDisk`] keeps files in memory,
//! loses unsynced writes at a power cut and fails calls on request, both from a seed. Code that
//! promises to survive a crash takes a `Disk`, so that tests run the same code on the simulated
//! one.
//!
//! Callers may rely on what POSIX states: a write is seen by later reads at once and survives
//! the process. It survives the machine after [`DiskFile::sync`]. A new name, a rename and a
//! removal do after [`Disk::sync_folder`]. A sync that failed must not be retried: the kernel may
//! have dropped the pages, and the next sync succeeds without them.

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
    /// Makes a file, which must not exist.
    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>>;
    /// Opens a regular file that exists.
    fn open(&self, path: &Path, access: Access) -> io::Result<Arc<dyn DiskFile>>;
    /// Replaces `to`, if it exists.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Removes a folder that is empty.
    fn remove_folder(&self, folder: &Path) -> io::Result<()>;
    /// The kind of the object that a path leads to.
    fn kind(&self, path: &Path) -> io::Result<PathKind>;
    /// Whether a path names a symbolic link.
    fn is_link(&self, _path: &Path) -> bool {
        false
    }
    /// The file that new content for `path` replaces: where links lead.
    fn target(&self, path: &Path) -> PathBuf {
        path.to_path_buf()
    }
    /// Names of the files and folders in a folder, in order.
    fn list(&self, folder: &Path) -> io::Result<Vec<String>>;
    /// Makes a folder and those above it; they survive the machine.
    fn create_folder(&self, folder: &Path) -> io::Result<()>;
    /// New names, renames and removals in a folder survive the machine from now on.
    fn sync_folder(&self, folder: &Path) -> io::Result<()>;
    /// Which run of the machine this is: another number after a power cut, 0 if unknown.
    fn boot(&self) -> u64;
    /// Takes a lock that ends with the process; none if another process or caller holds it.
    fn lock(&self, path: &Path) -> io::Result<Option<DiskLock>>;
}

/// The kind of the object that a path names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathKind {
    File,
    Folder,
    /// A device or a pipe.
    Other,
}

/// How a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    Read,
    Write,
}

/// An open file.
pub trait DiskFile: Send + Sync {
    fn len(&self) -> io::Result<u64>;
    fn is_empty(&self) -> io::Result<bool> {
        self.len().map(|len| len == 0)
    }
    /// Reads what there is at an offset; 0 at the end.
    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<usize>;
    /// Writes all parts, one behind the other, at an offset. An error leaves any part of them
    /// there.
    fn write_at(&self, offset: u64, parts: &mut [IoSlice<'_>]) -> io::Result<()>;
    fn set_len(&self, len: u64) -> io::Result<()>;
    /// Content and length survive the machine from now on.
    fn sync(&self) -> io::Result<()>;
    /// Whether `path` still names this file.
    fn is_at(&self, path: &Path) -> io::Result<bool>;
    /// Where bytes other than 0 may begin, at an offset or behind it; none if there are none.
    fn data_from(&self, offset: u64) -> io::Result<Option<u64>> {
        Ok((offset < self.len()?).then_some(offset))
    }
    /// The system's file, for calls that have no meaning elsewhere.
    fn system_file(&self) -> Option<&File> {
        None
    }
}

/// A lock that is held until it is dropped.
pub struct DiskLock(#[expect(dead_code, reason = "held for its drop")] Box<dyn Send + Sync>);

impl DiskLock {
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

/// The position `to`, in a file whose position is `offset`.
pub(crate) fn moved(file: &dyn DiskFile, offset: u64, to: SeekFrom) -> io::Result<u64> {
    let (from, by) = match to {
        SeekFrom::Start(at) => (at, 0),
        SeekFrom::Current(by) => (offset, by),
        SeekFrom::End(by) => (file.len()?, by),
    };
    from.checked_add_signed(by).ok_or(io::ErrorKind::InvalidInput.into())
}

/// Whether there is anything at a path.
pub fn exists(disk: &dyn Disk, path: &Path) -> io::Result<bool> {
    match disk.kind(path) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Whether there is a folder at a path. Refuses anything else there, and links to folders: what is
/// written there would be elsewhere.
pub fn own_folder(disk: &dyn Disk, path: &Path) -> Result<bool> {
    let got = match disk.kind(path) {
        _ if disk.is_link(path) => "a link",
        Ok(PathKind::Folder) => return Ok(true),
        Ok(PathKind::File) => "a file",
        Ok(PathKind::Other) => "a device or a pipe",
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(Error::io("look at", path, &error)),
    };
    Err(Error::invalid(format!("{} is not a folder", path.display()))
        .expected("a folder or nothing")
        .got(got))
}

/// Removes a folder with everything in it. The first error ends it.
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

/// Reads a whole small file; none if there is no such file.
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
