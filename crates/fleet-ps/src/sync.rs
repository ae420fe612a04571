//! Synchronization of trainers: barriers and the global step.

use fleet_base::sync::{lock, wait_while};
use fleet_base::{Error, Result};
use std::collections::BTreeSet;
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Duration;

/// The point in a step at which a trainer arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// All gradients are sent.
    Sent,
    /// All parameters are received.
    Received,
}

/// Barriers of the trainers of a job.
///
/// Arriving and waiting are separate: a trainer stays arrived however often it waits, and may
/// arrive again.
///
/// ```
/// use fleet_ps::{Arrival, BarrierTable};
/// use std::time::Duration;
/// let table = BarrierTable::new(1)?;
/// let round = table.arrive(0, Arrival::Sent, |trainers| println!("all {trainers} have pushed"))?;
/// table.wait(0, Arrival::Sent, round, Duration::from_secs(1))?;
/// # Ok::<(), fleet_base::Error>(())
/// ```
pub struct BarrierTable {
    inner: Mutex<Points>,
    changed: Condvar,
    trainer_count: u32,
}

#[derive(Clone, Debug, Default)]
struct Points {
    /// By [`Arrival`].
    points: [Point; 2],
    /// Trainers that have finished; barriers do not wait for them.
    finished: BTreeSet<u32>,
    /// Trainers that barriers do not wait for until they are heard from again.
    lost: BTreeSet<u32>,
}

#[derive(Clone, Debug, Default)]
struct Point {
    arrived: BTreeSet<u32>,
    /// Those of the arrived trainers that have no gradients in this round.
    skipped: BTreeSet<u32>,
    round: u64,
}

/// State of a barrier at one moment, for snapshots.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct BarrierImage {
    pub rounds: [u64; 2],
    pub arrived: [Vec<u32>; 2],
    pub skipped: [Vec<u32>; 2],
    pub finished: Vec<u32>,
}

impl BarrierTable {
    /// Returns barriers of `trainer_count` trainers, which must be at least 1.
    pub fn new(trainer_count: u32) -> Result<BarrierTable> {
        if trainer_count == 0 {
            return Err(Error::invalid("barrier without workers").expected("at least 1").got(0));
        }
        Ok(BarrierTable { inner: Mutex::default(), changed: Condvar::new(), trainer_count })
    }

    /// Registers the arrival of a trainer; returns the round whose end it waits for. When all
    /// unfinished trainers have arrived, `last` runs with their number before any of them
    /// continues. The number does not include trainers that arrived by
    /// [`BarrierTable::arrive_skipping`].
    pub fn arrive(&self, trainer: u32, at: Arrival, last: impl FnOnce(u32)) -> Result<u64> {
        self.register(trainer, at, false, last)
    }

    /// Like [`BarrierTable::arrive`] at [`Arrival::Sent`], for a trainer that has no gradients in
    /// this round.
    ///
    /// ```
    /// use fleet_ps::{Arrival, BarrierTable};
    /// let (table, mut count) = (BarrierTable::new(2)?, 0);
    /// table.arrive_skipping(1, |_| ())?;
    /// table.arrive(0, Arrival::Sent, |trainers| count = trainers)?;
    /// assert_eq!(count, 1);
    /// # Ok::<(), fleet_base::Error>(())
    /// ```
    pub fn arrive_skipping(&self, trainer: u32, last: impl FnOnce(u32)) -> Result<u64> {
        self.register(trainer, Arrival::Sent, true, last)
    }

    fn register(
        &self,
        trainer: u32,
        at: Arrival,
        skips: bool,
        last: impl FnOnce(u32),
    ) -> Result<u64> {
        self.check(trainer)?;
        let mut points = self.lock();
        // A trainer that was restarted after it had finished takes part again.
        points.finished.remove(&trainer);
        points.lost.remove(&trainer);
        let point = points.at(at);
        point.arrived.insert(trainer);
        match skips {
            true => point.skipped.insert(trainer),
            false => point.skipped.remove(&trainer),
        };
        let round = point.round;
        if points.complete(at, self.trainer_count) {
            last(points.at(at).contributor_count());
            points.at(at).open();
            self.changed.notify_all();
        }
        Ok(round)
    }

    /// Waits for the end of a round. After `timeout`, fails with the missing trainers.
    pub fn wait(&self, trainer: u32, at: Arrival, round: u64, timeout: Duration) -> Result<()> {
        let missing = self.missing_after(trainer, at, round, timeout)?;
        if missing.is_empty() {
            return Ok(());
        }
        Err(Error::unavailable("barrier timed out")
            .expected(format!("{} workers within {timeout:?}", self.trainer_count))
            .got(format!("{} missing: {missing:?}", missing.len())))
    }

