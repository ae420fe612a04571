//! Counted costs of a step: allocations of a process over real rings.

use crate::launch::{assert_success, run_in};
use crate::strategies::{NAMES, feed, session};
use fleet::prelude::*;
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

pub struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: forwards every call to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Relaxed);
        // SAFETY: upheld by the caller.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: upheld by the caller.
        unsafe { System.dealloc(ptr, layout) }
    }
    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Relaxed);
        // SAFETY: upheld by the caller.
        unsafe { System.realloc(ptr, layout, size) }
    }
}

/// Steps per round: enough for every branch of every strategy.
const ROUND: u64 = 6;
/// Heartbeats of the process allocate occasionally. A step that allocates does so in every round.
const ROUNDS: usize = 40;

/// Runs in a rank process.
pub fn allocations(fleet: &Fleet, name: &str) -> Result<()> {
    let mut session = session(fleet, name)?;
    let batches: Vec<(Tensor, Tensor)> =
        (0..ROUND).map(|number| feed(fleet, number)).collect::<Result<_>>()?;
    let feeds: Vec<[(&str, &Tensor); 2]> =
        batches.iter().map(|(x, y)| [("x", x), ("y", y)]).collect();
    let Session { programs, scope, executor, .. } = &mut session;
    let mut out = Vec::new();
    let mut round = || -> Result<usize> {
        let before = ALLOCATIONS.load(Relaxed);
        for feed in &feeds {
            executor.run_into(&programs.main, scope, feed, &[], &mut out)?;
        }
        Ok(ALLOCATIONS.load(Relaxed) - before)
    };
    round()?;
    let made = (0..ROUNDS).map(|_| round()).collect::<Result<Vec<usize>>>()?;
    assert_eq!(made.iter().min(), Some(&0), "{name}: allocations of {ROUND} steps: {made:?}");
    fleet.finish()
}

#[test]
fn steps_over_real_rings_allocate_nothing() {
    for name in NAMES {
        assert_success(&run_in("count allocations", 2, name));
    }
}
