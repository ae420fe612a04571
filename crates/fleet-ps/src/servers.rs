//! What a worker asks of the servers of its job, wherever they are.
//!
//! Communicators, ops and the life cycle of a job know only [`Servers`]; behind it are tables of
//! this process (tests, one machine) or connections to other machines.

use crate::{
    Arrival, DenseCut, NonFinite, Progress, PullMode, Push, Rule, SaveFormat, SaveMode, Saved,
    SparseConfig, TableStats, WorkerSeen,
};
use fleet_base::{Error, Result};
use std::path::Path;

/// The tables of a job, the same on every server and known to every worker.
#[derive(Clone, Debug, PartialEq)]
pub struct JobTables {
    pub server_count: usize,
    pub worker_count: usize,
    /// Pushes wait until all workers have arrived at [`Arrival::Sent`], and their mean is applied
    /// once: a dense table takes the mean over the pushes, a sparse one the sum over the workers
    /// that arrived divided by their number. Rows of click tables are summed and not divided: their
    /// gradients are sums over samples already. Otherwise each push is applied when it comes. Geo
    /// tables add at once in either case.
    pub sync: bool,
    pub tables: Vec<TableConfig>,
}

/// One table of a job.
#[derive(Clone, Debug, PartialEq)]
pub enum TableConfig {
    /// Parameters one after another, divided among the servers.
    Dense {
        table_id: u32,
        /// Numbers on all servers.
        len: usize,
        rule: Rule,
        non_finite: NonFinite,
        options: DenseOptions,
    },
    /// Rows by id; server = id mod servers.
    Sparse(SparseConfig),
    /// Rows that workers train themselves and exchange as differences.
    Geo(SparseConfig),
    /// Steps of all workers, for schedules of the learning rate.
    GlobalStep { table_id: u32 },
}

/// What few dense tables want otherwise.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DenseOptions {
    pub cut: DenseCut,
    /// Gradients are corrected by what has changed since their worker read the parameters
    /// (DC-ASGD); not in synchronous jobs, where nothing has.
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

/// Changes when a worker of one version cannot talk to a server of another.
const MESSAGES_VERSION: &str = "messages of version 6";
/// How often the workers of a job meet at [`Arrival::Received`] before they train: when all are
/// there, when worker 0 has brought the parameters, and when all have them. A worker that comes to
/// servers where they have met so often was started again.
pub const START_ROUNDS: u64 = 3;
/// Servers and workers of a job: what a barrier and a placement make sense for.
const COUNT_MAX: usize = 1 << 16;

impl JobTables {
    /// Refuses jobs without servers or workers, and numbers of tables that come twice.
    pub(crate) fn check(&self) -> Result<()> {
        for (what, count) in [("servers", self.server_count), ("workers", self.worker_count)] {
            if !(1..=COUNT_MAX).contains(&count) {
                return Err(Error::invalid(format!("the number of {what} of a job is wrong"))
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
                    Error::invalid("gradients of a synchronous job are never late")
                        .help("turn the correction of delays off, or sync"),
                ));
            }
        }
        let mut ids: Vec<u32> = self.tables.iter().map(TableConfig::table_id).collect();
        ids.sort_unstable();
        match ids.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => {
                Err(Error::invalid("two tables of a job have the same number").got(pair[0]))
            }
            None => Ok(()),
        }
    }

    /// Every fact on a line of its own: what a client and its servers compare.
    pub(crate) fn text(&self) -> String {
        format!("{MESSAGES_VERSION}\n{self:#?}")
    }

    /// The table of a number, which must be one of `kinds`.
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

/// The servers of a job, seen from one worker. Every call may come from any thread, and blocks
/// until all servers that it concerns have answered. An answered push is applied exactly once,
/// however often it was sent; errors name the server, the table and the worker.
pub trait Servers: Send + Sync {
    /// This worker's place, from 0.
    fn worker(&self) -> usize;
    fn tables(&self) -> &JobTables;

