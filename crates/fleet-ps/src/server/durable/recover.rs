//! The start of a durable server from its folder, or the reason why it must not serve.

use super::aside::COPY_BYTES;
use super::blocks::BlockReader;
use super::folder::{ACCEPTED, FINISHED, Files, JobFile, LOCK, LOST_ACKNOWLEDGED};
use super::image::SnapshotHead;
use super::inspect::check_new;
use super::log::{self, Log};
use super::reader::{LogScan, Record};
use super::record::{LogHeader, RecordHeader};
use super::scan::{FolderScan, Place, Tail, Visitor};
use super::{Durability, Keeper, aside, folder, start_snapshots, watch};
use crate::JobTables;
use crate::io_error::io_error;
use crate::job_text;
use crate::server::ServerTables;
use fleet_base::disk::{Access, Disk, DiskLock, make_folder, own_folder, read_exact_at};
use fleet_base::{Error, Result};
use std::io::IoSlice;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Condvar, Mutex};

/// Data that a server recovered from its earlier processes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Number of the last snapshot, if there was one.
    pub snapshot: Option<u64>,
    /// Requests replayed from the logs.
    pub request_count: u64,
    /// Replayed requests that were rejected, as when they were made.
    pub refused_count: u64,
    /// The incomplete end of the log, which was cut off.
    pub cut: Option<Tail>,
}

impl std::fmt::Display for Recovered {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let Some(snapshot) = self.snapshot {
            write!(f, "snapshot {snapshot} and ")?;
        }
        write!(f, "{} requests of the log", self.request_count)?;
        if self.refused_count > 0 {
            write!(f, " ({} of them rejected, as they were originally)", self.refused_count)?;
        }
        let Some(cut) = &self.cut else { return Ok(()) };
        let (file, offset) = (cut.file.display(), cut.offset);
        write!(f, "; removed {} bytes at byte {offset} of {file}: ", cut.bytes)?;
        match cut.request_count {
            0 => write!(f, "an incomplete request"),
            count => write!(f, "{count} requests after one that a power failure lost"),
        }
    }
}

impl ServerTables {
    /// Like [`ServerTables::durable`], on any disk.
    pub fn durable_on(
        disk: Arc<dyn Disk>,
        job: &JobTables,
        server: usize,
        durability: Durability,
    ) -> Result<Arc<ServerTables>> {
        let mut tables = ServerTables::new(job, server)?;
        let path = durability.folder.join(folder::server_name(server));
        own_folder(&*disk, &path)?;
        make_folder(&*disk, &path)?;
        let held = lock_folder(&*disk, &path)?;
        tables.disk = disk.clone();
        let keeper = tables.open(disk, path, durability)?;
        tables.life = keeper.life;
        tables.keeper = Some(Arc::new(keeper));
        tables.folder_lock = Some(held);
        let tables = Arc::new(tables);
        start_snapshots(&tables)?;
        watch::start(&tables)?;
        Ok(tables)
    }

    /// Fills the tables from the folder, and starts a log of this process.
    fn open(
        &self,
        disk: Arc<dyn Disk>,
        path: std::path::PathBuf,
        options: Durability,
    ) -> Result<Keeper> {
        if let Some(text) = folder::mark(&*disk, &path, LOST_ACKNOWLEDGED)? {
            return Err(lost_before(&path, &text));
        }
        let accepts_loss = folder::mark(&*disk, &path, ACCEPTED)?.is_some();
        let is_finished = folder::mark(&*disk, &path, FINISHED)?.is_some();
        let life = self.life_of(&disk, &path)?;
        let files = Files::list(&*disk, &path)?;
        let place = Place { disk: &*disk, folder: &path, life };
        let mut replay = Replay { tables: self, refused_count: 0 };
        let scan = place.scan(&files, &mut replay)?;
        if let Some(damage) = &scan.damage {
            return Err(damage.clone().into());
        }
        let refused_count = replay.refused_count;
        if let Some(tail) = &scan.tail {
            cut(&disk, &path, tail)?;
        }
        let first = scan.snapshot.as_ref().map_or(0, |(head, _)| head.number);
        for name in files.temporary.iter().cloned().chain(files.before(first)) {
            // A file that stays takes space and is removed at the next start.
            let _ = disk.remove(&path.join(name));
        }
        let (log, epoch, epochs) = begin(&disk, &path, &scan, (life, accepts_loss), &options)?;
        if accepts_loss {
            folder::remove_mark(&*disk, &path, ACCEPTED)?;
        }
        let snapshot_bytes = scan.snapshot.as_ref().map_or(0, |(_, bytes)| *bytes);
        let recovered = Recovered {
            snapshot: scan.snapshot.as_ref().map(|(head, _)| head.number),
            request_count: scan.request_count(),
            refused_count,
            cut: scan.tail,
        };
        Ok(Keeper {
            disk,
            folder: path,
            options,
            life,
            log,
            epochs,
            epoch,
            snapshot: recovered.snapshot.unwrap_or(0).into(),
            known: Mutex::default(),
            recovered: Some(recovered).filter(|it| *it != Recovered::default()),
            snapshot_bytes: snapshot_bytes.into(),
            is_finished: AtomicBool::new(is_finished),
            state: Mutex::default(),
            changed: Condvar::new(),
        })
    }

