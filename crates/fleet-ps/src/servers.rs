//! A worker's interface to the servers of its job, wherever they run.
//!
//! It has four parts: [`TableAccess`] (pulls and pushes), [`Barriers`], [`RunControl`] (progress
//! and restarts) and [`TableAdmin`]. Communicators, ops and the life cycle of a job know only
//! these. A [`Client`](crate::Client) implements all of them, over tables in this process (tests,
//! one machine) or connections to other machines.

use crate::{
    Arrival, Ids, JobTables, Progress, PullMode, Push, SaveFormat, SaveMode, Saved, Step,
    TableStats, WorkerSeen,
};
use fleet_base::Result;
use std::path::Path;
use std::sync::Arc;

/// Rounds of [`Arrival::Received`] before training starts: the first ends when all workers are
/// present, the second when worker 0 has set the parameters, the third when all workers have read
/// them. A worker that finds this many rounds completed was restarted.
pub const START_ROUNDS: u64 = 3;
/// Reads and writes of tables, by one worker. Any thread may make any call. A call blocks until all
/// servers that it concerns have answered. An acknowledged push is applied exactly once, however
/// often it was sent. Errors name the server, the table and the worker.
///
/// A push may belong to a step. Servers remember the step: a worker that resumes after a restart
/// ([`RunControl::resume`]) sends gradients only to servers that lack them. Pushes to a table must
/// come in the order of their steps.
pub trait TableAccess: Send + Sync {
    /// Returns this worker's rank, from 0.
    fn worker(&self) -> usize;
    /// Returns the description of all tables of the job.
    fn job(&self) -> &JobTables;

