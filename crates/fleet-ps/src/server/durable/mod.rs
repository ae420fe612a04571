//! Servers whose tables outlive their process: snapshots, and logs of the requests since.
//!
//! A changing request is written to the log before it runs, so every acknowledged request is in the
//! log. A snapshot is cut at one moment, for all tables and for the answers that clients may ask
//! for again. It starts a new log and is written while requests continue; then older files are
//! deleted. A restarted server loads the last snapshot and replays the logs, requests and answers
//! alike. So a push that its worker repeats is not applied twice.
//!
//! `record.rs` defines the bytes of a log; `log.rs` writes them and `reader.rs` reads them.
//! `blocks.rs` and `image.rs` are the snapshot. `scan.rs` judges a folder, and `recover.rs` starts
//! a server from it. `inspect.rs` and `accept.rs` are for operators, and `aside.rs` keeps cut-off
//! data. `epochs.rs` detects lost acknowledgements, and `watch.rs` lost files.

mod accept;
mod aside;
mod blocks;
mod damage;
mod epochs;
mod folder;
mod image;
mod inspect;
mod log;
mod log_state;
mod reader;
mod record;
mod recover;
mod scan;
mod stored;
#[cfg(test)]
mod tests;
mod watch;
mod write_back;

pub use accept::{Loss, accept_loss};
pub use damage::Damage;
pub use folder::{FolderState, folder_state};
pub use inspect::{FolderReport, LogReport, ServerReport, SnapshotReport, WorkerReport, inspect};
pub use log_state::Flush;
pub use recover::Recovered;
pub use scan::Tail;

use super::{Caller, ServerTables};
use epochs::Epochs;
use fleet_base::disk::{Disk, RealDisk};
use fleet_base::sync::{lock, wait_for, wait_while, write};
use fleet_base::{Error, Result};
use folder::{FINISHED, Files, LOST_ACKNOWLEDGED, snapshot_path};
use image::{Image, SnapshotHead};
use log::Log;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, Weak};
use std::time::Duration;

/// Where and how a server keeps its tables on disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Durability {
    /// Folder of the job, which contains a folder for each server.
    pub folder: PathBuf,
    /// Interval between snapshots.
    pub snapshot_every: Duration,
    /// Length of the logs, in bytes, that starts a snapshot. Logs of at least 256 MiB and eight
    /// times the last snapshot start one too. At twice this length pushes wait for the snapshot,
    /// and are rejected if it cannot be written.
    pub log_bytes_max: u64,
    /// When requests reach the disk.
    pub flush: Flush,
}

impl Durability {
    /// Returns options for a snapshot every five minutes or 4 GiB of log.
    ///
    /// ```
    /// use fleet_ps::{Durability, JobTables, LocalServers, NonFinite, Rule, ServerTables};
    /// use fleet_ps::{TableAccess, TableConfig, rule::Sgd};
    /// # let name = format!("fleet-ps-durable-{}", std::process::id());
    /// # let folder = std::env::temp_dir().join(name);
    /// let rule = Rule::Sgd(Sgd { lr: 1.0 });
    /// let (non_finite, options) = (NonFinite::Refuse, Default::default());
    /// let params = vec![("weight".to_string(), 2)];
    /// let dense = TableConfig::Dense { table_id: 0, params, rule, non_finite, options };
    /// let job =
    ///     JobTables { server_count: 1, worker_count: 1, sync: false, tables: vec![dense] };
    /// for start in 1..3 {
    ///     let server = ServerTables::durable(&job, 0, Durability::in_folder(&folder))?;
    ///     let worker = LocalServers::new(&[server], 0)?;
    ///     worker.push_dense(0, None, &[1.0, 2.0])?;
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

/// Keeps the tables of one server on disk.
pub(super) struct Keeper {
    disk: Arc<dyn Disk>,
    folder: PathBuf,
    options: Durability,
    life: u64,
    log: Log,
    epochs: Epochs,
    epoch: u64,
    recovered: Option<Recovered>,
    /// Number of the last complete snapshot; 0 if there is none.
    snapshot: AtomicU64,
    /// Files that were seen in the folder and that this server has not replaced.
    known: Mutex<BTreeSet<String>>,
    /// Size of the last snapshot, in bytes.
    snapshot_bytes: AtomicU64,
    /// The folder is marked as that of a job that has ended well.
    is_finished: AtomicBool,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// A snapshot is requested.
    wanted: bool,
    closed: bool,
    /// Why the last snapshot could not be written.
    failed: Option<Error>,
}

/// Pause after a failed snapshot before the next attempt.
const PAUSE_FAILED: Duration = Duration::from_secs(10);

/// Ratio of the logs to the last snapshot that starts a snapshot. At this ratio snapshots are a
/// small part of all writes, and the logs are still replayed quickly.
const LOG_TO_SNAPSHOT: u64 = 8;
/// Logs shorter than this, in bytes, start no snapshot, however small the tables are.
const LOG_BYTES_SHORT: u64 = 256 << 20;

impl ServerTables {
    /// Starts a server whose tables outlive its process: those in its folder, or empty ones in a
    /// new folder.
    pub fn durable(
        job: &crate::JobTables,
        server: usize,
        durability: Durability,
    ) -> Result<Arc<ServerTables>> {
        ServerTables::durable_on(Arc::new(RealDisk), job, server, durability)
    }

