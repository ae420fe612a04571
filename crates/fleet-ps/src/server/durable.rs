//! Servers that survive: a snapshot now and then, and a log of what came since.
//!
//! A request that changes something is written to the log and then done; an acknowledged one is in the
//! log. A snapshot cuts at one moment, for all tables and for the answers that may be asked for
//! again, begins a new log, and writes its file while requests go on; then older files go. A server that
//! is started again loads the last snapshot and does what the logs say, requests and answers alike, so
//! that a push which its worker repeats is not applied twice.

use super::image::Image;
use super::log::{self, Log};
use super::{Caller, Flush, ServerTables, folder, lock};
use crate::JobTables;
use fleet_base::file::write_file;
use fleet_base::{Error, Result};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::time::Duration;

/// Where and how often a server keeps what it has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Durability {
    /// Each server has a folder in it.
    pub folder: PathBuf,
    pub snapshot_every: Duration,
    /// A longer log begins a snapshot; at twice the length pushes wait for it.
    pub log_bytes_max: u64,
    pub flush: Flush,
}

impl Durability {
    /// A snapshot every five minutes or 4 GiB of log.
    ///
    /// ```
    /// use fleet_ps::{Durability, JobTables, LocalServers, NonFinite, Rule, ServerTables, Servers};
    /// use fleet_ps::{TableConfig, rule::Sgd};
    /// # let folder = std::env::temp_dir().join(format!("fleet-ps-durable-{}", std::process::id()));
    /// let rule = Rule::Sgd(Sgd { lr: 1.0 });
    /// let (non_finite, options) = (NonFinite::Refuse, Default::default());
    /// let dense = TableConfig::Dense { table_id: 0, len: 2, rule, non_finite, options };
    /// let job = JobTables { server_count: 1, worker_count: 1, sync: false, tables: vec![dense] };
    /// for start in 1..3 {
    ///     let server = ServerTables::durable(&job, 0, Durability::in_folder(&folder))?;
    ///     let worker = LocalServers::new(&[server], 0)?;
    ///     worker.push_dense(0, &[1.0, 2.0])?;
    ///     let mut values = [0.0; 2];
    ///     worker.pull_dense(0, &mut values)?;
    ///     assert_eq!(values, [-1.0 * start as f32, -2.0 * start as f32]);
    /// }
    /// # std::fs::remove_dir_all(&folder).ok();
    /// # Ok::<(), fleet_base::Error>(())
    /// ```
    pub fn in_folder(folder: impl Into<PathBuf>) -> Durability {
        Durability {
            folder: folder.into(),
            snapshot_every: Duration::from_secs(300),
            log_bytes_max: 4 << 30,
            flush: Flush::Kernel,
        }
    }
}

/// What a server found of an earlier process's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Its last snapshot, where there was one.
    pub snapshot: Option<u64>,
    /// Requests of its log, which were done again.
    pub request_count: u64,
}

impl std::fmt::Display for Recovered {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let Some(snapshot) = self.snapshot {
            write!(f, "snapshot {snapshot} and ")?;
        }
        write!(f, "{} requests of the log", self.request_count)
    }
}

/// What keeps the tables of one server.
pub(super) struct Keeper {
    folder: PathBuf,
    options: Durability,
    log: Log,
    recovered: Option<Recovered>,
    /// The folder has the mark of a job that has ended well.
    is_finished: AtomicBool,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// A snapshot is wanted now.
    wanted: bool,
    closed: bool,
    /// Why the last snapshot was not written.
    failed: Option<Error>,
}

/// After a snapshot that failed the next one is tried so much later.
const PAUSE_FAILED: Duration = Duration::from_secs(10);

impl ServerTables {
    /// A server whose tables outlive its process: what the folder holds, or empty ones at first.
    pub fn durable(
        job: &JobTables,
        server: usize,
        durability: Durability,
    ) -> Result<Arc<ServerTables>> {
        let mut tables = ServerTables::new(job, server)?;
        let folder = durability.folder.join(format!("server-{server:03}"));
        std::fs::create_dir_all(&folder).map_err(|error| Error::io("create", &folder, &error))?;
        let lock = lock_folder(&folder)?;
        tables.life = same_job(&folder, job, tables.life)?;
        let (number, good, recovered) = tables.recover(&folder)?;
        let is_finished = folder::is_finished(&folder);
        let log = Log::open(&folder, number, good, durability.flush)?;
        tables.keeper = Some(Arc::new(Keeper {
            folder,
            options: durability,
            log,
            recovered,
            is_finished: AtomicBool::new(is_finished),
            state: Mutex::default(),
            changed: Condvar::new(),
        }));
        tables.folder_lock = Some(lock);
        let tables = Arc::new(tables);
        start_snapshots(&tables)?;
        Ok(tables)
    }

