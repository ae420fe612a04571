//! Access to the tables of parameter servers, for the ops of a worker's program.
//!
//! As with [`Ring`](crate::Ring), ops do not use sockets: the creator of an executor passes the
//! [`Tables`] of its job.

use fleet_base::{Error, Result};

/// The tables of a job, seen from one worker. `table` is the number in the ops' attribute
/// `table_id`.
///
/// Calls come from one thread, in program order. A call that only sends may return before delivery.
/// In that case a later call reports its failure.
pub trait Tables: Send + Sync {
    /// Looks up the rows of ids. Fills `rows` of each lookup with `width` numbers per id.
    fn lookup(&self, table: u32, lookups: &mut [Lookup<'_>], how: LookUp) -> Result<()>;

    /// Pushes gradients of rows that were looked up.
    fn push_sparse(&self, table: u32, pushes: &[PushRows<'_>], width: usize) -> Result<()>;

    /// Sends the gradients of a dense table, its variables one after another.
    fn send_dense(&self, table: u32, parts: &[&[f32]]) -> Result<()>;

    /// Replaces the push of a table's gradients in a step that is skipped: this worker sends
    /// nothing to any table in this step. By default, skipped steps are not supported.
    fn skip(&self, table: u32) -> Result<()> {
        Err(Error::unsupported("these tables cannot skip a step").got(format!("table {table}")))
    }

    /// Receives the newest available values of a dense table.
    fn recv_dense(&self, table: u32, parts: &mut [&mut [f32]]) -> Result<()>;

    /// Marks the end of this step's gradients.
    fn send_barrier(&self) -> Result<()>;

    /// Marks the end of this step's received values.
    fn fetch_barrier(&self) -> Result<()>;

    /// Names the rows that this step will change in the worker's own copy of a table.
    fn touch(&self, table: u32, ids: &[i64]) -> Result<()>;

    /// Passes the worker's own copy of a table, with `width` numbers per row. The implementation
    /// may read the worker's changes and write the changes of other workers. A dense table is one
    /// row, in parts.
    fn exchange(&self, table: u32, parts: &mut [&mut [f32]], width: Option<usize>) -> Result<()>;
}

/// Ids to look up, and memory for their rows.
pub struct Lookup<'a> {
    /// The ids; repeated ones are allowed.
    pub ids: &'a [i64],
    /// Memory for one row per id, in their order.
    pub rows: &'a mut [f32],
}

/// Options of a lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LookUp {
    /// Numbers per row.
    pub width: usize,
    /// Id whose row is zero.
    pub padding: Option<i64>,
    /// Whether unknown ids get a new row.
    pub is_training: bool,
}

/// Gradients of rows that were looked up.
#[derive(Clone, Copy)]
pub struct PushRows<'a> {
    /// The ids; repeated ones are allowed.
    pub ids: &'a [i64],
    /// One gradient row per id, in their order.
    pub grads: &'a [f32],
    /// One number per sample. Each sample has the same number of ids, which are adjacent.
    pub shows: Option<&'a [f32]>,
    /// One number per sample, like `shows`.
    pub clicks: Option<&'a [f32]>,
    /// Feature slot of the ids, which click tables store.
    pub slot: Option<u32>,
    /// Id whose gradients are not sent.
    pub padding: Option<i64>,
}
