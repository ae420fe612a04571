//! Progress of every worker: the newest step whose gradients each table has here, and the steps
//! known to be complete on all servers. A restarted worker resumes from there, and sends gradients
//! of a step only to servers that lack them.

use super::Caller;
use crate::request::Method;
use fleet_base::sync::{lock, read, write};
use fleet_base::{Error, Result};
use std::collections::BTreeMap;
use std::sync::{Mutex, RwLock, RwLockReadGuard};

pub(super) struct ProgressTracker {
    workers: Vec<Worker>,
}

#[derive(Default)]
struct Worker {
    /// Client that has taken over this worker; 0 if none has. Read-locked while a push is applied.
    owner: RwLock<u64>,
    progress: Mutex<WorkerProgress>,
}

/// A worker's progress. Steps are counted from the first of the job, over all runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct WorkerProgress {
    /// Client that has taken over this worker; 0 if none has.
    pub owner: u64,
    /// The client whose steps these are.
    pub client: u64,
    /// Steps before this run of the job.
    pub base: u64,
    /// Steps whose gradients all servers have.
    pub complete: u64,
    /// The newest step applied to each table.
    pub tables: BTreeMap<u32, u64>,
    /// State of the worker for its next process, and the step after which it was.
    pub kept_step: u64,
    pub kept: Vec<u64>,
}

impl ProgressTracker {
    pub fn new(worker_count: usize) -> ProgressTracker {
        ProgressTracker { workers: (0..worker_count).map(|_| Worker::default()).collect() }
    }

    /// Checks a request of a worker before it runs: pushes of a process that was replaced are
    /// rejected. The returned guard is held until the push is applied, so that no other process
    /// takes over meanwhile.
    pub fn check_owner(
        &self,
        caller: Caller,
        method: Method,
    ) -> Result<Option<RwLockReadGuard<'_, u64>>> {
        let Some(worker) = self.workers.get(caller.worker) else { return Ok(None) };
        if method == Method::Adopt {
            *write(&worker.owner) = caller.client;
            return Ok(None);
        }
        if !method.is_push() {
            return Ok(None);
        }
        let owner = read(&worker.owner);
        match *owner == 0 || *owner == caller.client {
            true => Ok(Some(owner)),
            false => Err(Error::invalid("another process has replaced this worker")
                .help("end this process: the other one computes the same steps")),
        }
    }

    /// Records that a table has a worker's gradients up to `step`, and all servers those up to
    /// `complete`.
    pub fn set_applied(&self, caller: Caller, table: u32, step: u64, complete: u64) {
        let Some(worker) = self.workers.get(caller.worker).filter(|_| step > 0) else { return };
        let mut progress = lock(&worker.progress);
        progress.begin_process(caller);
        let newest = progress.tables.entry(table).or_default();
        *newest = step.max(*newest);
        progress.complete = complete.max(progress.complete);
    }

    /// Keeps the state of a worker after a step.
    pub fn keep(&self, caller: Caller, step: u64, state: &[u64]) {
        let Some(worker) = self.workers.get(caller.worker) else { return };
        let mut progress = lock(&worker.progress);
        progress.begin_process(caller);
        (progress.kept_step, progress.kept) = (step, state.to_vec());
    }

    /// Records which of a worker's steps are complete.
    pub fn set_complete(&self, caller: Caller, complete: u64) {
        let Some(worker) = self.workers.get(caller.worker) else { return };
        let mut progress = lock(&worker.progress);
        if progress.client == caller.client {
            progress.complete = complete.max(progress.complete);
        }
    }

    /// Starts a run of the job: `base` steps were made before it, and this worker's are complete up
    /// to `complete`.
    pub fn begin_run(&self, caller: Caller, base: u64, complete: u64) {
        if let Some(worker) = self.workers.get(caller.worker) {
            let client = caller.client;
            *lock(&worker.progress) =
                WorkerProgress { client, base, complete, ..WorkerProgress::default() };
        }
    }

    /// Adopts the steps of earlier processes up to `complete`; returns the number made in this run.
    pub fn adopt(&self, caller: Caller, complete: u64) -> u64 {
        let Some(worker) = self.workers.get(caller.worker) else { return 0 };
        let mut progress = lock(&worker.progress);
        progress.client = caller.client;
        progress.complete = complete.max(progress.complete);
        progress.complete.saturating_sub(progress.base)
    }

    pub fn of(&self, worker: usize) -> WorkerProgress {
        let Some(worker) = self.workers.get(worker) else { return WorkerProgress::default() };
        let owner = *read(&worker.owner);
        WorkerProgress { owner, ..lock(&worker.progress).clone() }
    }

    pub fn restore(&self, worker: usize, progress: WorkerProgress) {
        let Some(worker) = self.workers.get(worker) else { return };
        *write(&worker.owner) = progress.owner;
        *lock(&worker.progress) = progress;
    }
}

impl WorkerProgress {
    /// Begins anew for a process that does not resume from an earlier one: it starts its own count.
    fn begin_process(&mut self, caller: Caller) {
        if self.client != caller.client {
            let (client, base) = (caller.client, self.base);
            *self = WorkerProgress { client, base, ..WorkerProgress::default() };
        }
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
        let tracker = ProgressTracker::new(2);
        tracker.begin_run(caller(7), 40, 38);
        tracker.set_applied(caller(7), 0, 41, 38);
        tracker.set_applied(caller(7), 3, 42, 40);
        tracker.set_complete(caller(7), 41);
        tracker.set_complete(caller(8), 99);
        let progress = tracker.of(1);
        assert_eq!((progress.base, progress.complete), (40, 41));
        assert_eq!(progress.tables, BTreeMap::from([(0, 41), (3, 42)]));
        tracker.keep(caller(7), 42, &[5, 6]);
        assert_eq!(tracker.adopt(caller(8), 41), 1);
        tracker.set_applied(caller(8), 0, 42, 41);
        assert_eq!(tracker.of(1).tables[&0], 42);
        assert_eq!((tracker.of(1).kept_step, tracker.of(1).kept), (42, vec![5, 6]));
        // A process that does not resume starts its own count.
        tracker.set_applied(caller(9), 0, 1, 0);
        assert_eq!(tracker.of(1).tables, BTreeMap::from([(0, 1)]));
        assert_eq!(tracker.of(1).kept, [0u64; 0]);
        tracker.keep(caller(9), 2, &[7]);
        let copy = ProgressTracker::new(2);
        copy.restore(1, tracker.of(1));
        assert_eq!(copy.of(1), tracker.of(1));
    }

    #[test]
    fn a_process_whose_place_is_taken_pushes_no_more() {
        let tracker = ProgressTracker::new(2);
        assert!(tracker.check_owner(caller(7), Method::PushDense).unwrap().is_some());
        tracker.check_owner(caller(8), Method::Adopt).unwrap();
        let error = tracker.check_owner(caller(7), Method::PushDense).unwrap_err();
        assert!(error.to_string().contains("another process has replaced this worker"));
        assert!(tracker.check_owner(caller(8), Method::PushDense).unwrap().is_some());
        // Requests that are not pushes are not stopped.
        assert!(tracker.check_owner(caller(7), Method::Arrive).unwrap().is_none());
    }
}
