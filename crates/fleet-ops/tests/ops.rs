//! Runs the op cases of `tests/filetests/ops`; `FLEET_OP=relu` restricts them to some ops.

use fleet_testkit::{count_allocation, filetest};
use std::alloc::{GlobalAlloc, Layout, System};
use std::path::Path;

/// Kernels must not allocate, so this binary counts.
struct CountingAllocator;

// SAFETY: all calls are passed to the system allocator.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count_allocation();
        // SAFETY: the caller guarantees the same conditions.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller guarantees the same conditions.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

#[test]
fn op_cases() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/filetests/ops");
    let filter = std::env::var("FLEET_OP").unwrap_or_default();
    if let Err(error) = filetest::run_dir(&dir, &filter) {
        panic!("{error}");
    }
}
