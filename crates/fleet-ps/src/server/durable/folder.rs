//! The folder of a durable server: names of its files, the file `job`, marks, and the state of the
//! job.

use super::damage::Damage;
use crate::JobTables;
use fleet_base::disk::{Disk, RealDisk, read_file};
use fleet_base::file::{AtomicFile, TEMPORARY_SUFFIX};
use fleet_base::{Error, Result};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Whose tables the folder holds.
pub(super) const JOB: &str = "job";
pub(super) const LOCK: &str = "lock";
/// Exists once the job has ended well; see [`folder_state`].
pub(super) const FINISHED: &str = "finished";
/// Exists once a worker had an acknowledgement of what is not here: no server starts from it.
pub(super) const BEHIND: &str = "behind";
/// The next start resumes although acknowledged pushes were lost.
pub(super) const ACCEPTED: &str = "accepted";
/// What was cut off or replaced is moved here, never deleted before the job has ended well.
pub(super) const ASIDE: &str = "aside";
pub(super) const SNAPSHOT: &str = "snapshot-";
pub(super) const LOG: &str = "log-";

/// The first line of the file `job`.
const TITLE: &str = "fleet durable folder, version 5";
/// Marks and the file `job` are shorter: a job has at most some thousand tables.
const TEXT_BYTES_MAX: u64 = 64 << 20;
const CHECKSUM: &str = "crc32 ";

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
/// A server marks its folder when the last worker stops it and no worker was lost, and takes the
/// mark back at the first change after that.
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
        // The last worker stops all servers: one that was killed before it wrote its mark had
        // ended.
        match is_finished(&entry.path()) {
            true => return Ok(FolderState::Finished),
            false => state = FolderState::Unfinished,
        }
    }
    Ok(state)
}

/// Whether a server has begun to keep its tables here; a lock alone keeps nothing.
fn has_files(folder: &Path) -> Result<bool> {
    let names = RealDisk.list(folder).map_err(|error| Error::io("list", folder, &error))?;
    Ok(names.iter().any(|name| name != LOCK))
}

fn is_finished(folder: &Path) -> bool {
    folder.join(FINISHED).exists()
}

/// The files of a server's folder.
#[derive(Clone, Debug, Default)]
pub(super) struct Files {
    /// Numbers, in order.
    pub snapshots: Vec<u64>,
    pub logs: Vec<u64>,
    /// What a process left that died while it wrote a file.
    pub temporary: Vec<String>,
    pub names: Vec<String>,
}

impl Files {
    pub fn list(disk: &dyn Disk, folder: &Path) -> Result<Files> {
        let names = disk.list(folder).map_err(|error| Error::io("list", folder, &error))?;
        let numbers = |prefix: &str| {
            let mut numbers: Vec<u64> =
                names.iter().filter_map(|name| number(name, prefix)).collect();
            numbers.sort_unstable();
            numbers
        };
        let (snapshots, logs) = (numbers(SNAPSHOT), numbers(LOG));
        let is_temporary =
            |name: &&String| name.starts_with('.') && name.ends_with(TEMPORARY_SUFFIX);
        let temporary = names.iter().filter(is_temporary).cloned().collect();
        Ok(Files { snapshots, logs, temporary, names })
    }

    /// Snapshots and logs that a snapshot has replaced.
    pub fn before(&self, snapshot: u64) -> Vec<String> {
        let names = [(SNAPSHOT, &self.snapshots), (LOG, &self.logs)];
        let old = names.iter().flat_map(|(prefix, numbers)| {
            let old = numbers.iter().filter(|number| **number < snapshot);
            old.map(move |number| format!("{prefix}{number}"))
        });
        old.collect()
    }

    pub fn has(&self, name: &str) -> bool {
        self.names.iter().any(|known| known == name)
    }
}

fn number(name: &str, prefix: &str) -> Option<u64> {
    let number = name.strip_prefix(prefix)?.parse::<u64>().ok()?;
    // Not `log-+1` and `log-01`, which no server writes.
    (format!("{prefix}{number}") == name).then_some(number)
}

pub(super) fn snapshot_path(folder: &Path, number: u64) -> PathBuf {
    folder.join(format!("{SNAPSHOT}{number}"))
}

/// What the file `job` says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct JobFile {
    pub life: u64,
    /// [`JobTables::text`] of the job.
    pub text: String,
}

