//! A worker's interface to the servers of its job, wherever they run.
//!
//! It has four parts: [`TableAccess`] (pulls and pushes), [`Barriers`], [`RunControl`] (progress and
//! restarts) and [`TableAdmin`]. Communicators, ops and the life cycle of a job know only these. A
//! [`Client`](crate::Client) implements all of them, over tables in this process (tests, one
//! machine) or connections to other machines.

use crate::{
    Arrival, DenseCut, Ids, NonFinite, Progress, PullMode, Push, Rule, SaveFormat, SaveMode, Saved,
    SparseConfig, Step, TableStats, WorkerSeen,
};
use fleet_base::{Error, Result};
use std::path::Path;
use std::sync::Arc;

/// The tables of a job, the same on every server and known to every worker.
#[derive(Clone, Debug, PartialEq)]
pub struct JobTables {
    pub server_count: usize,
    pub worker_count: usize,
    /// Whether pushes wait until all workers have arrived at [`Arrival::Sent`], so that the servers
    /// apply their mean once. A dense table takes the mean over the pushes. A sparse table divides
    /// the sum by the number of workers that arrived. Rows of click tables are summed and not
    /// divided: their gradients are sums over samples already. Otherwise each push is applied on
    /// receipt. Geo tables add at once in either case.
    pub sync: bool,
    pub tables: Vec<TableConfig>,
}

/// One table of a job.
#[derive(Clone, Debug, PartialEq)]
pub enum TableConfig {
    /// Parameters laid end to end, divided among the servers.
    Dense {
        table_id: u32,
        /// Number of elements on all servers.
        len: usize,
        rule: Rule,
        non_finite: NonFinite,
        options: DenseOptions,
    },
    /// Rows by id; an id is on server `id mod server_count`.
    Sparse(SparseConfig),
    /// Rows that workers train locally and exchange as differences.
    Geo(SparseConfig),
    /// Count of the steps of all workers, for learning rate schedules.
    GlobalStep { table_id: u32 },
}

/// Options that few dense tables need.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DenseOptions {
    pub cut: DenseCut,
    /// Correct gradients for the changes since their worker read the parameters (DC-ASGD). Invalid
    /// in synchronous jobs, where there are no such changes.
    pub corrects_delay: bool,
}

impl TableConfig {
    pub fn table_id(&self) -> u32 {
        match self {
            TableConfig::Dense { table_id, .. } | TableConfig::GlobalStep { table_id } => *table_id,
            TableConfig::Sparse(config) | TableConfig::Geo(config) => config.table_id,
        }
    }

    pub(crate) fn kind(&self) -> &'static str {
        match self {
            TableConfig::Dense { .. } => "dense",
            TableConfig::Sparse(_) => "sparse",
            TableConfig::Geo(_) => "geo",
            TableConfig::GlobalStep { .. } => "global step",
        }
    }
}

/// Changes whenever workers of one version cannot talk to servers of another.
const MESSAGES_VERSION: &str = "messages of version 6";
/// Rounds of [`Arrival::Received`] before training starts: the first ends when all workers are
/// present, the second when worker 0 has set the parameters, the third when all workers have read
/// them. A worker that finds this many rounds completed was restarted.
pub const START_ROUNDS: u64 = 3;
/// Limit on servers and on workers of a job, within which barriers and placements are practical.
const COUNT_MAX: usize = 1 << 16;

impl JobTables {
    /// Rejects jobs without servers or workers, and duplicate table ids.
    pub(crate) fn check(&self) -> Result<()> {
        for (what, count) in [("servers", self.server_count), ("workers", self.worker_count)] {
            if !(1..=COUNT_MAX).contains(&count) {
                return Err(Error::invalid(format!("invalid number of {what} in a job"))
                    .expected(format!("1 to {COUNT_MAX}"))
                    .got(count));
            }
        }
        for table in &self.tables {
            let TableConfig::Dense { table_id, len, options, .. } = table else { continue };
            let place = |error: Error| error.at(format!("dense table {table_id}"));
            options.cut.check(*len, self.server_count).map_err(place)?;
            if options.corrects_delay && self.sync {
                return Err(place(
                    Error::invalid("delay compensation (DC-ASGD) conflicts with a synchronous job")
                        .help("turn off delay compensation (enable_dc_asgd) or sync"),
                ));
            }
        }
        let mut ids: Vec<u32> = self.tables.iter().map(TableConfig::table_id).collect();
        ids.sort_unstable();
        match ids.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => Err(Error::invalid("duplicate table id").got(pair[0])),
            None => Ok(()),
        }
    }

    /// Returns the job as text, one fact a line, which a client and its servers compare.
    pub(crate) fn text(&self) -> String {
        format!("{MESSAGES_VERSION}\n{self:#?}")
    }

    /// Returns the table with an id, which must be of one of `kinds`.
    pub(crate) fn table(&self, table_id: u32, kinds: &[&str]) -> Result<&TableConfig> {
        let table = self.tables.iter().find(|table| table.table_id() == table_id);
        let error = match table {
            Some(table) if kinds.contains(&table.kind()) => return Ok(table),
            Some(table) => Error::invalid(format!("table {table_id} is a {} table", table.kind()))
                .expected(kinds.join(" or ")),
            None => {
                let known: Vec<u32> = self.tables.iter().map(TableConfig::table_id).collect();
                Error::invalid("no such table").expected(format!("one of {known:?}")).got(table_id)
            }
        };
        Err(error)
    }
}

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
    fn job(&self) -> &JobTables;

    /// Reads the rows of `ids`, one after another, `pull_width` numbers each. Ids may repeat.
    fn pull_sparse(&self, table: u32, ids: &[u64], rows: &mut [f32], mode: PullMode) -> Result<()>;
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
    All,
    One(u32),
}

/// The servers of a job, seen from one worker. Each part may be replaced, for example by a test.
#[derive(Clone)]
pub struct Servers {
    pub tables: Arc<dyn TableAccess>,
    pub barriers: Arc<dyn Barriers>,
    pub run: Arc<dyn RunControl>,
    pub admin: Arc<dyn TableAdmin>,
}

impl Servers {
    /// Returns this worker's rank, from 0.
    pub fn worker(&self) -> usize {
        self.tables.worker()
    }

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
