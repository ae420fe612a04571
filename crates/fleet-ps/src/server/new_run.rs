//! Restart of a synchronous job as a whole, on the folders of its durable servers.
//!
//! Workers push the gradients of a step to all servers, wait until all are acknowledged, and then
//! arrive at each server. A server applies the step when all workers have arrived. So if one server
//! has applied a step, every other server holds all its gradients, and [`ServerTables::settle`]
//! applies them there too. If no server has applied it, the gradients are dropped and the workers
//! repeat the step. Either way, each step is applied once, with the parameters that it was computed
//! from.

use super::{Caller, OPERATOR, ServerTables, Table};
use crate::Arrival;
use crate::request::{Change, Message, Method, Stamp};
use fleet_base::sync::lock;
use fleet_base::{Error, Result};

impl ServerTables {
    /// Starts a run in which all processes of the job are new: the workers meet from the start and
    /// resume after the last step. Call it before the server listens, and only if no worker of an
    /// earlier start is left. In other modes workers join one by one, and this does nothing.
    pub fn begin_run(&self) -> Result<()> {
        // A run that died at its start may have left arrivals, which are not those of the new one.
        if !self.job.sync || self.barrier.is_unused() {
            return Ok(());
        }
        let caller = Caller { worker: OPERATOR, client: fleet_net::random_number()? };
        let (stamp, request) = (Stamp { seq: 1, ..Stamp::default() }, Change::NewRun.into());
        let bytes = Message::new(self.server, stamp, &request).bytes();
        self.do_request(caller, Method::NewRun, &bytes, &mut Vec::new())
    }

    /// Brings this server to the step up to which some server has applied all gradients.
    pub(super) fn settle(&self, steps: u64) -> Result<()> {
        let applied = self.barrier.rounds(Arrival::Sent);
        match steps.checked_sub(applied) {
            Some(0) => {
                self.discard_pending();
                Ok(())
            }
            Some(1) => {
                self.apply_pending(Arrival::Sent, self.pending_worker_count())?;
                self.barrier.set_sent_rounds(steps);
                Ok(())
            }
            _ => Err(Error::invalid("the servers' folders are at different steps of the job")
                .expected(format!("step {steps}, or the one before it"))
                .got(format!("step {applied}"))
                .help("give all servers folders of one run, or load a save into new folders")),
        }
    }

    fn discard_pending(&self) {
        for table in self.tables.values() {
            match table {
                Table::Dense(table) => table.discard(),
                Table::Sparse { pending, .. } => lock(pending).pushes.clear(),
                Table::Geo(_) | Table::GlobalStep(_) => {}
            }
        }
    }

    /// Returns the number of workers whose gradients are held. Each worker pushes every dense table
    /// once a step, but may have no row for a sparse one.
    fn pending_worker_count(&self) -> u32 {
        let count = |table: &Table| match table {
            Table::Dense(table) => table.queued() as u32,
            Table::Sparse { pending, .. } => lock(pending).worker_count() as u32,
            Table::Geo(_) | Table::GlobalStep(_) => 0,
        };
        self.tables.values().map(count).max().unwrap_or(0)
    }
}