    /// The rows of `ids`, one after another, `pull_width` numbers each. Ids may repeat.
    fn pull_sparse(&self, table: u32, ids: &[u64], rows: &mut [f32], mode: PullMode) -> Result<()>;
    /// Gradients of rows. Ids that repeat are added up before anything is sent.
    fn push_sparse(&self, table: u32, push: Push<'_>) -> Result<()> {
        self.push_sparse_of(0, table, push)
    }
    /// As [`Servers::push_sparse`], of a step of this worker, from 1: servers remember it, and a
    /// worker that goes on for one that has died ([`Servers::go_on`]) sends to none what it has.
    /// Pushes to a table come in the order of their steps.
    fn push_sparse_of(&self, step: u64, table: u32, push: Push<'_>) -> Result<()>;

    /// All numbers of a dense table.
    fn pull_dense(&self, table: u32, values: &mut [f32]) -> Result<()>;
    /// The gradient of all numbers of a dense table.
    fn push_dense(&self, table: u32, grad: &[f32]) -> Result<()> {
        self.push_dense_of(0, table, grad)
    }
    /// As [`Servers::push_dense`], of a step.
    fn push_dense_of(&self, step: u64, table: u32, grad: &[f32]) -> Result<()>;
    /// Sets the values of a dense table: what worker 0 does at the start. Servers that have loaded
    /// a save keep what they have loaded.
    fn set_dense(&self, table: u32, values: &[f32]) -> Result<()>;
    /// Multiplies the learning rate of a table's rule from now on.
    fn set_rate_scale(&self, table: u32, scale: f32) -> Result<()>;

    /// Adds to rows of a geo table what this worker changed.
    fn push_geo(&self, table: u32, ids: &[u64], differences: &[f32]) -> Result<()> {
        self.push_geo_of(0, table, ids, differences)
    }
    /// As [`Servers::push_geo`], of the steps up to this one.
    fn push_geo_of(&self, step: u64, table: u32, ids: &[u64], differences: &[f32]) -> Result<()>;
    /// Ids that other workers changed since this one last asked, and their rows.
    fn pull_geo(&self, table: u32) -> Result<(Vec<u64>, Vec<f32>)>;

    /// Counts steps of this worker; returns those of all.
    fn push_steps(&self, table: u32, steps: u32) -> Result<u64> {
        self.push_steps_of(0, table, steps)
    }
    /// As [`Servers::push_steps`], the last of which is this one.
    fn push_steps_of(&self, step: u64, table: u32, steps: u32) -> Result<u64>;

    /// A step of this worker is done: [`Servers::workers`] tells the others.
    fn count_step(&self);
    /// A run of the job begins: `base` steps were made before it, and this worker's are in the
    /// tables up to `complete`, which is as many unless it was lost.
    fn begin_after(&self, base: u64, complete: u64) -> Result<()>;
    /// Gradients of this worker's steps up to this one are applied on all servers: they are told
    /// with what is sent next.
    fn completed(&self, step: u64);
    /// This process is its worker from now on: what processes send that were it before is refused.
    /// Returns how far they came.
    fn take_over(&self) -> Result<Progress>;
    /// Goes on where they came to: the steps behind `complete` are made again, with the same data,
    /// and no server is sent gradients that it has.
    fn go_on(&self, progress: &Progress) -> Result<()>;
    /// In a synchronous job that all its processes resume: brings all servers to the last step that
    /// any of them has applied, and returns how many there were. Worker 0 calls it while the others
    /// wait.
    fn settle(&self) -> Result<u64>;
    /// What servers know of every worker of the job.
    fn workers(&self) -> Result<Vec<WorkerSeen>>;

    /// Waits until all workers that have not finished are here. In a synchronous job the tables
    /// apply what was pushed before anybody leaves [`Arrival::Sent`].
    fn arrive(&self, at: Arrival) -> Result<()>;
    /// How often all workers have met here.
    fn rounds(&self, at: Arrival) -> Result<u64>;
    /// This worker ends: nobody waits for it any more. True for the last one, who may stop the
    /// servers ([`Servers::stop`]).
    fn finish(&self) -> Result<bool>;
    /// Ends the servers' service.
    fn stop(&self) -> Result<()>;

    /// Deletes rows of a sparse table that nobody needs
    /// ([`SparseTable::shrink`](crate::SparseTable)); returns how many.
    fn shrink(&self, table: u32, unseen_days: Option<u8>) -> Result<u64>;
    /// Makes a table on all servers what it was when it was made: no rows, dense numbers 0 with a
    /// fresh optimizer, no steps. Rates stay. Returns how many rows there were.
    fn clear(&self, table: u32) -> Result<u64>;
    /// Saves all tables of all servers into a folder that servers see by this name: all or none,
    /// while training goes on. Each server's rows are those of one moment; between servers moments
    /// differ by a little, unless it is done at a barrier. One worker does it at a time.
    fn save(&self, dir: &Path, mode: SaveMode, format: SaveFormat) -> Result<Saved>;
    /// As [`Servers::save`], of one table, into a folder of its own.
    fn save_table(
        &self,
        table: u32,
        dir: &Path,
        mode: SaveMode,
        format: SaveFormat,
    ) -> Result<Saved>;
    /// As [`Servers::load`], of one table, from a save of it or of all.
    fn load_table(&self, table: u32, dir: &Path) -> Result<u64>;
    /// Loads the latest complete save in a folder, of any number of servers; returns rows and dense
    /// numbers.
    fn load(&self, dir: &Path) -> Result<u64>;
    /// Numbers about a table, added up over the servers.
    fn stats(&self, table: u32) -> Result<TableStats>;
}
