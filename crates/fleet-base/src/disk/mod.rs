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
use std::io::{self, IoSlice, Read};
use std::path::Path;
use std::sync::Arc;

/// A file system.
pub trait Disk: Send + Sync {
    /// Makes a file, which must not exist.
    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>>;
    /// Opens a file that exists.
    fn open(&self, path: &Path, access: Access) -> io::Result<Arc<dyn DiskFile>>;
    /// Replaces `to`, if it exists.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    fn remove(&self, path: &Path) -> io::Result<()>;
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
