//! The hand-off of a job from the caller of a pool to its workers.
//!
//! One atomic word holds a bit that says whether the job is open, and counts the workers inside.
//! A worker enters by an increment, whose result says whether it may read the job. The caller
//! clears the bit and waits until the count is 0. From then on no worker has the job, and a worker
//! that enters does not read it.
//!
//! `cargo xtask sanitize loom` runs the tests below under loom, which tries the interleavings.

use self::sync::{AtomicBool, AtomicU32, AtomicUsize, Condvar, Mutex, Slot, lock, spin, wait};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

/// The bit of `state` that is set while a job is open; the bits below count workers.
const OPEN: usize = 1 << (usize::BITS - 1);

pub(super) struct Handoff<J> {
    /// Written by the caller while no job is open and no worker is inside.
    job: Slot<Option<J>>,
    state: AtomicUsize,
    /// Number of jobs so far: a new value wakes workers.
    epoch: AtomicU32,
    stop: AtomicBool,
    sleepers: Mutex<usize>,
    wake: Condvar,
    /// Number of `pause` instructions before a thread sleeps or yields.
    spins: u32,
}

// SAFETY: the caller alone writes the job, before it sets `OPEN`. Workers read it after they saw
// the bit, and the caller waits for these workers before it writes again.
unsafe impl<J: Send + Sync> Sync for Handoff<J> {}

impl<J: Copy> Handoff<J> {
    /// `starting` workers count as inside until they call [`Handoff::leave`].
    pub fn new(starting: usize, spins: u32) -> Self {
        Handoff {
            job: Slot::new(None),
            state: AtomicUsize::new(starting),
            epoch: AtomicU32::new(0),
            stop: AtomicBool::new(false),
            sleepers: Mutex::new(0),
            wake: Condvar::new(),
            spins,
        }
    }

    /// Offers a job to the workers.
    ///
    /// # Safety
    /// One thread at a time calls this and then [`Handoff::close`]. The job is valid until then.
    pub unsafe fn open(&self, job: J) {
        // SAFETY: no job is open, and `close` has waited for all workers that read one.
        unsafe { self.job.set(Some(job)) };
        self.state.fetch_or(OPEN, Release);
        self.announce();
    }

    /// Ends the job, and waits for the workers that have it.
    pub fn close(&self) {
        self.state.fetch_and(!OPEN, AcqRel);
        self.await_workers();
    }

    /// Waits until no worker is inside.
    pub fn await_workers(&self) {
        let mut spins = 0u32;
        while self.state.load(Acquire) > 0 {
            spins = spins.saturating_add(1);
            if spins > self.spins { sync::yield_now() } else { spin() }
        }
    }

    /// Ends [`Handoff::work`] of all workers.
    pub fn stop(&self) {
        self.stop.store(true, Relaxed);
        self.announce();
    }

    fn announce(&self) {
        self.epoch.fetch_add(1, Release);
        if *lock(&self.sleepers) > 0 {
            self.wake.notify_all();
        }
    }

    /// Runs the jobs of the caller until [`Handoff::stop`]. A worker that comes late skips a job.
    pub fn work(&self, mut run: impl FnMut(J)) {
        let mut seen = 0;
        loop {
            seen = self.await_epoch(seen);
            if self.stop.load(Relaxed) {
                return;
            }
            if self.state.fetch_add(1, AcqRel) & OPEN != 0 {
                // SAFETY: the job is open, and `close` waits for this worker.
                if let Some(job) = unsafe { self.job.get() } {
                    run(job);
                }
            }
            self.leave();
        }
    }

    pub fn leave(&self) {
        self.state.fetch_sub(1, Release);
    }

    /// Spins, then sleeps, until the epoch differs from `seen`. Returns the new epoch.
    fn await_epoch(&self, seen: u32) -> u32 {
        for _ in 0..self.spins {
            let epoch = self.epoch.load(Acquire);
            if epoch != seen {
                return epoch;
            }
            spin();
        }
        let mut sleepers = lock(&self.sleepers);
        *sleepers += 1;
        loop {
            let epoch = self.epoch.load(Acquire);
            if epoch != seen {
                *sleepers -= 1;
                return epoch;
            }
            sleepers = wait(&self.wake, sleepers);
        }
    }
}

