//! The folder of a durable server: names of its files, the file `job`, marks, and the state of the
//! job.

use super::damage::Damage;
use crate::io_error::io_error;
use crate::{JobTables, job_text};
use fleet_base::disk::{Access, Disk, DiskReader, PathKind, RealDisk, own_folder};
use fleet_base::file::{AtomicFile, TEMPORARY_SUFFIX};
use fleet_base::{Error, Result};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Describes the job whose tables the folder holds.
pub(super) const JOB: &str = "job";
pub(super) const LOCK: &str = "lock";
/// Mark of a job that has ended well; see [`folder_state`].
pub(super) const FINISHED: &str = "finished";
/// Mark that requests acknowledged to a worker are lost; no server starts from the folder.
pub(super) const LOST_ACKNOWLEDGED: &str = "behind";
/// Mark that lets the next start resume although acknowledged pushes were lost.
pub(super) const ACCEPTED: &str = "accepted";
/// Folder for data that was cut off or replaced. Nothing is ever deleted from it.
pub(super) const ASIDE: &str = "aside";
pub(super) const SNAPSHOT: &str = "snapshot-";
pub(super) const LOG: &str = "log-";
pub(super) const SERVER: &str = "server-";

/// The first line of the file `job`.
const TITLE: &str = "fleet durable folder, version ";
const VERSION: &str = "7";
/// Limit on the file `job`: some ten thousand tables of about 1 KB each.
const JOB_BYTES_MAX: u64 = 8 << 20;
/// Limit on a mark, which holds a sentence.
const MARK_BYTES_MAX: u64 = 64 << 10;
const CHECKSUM: &str = "crc32 ";

/// State of the job whose durable servers keep their tables in a folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FolderState {
    /// No server has kept anything here: the folder is missing or holds no server's folder.
    Empty,
    /// The job runs or was interrupted: its servers resume with these tables.
    Unfinished,
    /// All workers have finished and the last one has stopped the servers.
    Finished,
}

/// Returns the state of the job in `folder`, the [`Durability::folder`](crate::Durability) of its
/// servers.
///
/// A server marks its folder when the last worker stops it and no worker was lost. It removes the
/// mark at the first change after that.
///
/// ```
/// use fleet_ps::{Durability, FolderState, JobTables, LocalServers, ServerTables, Barriers};
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
        let entry = entry.map_err(io_error("list", folder))?;
        let is_server =
            entry.file_name().to_str().is_some_and(|name| server_number(name).is_some());
        if !is_server || !has_files(&entry.path())? {
            continue;
        }
        // The last worker stops all servers. One that was killed before it wrote its mark has
        // finished too.
        match is_finished(&entry.path())? {
            true => return Ok(FolderState::Finished),
            false => state = FolderState::Unfinished,
        }
    }
    Ok(state)
}

/// Returns whether a server has begun to keep its tables here. The lock and `aside` do not count:
/// the next start reads nothing of them.
fn has_files(folder: &Path) -> Result<bool> {
    own_folder(&RealDisk, folder)?;
    let names = RealDisk.list(folder).map_err(io_error("list", folder))?;
    Ok(names.iter().any(|name| ![LOCK, ASIDE].contains(&&name[..])))
}

fn is_finished(folder: &Path) -> Result<bool> {
    let path = folder.join(FINISHED);
    match RealDisk.kind(&path) {
        Ok(PathKind::File) => Ok(true),
        Ok(_) => Err(Error::invalid(format!("{} is not a regular file", path.display()))),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(Error::io("stat", &path, &error)),
    }
}

/// Returns the name of a server's folder.
pub(super) fn server_name(server: usize) -> String {
    format!("{SERVER}{server:03}")
}

/// Returns the number of the server whose folder has this name.
pub(super) fn server_number(name: &str) -> Option<usize> {
    let number = name.strip_prefix(SERVER)?.parse().ok()?;
    (server_name(number) == name).then_some(number)
}

/// The files of a server's folder.
#[derive(Clone, Debug, Default)]
pub(super) struct Files {
    /// Numbers, in ascending order.
    pub snapshots: Vec<u64>,
    pub logs: Vec<u64>,
    /// Files that a process left unfinished when it died.
    pub temporary: Vec<String>,
    pub names: Vec<String>,
}

impl Files {
    pub fn list(disk: &dyn Disk, folder: &Path) -> Result<Files> {
        let names = disk.list(folder).map_err(io_error("list", folder))?;
        let numbers = |prefix: &str| {
            let mut numbers: Vec<u64> =
                names.iter().filter_map(|name| numbered(name, prefix)).collect();
            numbers.sort_unstable();
            numbers
        };
        let (snapshots, logs) = (numbers(SNAPSHOT), numbers(LOG));
        let is_temporary =
            |name: &&String| name.starts_with('.') && name.ends_with(TEMPORARY_SUFFIX);
        let temporary = names.iter().filter(is_temporary).cloned().collect();
        Ok(Files { snapshots, logs, temporary, names })
    }

    /// Returns the names of snapshots and logs that a snapshot has replaced.
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

/// Returns the number of a file with this prefix.
pub(super) fn numbered(name: &str, prefix: &str) -> Option<u64> {
    let number = name.strip_prefix(prefix)?.parse::<u64>().ok()?;
    // No server writes `log-+1` or `log-01`.
    (format!("{prefix}{number}") == name).then_some(number)
}

pub(super) fn snapshot_path(folder: &Path, number: u64) -> PathBuf {
    folder.join(format!("{SNAPSHOT}{number}"))
}

/// Contents of the file `job`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct JobFile {
    pub life: u64,
    /// [`JobTables::text`] of the job.
    pub text: String,
}