    /// Waits for up to `timeout`; returns the trainers missing then, none if the round is over.
    pub(crate) fn missing_after(
        &self,
        trainer: u32,
        at: Arrival,
        round: u64,
        timeout: Duration,
    ) -> Result<Vec<u32>> {
        self.check(trainer)?;
        let is_closed = |points: &mut Points| points.at(at).round <= round;
        let (mut points, has_timed_out) =
            wait_while(&self.changed, self.lock(), timeout, is_closed);
        if !has_timed_out {
            return Ok(Vec::new());
        }
        let here = |t: &u32, points: &mut Points| {
            points.at(at).arrived.contains(t)
                || points.finished.contains(t)
                || points.lost.contains(t)
        };
        Ok((0..self.trainer_count).filter(|t| !here(t, &mut points)).collect())
    }

    /// Ends a trainer: barriers stop waiting for it. Returns whether all have finished or are lost.
    /// Where only this trainer was missing, `last` runs with the number of those that arrived.
    pub fn finish(&self, trainer: u32, mut last: impl FnMut(Arrival, u32)) -> Result<bool> {
        self.check(trainer)?;
        let mut points = self.lock();
        points.finished.insert(trainer);
        points.lost.remove(&trainer);
        points.leave(trainer, self.trainer_count, &mut last);
        self.changed.notify_all();
        Ok((points.finished.len() + points.lost.len()) as u32 == self.trainer_count)
    }

    /// Stops waiting for a trainer until it is heard from again. Its pushes stay. Nothing is
    /// applied because of it, so this is for jobs whose pushes are applied on receipt.
    pub(crate) fn lose(&self, trainer: u32) {
        let mut points = self.lock();
        if points.finished.contains(&trainer) || trainer >= self.trainer_count {
            return;
        }
        points.lost.insert(trainer);
        points.leave(trainer, self.trainer_count, &mut |_, _| {});
        self.changed.notify_all();
    }

    /// Starts a run in which all trainers are new processes, which meet from the start. The count
    /// of rounds of sent gradients stays.
    pub(crate) fn begin_run(&self) {
        let mut points = self.lock();
        let round = points.at(Arrival::Sent).round;
        *points = Points::default();
        points.at(Arrival::Sent).round = round;
    }

    /// Records that the gradients of this many rounds are applied.
    pub(crate) fn set_sent_rounds(&self, rounds: u64) {
        self.lock().at(Arrival::Sent).round = rounds;
    }

    /// Waits for a lost trainer again.
    pub(crate) fn find(&self, trainer: usize) {
        if let Ok(trainer) = u32::try_from(trainer) {
            self.lock().lost.remove(&trainer);
        }
    }

    pub(crate) fn has_finished(&self, trainer: u32) -> bool {
        self.lock().finished.contains(&trainer)
    }

    pub(crate) fn all_finished(&self) -> bool {
        self.lock().finished.len() as u32 == self.trainer_count
    }

    pub(crate) fn any_finished(&self) -> bool {
        !self.lock().finished.is_empty()
    }

    /// Returns the number of rounds that all trainers have completed.
    pub(crate) fn rounds(&self, at: Arrival) -> u64 {
        self.lock().at(at).round
    }

    /// Returns whether no trainer has ever arrived.
    pub(crate) fn is_unused(&self) -> bool {
        self.image() == BarrierImage::default()
    }

    pub(crate) fn image(&self) -> BarrierImage {
        let points = self.lock();
        let list = |set: &BTreeSet<u32>| set.iter().copied().collect();
        BarrierImage {
            rounds: points.points.each_ref().map(|point| point.round),
            arrived: points.points.each_ref().map(|point| list(&point.arrived)),
            skipped: points.points.each_ref().map(|point| list(&point.skipped)),
            finished: list(&points.finished),
        }
    }

    pub(crate) fn restore(&self, image: BarrierImage) {
        let point = |at: usize| Point {
            arrived: image.arrived[at].iter().copied().collect(),
            skipped: image.skipped[at].iter().copied().collect(),
            round: image.rounds[at],
        };
        *self.lock() = Points {
            points: [point(0), point(1)],
            finished: image.finished.into_iter().collect(),
            lost: BTreeSet::new(),
        };
    }

    fn check(&self, trainer: u32) -> Result<()> {
        if trainer < self.trainer_count {
            return Ok(());
        }
        Err(Error::invalid("unknown worker at a barrier")
            .expected(format!("a number below {}", self.trainer_count))
            .got(trainer))
    }

    fn lock(&self) -> MutexGuard<'_, Points> {
        lock(&self.inner)
    }
}

