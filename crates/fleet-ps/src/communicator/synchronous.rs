//! Sync: all workers make a step together. The servers apply the mean of all pushes once, and no
//! worker continues before all have the result: as if one process had worked on the whole batch.
//! Workers that skip the step are not part of the mean.

use super::{Core, Mode};
use crate::Arrival;
use fleet_base::Result;
use std::sync::atomic::Ordering::Relaxed;

pub(super) struct Sync;

impl Mode for Sync {
    fn sent(&self, core: &Core) -> Result<()> {
        core.outbox.drain()?;
        // All workers are at the same step, so one of them sets the rate for all.
        if core.servers.worker() == 0 {
            core.rates.set(&*core.servers.tables, core.steps.load(Relaxed))?;
        }
        match core.is_skipped.load(Relaxed) {
            true => core.servers.barriers.arrive_skipping(),
            false => core.servers.barriers.arrive(Arrival::Sent),
        }
    }

    fn received(&self, core: &Core) -> Result<()> {
        core.servers.barriers.arrive(Arrival::Received)
    }
}
