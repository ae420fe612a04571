//! The launcher's folder for temporary files. It is removed by the launcher, by its guard, or by
//! the next launch.

use crate::random;
use fleet_base::{Error, Result};
use std::fs::{DirBuilder, File, OpenOptions};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// A folder that only this user can read. The launcher holds the lock in it as long as it lives.
pub(crate) struct Scratch {
    pub path: PathBuf,
    _lock: File,
}

const PREFIX: &str = "fleetrun-";
const LOCK: &str = "lock";
/// Limit on folders that one launch checks.
const SWEPT_MAX: usize = 256;

impl Scratch {
    pub fn new(base: &Path) -> Result<Scratch> {
        sweep(base);
        let path = base.join(format!("{PREFIX}{}", random::hex(8)?));
        let failed = |error| {
            Error::io("make the folder", &path, &error)
                .help("TMPDIR sets the folder for temporary files")
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

/// Creates the lock file under a temporary name, locks it, and renames it. A launch that removes
/// abandoned folders therefore never sees it unlocked.
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
            // If this fails, the next launch tries again.
            let _ = std::fs::remove_dir_all(&path);
        }
    }
}

/// Whether the folder has a lock file that no launcher holds. A folder without a lock file may
/// belong to a launcher that is just starting.
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
        // Simulates a killed launcher: the lock is released and the folder stays.
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
