//! The thread pool of the compute lane: fork-join over a counted set of tasks.
//!
//! The pool runs one call at a time. An atomic counter hands out the tasks, the caller also works,
//! and a call allocates nothing. It is not defined which thread runs a task. Kernels therefore
//! split their work by shape, never by the number of threads, so that results are the same on 1 and
//! on 64 threads. A call from inside a task, or while another thread uses the pool, runs its tasks
//! on the calling thread.
//!
//! ```
//! use fleet_kernels::pool::Pool;
//! use std::sync::atomic::{AtomicUsize, Ordering};
//! let pool = Pool::new(2);
//! let sum = AtomicUsize::new(0);
//! pool.run(100, |task| { sum.fetch_add(task, Ordering::Relaxed); });
//! assert_eq!(sum.into_inner(), 4950);
//! ```

mod handoff;

use self::handoff::Handoff;
use fleet_base::sync::{lock, try_lock};
use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;

/// Limit on the threads of a pool: more than any known machine has, and few enough to allocate for.
pub const THREADS_MAX: usize = 1024;

/// Number of `pause` instructions before an idle worker sleeps: about 50 us. This is longer than
/// the gap between two ops of a step, but too short to waste noticeable CPU time.
const SPINS_BEFORE_SLEEP: u32 = 1000;

/// A fixed set of threads that run tasks in parallel.
pub struct Pool {
    shared: Arc<Shared>,
    turn: Mutex<()>,
    workers: Vec<JoinHandle<()>>,
}

struct Shared {
    handoff: Handoff<Job>,
    /// The next task of the job.
    next: AtomicUsize,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

#[derive(Clone, Copy)]
struct Job {
    tasks: usize,
    body: *const (dyn Fn(usize, usize) + Sync),
}

// SAFETY: the body is `Sync` and outlives the job, which ends when no worker has it.
unsafe impl Send for Job {}
// SAFETY: as above.
unsafe impl Sync for Job {}

thread_local! {
    static INSIDE_TASK: Cell<bool> = const { Cell::new(false) };
}

impl Pool {
    /// Creates a pool of `threads` threads including the caller's; 0 counts as 1.
    pub fn new(threads: usize) -> Self {
        let threads = threads.clamp(1, THREADS_MAX);
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let spins = if threads > cores { 0 } else { SPINS_BEFORE_SLEEP };
        let shared = Arc::new(Shared {
            handoff: Handoff::new(threads - 1, spins),
            next: AtomicUsize::new(0),
            panic: Mutex::new(None),
        });
        let workers: Vec<_> = (1..threads)
            .filter_map(|worker| {
                let own = Arc::clone(&shared);
                let thread = std::thread::Builder::new()
                    .name(format!("fleet-compute-{worker}"))
                    .spawn(move || {
                        own.handoff.leave();
                        own.handoff.work(|job| own.take_tasks(job, worker));
                    });
                // If the system refuses to start a thread, the pool is smaller; this is not an
                // error.
                if thread.is_err() {
                    shared.handoff.leave();
                }
                thread.ok()
            })
            .collect();
        // Wait until all threads run: a starting thread allocates memory, which must not happen
        // during a step.
        shared.handoff.await_workers();
        Pool { shared, turn: Mutex::new(()), workers }
    }

    /// Returns the number of threads, including the caller's.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Runs `body(task)` for every task in `0..tasks`. Returns when all are done.
    pub fn run(&self, tasks: usize, body: impl Fn(usize) + Sync) {
        self.run_with_worker(tasks, |task, _| body(task));
    }

    /// Like [`Pool::run`], but also passes the index of the thread (below [`Pool::threads`]), to
    /// select per-thread scratch memory.
    pub fn run_with_worker(&self, tasks: usize, body: impl Fn(usize, usize) + Sync) {
        match self.claim(tasks) {
            Some(_turn) => self.fork(tasks, &body),
            None => (0..tasks).for_each(|task| body(task, 0)),
        }
    }

    /// Splits `0..len` into ranges of `grain` (the last one may be shorter) and runs `body` on
    /// each.
    pub fn run_ranges(
        &self,
        len: usize,
        grain: usize,
        body: impl Fn(std::ops::Range<usize>) + Sync,
    ) {
        let grain = grain.max(1);
        self.run(len.div_ceil(grain), |task| {
            body(task * grain..((task + 1) * grain).min(len));
        });
    }

    /// Splits a slice into parts of `grain` elements (the last one may be shorter) and runs
    /// `body(index of the first element, part)` on each.
    ///
    /// ```
    /// let mut squares = [0; 5];
    /// fleet_kernels::pool::Pool::new(2).run_parts(&mut squares, 2, |start, part| {
    ///     part.iter_mut().enumerate().for_each(|(i, it)| *it = (start + i) * (start + i));
    /// });
    /// assert_eq!(squares, [0, 1, 4, 9, 16]);
    /// ```
    pub fn run_parts<T: Send>(
        &self,
        slice: &mut [T],
        grain: usize,
        body: impl Fn(usize, &mut [T]) + Sync,
    ) {
        let (len, shared) = (slice.len(), Shareable::new(slice));
        self.run_ranges(len, grain, |range| {
            // SAFETY: ranges are disjoint, and the slice is borrowed during the call.
            body(range.start, unsafe { shared.slice(range.start, range.len()) });
        });
    }

