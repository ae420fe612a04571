//! The file system of the operating system.

use super::{Access, Disk, DiskFile, DiskLock, PathKind};
use crate::signals::ignore_file_size_signal;
use crate::sync::lock;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, IoSlice, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

/// The file system of this machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct RealDisk;

impl RealDisk {
    /// Returns it as a shared [`Disk`].
    pub fn handle() -> Arc<dyn Disk> {
        Arc::new(RealDisk)
    }
}

struct RealFile {
    file: File,
    /// The operating system's position in the file. Consecutive writes need no seek.
    position: Mutex<u64>,
}

struct RealLock(File);

impl Drop for RealLock {
    fn drop(&mut self) {
        // Unlock explicitly: a process forked meanwhile may share the open file and keep the lock.
        let _ = self.0.unlock();
    }
}

fn opened(file: File) -> Arc<dyn DiskFile> {
    Arc::new(RealFile { file, position: Mutex::new(0) })
}

impl Disk for RealDisk {
    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        ignore_file_size_signal();
        OpenOptions::new().read(true).write(true).create_new(true).open(path).map(opened)
    }

    fn open(&self, path: &Path, access: Access) -> io::Result<Arc<dyn DiskFile>> {
        ignore_file_size_signal();
        let mut options = nonblocking_options(false);
        let file = options.read(true).write(access == Access::Write).open(path);
        regular(file, path).map(opened)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn remove_folder(&self, folder: &Path) -> io::Result<()> {
        fs::remove_dir(folder)
    }

    fn kind(&self, path: &Path) -> io::Result<PathKind> {
        let about = fs::metadata(path)?;
        Ok(match (about.is_file(), about.is_dir()) {
            (true, _) => PathKind::File,
            (_, true) => PathKind::Folder,
            _ => PathKind::Other,
        })
    }

    fn is_link(&self, path: &Path) -> bool {
        path.is_symlink()
    }

    fn target(&self, path: &Path) -> PathBuf {
        let led_to = fs::canonicalize(path).ok().filter(|_| path.is_symlink());
        led_to.unwrap_or_else(|| path.to_path_buf())
    }

    fn list(&self, folder: &Path) -> io::Result<Vec<String>> {
        let name = |entry: io::Result<fs::DirEntry>| Ok(entry?.file_name().into_string().ok());
        let names = fs::read_dir(folder)?.map(name).collect::<io::Result<Vec<_>>>()?;
        // Fleet writes no names that are not UTF-8.
        let mut names: Vec<String> = names.into_iter().flatten().collect();
        names.sort();
        Ok(names)
    }

    fn create_folder(&self, folder: &Path) -> io::Result<()> {
        let fresh: Vec<PathBuf> =
            folder.ancestors().take_while(|it| is_fresh(it)).map(Path::to_path_buf).collect();
        fs::create_dir_all(folder)?;
        for made in fresh {
            self.sync_folder(parent(&made))?;
        }
        Ok(())
    }

    /// Other systems have no such call, or need none.
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
        let opened = nonblocking_options(true).write(true).create(true).truncate(false).open(path);
        let file = regular(opened, path).map_err(|error| match path.is_symlink() {
            true => io::Error::other("the lock file is a symbolic link; remove it"),
            false => error,
        })?;
        match file.try_lock() {
            Ok(()) => Ok(Some(DiskLock::new(RealLock(file)))),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }
}

/// Whether a folder is missing or empty. The creator of an empty folder may have died before it
/// synced the name.
fn is_fresh(folder: &Path) -> bool {
    match fs::read_dir(folder) {
        Ok(mut entries) => entries.next().is_none(),
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    }
}

/// Options that open a pipe without waiting for its other end. For a lock, they also reject a
/// symbolic link: following it would create a file elsewhere, or share the lock of another folder.
#[cfg(unix)]
fn nonblocking_options(is_lock: bool) -> OpenOptions {
    use rustix::fs::OFlags;
    use std::os::unix::fs::OpenOptionsExt;
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    let flags = if is_lock { flags | OFlags::NOFOLLOW } else { flags };
    let mut options = OpenOptions::new();
    options.custom_flags(flags.bits() as i32);
    options
}

#[cfg(not(unix))]
fn nonblocking_options(_is_lock: bool) -> OpenOptions {
    OpenOptions::new()
}

/// Returns the file if it is a regular one. A pipe has no length, and a device no end.
fn regular(opened: io::Result<File>, path: &Path) -> io::Result<File> {
    let is_regular = match &opened {
        Ok(file) => file.metadata()?.is_file(),
        // A folder, a socket, or a pipe without its other end.
        Err(_) => fs::metadata(path).map_or(true, |about| about.is_file()),
    };
    match is_regular {
        true => opened,
        false => Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file")),
    }
}

/// The folder of a path; `.` if the path has none.
pub(crate) fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

