//! Learning rates that follow a schedule: functions of the steps of all workers.
//!
//! In the asynchronous modes workers report their steps at intervals to a table that counts them
//! all. The worker that reports sets the rate for that count. In the synchronous mode all are at
//! the same step.

use super::Core;
use super::outbox::Item;
use crate::Servers;
use fleet_base::Result;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

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
    pub fn begin(&self, servers: &dyn Servers, made: u64) -> Result<()> {
        let made = self.steps_table.map_or(Ok(made), |table| servers.push_steps(table, 0))?;
        self.set(servers, made)
    }

    pub(super) fn set(&self, servers: &dyn Servers, step: u64) -> Result<()> {
        self.tables
            .iter()
            .try_for_each(|(table, rate)| servers.set_rate_scale(*table, rate(step) as f32))
    }
}

impl Core {
    /// Counts the step that is about to end; reports at the interval.
    pub(super) fn count_step(&self) -> Result<()> {
        let Some(table) = self.rates.steps_table else { return Ok(()) };
        let every = u64::from(self.rates.report_every.max(1));
        let made = self.steps.load(Relaxed) + 1;
        match made % every {
            0 => self.outbox.put(table, Item::Steps(every as u32)),
            _ => Ok(()),
        }
    }
}