    /// Loads the last snapshot and what the logs say; returns the number of the last log, how many of its
    /// bytes are good, and what there was.
    fn recover(&self, folder: &Path) -> Result<(u64, u64, Option<Recovered>)> {
        let snapshots = numbered(folder, "snapshot-")?;
        let mut number = snapshots.into_iter().max().unwrap_or(0);
        if number > 0 {
            self.load_image(&snapshot_path(folder, number))?;
        }
        let first = number;
        let mut good = 0;
        let mut found = Recovered { snapshot: Some(first).filter(|it| *it > 0), request_count: 0 };
        while log::path(folder, number).exists() {
            let path = log::path(folder, number);
            let (bytes, total) = log::read(&path, |record| {
                // Requests that were refused are refused again.
                let _ = self.replay(&record);
                found.request_count += 1;
                Ok(())
            })?;
            good = bytes;
            let last = !log::path(folder, number + 1).exists();
            if bytes < total && !last {
                return Err(Error::invalid(format!("{} is damaged", path.display()))
                    .expected(format!("{total} good bytes"))
                    .got(bytes)
                    .help("remove this server's folder and load a save"));
            }
            if last {
                return Ok((number, good, Some(found).filter(|it| *it != Recovered::default())));
            }
            number += 1;
        }
        match first {
            0 => Ok((0, good, None)),
            // The log of a snapshot is begun before its file is.
            _ => Err(Error::invalid(format!("{} is missing", log::path(folder, first).display()))
                .help("remove this server's folder and load a save")),
        }
    }

    /// Writes a snapshot now; older snapshots and logs go.
    pub fn snapshot_now(&self) -> Result<()> {
        let Some(keeper) = &self.keeper else {
            return Err(Error::invalid("a server without durability has no snapshots"));
        };
        let _alone = lock(&self.keeping);
        let result = self.write_snapshot(keeper);
        let mut state = lock(&keeper.state);
        state.failed = result.as_ref().err().cloned();
        keeper.changed.notify_all();
        result
    }

    /// The job has ended well. The mark comes first: a server that is killed while it writes its
    /// snapshot has ended all the same.
    pub(super) fn conclude(&self, keeper: &Keeper) -> Result<()> {
        keeper.mark_finished()?;
        match keeper.log.len() {
            0 => Ok(()),
            _ => self.snapshot_now(),
        }
    }

    fn write_snapshot(&self, keeper: &Keeper) -> Result<()> {
        let (image, number): (Image<'_>, u64) = {
            let _cut = self.gate.write().unwrap_or_else(PoisonError::into_inner);
            (self.image(), keeper.log.rotate()?)
        };
        keeper.changed.notify_all();
        image.write(&snapshot_path(&keeper.folder, number))?;
        for (prefix, old) in [("snapshot-", number), ("log-", number)] {
            for at in numbered(&keeper.folder, prefix)?.into_iter().filter(|at| *at < old) {
                // The new one stands; an old file that cannot be deleted is deleted with the next.
                let _ = std::fs::remove_file(keeper.folder.join(format!("{prefix}{at}")));
            }
        }
        Ok(())
    }

    /// What this server goes on with, where an earlier process has left something.
    pub fn recovered(&self) -> Option<Recovered> {
        self.keeper.as_ref().and_then(|keeper| keeper.recovered)
    }

    /// Where this server keeps its tables, if it does.
    pub fn durable_folder(&self) -> Option<&Path> {
        self.keeper.as_ref().map(|keeper| keeper.folder.as_path())
    }
}

impl Keeper {
    pub fn append(&self, caller: Caller, method: u8, request: &[u8]) -> Result<()> {
        if self.is_finished.load(Relaxed) {
            let _alone = lock(&self.state);
            folder::set_finished(&self.folder, false)?;
            self.is_finished.store(false, Relaxed);
        }
        self.log.append(caller, method, request)?;
        if self.log.len() > self.options.log_bytes_max {
            self.want_snapshot();
        }
        Ok(())
    }

    fn mark_finished(&self) -> Result<()> {
        let _alone = lock(&self.state);
        folder::set_finished(&self.folder, true)?;
        self.is_finished.store(true, Relaxed);
        Ok(())
    }

    pub fn commit(&self) -> Result<()> {
        self.log.commit()
    }

