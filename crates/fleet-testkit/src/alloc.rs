//! Counts the allocations of a thread.

use std::cell::Cell;

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

/// Counts one allocation of this thread. The global allocator of a test binary calls this; without
/// such an allocator [`allocations`] stays 0.
pub fn count_allocation() {
    // The counter of an exiting thread is already destroyed.
    let _ = COUNT.try_with(|count| count.set(count.get() + 1));
}

/// Number of allocations of this thread so far.
pub fn allocations() -> u64 {
    COUNT.with(Cell::get)
}
