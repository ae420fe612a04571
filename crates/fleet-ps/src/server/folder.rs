//! The folder of a durable server: names of its files, and the state of the job in it.

use fleet_base::file::write_file;
use fleet_base::{Error, Result};
use std::path::{Path, PathBuf};

/// Exists once the job has ended well; see [`folder_state`].
const FINISHED: &str = "finished";

/// How far the job has come whose durable servers keep their tables in a folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FolderState {
    /// No server has kept anything here: the folder is missing or holds no server's folder.
    Empty,
    /// The job was interrupted, or runs: its servers resume with these tables.
    Unfinished,
    /// All workers have finished and the last one has stopped the servers.
    Finished,
}

/// The state of the job in `folder`, the [`Durability::folder`](crate::Durability) of its servers.
///
/// A server marks its folder when the last worker stops it and no worker was lost, and takes the mark
/// back at the first change after that.
///
/// ```
/// use fleet_ps::{Durability, FolderState, JobTables, LocalServers, ServerTables, Servers};
/// use fleet_ps::folder_state;
/// # let folder = std::env::temp_dir().join(format!("fleet-ps-state-{}", std::process::id()));
/// let job = JobTables { server_count: 1, worker_count: 1, sync: false, tables: vec![] };
/// assert_eq!(folder_state(&folder)?, FolderState::Empty);
/// let server = ServerTables::durable(&job, 0, Durability::in_folder(&folder))?;
/// let worker = LocalServers::new(std::slice::from_ref(&server), 0)?;
/// assert_eq!(folder_state(&folder)?, FolderState::Unfinished);
/// assert!(worker.finish()?, "the last worker");
/// worker.stop()?;
/// server.serve()?; // returns because the worker has stopped it
/// assert_eq!(folder_state(&folder)?, FolderState::Finished);
/// # std::fs::remove_dir_all(&folder).ok();
/// # Ok::<(), fleet_base::Error>(())
/// ```
pub fn folder_state(folder: &Path) -> Result<FolderState> {
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Ok(FolderState::Empty);
        }
        Err(error) => return Err(Error::io("list", folder, &error)),
    };
    let mut state = FolderState::Empty;
    for entry in entries {
        let entry = entry.map_err(|error| Error::io("list", folder, &error))?;
        let is_server = entry.file_name().to_str().is_some_and(|name| name.starts_with("server-"));
        if !is_server || !has_files(&entry.path())? {
            continue;
        }
        // The last worker stops all servers: one that was killed before it wrote its mark had ended.
        match is_finished(&entry.path()) {
            true => return Ok(FolderState::Finished),
            false => state = FolderState::Unfinished,
        }
    }
    Ok(state)
}

/// Whether a server has begun to keep its tables here; a lock alone keeps nothing.
fn has_files(folder: &Path) -> Result<bool> {
    let mut entries =
        std::fs::read_dir(folder).map_err(|error| Error::io("list", folder, &error))?;
    Ok(entries.any(|entry| entry.is_ok_and(|entry| entry.file_name() != "lock")))
}

pub(super) fn is_finished(folder: &Path) -> bool {
    folder.join(FINISHED).exists()
}

/// Marks the job as finished, or takes the mark back.
pub(super) fn set_finished(folder: &Path, finished: bool) -> Result<()> {
    let path: PathBuf = folder.join(FINISHED);
    match (finished, path.exists()) {
        (true, _) => write_file(&path, b"all workers have finished\n"),
        (false, true) => {
            std::fs::remove_file(&path).map_err(|error| Error::io("remove", &path, &error))
        }
        (false, false) => Ok(()),
    }
}