    /// Reads the rows of `ids`, one after another, `pull_width` numbers each. Ids may repeat.
    fn pull_sparse(&self, table: u32, ids: Ids<'_>, rows: &mut [f32], mode: PullMode)
    -> Result<()>;
    /// Pushes gradients of rows. Gradients of equal ids are summed before they are sent.
    fn push_sparse(&self, table: u32, step: Option<Step>, push: Push<'_>) -> Result<()>;

    /// Reads all numbers of a dense table.
    fn pull_dense(&self, table: u32, values: &mut [f32]) -> Result<()>;
    /// Pushes the gradient of all numbers of a dense table.
    fn push_dense(&self, table: u32, step: Option<Step>, grad: &[f32]) -> Result<()>;
    /// Sets the values of a dense table, which worker 0 does at the start. Servers that have loaded
    /// a save keep the loaded values.
    fn set_dense(&self, table: u32, values: &[f32]) -> Result<()>;
    /// Sets the factor on the learning rate of a table's rule.
    fn set_rate_scale(&self, table: u32, scale: f32) -> Result<()>;

    /// Adds this worker's changes to rows of a geo table. They are those of its steps up to `step`.
    fn push_geo(
        &self,
        table: u32,
        step: Option<Step>,
        ids: Ids<'_>,
        differences: &[f32],
    ) -> Result<()>;
    /// Returns the ids that other workers changed since this worker's last call, and their rows.
    fn pull_geo(&self, table: u32) -> Result<(Vec<u64>, Vec<f32>)>;

    /// Counts steps of this worker, of which `step` is the last; returns the total of all workers.
    fn push_steps(&self, table: u32, step: Option<Step>, count: u32) -> Result<u64>;
}

/// The places at which the workers of a job wait for each other.
pub trait Barriers: Send + Sync {
    /// Waits until all workers that have not finished have arrived. In a synchronous job the tables
    /// apply the pushes before any worker leaves [`Arrival::Sent`].
    fn arrive(&self, at: Arrival) -> Result<()>;
    /// Arrives at [`Arrival::Sent`] in a step for which this worker has pushed nothing: the means
    /// of a synchronous job are those of the other workers. If all workers skip a step, no table
    /// changes.
    fn arrive_skipping(&self) -> Result<()>;
    /// Returns the number of rounds that all workers have completed here.
    fn rounds(&self, at: Arrival) -> Result<u64>;
    /// Ends this worker: barriers stop waiting for it. Returns true for the last worker, which may
    /// stop the servers ([`Barriers::stop`]).
    fn finish(&self) -> Result<bool>;
    /// Stops the servers.
    fn stop(&self) -> Result<()>;
}

/// A worker's progress through a run, and how it resumes after a restart.
pub trait RunControl: Send + Sync {
    /// Counts a step of this worker as made; [`RunControl::workers`] reports it to the others.
    fn count_step(&self);
    /// Records that the gradients of this worker's steps up to this one are applied on all servers.
    /// The next requests carry this to the servers.
    fn completed(&self, step: u64);
    /// Keeps a few numbers on the servers: this worker's state after a step, which its next process
    /// finds in [`Progress::kept`]. They replace the last ones.
    fn keep(&self, step: u64, state: &[u64]) -> Result<()>;
    /// Starts a run of the job. `base` steps were made before it. The tables contain this worker's
    /// steps up to `complete`, which equals `base` unless the worker was lost.
    fn begin_run(&self, base: u64, complete: u64) -> Result<()>;
    /// Makes this process its worker from now on: pushes of the worker's earlier processes are
    /// rejected. Returns their progress.
    fn adopt(&self) -> Result<Progress>;
    /// Resumes from that progress. The worker repeats the steps after `complete` with the same
    /// data; gradients are sent only to servers that lack them.
    fn resume(&self, progress: &Progress) -> Result<()>;
    /// Resumes a synchronous job all of whose processes were restarted: brings all servers to the
    /// last step that any of them has applied, and returns the number of steps. Worker 0 calls it
    /// while the others wait.
    fn settle(&self) -> Result<u64>;
    /// Returns the servers' knowledge of every worker of the job.
    fn workers(&self) -> Result<Vec<WorkerSeen>>;
}

/// Work on whole tables: deletion, saves, statistics.
pub trait TableAdmin: Send + Sync {
    /// Deletes unused rows of a sparse table ([`SparseTable::shrink`](crate::SparseTable)); returns
    /// their number.
    fn shrink(&self, table: u32, unseen_days: Option<u8>) -> Result<u64>;
    /// Resets a table on all servers to its initial state: no rows, dense numbers 0 with a fresh
    /// optimizer, no steps. Rate scales stay. Returns the number of rows deleted.
    fn clear(&self, table: u32) -> Result<u64>;
    /// Saves tables of all servers, all or none, while training continues. All servers must see
    /// the folder under this name; a save of one table needs a folder without saves of others.
    /// Each server's rows are of one moment; the moments of different servers differ a little
    /// unless the call is made at a barrier. One worker saves at a time.
    fn save(&self, what: Tables, dir: &Path, mode: SaveMode, format: SaveFormat) -> Result<Saved>;
    /// Loads tables from the latest complete save in a folder, made by any number of servers;
    /// returns the number of rows and dense numbers. One table may come from a save of all tables.
    fn load(&self, what: Tables, dir: &Path) -> Result<u64>;
    /// Returns statistics of a table, summed over the servers.
    fn stats(&self, table: u32) -> Result<TableStats>;
}

/// The tables that a save or load concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tables {
    /// All tables of the job.
    All,
    /// The table of this number.
    One(u32),
}

/// The servers of a job, seen from one worker. Each part may be replaced, for example by a test.
#[derive(Clone)]
pub struct Servers {
    /// Pulls and pushes.
    pub tables: Arc<dyn TableAccess>,
    /// Barriers of the workers.
    pub barriers: Arc<dyn Barriers>,
    /// Progress and restarts.
    pub run: Arc<dyn RunControl>,
    /// Saves, loads and statistics.
    pub admin: Arc<dyn TableAdmin>,
}

impl Servers {
    /// Returns this worker's rank, from 0.
    pub fn worker(&self) -> usize {
        self.tables.worker()
    }

    /// Returns the description of all tables of the job.
    pub fn job(&self) -> &JobTables {
        self.tables.job()
    }
}

impl<T: TableAccess + Barriers + RunControl + TableAdmin + 'static> From<Arc<T>> for Servers {
    fn from(servers: Arc<T>) -> Servers {
        Servers {
            tables: servers.clone(),
            barriers: servers.clone(),
            run: servers.clone(),
            admin: servers,
        }
    }
}
