//! Counts the allocations of a thread.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// The system allocator with a counter per thread. Install it in a test binary with
/// `#[global_allocator]`; without it [`allocations`] stays 0.
pub struct CountingAllocator;

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

/// Number of allocations of this thread so far.
pub fn allocations() -> u64 {
    COUNT.with(Cell::get)
}

// SAFETY: all calls are passed to the system allocator.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // The counter of an exiting thread is already destroyed.
        let _ = COUNT.try_with(|count| count.set(count.get() + 1));
        // SAFETY: the caller guarantees the same conditions.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller guarantees the same conditions.
        unsafe { System.dealloc(ptr, layout) }
    }
}