    pub fn want_snapshot(&self) {
        lock(&self.state).wanted = true;
        self.changed.notify_all();
    }

    /// Waits while the log is far too long: a snapshot is on its way.
    pub fn wait_for_room(&self) -> Result<()> {
        let too_long = || self.log.len() > self.options.log_bytes_max.saturating_mul(2);
        if !too_long() {
            return Ok(());
        }
        let mut state = lock(&self.state);
        while too_long() && !state.closed {
            if let Some(error) = &state.failed {
                return Err(Error::exhausted("the log is full and no snapshot can be written")
                    .got(error.message())
                    .at(self.folder.display()));
            }
            // Looked at again now and then: the log shrinks under another lock.
            let waited = self.changed.wait_timeout(state, Duration::from_millis(100));
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(())
    }

    #[cfg(feature = "grpc")]
    pub fn statistics(&self) -> crate::control::message::LogStatistics {
        let failed = lock(&self.state).failed.clone();
        crate::control::message::LogStatistics {
            folder: self.folder.display().to_string(),
            bytes: self.log.len(),
            snapshot_error: failed.map_or(String::new(), |error| error.to_string()),
        }
    }

    /// Nobody needs snapshots any more.
    pub fn close(&self) {
        lock(&self.state).closed = true;
        self.changed.notify_all();
    }

    /// Waits until a snapshot is due; false when there will be none.
    fn wait_for_turn(&self) -> bool {
        let state = lock(&self.state);
        let failed = state.failed.is_some();
        let every = self.options.snapshot_every;
        let span = if failed { every.min(PAUSE_FAILED) } else { every };
        let idle = |state: &mut State| !state.closed && (failed || !state.wanted);
        let waited = self.changed.wait_timeout_while(state, span, idle);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner).0;
        state.wanted = false;
        !state.closed
    }
}

/// A thread that writes snapshots until the tables are gone.
fn start_snapshots(tables: &Arc<ServerTables>) -> Result<()> {
    let Some(keeper) = tables.keeper.clone() else { return Ok(()) };
    let weak: Weak<ServerTables> = Arc::downgrade(tables);
    let run = move || {
        while keeper.wait_for_turn() {
            let Some(tables) = weak.upgrade() else { return };
            if keeper.log.len() == 0 {
                continue;
            }
            if let Err(error) = tables.snapshot_now() {
                fleet_net::Log::stderr().line(format!("server {}: {error}", tables.server));
            }
        }
    };
    std::thread::Builder::new()
        .name("fleet-snapshot".to_string())
        .spawn(run)
        .map(drop)
        .map_err(|error| Error::exhausted(format!("cannot start a thread for snapshots: {error}")))
}

fn snapshot_path(folder: &Path, number: u64) -> PathBuf {
    folder.join(format!("snapshot-{number}"))
}

fn numbered(folder: &Path, prefix: &str) -> Result<Vec<u64>> {
    let entries = std::fs::read_dir(folder).map_err(|error| Error::io("list", folder, &error))?;
    let number = |name: std::ffi::OsString| name.to_str()?.strip_prefix(prefix)?.parse().ok();
    Ok(entries.flatten().filter_map(|entry| number(entry.file_name())).collect())
}

fn lock_folder(folder: &Path) -> Result<File> {
    let path = folder.join("lock");
    let file = File::create(&path).map_err(|error| Error::io("create", &path, &error))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(std::fs::TryLockError::WouldBlock) => {
            Err(Error::unavailable(format!("another process works in {}", folder.display()))
                .help("a server has one process; end the other one, or choose another folder"))
        }
        Err(std::fs::TryLockError::Error(error)) => Err(Error::io("lock", &path, &error)),
    }
}

/// The life of the tables in a folder, which must be of this job.
fn same_job(folder: &Path, job: &JobTables, life: u64) -> Result<u64> {
    let path = folder.join("job");
    let text = job.text();
    let Ok(found) = std::fs::read_to_string(&path) else {
        write_file(&path, format!("{life}\n{text}").as_bytes())?;
        return Ok(life);
    };
    let (life, theirs) = found.split_once('\n').unwrap_or((&found, ""));
    let differs = theirs.lines().zip(text.lines()).find(|(theirs, ours)| theirs != ours);
    if let Some((theirs, ours)) = differs {
        return Err(Error::invalid("a server's folder is of another job")
            .expected(ours)
            .got(theirs)
            .at(folder.display())
            .help("choose another folder, or remove this one and load a save"));
    }
    life.parse().map_err(|_| {
        Error::invalid(format!("{} is malformed", path.display())).expected("a number").got(life)
    })
}
