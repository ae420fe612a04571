//! What trainers wait for and count together: barriers and the global step.

use fleet_base::{Error, Result};
use std::collections::HashSet;
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Duration;

/// Where a trainer has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// All gradients are sent.
    Sent,
    /// All parameters are received.
    Received,
}

/// Meeting points of the trainers of a synchronous job.
///
/// ```
/// use fleet_ps::{Arrival, BarrierTable};
/// use std::time::Duration;
/// let table = BarrierTable::new(1)?;
/// table.arrive(0, Arrival::Sent, Duration::from_secs(1), || println!("all have pushed"))?;
/// # Ok::<(), fleet_base::Error>(())
/// ```
pub struct BarrierTable {
    inner: Mutex<[Point; 2]>,
    changed: Condvar,
    trainer_count: u32,
}

#[derive(Default)]
struct Point {
    arrived: HashSet<u32>,
    /// Trainers that have ended, of whom nobody waits for more.
    finished: HashSet<u32>,
    round: u64,
}

impl BarrierTable {
    pub fn new(trainer_count: u32) -> Result<BarrierTable> {
        if trainer_count == 0 {
            return Err(Error::invalid("a barrier needs trainers").expected("at least 1").got(0));
        }
        Ok(BarrierTable { inner: Mutex::default(), changed: Condvar::new(), trainer_count })
    }

    /// Waits until all trainers that have not finished are here. The last one runs `last` before
    /// anybody goes on. After `patience` the error says who is missing.
    pub fn arrive(
        &self,
        trainer: u32,
        at: Arrival,
        patience: Duration,
        last: impl FnOnce(),
    ) -> Result<()> {
        self.check(trainer)?;
        let mut points = self.lock();
        let point = &mut points[at as usize];
        if !point.arrived.insert(trainer) {
            return Err(Error::invalid("a trainer is at a barrier twice").got(trainer));
        }
        let round = point.round;
        if point.complete(self.trainer_count) {
            last();
            point.open();
            self.changed.notify_all();
            return Ok(());
        }
        let waiting = |points: &mut [Point; 2]| points[at as usize].round == round;
        let (mut points, outcome) = self
            .changed
            .wait_timeout_while(points, patience, waiting)
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        if !outcome.timed_out() {
            return Ok(());
        }
        let point = &mut points[at as usize];
        let missing: Vec<u32> = (0..self.trainer_count)
            .filter(|t| !point.arrived.contains(t) && !point.finished.contains(t))
            .collect();
        point.arrived.remove(&trainer);
        Err(Error::unavailable("not all trainers came to a barrier")
            .expected(format!("{} trainers within {patience:?}", self.trainer_count))
            .got(format!("{} missing: {missing:?}", missing.len())))
    }

    /// A trainer has ended: nobody waits for it any more. If it was the last that others waited for,
    /// `last` runs.
    pub fn finish(&self, trainer: u32, mut last: impl FnMut(Arrival)) -> Result<()> {
        self.check(trainer)?;
        let mut points = self.lock();
        for (point, at) in points.iter_mut().zip([Arrival::Sent, Arrival::Received]) {
            point.finished.insert(trainer);
            point.arrived.remove(&trainer);
            if !point.arrived.is_empty() && point.complete(self.trainer_count) {
                last(at);
                point.open();
            }
        }
        self.changed.notify_all();
        Ok(())
    }

    fn check(&self, trainer: u32) -> Result<()> {
        if trainer < self.trainer_count {
            return Ok(());
        }
        Err(Error::invalid("a trainer is unknown to a barrier")
            .expected(format!("a number below {}", self.trainer_count))
            .got(trainer))
    }

    fn lock(&self) -> MutexGuard<'_, [Point; 2]> {
        self.inner.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Point {
    fn complete(&self, trainer_count: u32) -> bool {
        self.arrived.union(&self.finished).count() as u32 == trainer_count
    }

    fn open(&mut self) {
        self.arrived.clear();
        self.round += 1;
    }
}

/// Steps that all trainers took together: what schedules of learning rates run on.
///
/// ```
/// let steps = fleet_ps::GlobalStep::default();
/// assert_eq!((steps.push(10), steps.push(5), steps.count()), (10, 15, 15));
/// ```
#[derive(Debug, Default)]
pub struct GlobalStep(std::sync::atomic::AtomicU64);

impl GlobalStep {
    /// Adds a trainer's steps; returns the new sum.
    pub fn push(&self, steps: u32) -> u64 {
        let steps = u64::from(steps);
        self.0.fetch_add(steps, std::sync::atomic::Ordering::Relaxed) + steps
    }

    pub fn count(&self) -> u64 {
        self.0.load(std::sync::atomic::Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

    /// Long enough for any machine; nobody waits so long.
    const PATIENCE: Duration = Duration::from_secs(60);

    #[test]
    fn the_last_one_pours_before_anybody_goes_on() {
        let (table, pours) = (BarrierTable::new(4).unwrap(), AtomicU32::new(0));
        std::thread::scope(|scope| {
            for trainer in 0..4 {
                let (table, pours) = (&table, &pours);
                scope.spawn(move || {
                    for round in 1..=50 {
                        let pour = || _ = pours.fetch_add(1, SeqCst);
                        table.arrive(trainer, Arrival::Sent, PATIENCE, pour).unwrap();
                        assert_eq!(pours.load(SeqCst), round);
                        table.arrive(trainer, Arrival::Received, PATIENCE, || ()).unwrap();
                    }
                });
            }
        });
    }

    #[test]
    fn who_is_missing_is_named_and_who_ended_is_not_waited_for() {
        let table = BarrierTable::new(3).unwrap();
        table.finish(1, |_| ()).unwrap();
        let brief = Duration::from_millis(1);
        let error = table.arrive(0, Arrival::Sent, brief, || ()).unwrap_err();
        assert_eq!(error.kind(), fleet_base::ErrorKind::Unavailable);
        assert!(error.to_string().contains("1 missing: [2]"), "{error}");
        std::thread::scope(|scope| {
            scope.spawn(|| table.arrive(0, Arrival::Sent, PATIENCE, || ()).unwrap());
            table.arrive(2, Arrival::Sent, PATIENCE, || ()).unwrap();
        });
        assert!(table.arrive(3, Arrival::Sent, brief, || ()).is_err());
        assert!(BarrierTable::new(0).is_err());
    }
}