impl Points {
    fn at(&mut self, at: Arrival) -> &mut Point {
        &mut self.points[at as usize]
    }

    fn complete(&mut self, at: Arrival, trainer_count: u32) -> bool {
        let here = self.at(at).arrived.len() + self.finished.len() + self.lost.len();
        here as u32 == trainer_count
    }

    /// Removes a trainer from the barriers, and opens those where only it was missing: first calls
    /// `last` with the number of trainers that arrived with gradients.
    fn leave(&mut self, trainer: u32, trainer_count: u32, last: &mut dyn FnMut(Arrival, u32)) {
        for at in [Arrival::Sent, Arrival::Received] {
            let point = self.at(at);
            point.arrived.remove(&trainer);
            point.skipped.remove(&trainer);
            let (is_empty, count) = (point.arrived.is_empty(), point.contributor_count());
            if !is_empty && self.complete(at, trainer_count) {
                last(at, count);
                self.at(at).open();
            }
        }
    }
}

impl Point {
    /// Returns the number of arrived trainers that have gradients in this round.
    fn contributor_count(&self) -> u32 {
        self.arrived.difference(&self.skipped).count() as u32
    }

    fn open(&mut self) {
        self.arrived.clear();
        self.skipped.clear();
        self.round += 1;
    }
}

/// Count of the steps of all trainers, on which learning rate schedules depend.
///
/// ```
/// let steps = fleet_ps::GlobalStep::default();
/// assert_eq!((steps.push(10), steps.push(5), steps.count()), (10, 15, 15));
/// ```
#[derive(Debug, Default)]
pub struct GlobalStep(std::sync::atomic::AtomicU64);

impl GlobalStep {
    /// Adds a trainer's steps; returns the new total.
    pub fn push(&self, steps: u32) -> u64 {
        let steps = u64::from(steps);
        self.0.fetch_add(steps, std::sync::atomic::Ordering::Relaxed) + steps
    }

    pub(crate) fn restore(&self, count: u64) {
        self.0.store(count, std::sync::atomic::Ordering::Relaxed);
    }

    /// Returns the number of steps of all trainers so far.
    pub fn count(&self) -> u64 {
        self.0.load(std::sync::atomic::Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

    /// Long enough for any machine; no test waits this long.
    const TIMEOUT: Duration = Duration::from_secs(60);

    /// Arrives and waits.
    fn meet(table: &BarrierTable, trainer: u32, at: Arrival, last: impl FnOnce(u32)) {
        let round = table.arrive(trainer, at, last).unwrap();
        table.wait(trainer, at, round, TIMEOUT).unwrap();
    }

    #[test]
    fn the_last_one_pours_before_anybody_goes_on() {
        let (table, pours) = (BarrierTable::new(4).unwrap(), AtomicU32::new(0));
        std::thread::scope(|scope| {
            for trainer in 0..4 {
                let (table, pours) = (&table, &pours);
                scope.spawn(move || {
                    for round in 1..=50 {
                        let pour = |count| {
                            assert_eq!(count, 4);
                            pours.fetch_add(1, SeqCst);
                        };
                        meet(table, trainer, Arrival::Sent, pour);
                        assert_eq!(pours.load(SeqCst), round);
                        meet(table, trainer, Arrival::Received, |_| ());
                    }
                });
            }
        });
    }

    #[test]
    fn who_is_missing_is_named_and_who_ended_is_not_waited_for() {
        let table = BarrierTable::new(3).unwrap();
        assert!(!table.finish(1, |_, _| ()).unwrap());
        let brief = Duration::from_millis(1);
        let round = table.arrive(0, Arrival::Sent, |_| ()).unwrap();
        let error = table.wait(0, Arrival::Sent, round, brief).unwrap_err();
        assert_eq!(error.kind(), fleet_base::ErrorKind::Unavailable);
        assert!(error.to_string().contains("1 missing: [2]"), "{error}");
        assert_eq!(
            table.arrive(0, Arrival::Sent, |_| ()).unwrap(),
            round,
            "a repeated arrival counts once"
        );
        let mut count = 0;
        assert_eq!(table.arrive(2, Arrival::Sent, |trainers| count = trainers).unwrap(), round);
        assert_eq!(count, 2);
        table.wait(0, Arrival::Sent, round, brief).unwrap();
        assert!(table.arrive(3, Arrival::Sent, |_| ()).is_err());
        assert!(!table.finish(0, |_, _| ()).unwrap());
        assert!(table.finish(2, |_, _| ()).unwrap(), "the last one");
        assert!(BarrierTable::new(0).is_err());
    }
}