    /// Writes a snapshot now, and deletes older snapshots and logs.
    pub fn snapshot_now(&self) -> Result<()> {
        let Some(keeper) = &self.keeper else {
            return Err(Error::invalid("server without durability has no snapshots"));
        };
        let _alone = lock(&self.maintenance);
        let result = self.write_snapshot(keeper);
        let mut state = lock(&keeper.state);
        state.failed = result.as_ref().err().cloned();
        keeper.changed.notify_all();
        result
    }

    /// Marks a job that has ended well as finished, and writes a last snapshot. The mark comes
    /// first: a server that is killed while it writes its snapshot has finished all the same.
    pub(super) fn conclude(&self, keeper: &Keeper) -> Result<()> {
        keeper.mark_finished()?;
        match keeper.log.is_empty() {
            true => Ok(()),
            false => self.snapshot_now(),
        }
    }

    fn write_snapshot(&self, keeper: &Keeper) -> Result<()> {
        // Syncs nearly all of the log while requests continue; little is left for the sync under
        // the lock.
        keeper.log.sync()?;
        let (image, head): (Image<'_>, SnapshotHead) = {
            let _cut = write(&self.gate);
            let image = self.image();
            (image, self.snapshot_head(keeper, keeper.log.rotate()?))
        };
        let number = head.number;
        let bytes = image.write(&keeper.disk, &snapshot_path(&keeper.folder, number), &head)?;
        keeper.snapshot_bytes.store(bytes, Relaxed);
        keeper.snapshot.store(number, SeqCst);
        keeper.log.forget_older();
        keeper.changed.notify_all();
        let files = Files::list(&*keeper.disk, &keeper.folder)?;
        for name in files.before(number) {
            // The new snapshot is in place. An old file that cannot be deleted is deleted with the
            // next one.
            let _ = keeper.disk.remove(&keeper.folder.join(name));
        }
        Ok(())
    }

    fn snapshot_head(&self, keeper: &Keeper, number: u64) -> SnapshotHead {
        SnapshotHead {
            life: keeper.life,
            number,
            first: keeper.log.state().written(),
            epochs: keeper.epochs.clone(),
            worker_count: self.job.worker_count as u64,
        }
    }

    /// Rejects a worker that has an acknowledgement of requests that this server has lost. From
    /// then on the server rejects all workers, also after a restart, until an operator decides.
    pub(super) fn check_acknowledged(
        &self,
        caller: Caller,
        [life, epoch, acknowledged]: [u64; 3],
    ) -> Result<()> {
        let Some(keeper) = self.keeper.as_ref().filter(|keeper| keeper.life == life) else {
            // Tables of another life are lost as a whole, which the worker detects.
            return Ok(());
        };
        keeper.log.state().check()?;
        let left = keeper.log.state().written();
        let lost = match epoch {
            0 => 0,
            epoch => keeper.epochs.lost(epoch, acknowledged, left),
        };
        if lost == 0 {
            return Ok(());
        }
        let error = keeper.refuse_lost(caller, acknowledged, lost);
        self.stop();
        Err(error)
    }