#[cfg(unix)]
fn is_nothing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
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
        let mut position = lock(&self.position);
        *position = u64::MAX;
        (&self.file).seek(SeekFrom::Start(offset))?;
        (&self.file).read(bytes)
    }

    fn write_at(&self, offset: u64, mut parts: &mut [IoSlice<'_>]) -> io::Result<()> {
        let mut position = lock(&self.position);
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

    #[cfg(unix)]
    fn is_at(&self, path: &Path) -> io::Result<bool> {
        use std::os::unix::fs::MetadataExt;
        let own = self.file.metadata()?;
        match fs::symlink_metadata(path) {
            Ok(there) => Ok((there.dev(), there.ino()) == (own.dev(), own.ino())),
            Err(error) if is_nothing(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Other systems do not allow an open file to be removed or renamed.
    #[cfg(not(unix))]
    fn is_at(&self, path: &Path) -> io::Result<bool> {
        path.try_exists()
    }

    #[cfg(target_os = "linux")]
    fn data_from(&self, offset: u64) -> io::Result<Option<u64>> {
        use rustix::{fs::SeekFrom, io::Errno};
        let mut position = lock(&self.position);
        // The call moves the system's position.
        *position = u64::MAX;
        match rustix::fs::seek(&self.file, SeekFrom::Data(offset)) {
            Ok(data) => Ok(Some(data)),
            Err(Errno::NXIO) => Ok(None),
            // The file system cannot report holes.
            Err(Errno::INVAL) => Ok((offset < self.len()?).then_some(offset)),
            Err(error) => Err(error.into()),
        }
    }

    fn system_file(&self) -> Option<&File> {
        Some(&self.file)
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn a_link_in_place_of_a_lock_is_refused() {
        let folder = std::env::temp_dir().join(format!("fleet-base-lock-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let (lock, elsewhere) = (folder.join("lock"), folder.join("elsewhere"));
        std::os::unix::fs::symlink(&elsewhere, &lock).unwrap();
        let error = RealDisk.lock(&lock).map(drop).unwrap_err().to_string();
        assert!(error.contains("the lock file is a symbolic link"), "{error}");
        assert!(!elsewhere.exists(), "no file is created elsewhere");
        fs::remove_file(&lock).unwrap();
        let held = RealDisk.lock(&lock).unwrap();
        assert!(held.is_some() && RealDisk.lock(&lock).unwrap().is_none());
        fs::remove_dir_all(&folder).unwrap();
    }

    /// Runs `check`, which must fail without blocking.
    fn at_once(what: &str, check: impl FnOnce() -> io::Result<()> + Send + 'static) -> String {
        let (sender, receiver) = std::sync::mpsc::channel();
        std::thread::spawn(move || sender.send(check()));
        let outcome = receiver.recv_timeout(std::time::Duration::from_secs(60));
        outcome.unwrap_or_else(|_| panic!("{what} blocks")).unwrap_err().to_string()
    }

    #[test]
    fn pipes_devices_and_folders_are_no_files() {
        let folder = std::env::temp_dir().join(format!("fleet-base-pipe-{}", std::process::id()));
        fs::create_dir_all(folder.join("folder")).unwrap();
        let pipe = std::process::Command::new("mkfifo").arg(folder.join("pipe")).status().unwrap();
        assert!(pipe.success());
        let _socket = std::os::unix::net::UnixListener::bind(folder.join("socket")).unwrap();
        std::os::unix::fs::symlink("/dev/zero", folder.join("device")).unwrap();
        for name in ["pipe", "folder", "socket", "device"] {
            for access in [Access::Read, Access::Write] {
                let path = folder.join(name);
                let error = at_once(name, move || RealDisk.open(&path, access).map(drop));
                assert_eq!(error, "not a regular file", "{name} {access:?}");
            }
            let path = folder.join(name);
            let error = at_once(name, move || RealDisk.lock(&path).map(drop));
            let expected = match name {
                "device" => "the lock file is a symbolic link",
                _ => "not a regular file",
            };
            assert!(error.starts_with(expected), "lock {name}: {error}");
        }
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn only_own_folders_are_entered() {
        let folder = std::env::temp_dir().join(format!("fleet-base-own-{}", std::process::id()));
        fs::create_dir_all(folder.join("folder")).unwrap();
        fs::write(folder.join("file"), "").unwrap();
        std::os::unix::fs::symlink("folder", folder.join("link")).unwrap();
        std::os::unix::fs::symlink("nothing", folder.join("dangling")).unwrap();
        let check = |name: &str| super::super::own_folder(&RealDisk, &folder.join(name));
        assert_eq!([check("folder").unwrap(), check("nothing").unwrap()], [true, false]);
        for (name, got) in [("file", "a file"), ("link", "a link"), ("dangling", "a link")] {
            let error = check(name).unwrap_err().to_string();
            assert!(error.contains(&format!("{name} is not a folder: ")), "{error}");
            assert!(error.contains(&format!("got {got}")), "{error}");
        }
        fs::remove_dir_all(&folder).unwrap();
    }

    /// `data_from` skips holes, and later writes still go to the right offset.
    #[test]
    fn data_is_found_behind_holes() {
        let folder = std::env::temp_dir().join(format!("fleet-base-hole-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let file = RealDisk.create(&folder.join("a")).unwrap();
        file.write_at(0, &mut [IoSlice::new(b"head")]).unwrap();
        file.write_at(8 << 20, &mut [IoSlice::new(b"data")]).unwrap();
        file.set_len(16 << 20).unwrap();
        let found = file.data_from(4 << 20).unwrap().unwrap();
        // On a file system without holes, everything is data.
        assert!((4 << 20..=8 << 20).contains(&found), "{found}");
        file.write_at(4, &mut [IoSlice::new(b"er")]).unwrap();
        assert_eq!(&fs::read(folder.join("a")).unwrap()[..8], b"header\0\0");
        assert_eq!(file.data_from(16 << 20).unwrap(), None);
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_file_knows_whether_its_path_is_still_its_own() {
        let folder = std::env::temp_dir().join(format!("fleet-base-at-{}", std::process::id()));
        RealDisk.create_folder(&folder).unwrap();
        let path = folder.join("a");
        let file = RealDisk.create(&path).unwrap();
        assert!(file.is_at(&path).unwrap());
        fs::rename(&path, folder.join("b")).unwrap();
        assert!(!file.is_at(&path).unwrap() && file.is_at(&folder.join("b")).unwrap());
        fs::write(&path, "another").unwrap();
        assert!(!file.is_at(&path).unwrap());
        super::super::remove_folder_all(&RealDisk, &folder).unwrap();
        assert!(!folder.exists() && !file.is_at(&path).unwrap());
    }
}
