//! Contents and damage of a durable job's folder, read without making its tables.

use super::blocks::BlockReader;
use super::damage::Damage;
use super::folder::{
    self, ACCEPTED, FINISHED, Files, FolderState, JobFile, LOCK, LOST_ACKNOWLEDGED,
};
use super::image::{ProgressImage, SnapshotHead};
use super::log;
use super::reader::{self, Record};
use super::scan::{FolderScan, Place, Tail, Visitor};
use crate::io_error::io_error;
use crate::job_text;
use crate::request::{Method, Request};
use fleet_base::disk::{Disk, PathKind, RealDisk, own_folder};
use fleet_base::{Error, ErrorKind, Result};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Contents of a folder of durable servers.
#[derive(Clone, Debug)]
pub struct FolderReport {
    /// Whether servers can resume from the folder.
    pub state: FolderState,
    /// The servers of the job.
    pub servers: Vec<ServerReport>,
    /// Folders that are named like a server's but belong to no server of the job.
    pub strays: Vec<PathBuf>,
}

/// Contents of the folder of one server.
#[derive(Clone, Debug, Default)]
pub struct ServerReport {
    /// Folder of the server.
    pub folder: PathBuf,
    /// Number that identifies its tables, if any file states it.
    pub life: Option<u64>,
    /// The folder has no tables: the next start begins with empty ones.
    pub is_empty: bool,
    /// The job's tables, as the file `job` describes them.
    pub job: Option<String>,
    /// The snapshot that a start loads first, if there is one.
    pub snapshot: Option<SnapshotReport>,
    /// The good logs, in order.
    pub logs: Vec<LogReport>,
    /// Progress of the workers, by rank.
    pub workers: BTreeMap<usize, WorkerReport>,
    /// The incomplete end of the last log, which the next start cuts off.
    pub tail: Option<Tail>,
    /// The first damage that prevents a start.
    pub damage: Option<Damage>,
    /// Why no server starts from the folder although nothing is damaged: a worker has an
    /// acknowledgement of requests that are missing.
    pub behind: Option<String>,
    /// The next start resumes although acknowledged requests were lost.
    pub accepts_loss: bool,
    /// Whether all workers had finished, and no request has changed a table since.
    pub is_finished: bool,
    /// A server is using it: the end of its last log is being written.
    pub is_in_use: bool,
    /// Files that the next start removes.
    pub leftovers: Vec<String>,
}

/// A snapshot of all tables of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotReport {
    /// Number of the snapshot: later ones have larger numbers.
    pub number: u64,
    /// Size of its file.
    pub bytes: u64,
    /// Requests that it contains.
    pub request_count: u64,
}

/// A log of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogReport {
    /// Number of the log: later ones have larger numbers.
    pub number: u64,
    /// The number of its first request.
    pub first: u64,
    /// Number of whole requests in it.
    pub request_count: u64,
    /// Size of its file.
    pub bytes: u64,
}

/// Progress of a worker in the data that is left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkerReport {
    /// The newest step whose gradients some table has.
    pub step: u64,
    /// The newest step that the worker knew to be complete on all servers.
    pub complete: u64,
    /// The number of its last changing request, as its process counts them.
    pub sequence: u64,
}

impl ServerReport {
    /// Returns whether a server can start from the folder.
    pub fn is_good(&self) -> bool {
        self.damage.is_none() && self.behind.is_none()
    }
}

/// Inspects a folder of durable servers, or that of one server.
///
/// ```
/// use fleet_ps::{Durability, JobTables, LocalServers, ServerTables, TableAccess, TableConfig};
/// # let folder = std::env::temp_dir().join(format!("fleet-ps-inspect-{}", std::process::id()));
/// let tables = vec![TableConfig::GlobalStep { table_id: 0 }];
/// let job = JobTables { server_count: 1, worker_count: 1, sync: false, tables };
/// let server = ServerTables::durable(&job, 0, Durability::in_folder(&folder))?;
/// LocalServers::new(&[server], 0)?.push_steps(0, None, 3)?;
/// let report = fleet_ps::inspect(&folder)?;
/// assert_eq!(report.servers[0].logs[0].request_count, 1);
/// assert!(report.servers[0].is_good());
/// # std::fs::remove_dir_all(&folder).ok();
/// # Ok::<(), fleet_base::Error>(())
/// ```
pub fn inspect(folder: &Path) -> Result<FolderReport> {
    let disk: Arc<dyn Disk> = Arc::new(RealDisk);
    let (servers, strays) = server_folders(&*disk, folder)?;
    let servers: Result<Vec<_>> = servers.iter().map(|it| look(&disk, it)).collect();
    let servers = servers?;
    let state = match servers.iter().any(|server| server.is_finished) {
        true => FolderState::Finished,
        false if servers.iter().all(|server| server.is_empty) => FolderState::Empty,
        false => FolderState::Unfinished,
    };
    Ok(FolderReport { state, servers, strays })
}

