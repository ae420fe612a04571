//! One server: its part of every table of a job, behind one object that answers requests.
//!
//! [`ServerTables`] is the same for all callers: [`LocalServers`](crate::LocalServers) calls it in
//! this process, [`TableServer`](crate::TableServer) for connections. It knows no sockets. Requests
//! that change something carry a number and run once (`sessions.rs`).

mod answer;
mod bounds;
mod durable;
mod listen;
mod new_run;
mod pending;
mod presence;
mod progress_tracker;
mod save;
#[cfg(test)]
mod save_tests;
mod sessions;
#[cfg(feature = "grpc")]
mod statistics;

pub use durable::{
    Damage, Durability, Flush, FolderReport, FolderState, LogReport, Loss, Recovered, ServerReport,
    SnapshotReport, Tail, WorkerReport, accept_loss, folder_state, inspect,
};
pub use listen::TableServer;
pub(crate) use listen::hello;
pub(crate) use presence::{SignKind, WORKER_TIMEOUT, WorkerSign};
pub(crate) use sessions::{Caller, OPERATOR};

use crate::request::{Change, Method, Read, Request, Stamp};
use crate::save::SaveFs;
use crate::{
    BarrierTable, DenseConfig, DenseTable, Entry, GeoTable, GlobalStep, JobTables, PullMode,
    SparseTable, TableConfig, Update,
};
use fleet_base::disk::{Disk, DiskLock, RealDisk};
use fleet_base::sync::{lock, read, wait_for};
use fleet_base::{Error, Result};
use pending::Pending;
use presence::Presence;
use progress_tracker::ProgressTracker;
use sessions::ClientSessions;
use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Condvar, Mutex, RwLock};
use std::time::Duration;

/// One server's part of the tables of a job.
///
/// ```
/// use fleet_ps::{JobTables, ServerTables, SparseConfig, TableConfig};
/// let job = JobTables {
///     server_count: 2,
///     worker_count: 1,
///     sync: false,
///     tables: vec![TableConfig::Sparse(SparseConfig::plain(0, 8))],
/// };
/// let servers = ServerTables::all(&job)?;
/// assert_eq!((servers.len(), servers[1].server()), (2, 1));
/// # Ok::<(), fleet_base::Error>(())
/// ```
pub struct ServerTables {
    job: JobTables,
    server: usize,
    /// Random number that identifies the tables. It is a new one if the tables are lost.
    life: u64,
    tables: BTreeMap<u32, Table>,
    barrier: BarrierTable,
    presence: Presence,
    progress: ProgressTracker,
    /// Workers had completed the start rounds before this process listened: the server was
    /// restarted.
    is_restarted: AtomicBool,
    sessions: ClientSessions,
    /// Held shared while a request changes tables; exclusively while a snapshot of all of them is
    /// cut.
    gate: RwLock<()>,
    /// The disk of saves and loads.
    disk: Arc<dyn Disk>,
    /// The file system of saves in remote folders.
    save_fs: Mutex<Option<SaveFs>>,
    keeper: Option<Arc<durable::Keeper>>,
    /// Keeps other processes out of the folder.
    folder_lock: Option<DiskLock>,
    /// Held by a save, load, shrink or snapshot: one runs at a time.
    maintenance: Mutex<()>,
    saving: Mutex<Option<save::Saving>>,
    stopped: Mutex<bool>,
    stop: Condvar,
}

/// This server's part of a table.
pub(crate) enum Table {
    Dense(DenseTable),
    Sparse { rows: SparseTable, pending: Mutex<Pending> },
    Geo(GeoTable),
    GlobalStep(GlobalStep),
}

/// Interval between checks whether any worker is left.
const CHECK_INTERVAL: Duration = Duration::from_secs(2);

impl ServerTables {
    /// Creates the tables of one server, empty. Fails if the job is invalid or has no such server.
    pub fn new(job: &JobTables, server: usize) -> Result<ServerTables> {
        job.check()?;
        if server >= job.server_count {
            return Err(Error::invalid("server number is outside the job")
                .expected(format!("a number below {}", job.server_count))
                .got(server));
        }
        let table =
            |config: &TableConfig| Ok((config.table_id(), Table::new(config, job, server)?));
        Ok(ServerTables {
            job: job.clone(),
            server,
            life: fleet_net::random_number()?,
            tables: job.tables.iter().map(table).collect::<Result<_>>()?,
            barrier: BarrierTable::new(job.worker_count as u32)?,
            presence: Presence::new(job.worker_count),
            progress: ProgressTracker::new(job.worker_count),
            is_restarted: AtomicBool::new(false),
            sessions: ClientSessions::default(),
            gate: RwLock::new(()),
            disk: RealDisk::handle(),
            save_fs: Mutex::new(None),
            keeper: None,
            folder_lock: None,
            maintenance: Mutex::new(()),
            saving: Mutex::new(None),
            stopped: Mutex::new(false),
            stop: Condvar::new(),
        })
    }

