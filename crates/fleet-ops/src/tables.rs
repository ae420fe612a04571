//! The way to the tables of parameter servers: what the ops of a worker's program call.
//!
//! As with [`Ring`](crate::Ring), ops know no sockets: whoever makes an executor hands it the
//! [`Tables`] of its job.

use crate::Services;
use fleet_base::{Error, Result};
use fleet_ir::Op;
use std::sync::Arc;

/// The tables of a job, seen from one worker. `table` is the number that ops name by `table_id`.
///
/// Calls come from one thread, in program order. A call that only hands something over may return
/// before it has arrived anywhere; a later call then says what went wrong with it.
pub trait Tables: Send + Sync {
    /// The rows of ids: each lookup's `rows` are filled, `width` numbers an id.
    fn lookup(&self, table: u32, lookups: &mut [Lookup<'_>], how: LookUp) -> Result<()>;

    /// Gradients of rows that were looked up.
    fn push_sparse(&self, table: u32, pushes: &[PushRows<'_>], width: usize) -> Result<()>;

    /// The gradients of a dense table, its variables one after another.
    fn send_dense(&self, table: u32, parts: &[&[f32]]) -> Result<()>;

    /// The newest values of a dense table that there are.
    fn recv_dense(&self, table: u32, parts: &mut [&mut [f32]]) -> Result<()>;

    /// All gradients of this step are handed over.
    fn send_barrier(&self) -> Result<()>;

    /// All values of this step are received.
    fn fetch_barrier(&self) -> Result<()>;

    /// Rows that this step is about to change in the worker's own copy of a table.
    fn touch(&self, table: u32, ids: &[i64]) -> Result<()>;

    /// The worker's own copy of a table, `width` numbers a row: it may read what training changed,
    /// and write what others did. A dense table is one row, in parts.
    fn exchange(&self, table: u32, parts: &mut [&mut [f32]], width: Option<usize>) -> Result<()>;
}

/// Ids, and where their rows belong.
pub struct Lookup<'a> {
    pub ids: &'a [i64],
    pub rows: &'a mut [f32],
}

/// How rows are looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LookUp {
    /// Numbers of a row.
    pub width: usize,
    /// The id whose row is zero.
    pub padding: Option<i64>,
    /// Ids that nobody knows get rows.
    pub is_training: bool,
}

/// Gradients of rows that were looked up.
#[derive(Clone, Copy)]
pub struct PushRows<'a> {
    pub ids: &'a [i64],
    pub grads: &'a [f32],
    /// One number a sample: each is that of equally many ids, which are next to each other.
    pub shows: Option<&'a [f32]>,
    pub clicks: Option<&'a [f32]>,
    /// The feature that the ids are values of; click tables keep it.
    pub slot: Option<u32>,
    pub padding: Option<i64>,
}

impl Services {
    /// The tables that an op asks for.
    pub fn tables_of(&self, op: &Op) -> Result<Arc<dyn Tables>> {
        self.tables.clone().ok_or_else(|| {
            Error::invalid(format!("{} needs parameter servers, and there are none", op.name()))
                .expected("the tables of a job")
                .help("start the job with fleetrun --server_num, and call init_worker; or give the executor its tables (Services::with_tables)")
        })
    }
}