/// Returns the servers' folders in a job's folder, or the folder itself if it is a server's. Also
/// returns strays, which are left alone.
pub(super) fn server_folders(
    disk: &dyn Disk,
    folder: &Path,
) -> Result<(Vec<PathBuf>, Vec<PathBuf>)> {
    let kind = disk.kind(folder).map_err(io_error("list", folder))?;
    if kind != PathKind::Folder {
        return Err(Error::invalid(format!("{} is not a folder", folder.display()))
            .expected("the folder of --durable, with folders such as server-000"));
    }
    let names = disk.list(folder).map_err(io_error("list", folder))?;
    let is_own = |name: &String| {
        name == folder::JOB || name.starts_with(folder::LOG) || name.starts_with(folder::SNAPSHOT)
    };
    if names.iter().any(is_own) {
        return Ok((vec![folder.to_path_buf()], Vec::new()));
    }
    let (mut servers, mut strays) = (Vec::new(), Vec::new());
    for name in names.iter().filter(|name| name.starts_with(folder::SERVER)) {
        let path = folder.join(name);
        match is_stray(disk, &path, name)? {
            true => strays.push(path),
            false => servers.push(path),
        }
    }
    // All files of a server's folder may be in `aside`.
    let is_emptied = |name: &String| [LOCK, folder::ASIDE].contains(&&name[..]);
    if servers.is_empty() && strays.is_empty() && names.iter().any(is_emptied) {
        return Ok((vec![folder.to_path_buf()], strays));
    }
    match servers.is_empty() {
        false => Ok((servers, strays)),
        true => Err(Error::invalid(format!("no durable server in {}", folder.display()))
            .expected("the folder of --durable, with folders such as server-000")),
    }
}

/// Returns whether a folder with a server's name belongs to no server of its job. Rejects anything
/// that is not a folder.
fn is_stray(disk: &dyn Disk, path: &Path, name: &str) -> Result<bool> {
    let Some(number) = folder::server_number(name) else { return Ok(true) };
    own_folder(disk, path)?;
    // An unreadable file is reported when its folder is inspected.
    let Ok(Some(Ok(job))) = JobFile::read(disk, path) else { return Ok(false) };
    Ok(job_text::server_count(&job.text).is_some_and(|count| number >= count))
}

/// Inspects the folder of one server.
pub(super) fn look(disk: &Arc<dyn Disk>, path: &Path) -> Result<ServerReport> {
    let is_in_use = is_in_use(&**disk, path)?;
    let files = Files::list(&**disk, path)?;
    let found = JobFile::read(&**disk, path)?;
    let is_missing = found.is_none();
    let (job, damage) = match found {
        Some(Ok(job)) => (Some(job), None),
        Some(Err(damage)) => (None, Some(damage)),
        None => (None, check_new(&**disk, path, &files)?.err()),
    };
    let life = match &job {
        Some(job) => Some(job.life),
        None => life_of_others(&**disk, path, &files)?,
    };
    let mut seen = ProgressVisitor::default();
    let scan = match life {
        Some(life) => Place { disk: &**disk, folder: path, life }.scan(&files, &mut seen)?,
        None => FolderScan::default(),
    };
    let mut report = ServerReport {
        folder: path.to_path_buf(),
        life,
        is_empty: is_missing && damage.is_none(),
        job: job.map(|job| job.text),
        workers: seen.workers,
        behind: folder::mark(&**disk, path, LOST_ACKNOWLEDGED)?,
        accepts_loss: folder::mark(&**disk, path, ACCEPTED)?.is_some(),
        is_finished: folder::mark(&**disk, path, FINISHED)?.is_some(),
        is_in_use,
        ..ServerReport::default()
    };
    report.fill(scan, files);
    report.damage = damage.or(report.damage);
    Ok(report)
}