    /// Returns what this server resumed with, if an earlier process left anything.
    pub fn recovered(&self) -> Option<Recovered> {
        self.keeper.as_ref().and_then(|keeper| keeper.recovered.clone())
    }

    /// Returns the folder in which this server keeps its tables, if it is durable.
    pub fn durable_folder(&self) -> Option<&Path> {
        self.keeper.as_ref().map(|keeper| keeper.folder.as_path())
    }
}

impl Keeper {
    pub fn append(&self, caller: Caller, method: u8, request: &[u8]) -> Result<()> {
        if self.is_finished.load(Relaxed) {
            let _alone = lock(&self.state);
            folder::remove_mark(&*self.disk, &self.folder, FINISHED)?;
            self.is_finished.store(false, Relaxed);
        }
        self.log.append(caller, method, request)?;
        if self.log.len() > self.log_bytes_due() {
            self.want_snapshot();
        }
        Ok(())
    }

    /// Returns the length of the logs, in bytes, that starts a snapshot.
    fn log_bytes_due(&self) -> u64 {
        let short = self.snapshot_bytes.load(Relaxed).saturating_mul(LOG_TO_SNAPSHOT);
        short.max(LOG_BYTES_SHORT).min(self.options.log_bytes_max)
    }

    /// Makes the log reject all requests, because acknowledged ones are lost; returns the error.
    fn refuse_lost(&self, caller: Caller, acknowledged: u64, lost: u64) -> Error {
        let left = acknowledged - lost;
        let text = format!("{left} of {acknowledged} acknowledged requests of {caller} are left");
        let error = Error::invalid("this server has lost acknowledged pushes")
            .got(&text)
            .at(self.folder.display())
            .help(format!(
                "run fleet durable inspect {} to see what is left, or with --accept-loss to resume \
                 from there; or restart the job from a save",
                self.folder.display()
            ));
        // This process rejects requests even if the mark cannot be written.
        let _ = folder::set_mark(&self.disk, &self.folder, LOST_ACKNOWLEDGED, &text);
        self.log.state().poison(error)
    }

    /// Returns what an answer acknowledges: the epoch of this start, and the number below which
    /// requests are kept.
    pub fn acknowledgement(&self) -> [u64; 2] {
        [self.epoch, self.log.kept()]
    }

    /// Fails if the server must end.
    pub fn check(&self) -> Result<()> {
        self.log.state().check()
    }

    fn mark_finished(&self) -> Result<()> {
        let _alone = lock(&self.state);
        let text = "all workers have finished";
        folder::set_mark(&self.disk, &self.folder, FINISHED, text)?;
        self.is_finished.store(true, Relaxed);
        Ok(())
    }

    /// Waits until all written requests are as safe as [`Flush`] requires.
    pub fn commit(&self) -> Result<()> {
        self.log.commit()
    }

    pub fn want_snapshot(&self) {
        lock(&self.state).wanted = true;
        self.changed.notify_all();
    }

    /// Waits while the log is far too long, until the snapshot in progress has shortened it.
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
            // Checked again at intervals: the log shrinks under another lock.
            state = wait_for(&self.changed, state, Duration::from_millis(100)).0;
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

    /// Ends the threads that write snapshots and watch the files.
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
        let (mut state, _) = wait_while(&self.changed, state, span, idle);
        state.wanted = false;
        !state.closed
    }
}

/// Starts a thread that writes snapshots until the tables are dropped.
fn start_snapshots(tables: &Arc<ServerTables>) -> Result<()> {
    let Some(keeper) = tables.keeper.clone() else { return Ok(()) };
    let weak: Weak<ServerTables> = Arc::downgrade(tables);
    let run = move || {
        while keeper.wait_for_turn() {
            let Some(tables) = weak.upgrade() else { return };
            if keeper.log.is_empty() {
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