#[cfg(not(loom))]
mod sync {
    pub use fleet_base::sync::{lock, wait};
    pub use std::hint::spin_loop as spin;
    pub use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize};
    pub use std::sync::{Condvar, Mutex};
    pub use std::thread::yield_now;

    pub struct Slot<T>(std::cell::UnsafeCell<T>);

    impl<T: Copy> Slot<T> {
        pub fn new(value: T) -> Self {
            Slot(std::cell::UnsafeCell::new(value))
        }

        /// # Safety
        /// No other thread writes meanwhile.
        pub unsafe fn get(&self) -> T {
            // SAFETY: guaranteed by the caller.
            unsafe { *self.0.get() }
        }

        /// # Safety
        /// No other thread accesses the slot meanwhile.
        pub unsafe fn set(&self, value: T) {
            // SAFETY: guaranteed by the caller.
            unsafe { *self.0.get() = value }
        }
    }
}

/// The same with the types of loom, which detects races.
#[cfg(loom)]
mod sync {
    pub use loom::hint::spin_loop as spin;
    pub use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize};
    pub use loom::sync::{Condvar, Mutex, MutexGuard};
    pub use loom::thread::yield_now;

    pub struct Slot<T>(loom::cell::UnsafeCell<T>);

    impl<T: Copy> Slot<T> {
        pub fn new(value: T) -> Self {
            Slot(loom::cell::UnsafeCell::new(value))
        }

        /// # Safety
        /// No other thread writes meanwhile.
        pub unsafe fn get(&self) -> T {
            // SAFETY: guaranteed by the caller.
            self.0.with(|value| unsafe { *value })
        }

        /// # Safety
        /// No other thread accesses the slot meanwhile.
        pub unsafe fn set(&self, value: T) {
            // SAFETY: guaranteed by the caller.
            self.0.with_mut(|own| unsafe { *own = value });
        }
    }

    pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
        mutex.lock().unwrap()
    }

    pub fn wait<'a, T>(changed: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        changed.wait(guard).unwrap()
    }
}

#[cfg(all(test, loom))]
mod tests {
    use super::*;
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;

    /// Preemptions per execution: faults of such protocols show with two or three.
    const PREEMPTIONS: usize = 3;

    /// The caller changes `memory` before each job and after it, as a kernel's caller does with
    /// tensors, and workers read it in jobs. Loom reports an access without order.
    fn check(workers: usize, jobs: usize, spins: u32) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(PREEMPTIONS);
        model.check(move || {
            let handoff = Arc::new(Handoff::new(workers, spins));
            let memory = Arc::new(UnsafeCell::new(0));
            let threads: Vec<_> = (0..workers)
                .map(|_| {
                    let (handoff, memory) = (handoff.clone(), memory.clone());
                    loom::thread::spawn(move || {
                        handoff.leave();
                        handoff.work(|job| {
                            // SAFETY: loom checks the accesses.
                            memory.with(|value| assert_eq!(unsafe { *value }, job));
                        });
                    })
                })
                .collect();
            handoff.await_workers();
            for job in 1..=jobs {
                // SAFETY: loom checks the accesses.
                memory.with_mut(|value| unsafe { *value = job });
                // SAFETY: this is the only caller.
                unsafe { handoff.open(job) };
                handoff.close();
            }
            // SAFETY: loom checks the accesses.
            memory.with_mut(|value| unsafe { *value = 0 });
            handoff.stop();
            threads.into_iter().for_each(|thread| thread.join().unwrap());
        });
    }

    #[test]
    fn loom_one_worker() {
        check(1, 2, 0);
    }

    #[test]
    fn loom_one_worker_that_spins() {
        check(1, 1, 1);
    }

    #[test]
    fn loom_two_workers() {
        check(2, 1, 0);
    }
}
