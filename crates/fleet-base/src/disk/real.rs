//! The system's own file system.

use super::{Access, Disk, DiskFile, DiskLock};
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, IoSlice, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// The file system of this machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct RealDisk;

struct RealFile {
    file: File,
    /// Where the system's own position of the file is: writes that follow each other need no seek.
    position: Mutex<u64>,
}

struct RealLock(File);

impl Drop for RealLock {
    fn drop(&mut self) {
        // The next process may begin, even if a process that was forked meanwhile has the file too.
        let _ = self.0.unlock();
    }
}

fn opened(file: File) -> Arc<dyn DiskFile> {
    Arc::new(RealFile { file, position: Mutex::new(0) })
}

impl Disk for RealDisk {
    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        OpenOptions::new().read(true).write(true).create_new(true).open(path).map(opened)
    }

    fn open(&self, path: &Path, access: Access) -> io::Result<Arc<dyn DiskFile>> {
        OpenOptions::new().read(true).write(access == Access::Write).open(path).map(opened)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn list(&self, folder: &Path) -> io::Result<Vec<String>> {
        let name = |entry: io::Result<fs::DirEntry>| Ok(entry?.file_name().into_string().ok());
        let names = fs::read_dir(folder)?.map(name).collect::<io::Result<Vec<_>>>()?;
        // A name that is not UTF-8 is none of ours.
        let mut names: Vec<String> = names.into_iter().flatten().collect();
        names.sort();
        Ok(names)
    }

    fn create_folder(&self, folder: &Path) -> io::Result<()> {
        let missing: Vec<PathBuf> =
            folder.ancestors().take_while(|it| !it.exists()).map(Path::to_path_buf).collect();
        fs::create_dir_all(folder)?;
        for made in missing {
            self.sync_folder(parent(&made))?;
        }
        Ok(())
    }

    /// Other systems have no such call, or none that is needed.
    #[cfg(not(unix))]
    fn sync_folder(&self, _folder: &Path) -> io::Result<()> {
        Ok(())
    }

    #[cfg(unix)]
    fn sync_folder(&self, folder: &Path) -> io::Result<()> {
        File::open(folder)?.sync_all()
    }

    fn boot(&self) -> u64 {
        let id = fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let digits = id.iter().filter_map(|digit| char::from(*digit).to_digit(16));
        // 122 random bits folded into 64.
        digits.fold(0, |sum: u64, digit| sum.rotate_left(4) ^ u64::from(digit))
    }

    fn lock(&self, path: &Path) -> io::Result<Option<DiskLock>> {
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(path)?;
        match file.try_lock() {
            Ok(()) => Ok(Some(DiskLock::new(RealLock(file)))),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }
}

/// The folder of a path.
pub(crate) fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

impl DiskFile for RealFile {
    fn len(&self) -> io::Result<u64> {
        self.file.metadata().map(|it| it.len())
    }

    #[cfg(unix)]
    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<usize> {
        use std::os::unix::fs::FileExt;
        loop {
            match self.file.read_at(bytes, offset) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                outcome => return outcome,
            }
        }
    }

    #[cfg(not(unix))]
    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<usize> {
        use std::io::Read;
        let mut position = self.position.lock().unwrap_or_else(PoisonError::into_inner);
        *position = u64::MAX;
        (&self.file).seek(SeekFrom::Start(offset))?;
        (&self.file).read(bytes)
    }

    fn write_at(&self, offset: u64, mut parts: &mut [IoSlice<'_>]) -> io::Result<()> {
        let mut position = self.position.lock().unwrap_or_else(PoisonError::into_inner);
        if *position != offset {
            *position = (&self.file).seek(SeekFrom::Start(offset))?;
        }
        while parts.iter().any(|part| !part.is_empty()) {
            match (&self.file).write_vectored(parts) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => {
                    *position += count as u64;
                    IoSlice::advance_slices(&mut parts, count);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn system_file(&self) -> Option<&File> {
        Some(&self.file)
    }
}
