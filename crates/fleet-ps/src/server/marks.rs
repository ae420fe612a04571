//! Progress of every worker: the newest step whose gradients each table has here, and the steps
//! known to be complete on all servers. A restarted worker resumes from there, and sends gradients
//! of a step only to servers that lack them.

use super::{Caller, lock};
use crate::message::Method;
use fleet_base::{Error, Result};
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError, RwLock, RwLockReadGuard};

pub(super) struct Marks {
    workers: Vec<Worker>,
}

#[derive(Default)]
struct Worker {
    /// Client that has taken over this worker; 0 if none has. Read-locked while a push is applied.
    turn: RwLock<u64>,
    mark: Mutex<Mark>,
}

/// A worker's progress. Steps are counted from the first of the job, over all runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Mark {
    /// Client that has taken over this worker; 0 if none has.
    pub turn: u64,
    /// The client whose steps these are.
    pub client: u64,
    /// Steps before this run of the job.
    pub base: u64,
    /// Steps whose gradients all servers have.
    pub complete: u64,
    /// The newest step applied to each table.
    pub tables: BTreeMap<u32, u64>,
}

impl Marks {
    pub fn new(worker_count: usize) -> Marks {
        Marks { workers: (0..worker_count).map(|_| Worker::default()).collect() }
    }

    /// Checks a request of a worker before it runs: pushes of a process that was replaced are
    /// rejected. The returned guard is held until the push is applied, so that no other process
    /// takes over meanwhile.
    pub fn enter(
        &self,
        caller: Caller,
        method: Method,
    ) -> Result<Option<RwLockReadGuard<'_, u64>>> {
        let Some(worker) = self.workers.get(caller.worker) else { return Ok(None) };
        if method == Method::TakeOver {
            *worker.turn.write().unwrap_or_else(PoisonError::into_inner) = caller.client;
            return Ok(None);
        }
        if !method.is_push() {
            return Ok(None);
        }
        let turn = worker.turn.read().unwrap_or_else(PoisonError::into_inner);
        match *turn == 0 || *turn == caller.client {
            true => Ok(Some(turn)),
            false => Err(Error::invalid("another process has taken this worker's place")
                .help("end this one: what it computes is computed by the other")),
        }
    }

    /// Records that a table has a worker's gradients up to `step`, and all servers those up to
    /// `complete`.
    pub fn applied(&self, caller: Caller, table: u32, step: u64, complete: u64) {
        let Some(worker) = self.workers.get(caller.worker).filter(|_| step > 0) else { return };
        let mut mark = lock(&worker.mark);
        if mark.client != caller.client {
            // A process that does not resume from an earlier one starts its own count.
            *mark = Mark { client: caller.client, base: mark.base, ..Mark::default() };
        }
        let newest = mark.tables.entry(table).or_default();
        *newest = step.max(*newest);
        mark.complete = complete.max(mark.complete);
    }

    /// Records which of a worker's steps are complete.
    pub fn completed(&self, caller: Caller, complete: u64) {
        let Some(worker) = self.workers.get(caller.worker) else { return };
        let mut mark = lock(&worker.mark);
        if mark.client == caller.client {
            mark.complete = complete.max(mark.complete);
        }
    }

    /// Starts a run of the job: `base` steps were made before it, and this worker's are complete up
    /// to `complete`.
    pub fn begin(&self, caller: Caller, base: u64, complete: u64) {
        if let Some(worker) = self.workers.get(caller.worker) {
            let client = caller.client;
            *lock(&worker.mark) = Mark { client, base, complete, ..Mark::default() };
        }
    }

    /// Adopts the steps of earlier processes up to `complete`; returns the number made in this run.
    pub fn goes_on(&self, caller: Caller, complete: u64) -> u64 {
        let Some(worker) = self.workers.get(caller.worker) else { return 0 };
        let mut mark = lock(&worker.mark);
        mark.client = caller.client;
        mark.complete = complete.max(mark.complete);
        mark.complete.saturating_sub(mark.base)
    }

    pub fn of(&self, worker: usize) -> Mark {
        let Some(worker) = self.workers.get(worker) else { return Mark::default() };
        let turn = *worker.turn.read().unwrap_or_else(PoisonError::into_inner);
        Mark { turn, ..lock(&worker.mark).clone() }
    }

    pub fn restore(&self, worker: usize, mark: Mark) {
        let Some(worker) = self.workers.get(worker) else { return };
        *worker.turn.write().unwrap_or_else(PoisonError::into_inner) = mark.turn;
        *lock(&worker.mark) = mark;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caller(client: u64) -> Caller {
        Caller { worker: 1, client }
    }

    #[test]
    fn steps_are_known_by_table_and_process() {
        let marks = Marks::new(2);
        marks.begin(caller(7), 40, 38);
        marks.applied(caller(7), 0, 41, 38);
        marks.applied(caller(7), 3, 42, 40);
        marks.completed(caller(7), 41);
        marks.completed(caller(8), 99);
        let mark = marks.of(1);
        assert_eq!((mark.base, mark.complete), (40, 41));
        assert_eq!(mark.tables, BTreeMap::from([(0, 41), (3, 42)]));
        assert_eq!(marks.goes_on(caller(8), 41), 1);
        marks.applied(caller(8), 0, 42, 41);
        assert_eq!(marks.of(1).tables[&0], 42);
        // A process that does not resume starts its own count.
        marks.applied(caller(9), 0, 1, 0);
        assert_eq!(marks.of(1).tables, BTreeMap::from([(0, 1)]));
        let copy = Marks::new(2);
        copy.restore(1, marks.of(1));
        assert_eq!(copy.of(1), marks.of(1));
    }

    #[test]
    fn a_process_whose_place_is_taken_pushes_no_more() {
        let marks = Marks::new(2);
        assert!(marks.enter(caller(7), Method::PushDense).unwrap().is_some());
        marks.enter(caller(8), Method::TakeOver).unwrap();
        let error = marks.enter(caller(7), Method::PushDense).unwrap_err();
        assert!(error.to_string().contains("another process has taken this worker's place"));
        assert!(marks.enter(caller(8), Method::PushDense).unwrap().is_some());
        // Requests that are not pushes are not stopped.
        assert!(marks.enter(caller(7), Method::Arrive).unwrap().is_none());
    }
}