impl ServerReport {
    fn fill(&mut self, scan: FolderScan, files: Files) {
        self.snapshot = scan.snapshot.as_ref().map(|(head, bytes)| SnapshotReport {
            number: head.number,
            bytes: *bytes,
            request_count: head.first,
        });
        let log = |scan: &reader::LogScan| LogReport {
            number: scan.header.number,
            first: scan.header.first,
            request_count: scan.record_count,
            bytes: scan.good,
        };
        self.logs = scan.logs.iter().map(log).collect();
        let first = self.snapshot.map_or(0, |snapshot| snapshot.number);
        self.leftovers = files.before(first);
        self.leftovers.extend(files.temporary);
        (self.tail, self.damage) = (scan.tail, scan.damage);
    }
}

/// Returns whether a server is using a folder.
fn is_in_use(disk: &dyn Disk, folder: &Path) -> Result<bool> {
    use std::io::ErrorKind::{PermissionDenied, ReadOnlyFilesystem};
    let path = folder.join(LOCK);
    match disk.lock(&path) {
        Ok(held) => Ok(held.is_none()),
        // The folder is read-only.
        Err(error) if [PermissionDenied, ReadOnlyFilesystem].contains(&error.kind()) => Ok(false),
        Err(error) => Err(Error::io("lock", &path, &error)),
    }
}

/// Rejects a folder without a file `job`, unless the folder is new, or its server died before it
/// had written the file.
pub(super) fn check_new(disk: &dyn Disk, path: &Path, files: &Files) -> Result<Result<(), Damage>> {
    let is_new = match (&files.snapshots[..], &files.logs[..]) {
        ([], []) => true,
        ([], [0]) => {
            let scan = reader::read(disk, &log::path(path, 0), &mut |_| Ok(()))?;
            scan.is_ok_and(|scan| scan.good == scan.total && scan.record_count == 0)
        }
        _ => false,
    };
    Ok(match is_new {
        true => Ok(()),
        false => {
            // Files of another version are an error of their own, not damage.
            life_of_others(disk, path, files)?;
            let what = "it is missing, but the folder has snapshots or logs";
            Err(Damage::missing(path.join(folder::JOB), what))
        }
    })
}

/// Returns the life that a folder's logs or snapshots state.
pub(super) fn life_of_others(disk: &dyn Disk, path: &Path, files: &Files) -> Result<Option<u64>> {
    for number in files.logs.iter().rev() {
        if let Ok(header) = reader::read_header(disk, &log::path(path, *number))? {
            return Ok(Some(header.life));
        }
    }
    for number in files.snapshots.iter().rev() {
        match SnapshotHead::of(disk, &folder::snapshot_path(path, *number)) {
            Ok(head) => return Ok(Some(head.life)),
            // Another version of Fleet wrote it.
            Err(error) if error.kind() == ErrorKind::Unsupported => return Err(error),
            Err(_) => {}
        }
    }
    Ok(None)
}

/// Records the progress of workers.
#[derive(Default)]
pub(super) struct ProgressVisitor {
    pub workers: BTreeMap<usize, WorkerReport>,
    pub request_count: u64,
}

impl ProgressVisitor {
    pub fn note(&mut self, worker: usize, method: u8, request: &[u8]) {
        self.request_count += 1;
        let parsed = Method::parse(method).and_then(|method| Request::decode(method, request));
        let Ok((stamp, request)) = parsed else { return };
        let seen = self.workers.entry(worker).or_default();
        seen.complete = seen.complete.max(stamp.complete);
        if let Request::Change(change) = request {
            seen.sequence = stamp.seq;
            let step = if change.pushed_table().is_some() { stamp.step } else { 0 };
            seen.step = seen.step.max(step);
        }
    }
}

impl Visitor for ProgressVisitor {
    fn snapshot(&mut self, head: &SnapshotHead, input: &mut BlockReader) -> Result<()> {
        let progress = ProgressImage::load(head, input)?;
        for (worker, own) in progress.workers.into_iter().enumerate() {
            let seen = self.workers.entry(worker).or_default();
            seen.step = own.tables.values().copied().max().unwrap_or(0);
            seen.complete = own.complete;
            let session = progress.sessions.iter().find(|it| it.client == own.client);
            let last = session.and_then(|it| it.answers.last());
            seen.sequence = last.map_or(0, |(sequence, _)| *sequence);
        }
        input.check_rest()
    }

    fn record(&mut self, record: &Record<'_>) -> Result<()> {
        self.note(record.caller.worker, record.method, record.request);
        Ok(())
    }
}