/// Lines with a checksum at the end.
fn seal(mut text: String) -> String {
    let sum = crc32fast::hash(text.as_bytes());
    text.push_str(&format!("{CHECKSUM}{sum:08x}\n"));
    text
}

/// The lines, if the checksum is theirs.
fn unseal(bytes: &[u8]) -> Option<&str> {
    let text = std::str::from_utf8(bytes).ok()?;
    let at = text.rfind(CHECKSUM)?;
    let (text, sum) = text.split_at(at);
    let expected = format!("{CHECKSUM}{:08x}\n", crc32fast::hash(text.as_bytes()));
    (sum == expected).then_some(text)
}

impl JobFile {
    pub fn write(&self, disk: &Arc<dyn Disk>, folder: &Path) -> Result<()> {
        let text = seal(format!("{TITLE}\nlife {:016x}\n{}\n", self.life, self.text));
        AtomicFile::write_on(disk, &folder.join(JOB), text.as_bytes())
    }

    /// None if there is no such file.
    pub fn read(disk: &dyn Disk, folder: &Path) -> Result<Option<Result<JobFile, Damage>>> {
        let path = folder.join(JOB);
        let Some(bytes) = read_file(disk, &path, TEXT_BYTES_MAX)? else { return Ok(None) };
        if is_of_earlier_version(&bytes) {
            return Err(Error::unsupported("a durable folder was written by an earlier Fleet")
                .expected("version 5")
                .got("version 4")
                .at(path.display())
                .help(
                    "resume the job with the Fleet that wrote the folder, save its tables, and load \
                     the save here (init_server_from); or choose another folder",
                ));
        }
        let parsed = unseal(&bytes).and_then(JobFile::parse);
        let damage = || {
            let what = format!("the checksum of its {} bytes is wrong", bytes.len());
            Damage::new(&path, 0, what)
        };
        Ok(Some(parsed.ok_or_else(damage)))
    }

    fn parse(text: &str) -> Option<JobFile> {
        let (title, rest) = text.split_once('\n')?;
        let (life, text) = rest.split_once('\n')?;
        let life = u64::from_str_radix(life.strip_prefix("life ")?, 16).ok()?;
        let text = text.strip_suffix('\n')?.to_string();
        (title == TITLE).then_some(JobFile { life, text })
    }

    /// Refuses another job, with the first line that differs.
    pub fn check(&self, job: &JobTables, folder: &Path) -> Result<()> {
        let ours = job.text();
        if self.text == ours {
            return Ok(());
        }
        let end = "nothing more";
        let (mut theirs, mut lines) = (self.text.lines(), ours.lines());
        let (got, expected) = std::iter::from_fn(|| match (theirs.next(), lines.next()) {
            (None, None) => None,
            (theirs, ours) => Some((theirs.unwrap_or(end), ours.unwrap_or(end))),
        })
        .find(|(theirs, ours)| theirs != ours)
        .unwrap_or((end, end));
        Err(Error::invalid("a server's folder is of another job")
            .expected(expected)
            .got(got)
            .at(folder.display())
            .help("choose another folder, or remove this one and load a save"))
    }
}

/// The form up to version 4: the life in decimal, and the job's text, without a checksum.
fn is_of_earlier_version(bytes: &[u8]) -> bool {
    let digits = bytes.iter().take_while(|byte| byte.is_ascii_digit()).count();
    digits > 0 && bytes[digits..].starts_with(b"\nmessages of version ")
}

/// Writes a mark; its text is for people.
pub(super) fn set_mark(disk: &Arc<dyn Disk>, folder: &Path, name: &str, text: &str) -> Result<()> {
    AtomicFile::write_on(disk, &folder.join(name), seal(format!("{text}\n")).as_bytes())
}

/// What a mark says, where there is one. One that is damaged is one all the same.
pub(super) fn mark(disk: &dyn Disk, folder: &Path, name: &str) -> Result<Option<String>> {
    let bytes = read_file(disk, &folder.join(name), TEXT_BYTES_MAX)?;
    let text = |bytes: Vec<u8>| match unseal(&bytes) {
        Some(text) => text.trim_end().to_string(),
        None => "the mark is damaged".to_string(),
    };
    Ok(bytes.map(text))
}

pub(super) fn remove_mark(disk: &dyn Disk, folder: &Path, name: &str) -> Result<()> {
    let path = folder.join(name);
    match disk.remove(&path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(Error::io("remove", &path, &error))
        }
        _ => disk.sync_folder(folder).map_err(|error| Error::io("flush", folder, &error)),
    }
}