    /// Claims the workers for a call. Returns `None` if that is not worthwhile or not possible.
    fn claim(&self, tasks: usize) -> Option<MutexGuard<'_, ()>> {
        if tasks < 2 || self.workers.is_empty() || INSIDE_TASK.get() {
            return None;
        }
        try_lock(&self.turn)
    }

    fn fork(&self, tasks: usize, body: &(dyn Fn(usize, usize) + Sync)) {
        let shared = &*self.shared;
        // SAFETY: the lifetime is erased for the duration of this call only. No worker holds the
        // pointer after `close` below.
        let body: *const (dyn Fn(usize, usize) + Sync) = unsafe {
            std::mem::transmute::<
                &(dyn Fn(usize, usize) + Sync),
                &'static (dyn Fn(usize, usize) + Sync),
            >(body)
        };
        let job = Job { tasks, body };
        shared.next.store(0, SeqCst);
        // SAFETY: the guard of `claim` admits one caller at a time, and the body outlives `close`.
        unsafe { shared.handoff.open(job) };
        shared.take_tasks(job, 0);
        shared.handoff.close();
        let panic = lock(&shared.panic).take();
        if let Some(payload) = panic {
            resume_unwind(payload);
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.handoff.stop();
        for worker in self.workers.drain(..) {
            let _ = worker.join();
        }
    }
}

impl Shared {
    fn take_tasks(&self, job: Job, worker: usize) {
        let outer = INSIDE_TASK.replace(true);
        // SAFETY: the caller of `fork` keeps the body alive until every worker is done.
        let body = unsafe { &*job.body };
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            loop {
                let task = self.next.fetch_add(1, SeqCst);
                if task >= job.tasks {
                    break;
                }
                body(task, worker);
            }
        }));
        INSIDE_TASK.set(outer);
        if let Err(payload) = outcome {
            self.next.store(job.tasks, SeqCst);
            lock(&self.panic).get_or_insert(payload);
        }
    }
}

/// A slice shared between tasks, each of which writes only its own part.
#[derive(Clone, Copy)]
pub(crate) struct Shareable<T> {
    start: *mut T,
    len: usize,
}

// SAFETY: callers of `slice` guarantee that parts in use do not overlap.
unsafe impl<T: Send> Send for Shareable<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Shareable<T> {}

impl<T> Shareable<T> {
    pub(crate) fn new(slice: &mut [T]) -> Self {
        Shareable { start: slice.as_mut_ptr(), len: slice.len() }
    }

    pub(crate) fn ptr(&self) -> *mut T {
        self.start
    }

    /// Returns the part `start..start + len` of the slice.
    ///
    /// # Panics
    /// If the part is not inside the slice. The check costs one comparison per part.
    ///
    /// # Safety
    /// No other task may access the part at the same time, and the slice must still be alive.
    #[inline]
    #[allow(clippy::mut_from_ref)]
    pub(crate) unsafe fn slice(&self, start: usize, len: usize) -> &mut [T] {
        let is_inside = start <= self.len && len <= self.len - start;
        assert!(is_inside, "{len} elements from {start} exceed a slice of {}", self.len);
        // SAFETY: the part is inside the slice; the caller guarantees the rest.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(start), len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_runs_once_over_many_calls() {
        for threads in [1, 2, 5] {
            let pool = Pool::new(threads);
            for round in 0..2000 {
                let hits: Vec<AtomicUsize> = (0..round % 17).map(|_| AtomicUsize::new(0)).collect();
                pool.run_with_worker(hits.len(), |task, worker| {
                    assert!(worker < pool.threads());
                    hits[task].fetch_add(1, SeqCst);
                });
                assert!(hits.iter().all(|hit| hit.load(SeqCst) == 1));
            }
        }
    }

    #[test]
    fn a_part_outside_of_a_shared_slice_is_a_panic() {
        let mut slice = [0u8; 8];
        let shared = Shareable::new(&mut slice);
        let part = |start: usize, len: usize| {
            // SAFETY: no other task runs, and the slice is alive.
            catch_unwind(AssertUnwindSafe(|| unsafe { shared.slice(start, len) }.len())).ok()
        };
        assert_eq!((part(0, 8), part(8, 0), part(3, 5)), (Some(8), Some(0), Some(5)));
        assert_eq!((part(3, 6), part(9, 0), part(usize::MAX, 2)), (None, None, None));
    }

    #[test]
    fn nested_calls_run_in_place() {
        let pool = Pool::new(3);
        let sum = AtomicUsize::new(0);
        pool.run(8, |_| {
            pool.run(8, |task| {
                sum.fetch_add(task, SeqCst);
            });
        });
        assert_eq!(sum.into_inner(), 8 * 28);
    }

    #[test]
    fn a_panic_in_a_task_reaches_the_caller_and_the_pool_lives_on() {
        let pool = Pool::new(2);
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            pool.run(64, |task| assert!(task != 40, "task forty"));
        }));
        assert!(outcome.is_err());
        let sum = AtomicUsize::new(0);
        pool.run(10, |task| {
            sum.fetch_add(task, SeqCst);
        });
        assert_eq!(sum.into_inner(), 45);
    }
}
