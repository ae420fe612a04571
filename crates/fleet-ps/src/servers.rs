//! What a worker asks of the servers of its job, wherever they are.
//!
//! Communicators, ops and the life cycle of a job know only [`Servers`]; behind it are tables of this
//! process (tests, one machine) or connections to other machines.

use crate::{Arrival, NonFinite, PullMode, Push, Rule, SparseConfig};
use fleet_base::Result;

/// The tables of a job, the same on every server and known to every worker.
#[derive(Clone, Debug, PartialEq)]
pub struct JobTables {
    pub server_count: usize,
    pub worker_count: usize,
    /// Pushes wait until all workers have arrived at [`Arrival::Sent`], and their mean is applied once.
    /// Otherwise each is applied when it comes.
    pub sync: bool,
    pub tables: Vec<TableConfig>,
}

/// One table of a job.
#[derive(Clone, Debug, PartialEq)]
pub enum TableConfig {
    /// Parameters one after another, cut evenly over the servers ([`dense_range`](crate::dense_range)).
    Dense {
        table_id: u32,
        /// Numbers on all servers.
        len: usize,
        rule: Rule,
        non_finite: NonFinite,
    },
    /// Rows by id; server = id mod servers.
    Sparse(SparseConfig),
    /// Rows that workers train themselves and exchange as differences.
    Geo(SparseConfig),
    /// Steps of all workers, for schedules of the learning rate.
    GlobalStep { table_id: u32 },
}

impl TableConfig {
    pub fn table_id(&self) -> u32 {
        match self {
            TableConfig::Dense { table_id, .. } | TableConfig::GlobalStep { table_id } => *table_id,
            TableConfig::Sparse(config) | TableConfig::Geo(config) => config.table_id,
        }
    }
}

/// The servers of a job, seen from one worker. Every call may come from any thread, and blocks until
/// all servers that it concerns have answered. An answered push is applied exactly once, however often
/// it was sent; errors name the server, the table and the worker.
pub trait Servers: Send + Sync {
    /// This worker's place, from 0.
    fn worker(&self) -> usize;
    fn tables(&self) -> &JobTables;

    /// The rows of `ids`, one after another, `pull_width` numbers each. Ids may repeat.
    fn pull_sparse(&self, table: u32, ids: &[u64], rows: &mut [f32], mode: PullMode) -> Result<()>;
    /// Gradients of rows. Ids that repeat are added up before anything is sent.
    fn push_sparse(&self, table: u32, push: Push<'_>) -> Result<()>;

    /// All numbers of a dense table.
    fn pull_dense(&self, table: u32, values: &mut [f32]) -> Result<()>;
    /// The gradient of all numbers of a dense table.
    fn push_dense(&self, table: u32, grad: &[f32]) -> Result<()>;
    /// Sets the values of a dense table: what worker 0 does at the start.
    fn set_dense(&self, table: u32, values: &[f32]) -> Result<()>;
    /// Multiplies the learning rate of a table's rule from now on.
    fn set_rate_scale(&self, table: u32, scale: f32) -> Result<()>;

    /// Adds to rows of a geo table what this worker changed.
    fn push_geo(&self, table: u32, ids: &[u64], differences: &[f32]) -> Result<()>;
    /// Ids that other workers changed since this one last asked, and their rows.
    fn pull_geo(&self, table: u32) -> Result<(Vec<u64>, Vec<f32>)>;

    /// Counts steps of this worker; returns those of all.
    fn push_steps(&self, table: u32, steps: u32) -> Result<u64>;

    /// Waits until all workers that have not finished are here. In a synchronous job the tables apply
    /// what was pushed before anybody leaves [`Arrival::Sent`].
    fn arrive(&self, at: Arrival) -> Result<()>;
    /// This worker ends: nobody waits for it any more. The last one to finish may stop the servers
    /// ([`Servers::stop`]).
    fn finish(&self) -> Result<()>;
    /// Ends the servers' service.
    fn stop(&self) -> Result<()>;
}
