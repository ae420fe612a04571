//! Barriers of workers that may be restarted: they are counted, and a restarted worker does not
//! wait at those that its earlier process has passed with the others.

use crate::servers::Worker;
use fleet_base::Result;
use fleet_ps::{Arrival, START_ROUNDS};

/// Waits for the barrier with this number, from 1, unless all workers have passed it.
pub(super) fn wait(worker: &Worker, number: u64) -> Result<()> {
    // In sync mode every step is a barrier, and workers are never restarted alone.
    if worker.job().plan.exchange.is_sync() {
        return worker.barrier();
    }
    while !has_passed(worker, number)? {
        worker.barrier()?;
    }
    Ok(())
}

/// Returns whether all workers have passed the barrier with this number; false in sync mode.
pub(super) fn has_passed(worker: &Worker, number: u64) -> Result<bool> {
    if worker.job().plan.exchange.is_sync() {
        return Ok(false);
    }
    Ok(worker.servers().barriers.rounds(Arrival::Received)? >= START_ROUNDS + number)
}