/// Reads a small file, if it exists: at most one byte more than `bytes_max`.
fn read_text(disk: &dyn Disk, path: &Path, bytes_max: u64) -> Result<Option<Vec<u8>>> {
    let file = match disk.open(path, Access::Read) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Error::io("read", path, &error)),
    };
    let mut bytes = Vec::new();
    let mut limited = DiskReader::new(file).take(bytes_max + 1);
    limited.read_to_end(&mut bytes).map_err(io_error("read", path))?;
    Ok(Some(bytes))
}

/// Appends a checksum to lines.
fn seal(mut text: String) -> String {
    let sum = crc32fast::hash(text.as_bytes());
    text.push_str(&format!("{CHECKSUM}{sum:08x}\n"));
    text
}

/// Returns the lines if their checksum is right.
fn unseal(bytes: &[u8]) -> Option<&str> {
    let text = std::str::from_utf8(bytes).ok()?;
    let at = text.rfind(CHECKSUM)?;
    let (text, sum) = text.split_at(at);
    let expected = format!("{CHECKSUM}{:08x}\n", crc32fast::hash(text.as_bytes()));
    (sum == expected).then_some(text)
}

impl JobFile {
    pub fn write(&self, disk: &Arc<dyn Disk>, folder: &Path) -> Result<()> {
        let text = seal(format!("{TITLE}{VERSION}\nlife {:016x}\n{}\n", self.life, self.text));
        if text.len() as u64 > JOB_BYTES_MAX {
            return Err(Error::exhausted("too many tables for a durable folder")
                .expected(format!("a description of at most {JOB_BYTES_MAX} bytes"))
                .got(text.len())
                .at(folder.display()));
        }
        AtomicFile::write_on(disk, &folder.join(JOB), text.as_bytes())
    }

    /// Reads the file; none if it does not exist.
    pub fn read(disk: &dyn Disk, folder: &Path) -> Result<Option<Result<JobFile, Damage>>> {
        let path = folder.join(JOB);
        let Some(bytes) = read_text(disk, &path, JOB_BYTES_MAX)? else { return Ok(None) };
        if let Some(version) = other_version(&bytes) {
            return Err(of_other_version(&path, VERSION, &version));
        }
        let parsed = unseal(&bytes).and_then(JobFile::parse);
        let damage = || match bytes.len() as u64 > JOB_BYTES_MAX {
            true => {
                let what = format!("it has more than {JOB_BYTES_MAX} bytes");
                Damage::new(&path, JOB_BYTES_MAX, what)
            }
            false => {
                let what = format!("the checksum of its {} bytes is wrong", bytes.len());
                Damage::new(&path, 0, what)
            }
        };
        Ok(Some(parsed.ok_or_else(damage)))
    }

    fn parse(text: &str) -> Option<JobFile> {
        let (title, rest) = text.split_once('\n')?;
        let (life, text) = rest.split_once('\n')?;
        let life = u64::from_str_radix(life.strip_prefix("life ")?, 16).ok()?;
        let text = text.strip_suffix('\n')?.to_string();
        (title.strip_prefix(TITLE) == Some(VERSION)).then_some(JobFile { life, text })
    }

    /// Rejects another job and names the first difference.
    pub fn check(&self, job: &JobTables, folder: &Path) -> Result<()> {
        let message = "durable folder belongs to another job";
        job_text::check(&job_text::text(job), &self.text, message).map_err(|error| {
            error
                .at(folder.display())
                .help("choose another folder, or remove this one and load a save")
        })
    }
}

/// Returns the version of a file `job` that another version of Fleet wrote. If the file is intact
/// except for its version, it is one of this version with a changed byte.
fn other_version(bytes: &[u8]) -> Option<String> {
    // Versions up to 4 have the life in decimal and the job's text, without a checksum.
    let digits = |bytes: &[u8]| bytes.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let life = digits(bytes);
    if life > 0 && bytes[life..].starts_with(b"\nmessages of version ") {
        return Some("4".to_string());
    }
    let rest = bytes.strip_prefix(TITLE.as_bytes())?;
    let (version, rest) = rest.split_at(digits(rest));
    let version = std::str::from_utf8(version).ok()?;
    if version.is_empty() || version == VERSION || !rest.starts_with(b"\n") {
        return None;
    }
    let ours = [TITLE.as_bytes(), VERSION.as_bytes(), rest].concat();
    unseal(&ours).is_none().then(|| version.to_string())
}

/// Returns the error for a file that another version of Fleet wrote.
pub(super) fn of_other_version(path: &Path, expected: &str, got: &str) -> Error {
    let number = |text: &str| text.parse::<u64>().unwrap_or(u64::MAX);
    let writer = if number(got) < number(expected) { "an earlier" } else { "a later" };
    Error::unsupported(format!("durable folder was written by {writer} version of Fleet"))
        .expected(format!("version {expected}"))
        .got(format!("version {got}"))
        .at(path.display())
        .help(
            "resume the job with the version of Fleet that wrote the folder, save its tables, and \
             load the save here (init_server_from); or choose another folder",
        )
}

/// Writes a mark; its text is for people.
pub(super) fn set_mark(disk: &Arc<dyn Disk>, folder: &Path, name: &str, text: &str) -> Result<()> {
    AtomicFile::write_on(disk, &folder.join(name), seal(format!("{text}\n")).as_bytes())
}

/// Returns the text of a mark, if it exists. A damaged mark counts as one.
pub(super) fn mark(disk: &dyn Disk, folder: &Path, name: &str) -> Result<Option<String>> {
    let bytes = read_text(disk, &folder.join(name), MARK_BYTES_MAX)?;
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
        _ => disk.sync_folder(folder).map_err(io_error("flush", folder)),
    }
}
