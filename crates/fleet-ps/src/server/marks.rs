//! How far every worker has come: the newest of its steps whose gradients each table has here, and
//! the steps that it knows to be whole on all servers. A worker that is started again goes on from
//! there, and sends gradients of a step only to those that lack them.

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
    /// The client that is this worker since one was started again; 0 before. Held while a push is
    /// applied.
    turn: RwLock<u64>,
    mark: Mutex<Mark>,
}

/// A worker's steps, counted from the first of the job, also over runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Mark {
    /// The client that is this worker; 0 where none was started again.
    pub turn: u64,
    /// The client whose steps these are.
    pub client: u64,
    /// Steps before this run of the job.
    pub base: u64,
    /// Steps whose gradients all servers have.
    pub complete: u64,
    /// The newest step that is in a table.
    pub tables: BTreeMap<u32, u64>,
}

impl Marks {
    pub fn new(worker_count: usize) -> Marks {
        Marks { workers: (0..worker_count).map(|_| Worker::default()).collect() }
    }

    /// Before a change by a worker: gradients of a process that another one has taken the place of
    /// are refused. What comes back is held until the change is done. Nobody's gradients are on
    /// their way when a place is taken.
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

    /// A table has a worker's gradients up to a step; all servers have those up to `complete`.
    pub fn applied(&self, caller: Caller, table: u32, step: u64, complete: u64) {
        let Some(worker) = self.workers.get(caller.worker).filter(|_| step > 0) else { return };
        let mut mark = lock(&worker.mark);
        if mark.client != caller.client {
            // One that does not go on where an earlier process was counts anew.
            *mark = Mark { client: caller.client, base: mark.base, ..Mark::default() };
        }
        let newest = mark.tables.entry(table).or_default();
        *newest = step.max(*newest);
        mark.complete = complete.max(mark.complete);
    }

    /// A worker says which of its steps are whole.
    pub fn completed(&self, caller: Caller, complete: u64) {
        let Some(worker) = self.workers.get(caller.worker) else { return };
        let mut mark = lock(&worker.mark);
        if mark.client == caller.client {
            mark.complete = complete.max(mark.complete);
        }
    }

    /// A run of the job begins: `base` steps were made before it, and this worker's are whole up to
    /// `complete`.
    pub fn begin(&self, caller: Caller, base: u64, complete: u64) {
        if let Some(worker) = self.workers.get(caller.worker) {
            let client = caller.client;
            *lock(&worker.mark) = Mark { client, base, complete, ..Mark::default() };
        }
    }

    /// The steps of earlier processes up to `complete` are this one's; returns those of this run.
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
        // One that does not go on begins its own count.
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
        // What is no push goes its way.
        assert!(marks.enter(caller(7), Method::Arrive).unwrap().is_none());
    }
}
