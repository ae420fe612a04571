//! Queues of tasks. The tasks of a queue share data, so each thread starts with its own queue and
//! moves on to others when that one is empty.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Limit on the queues of a call, which are on the stack. If there are more threads than queues,
/// several threads start with the same queue.
const QUEUES_MAX: usize = 64;

/// `groups` groups of `each` tasks. Group `g` is in queue `g % QUEUES_MAX`.
pub(super) struct Queues {
    taken: [AtomicUsize; QUEUES_MAX],
    groups: usize,
    each: usize,
}

impl Queues {
    pub fn new(groups: usize, each: usize) -> Queues {
        Queues { taken: [const { AtomicUsize::new(0) }; QUEUES_MAX], groups, each }
    }

    pub fn tasks(&self) -> usize {
        self.groups * self.each
    }

    fn queues(&self) -> usize {
        self.groups.min(QUEUES_MAX)
    }

    /// Takes tasks for one of `workers` threads. Yields (group, index of the task in the group).
    pub fn take_tasks(
        &self,
        worker: usize,
        workers: usize,
    ) -> impl Iterator<Item = (usize, usize)> + '_ {
        let queues = self.queues();
        let first = worker * queues / workers.max(1);
        (0..queues).flat_map(move |step| {
            let queue = (first + step) % queues;
            let tasks = (self.groups - queue).div_ceil(QUEUES_MAX) * self.each;
            std::iter::from_fn(move || {
                let task = self.taken[queue].fetch_add(1, Relaxed);
                (task < tasks).then(|| (queue + task / self.each * QUEUES_MAX, task % self.each))
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_is_handed_out_once() {
        for (groups, each) in [(0, 3), (1, 1), (1, 7), (3, 2), (64, 1), (65, 3), (200, 2)] {
            let queues = Queues::new(groups, each);
            let mut workers: Vec<_> = (0..3).map(|worker| queues.take_tasks(worker, 3)).collect();
            let mut seen = vec![0; groups * each];
            let mut turn = 0;
            while !workers.is_empty() {
                turn = (turn + 1) % workers.len();
                match workers[turn].next() {
                    Some((group, place)) => seen[group * each + place] += 1,
                    None => drop(workers.remove(turn)),
                }
            }
            assert!(seen.iter().all(|times| *times == 1), "{groups} x {each}: {seen:?}");
        }
    }

    #[test]
    fn threads_begin_at_groups_of_their_own() {
        let queues = Queues::new(8, 2);
        let firsts: Vec<_> =
            (0..4).filter_map(|worker| queues.take_tasks(worker, 4).next()).collect();
        assert_eq!(firsts, [(0, 0), (2, 0), (4, 0), (6, 0)]);
    }
}