    /// Returns the life of the tables in a folder, and checks that they are of this job. A new
    /// folder gets its first log, and then its file `job`.
    fn life_of(&self, disk: &Arc<dyn Disk>, path: &Path) -> Result<u64> {
        match JobFile::read(&**disk, path)? {
            Some(Ok(file)) if file.text.is_empty() => {
                // The file was lost, and an operator has accepted that.
                JobFile { text: job_text::text(&self.job), ..file.clone() }.write(disk, path)?;
                Ok(file.life)
            }
            Some(Ok(file)) => file.check(&self.job, path).map(|()| file.life),
            Some(Err(damage)) => Err(damage.into()),
            None => {
                let files = Files::list(&**disk, path)?;
                check_new(&**disk, path, &files)??;
                let header = LogHeader {
                    life: self.life,
                    number: 0,
                    first: 0,
                    epoch: 0,
                    boot: disk.boot(),
                    accepts_loss: false,
                };
                log::create(disk, path, &header)?;
                JobFile { life: self.life, text: job_text::text(&self.job) }.write(disk, path)?;
                Ok(self.life)
            }
        }
    }
}

/// Replays a log into a server's tables.
struct Replay<'a> {
    tables: &'a ServerTables,
    refused_count: u64,
}

impl Visitor for Replay<'_> {
    fn snapshot(&mut self, head: &SnapshotHead, input: &mut BlockReader) -> Result<()> {
        self.tables.load_image(head, input)
    }

    fn record(&mut self, record: &Record<'_>) -> Result<()> {
        let is_done = self.tables.replay(record.caller, record.method, record.request)?;
        self.refused_count += u64::from(!is_done);
        Ok(())
    }
}

fn lost_before(path: &Path, text: &str) -> Error {
    Error::invalid("this server has lost acknowledged pushes").got(text).at(path.display()).help(
        format!(
            "run fleet durable inspect {} --accept-loss to resume from what is left; or remove the \
             folder and load a save",
            path.display()
        ),
    )
}

fn lock_folder(disk: &dyn Disk, folder: &Path) -> Result<DiskLock> {
    let path = folder.join(LOCK);
    match disk.lock(&path).map_err(io_error("lock", &path))? {
        Some(held) => Ok(held),
        None => {
            Err(Error::unavailable(format!("{} is in use by another process", folder.display()))
                .help("end the other process, or choose another folder"))
        }
    }
}

/// Cuts off the end of a log, and keeps its bytes aside.
fn cut(disk: &Arc<dyn Disk>, folder: &Path, tail: &Tail) -> Result<()> {
    let path = &tail.file;
    let file = disk.open(path, Access::Write).map_err(io_error("open", path))?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let copy = aside::folder(&**disk, folder)?.join(format!("{name}.at-{}", tail.offset));
    let range = tail.offset..tail.offset + tail.bytes;
    aside::copy(disk, (&*file, path), range, &copy)?;
    file.set_len(tail.offset).map_err(io_error("shorten", path))?;
    file.sync().map_err(io_error("flush", path))
}

/// Starts the log of this process. Every start writes its own, so that the header tells on which
/// boot of the machine its records were written.
fn begin(
    disk: &Arc<dyn Disk>,
    folder: &Path,
    scan: &FolderScan,
    (life, accepts_loss): (u64, bool),
    options: &Durability,
) -> Result<(Log, u64, super::Epochs)> {
    let mut epochs = scan.epochs.clone();
    let epoch = epochs.next_id()?;
    // A log without records is made again.
    let empty = scan.empty_last();
    let number = match (empty, scan.logs.last()) {
        (Some(header), _) => header.number,
        (None, last) => last.map_or(0, |log| log.header.number + 1),
    };
    let accepts_loss = accepts_loss || empty.is_some_and(|header| header.accepts_loss);
    let first = scan.next;
    let before = scan.logs.iter().rfind(|log| log.header.number < number);
    if let Some(log) = before {
        sync_again(disk, folder, log)?;
    }
    let header = LogHeader { life, number, first, epoch, boot: disk.boot(), accepts_loss };
    let kept = scan.logs.iter().filter(|log| log.header.number < number);
    let older = kept.map(|log| log.good).sum();
    let log = Log::begin(disk, folder, header, older, options.flush)?;
    if let Some(before) = before {
        close(disk, folder, before)?;
    }
    epochs.push(super::epochs::Epoch { id: epoch, first, accepts_loss });
    Ok((log, epoch, epochs))
}

/// Makes sure that records of an earlier process are on disk. If its sync failed, pages may be in
/// memory, not on disk, and skipped by the next sync. So they are written again.
fn sync_again(disk: &Arc<dyn Disk>, folder: &Path, log: &LogScan) -> Result<()> {
    let path = &log::path(folder, log.header.number);
    let file = disk.open(path, Access::Write).map_err(io_error("open", path))?;
    let mut at = log.unsynced;
    let mut bytes = vec![0; COPY_BYTES.min((log.good - at) as usize)];
    while at < log.good {
        let count = (log.good - at).min(COPY_BYTES as u64) as usize;
        read_exact_at(&*file, at, &mut bytes[..count]).map_err(io_error("read", path))?;
        file.write_at(at, &mut [IoSlice::new(&bytes[..count])]).map_err(io_error("write", path))?;
        at += count as u64;
    }
    file.sync().map_err(io_error("flush", path))
}

/// Announces, at the end of a log, that another one follows.
fn close(disk: &Arc<dyn Disk>, folder: &Path, log: &LogScan) -> Result<()> {
    if log.is_closed {
        return Ok(());
    }
    let path = log::path(folder, log.header.number);
    let (_, seed) = log.header.encode();
    let header = RecordHeader::close(log.next).encode(seed);
    let closed = disk
        .open(&path, Access::Write)
        .and_then(|file| file.write_at(log.good, &mut [IoSlice::new(&header)]));
    closed.map_err(io_error("write", &path))
}
