//! The request to stop a training, and how the workers of a job agree on their last step.

use crate::Fleet;
use fleet_base::{Result, signals};
use fleet_metrics::{Group, Reduce};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

/// A request to stop, from a signal or from any thread. Clones share it.
///
/// ```
/// use fleet::trainer::StopFlag;
/// let flag = StopFlag::on_terminate()?; // SIGTERM
/// let clone = flag.clone();
/// clone.request();
/// assert!(flag.is_requested());
/// # Ok::<(), fleet::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct StopFlag(Arc<AtomicBool>);

impl StopFlag {
    /// Creates a flag that only [`StopFlag::request`] sets.
    pub fn new() -> StopFlag {
        StopFlag::default()
    }

    /// Creates a flag that SIGTERM sets. The signal then no longer ends the process by itself.
    pub fn on_terminate() -> Result<StopFlag> {
        Ok(StopFlag(signals::terminate_flag()?))
    }

    /// Requests the training to stop after a step.
    pub fn request(&self) {
        self.0.store(true, Relaxed);
    }

    /// Returns whether a stop is requested.
    pub fn is_requested(&self) -> bool {
        self.0.load(Relaxed)
    }
}

/// Reason for a training to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Ended {
    /// All steps were made.
    Completed,
    /// The validation did not improve any more.
    EarlyStop,
    /// A callback stopped it.
    Callback,
    /// It was requested to stop, as by SIGTERM.
    Requested,
}

/// The workers that make their steps together, or this one alone.
pub(super) struct Team<'f> {
    fleet: &'f Fleet,
    is_in_step: bool,
}

impl<'f> Team<'f> {
    pub fn new(fleet: &'f Fleet, is_in_step: bool) -> Team<'f> {
        Team { fleet, is_in_step: is_in_step && fleet.worker_num() > 1 }
    }

    /// Returns whether this worker makes its steps alone.
    pub fn is_alone(&self) -> bool {
        !self.is_in_step
    }

    /// Reduces numbers over the workers of the team.
    pub fn reduce(&self, reduce: Reduce, values: &mut [f64]) -> Result<()> {
        if self.is_alone() { Ok(()) } else { self.fleet.metrics().all_reduce(reduce, values) }
    }

    /// Replaces numbers by their means over the workers of the team.
    pub fn mean(&self, values: &mut [f64]) -> Result<()> {
        self.reduce(Reduce::Sum, values)?;
        let count = if self.is_alone() { 1 } else { self.fleet.worker_num() };
        values.iter_mut().for_each(|value| *value /= count as f64);
        Ok(())
    }

    /// Returns whether every worker has a next batch. A worker whose data fails has none.
    pub fn all_have_next(&self, own: Result<bool>) -> Result<bool> {
        let mut least = [f64::from(u8::from(matches!(own, Ok(true))))];
        let reduced = self.reduce(Reduce::Min, &mut least);
        own?;
        reduced?;
        Ok(least[0] > 0.0)
    }

    /// Returns the numbers of batches that every worker has, if all know theirs.
    pub fn batches<const N: usize>(&self, own: [Option<u64>; N]) -> Result<[Option<u64>; N]> {
        let mut least = own.map(|own| own.map_or(-1.0, |own| own as f64));
        self.reduce(Reduce::Min, &mut least)?;
        Ok(least.map(|least| (least >= 0.0).then_some(least as u64)))
    }
}

/// Agreements of the team during an epoch, at steps on which all workers agree beforehand. Each
/// round costs one small all-reduce, so the interval grows until rounds are [`PERIOD`] apart.
pub(super) struct Rounds {
    /// Step of the next round, and its distance from the last one.
    next: u64,
    interval: u64,
    /// Step and time of the last round.
    last: (u64, Duration),
}

/// Time between two agreements: a request to stop takes effect at most this much later. A round
/// costs some 50 us on one machine, and a millisecond on a slow network.
const PERIOD: Duration = Duration::from_millis(500);
/// Limit of the interval in steps, for steps that become much slower.
const INTERVAL_MAX: u64 = 4096;

/// A worker's part of an agreement, and its result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Wish {
    pub stop: Option<Ended>,
    /// Whether a checkpoint is due by time, on the clock of the first worker.
    pub save: bool,
}

impl Rounds {
    pub fn new(step: u64, now: Duration) -> Rounds {
        Rounds { next: step + 1, interval: 1, last: (step, now) }
    }

    /// Agrees on the wishes of all workers, if this step has a round. `forced` is the same on all
    /// workers.
    pub fn agree(
        &mut self,
        team: &Team<'_>,
        (step, forced): (u64, bool),
        now: Duration,
        own: Wish,
    ) -> Result<Wish> {
        if team.is_alone() {
            return Ok(own);
        }
        if step < self.next && !forced {
            return Ok(Wish::default());
        }
        let is_first = team.fleet.is_first_worker();
        let interval = if is_first { self.proposal(step, now) } else { 0 };
        let code = match own.stop {
            Some(Ended::Requested) => 2.0,
            Some(_) => 1.0,
            None => 0.0,
        };
        let save = f64::from(u8::from(own.save && is_first));
        let mut values = [code, save, interval as f64];
        team.reduce(Reduce::Max, &mut values)?;
        (self.interval, self.last) = (values[2] as u64, (step, now));
        self.next = step + self.interval;
        let stop = match values[0] {
            2.0 => Some(Ended::Requested),
            1.0 => Some(Ended::Callback),
            _ => None,
        };
        Ok(Wish { stop, save: values[1] > 0.0 })
    }

    /// Returns the interval that brings the next round [`PERIOD`] after this one, at most twice the
    /// last interval.
    fn proposal(&self, step: u64, now: Duration) -> u64 {
        let steps = u128::from(step - self.last.0).max(1);
        let step_ns = now.saturating_sub(self.last.1).as_nanos() / steps;
        let wanted = (PERIOD.as_nanos() / step_ns.max(1)).min(INTERVAL_MAX.into()) as u64;
        wanted.clamp(1, (2 * self.interval).min(INTERVAL_MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_grow_until_rounds_are_rare() {
        let after = |interval: u64, step: Duration| {
            let rounds = Rounds { interval, ..Rounds::new(0, Duration::ZERO) };
            rounds.proposal(interval, step * interval as u32)
        };
        let check = |interval, step_us, expected| {
            assert_eq!(after(interval, Duration::from_micros(step_us)), expected);
        };
        check(1, 8000, 2);
        check(32, 8000, 62);
        check(62, 8000, 62);
        check(62, 100_000, 5);
        check(62, 3_000_000, 1);
        check(4096, 10, 4096);
        check(4096, 0, 4096);
    }
}