    /// Creates all servers of a job.
    pub fn all(job: &JobTables) -> Result<Vec<Arc<ServerTables>>> {
        (0..job.server_count).map(|server| ServerTables::new(job, server).map(Into::into)).collect()
    }

    /// Returns the number of the server, from 0.
    pub fn server(&self) -> usize {
        self.server
    }

    /// Sets how long a worker may be silent before it is lost and the others continue without it.
    pub fn set_silent_after(&self, span: Duration) {
        self.presence.set_silent_after(span);
    }

    /// Returns the description of all tables of the job.
    pub fn job(&self) -> &JobTables {
        &self.job
    }

    /// Waits until a worker or [`ServerTables::stop`] stops the server, until its log fails, or
    /// until no worker is left: some have finished, others are lost, and none is connected.
    pub fn wait(&self) {
        let mut stopped = lock(&self.stopped);
        while !*stopped && !self.is_abandoned() && self.check_store().is_ok() {
            stopped = wait_for(&self.stop, stopped, CHECK_INTERVAL).0;
        }
    }

    /// Waits like [`ServerTables::wait`]. If the job has ended well, marks its folder as finished
    /// and replaces the logs by a last snapshot. Fails with the reason why a durable server could
    /// not keep its tables.
    pub fn serve(&self) -> Result<()> {
        self.wait();
        let Some(keeper) = &self.keeper else { return Ok(()) };
        keeper.check_files()?;
        match self.barrier.all_finished() {
            true => self.conclude(keeper),
            false => Ok(()),
        }
    }

    /// Returns what the server acknowledges with an answer; zeros without durability.
    fn acknowledgement(&self) -> [u64; 2] {
        self.keeper.as_ref().map_or([0, 0], |keeper| keeper.acknowledgement())
    }

    /// Fails if a durable server must end.
    fn check_store(&self) -> Result<()> {
        self.keeper.as_ref().map_or(Ok(()), |keeper| keeper.check())
    }

    /// Ends [`ServerTables::wait`].
    pub fn stop(&self) {
        *lock(&self.stopped) = true;
        self.stop.notify_all();
    }

    /// Answers a request; errors name the server and the caller.
    pub(crate) fn call(
        &self,
        caller: Caller,
        method: u8,
        request: &[u8],
        answer: &mut Vec<u8>,
    ) -> Result<()> {
        self.try_call(caller, method, request, answer)
            .map_err(|error| error.at(format!("server {}, request of {caller}", self.server)))
    }

    fn try_call(
        &self,
        caller: Caller,
        method: u8,
        request: &[u8],
        answer: &mut Vec<u8>,
    ) -> Result<()> {
        if !caller.is_operator() && caller.worker >= self.job.worker_count {
            return Err(Error::invalid("worker number is outside the job")
                .expected(format!("a number below {}", self.job.worker_count))
                .got(caller.worker));
        }
        let method = Method::parse(method)?;
        if caller.is_operator() && !method.is_control() {
            return Err(Error::invalid("request is allowed only to workers")
                .expected("statistics, a save, a load or a shrink")
                .got(format!("{method:?}")));
        }
        if method == Method::NewRun {
            return Err(Error::invalid("request is internal to servers").got(format!("{method:?}")));
        }
        self.do_request(caller, method, request, answer)
    }

    /// Runs a request that the caller is allowed to make.
    fn do_request(
        &self,
        caller: Caller,
        method: Method,
        request: &[u8],
        answer: &mut Vec<u8>,
    ) -> Result<()> {
        let (stamp, content) = Request::decode(method, request)?;
        let walks = matches!(method, Method::Shrink | Method::Clear);
        let Some(keeper) = self.keeper.as_ref().filter(|_| self.is_logged(&content)) else {
            let _alone = walks.then(|| lock(&self.maintenance));
            return self.run(caller, stamp, &content, answer, || Ok(()));
        };
        keeper.wait_for_room()?;
        // A walk over all rows takes long, and no snapshot may be cut in the middle of it.
        let alone = walks.then(|| lock(&self.maintenance));
        let result = {
            let _open = read(&self.gate);
            let append = || keeper.append(caller, method as u8, request);
            self.run(caller, stamp, &content, answer, append)
        };
        drop(alone);
        if let Err(error) = keeper.commit() {
            self.stop();
            return Err(error);
        }
        result
    }

