//! The launcher's folder among temporary files: gone with the launcher, its guard, or the next
//! launch.

use crate::job::random_hex;
use fleet_base::{Error, Result};
use std::fs::{DirBuilder, File, OpenOptions};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// A folder that this user alone can read. The lock in it is held as long as the launcher lives.
pub(crate) struct Scratch {
    pub path: PathBuf,
    _lock: File,
}

const PREFIX: &str = "fleetrun-";
const LOCK: &str = "lock";
/// Left folders that one launch looks at.
const SWEPT_MAX: usize = 256;

impl Scratch {
    pub fn new(base: &Path) -> Result<Scratch> {
        sweep(base);
        let path = base.join(format!("{PREFIX}{}", random_hex(8)?));
        let failed = |error| {
            Error::io("make the folder", &path, &error)
                .help("TMPDIR says where temporary files may be")
        };
        DirBuilder::new().mode(0o700).create(&path).map_err(failed)?;
        let lock = lock(&path).map_err(failed)?;
        Ok(Scratch { path, _lock: lock })
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // The next launch tries again.
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

/// Locks the file before it has its name: a launch that looks for left folders finds it locked.
fn lock(folder: &Path) -> std::io::Result<File> {
    let (early, path) = (folder.join("lock.new"), folder.join(LOCK));
    let file = OpenOptions::new().write(true).create_new(true).open(&early)?;
    file.try_lock()?;
    std::fs::rename(&early, &path)?;
    Ok(file)
}

/// Removes folders of this user's launchers that were killed together with their guards.
fn sweep(base: &Path) {
    let Ok(entries) = std::fs::read_dir(base) else { return };
    let own = rustix::process::geteuid().as_raw();
    let names = entries
        .flatten()
        .filter(|entry| entry.file_name().to_str().is_some_and(|name| name.starts_with(PREFIX)));
    for path in names.map(|entry| entry.path()).take(SWEPT_MAX) {
        let is_ours = path.symlink_metadata().is_ok_and(|it| it.is_dir() && it.uid() == own);
        if is_ours && is_left(&path) {
            // What cannot be removed now is tried again by the next launch.
            let _ = std::fs::remove_dir_all(&path);
        }
    }
}

/// Whether no launcher holds the lock. A folder without one may be a launcher's that just begins.
fn is_left(folder: &Path) -> bool {
    let nofollow = rustix::fs::OFlags::NOFOLLOW.bits() as i32;
    let file = OpenOptions::new().write(true).custom_flags(nofollow).open(folder.join(LOCK));
    file.is_ok_and(|file| file.try_lock().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_of_killed_launchers_go() {
        let base = std::env::temp_dir().join(format!("fleet-scratch-{}", std::process::id()));
        std::fs::create_dir_all(&base).unwrap();
        let living = Scratch::new(&base).unwrap();
        let killed = Scratch::new(&base).unwrap();
        std::fs::write(killed.path.join("serves.0"), "serves").unwrap();
        let left = killed.path.clone();
        // A launcher that is killed: its lock goes, and its folder stays.
        let Scratch { path: _, _lock: lock } = &killed;
        lock.unlock().unwrap();
        let begins = base.join(format!("{PREFIX}begins"));
        std::fs::create_dir(&begins).unwrap();
        let next = Scratch::new(&base).unwrap();
        assert!(!left.exists() && living.path.exists() && next.path.exists() && begins.exists());
        drop((living, killed, next));
        std::fs::remove_dir_all(&base).unwrap();
    }
}
