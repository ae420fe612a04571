//! Saves in remote folders (`hdfs://`, `afs://`): a worker's part of such a save.
//!
//! The worker uploads its folders before the servers save, under names with the number of the
//! save. When the save is complete, they replace those of the save before. If the worker dies
//! between, loads find the folders by the number. If the servers fail, the folders stay: the
//! servers may have failed to withdraw a complete save. The next save deletes them.

use crate::hadoop;
use fleet_base::temporary::TemporaryFolder;
use fleet_base::{Error, Result};
use fleet_ps::{RemoteDir, SaveFs, numbered_name};
use fleet_strategy::DistributedStrategy;
use fleet_topology::Env;

/// Returns the file system of remote folders, whose client `fs_client_param` describes.
pub(super) fn save_fs(strategy: &DistributedStrategy, env: Option<&Env>) -> SaveFs {
    SaveFs::new(hadoop::of_strategy(strategy), hadoop::temporary(env))
}

/// Folders of a worker that were uploaded for a save of the servers.
pub(super) struct WorkerUpload {
    to: RemoteDir,
    save_id: u64,
    names: Vec<String>,
}

impl WorkerUpload {
    /// Uploads the folders in `staged`, under names with the number of the servers' next save.
    pub fn send(fs: &SaveFs, url: &str, staged: &TemporaryFolder) -> Result<WorkerUpload> {
        let to = fs.list(url)?;
        let save_id = to.last_id() + 1;
        let failed = |error: std::io::Error| Error::io("prepare", staged.path(), &error);
        let mut names = Vec::new();
        for entry in std::fs::read_dir(staged.path()).map_err(failed)? {
            names.push(entry.map_err(failed)?.file_name().to_string_lossy().into_owned());
        }
        let mut folders = Vec::new();
        for name in &names {
            let numbered = staged.path().join(numbered_name(name, save_id));
            std::fs::rename(staged.path().join(name), &numbered).map_err(failed)?;
            folders.push(numbered);
        }
        let upload = WorkerUpload { to, save_id, names };
        // A failed save of this number may have left them.
        let sent = upload.delete_numbered().and_then(|()| {
            upload.to.fs().mkdirs(url)?;
            upload.to.fs().upload(&folders.iter().map(|it| it.as_path()).collect::<Vec<_>>(), url)
        });
        match sent {
            Ok(()) => Ok(upload),
            Err(error) => {
                // They are harmless if they cannot be deleted.
                let _ = upload.delete_numbered();
                Err(error.at(format!("upload of {} to {url}", upload.names.join(" and "))))
            }
        }
    }

    /// Replaces the folders of the save before, after all servers have saved.
    pub fn complete(self) -> Result<()> {
        let (fs, url) = (self.to.fs(), self.to.url());
        self.names.iter().try_for_each(|name| {
            let (from, to) = (self.numbered(name), self.to.path(name));
            let mut old = self.left_numbered(name);
            old.push(to.clone());
            let old: Vec<&str> = old.iter().map(String::as_str).collect();
            fs.delete_all(&old).and_then(|()| fs.mv(&from, &to)).map_err(|error| {
                error
                    .at(format!("end of save {} to {url}", self.save_id))
                    .or_help(format!("the save is complete: rename {from} to {to}, or save again"))
            })
        })
    }

    /// Returns a worker's folders of other saves, which have failed or were interrupted.
    fn left_numbered(&self, name: &str) -> Vec<String> {
        let number = |other: &str| other.strip_prefix(name)?.strip_prefix('.')?.parse::<u64>().ok();
        let names = self.to.names().into_iter();
        let left = names.filter(|other| number(other).is_some_and(|save| save != self.save_id));
        left.map(|other| self.to.path(other)).collect()
    }

    fn numbered(&self, name: &str) -> String {
        self.to.path(&numbered_name(name, self.save_id))
    }

    fn delete_numbered(&self) -> Result<()> {
        let paths: Vec<String> = self.names.iter().map(|name| self.numbered(name)).collect();
        self.to.fs().delete_all(&paths.iter().map(String::as_str).collect::<Vec<_>>())
    }
}
