//! Learning rates that follow a schedule: functions of the steps of all workers.
//!
//! In the asynchronous modes workers report their steps at intervals to a table that counts them
//! all. The worker that reports sets the rate for that count. In the synchronous mode all are at
//! the same step.

use crate::TableAccess;
use fleet_base::Result;
use std::sync::Arc;

/// The factor on a table's rate, as a function of the step.
pub type RateOf = Arc<dyn Fn(u64) -> f64 + Send + Sync>;

/// The schedules of a job.
#[derive(Clone, Default)]
pub struct Rates {
    /// The table that counts steps.
    pub steps_table: Option<u32>,
    /// Interval between a worker's reports, in steps (`lr_decay_steps`).
    pub report_every: u32,
    /// Tables whose rate changes, with their schedules.
    pub tables: Vec<(u32, RateOf)>,
}

impl Rates {
    /// Returns no schedules: all rates stay.
    pub fn constant() -> Rates {
        Rates::default()
    }

    /// Sets the rate of the step after `made` steps, or after those that the servers have counted,
    /// if they count. It must be set before any worker pushes: without it a table would apply
    /// gradients at the full rate of its rule.
    pub fn begin(&self, servers: &dyn TableAccess, made: u64) -> Result<()> {
        let made = self.steps_table.map_or(Ok(made), |table| servers.push_steps(table, None, 0))?;
        self.set(servers, made)
    }

    pub(super) fn set(&self, servers: &dyn TableAccess, step: u64) -> Result<()> {
        self.tables
            .iter()
            .try_for_each(|(table, rate)| servers.set_rate_scale(*table, rate(step) as f32))
    }
}