    /// Runs a request. `first` runs before any change, and not at all if the request ran before.
    fn run(
        &self,
        caller: Caller,
        stamp: Stamp,
        request: &Request<'_>,
        answer: &mut Vec<u8>,
        first: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let change = match request {
            Request::Read(read) => {
                first()?;
                return guarded(|| self.read(caller, stamp, read, answer));
            }
            Request::Change(change) => change,
        };
        self.sessions.once(caller, (stamp.seq, stamp.done), answer, |answer| {
            let owner = self.progress.check_owner(caller, request.method())?;
            first()?;
            guarded(|| self.change(caller, stamp, change, answer))?;
            if let Some(table) = change.pushed_table() {
                self.progress.set_applied(caller, table, stamp.step, stamp.complete);
            }
            drop(owner);
            Ok(())
        })?;
        // Changes that come from files are not in the log.
        match (&self.keeper, change) {
            (Some(_), Change::Load { .. }) => self.snapshot_now(),
            (Some(keeper), Change::EndSave { .. }) => {
                keeper.want_snapshot();
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Replays a request from a log. Returns false if it is rejected, as it was the first time. A
    /// request that the sessions or the owner check reject was not logged by a server, so the log
    /// is not to be trusted.
    fn replay(&self, caller: Caller, method: u8, request: &[u8]) -> Result<bool> {
        let method = Method::parse(method)?;
        let Ok((stamp, content)) = Request::decode(method, request) else { return Ok(false) };
        let mut is_reached = false;
        let reached = || {
            is_reached = true;
            Ok(())
        };
        match self.run(caller, stamp, &content, &mut Vec::new(), reached) {
            _ if !is_reached => Err(Error::invalid("duplicate request in the log")
                .help("restore the folder: it has files of several servers or times")),
            result => Ok(result.is_ok()),
        }
    }

    /// Returns whether a restarted server must replay a request. Saves and loads are not logged:
    /// the log does not contain files. A pull is logged if the entry policy counts pulls.
    fn is_logged(&self, request: &Request<'_>) -> bool {
        match request {
            Request::Change(Change::Save { .. } | Change::EndSave { .. } | Change::Load { .. }) => {
                false
            }
            Request::Change(_) => true,
            Request::Read(Read::PullSparse { table, mode, .. }) => {
                let rows = self.tables.get(table).and_then(Table::rows);
                *mode == PullMode::Train
                    && rows.is_some_and(|t| matches!(t.config().entry, Entry::CountFilter(_)))
            }
            // The parameters that a worker reads are used to correct its gradients.
            Request::Read(Read::PullDense { table }) => match self.tables.get(table) {
                Some(Table::Dense(table)) => table.config().corrected_workers > 0,
                _ => false,
            },
            Request::Read(_) => false,
        }
    }
}

impl Drop for ServerTables {
    fn drop(&mut self) {
        if let Some(keeper) = &self.keeper {
            keeper.close();
        }
        self.folder_lock = None;
    }
}

impl Table {
    fn new(config: &TableConfig, job: &JobTables, server: usize) -> Result<Table> {
        Ok(match config {
            TableConfig::Dense { table_id, rule, non_finite, options, .. } => {
                Table::Dense(DenseTable::new(DenseConfig {
                    table_id: *table_id,
                    len: options.cut.count(config.dense_len(), server, job.server_count),
                    corrected_workers: if options.corrects_delay { job.worker_count } else { 0 },
                    rule: *rule,
                    update: if job.sync { Update::Deferred } else { Update::OnReceipt },
                    non_finite: *non_finite,
                })?)
            }
            TableConfig::Sparse(config) => {
                Table::Sparse { rows: SparseTable::new(config.clone())?, pending: Mutex::default() }
            }
            TableConfig::Geo(config) => {
                Table::Geo(GeoTable::new(config.clone(), job.worker_count)?)
            }
            TableConfig::GlobalStep { .. } => Table::GlobalStep(GlobalStep::default()),
        })
    }

    /// The rows of a sparse or geo table.
    pub fn rows(&self) -> Option<&SparseTable> {
        match self {
            Table::Sparse { rows, .. } => Some(rows),
            Table::Geo(geo) => Some(geo.rows()),
            Table::Dense(_) | Table::GlobalStep(_) => None,
        }
    }
}

/// Runs a request and turns a panic into an error, also when the request is repeated or replayed.
fn guarded<R>(run: impl FnOnce() -> Result<R>) -> Result<R> {
    // Tables are consistent between statements, and their locks ignore poisoning.
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        Err(Error::internal("a request panicked").got(text.unwrap_or("no message")))
    })
}
