//! Filling batches allocates nothing, so generated data can feed a timed training loop.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use fleet_synth::{Blobs, BlobsConfig, Ctr, CtrConfig, Digits, IMAGE_PIXELS, Text, TextConfig};

struct Counting;

thread_local! {
    // Per thread, so that the test harness's own threads do not count.
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: every call is forwarded to the system allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's guarantees about `layout` are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: `pointer` came from `System` with this `layout`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn filling_allocates_nothing() {
    let clicks = Ctr::new(CtrConfig::tiny()).unwrap();
    let (digits, blobs) = (Digits::new(1), Blobs::new(BlobsConfig::default()).unwrap());
    let text = Text::new(TextConfig::tiny()).unwrap();
    let (mut dense, mut ids, mut labels) = (vec![0.0; 64 * 13], vec![0; 64 * 26], vec![0.0; 64]);
    let (mut images, mut classes) = (vec![0.0; 64 * IMAGE_PIXELS], vec![0; 64]);
    let mut features = vec![0.0; 64 * 32];
    let (mut tokens, mut targets) = (vec![0; 64 * 16], vec![0; 64 * 16]);
    let (mut centers, mut contexts, mut noise) = (vec![0; 64], vec![0; 64], vec![0; 64 * 5]);

    let before = COUNT.with(Cell::get);
    clicks.fill_batch(&mut dense, &mut ids, &mut labels, 9).unwrap();
    digits.fill_batch_f32(&mut images, &mut classes, 9).unwrap();
    blobs.fill_batch(&mut features, &mut classes, 9).unwrap();
    text.fill_masked(&mut tokens, &mut targets, 16, 9).unwrap();
    text.fill_pairs(&mut centers, &mut contexts, &mut noise, 9).unwrap();
    assert_eq!(COUNT.with(Cell::get) - before, 0);
}
