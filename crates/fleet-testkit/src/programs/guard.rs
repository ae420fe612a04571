//! An allocator that ends every tensor at an inaccessible page.
//!
//! Tensors are recognized by their alignment of 64 bytes. Each gets its own pages between two guard
//! pages, and ends at the second guard page except for alignment padding. The padding and the bytes
//! before the tensor hold a pattern that is checked on free. Freed pages are never reused. An
//! access outside a tensor or after it is freed therefore ends the process.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

/// Alignment of `fleet_tensor::Buffer`.
const TENSOR_ALIGN: usize = 64;

const PAGE_BYTES: usize = 4096;

/// Address space reserved for tensors, in bytes. It must hold all allocations of a batch of
/// programs, since pages are never reused. Untouched addresses cost nothing.
const REGION_BYTES: usize = 1 << 40;

const PATTERN: u8 = 0xa5;

/// The allocator, to be set as the global one of a test binary.
pub struct GuardAllocator;

static ENABLED: AtomicBool = AtomicBool::new(false);
static REGION: AtomicUsize = AtomicUsize::new(0);
static USED_BYTES: AtomicUsize = AtomicUsize::new(0);

/// Makes all later tensors end at guard pages.
pub fn enable() {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new mapping at an address that the kernel chooses.
    let map =
        unsafe { libc::mmap(std::ptr::null_mut(), REGION_BYTES, libc::PROT_NONE, flags, -1, 0) };
    assert!(map != libc::MAP_FAILED, "cannot map memory for guarded tensors");
    REGION.store(map as usize, SeqCst);
    ENABLED.store(true, SeqCst);
}

/// Returns the layout of a tensor of `bytes` bytes: the size of its pages, and its offset in them.
fn place(bytes: usize) -> (usize, usize) {
    let pages_bytes = bytes.next_multiple_of(PAGE_BYTES);
    (pages_bytes, pages_bytes - bytes.next_multiple_of(TENSOR_ALIGN))
}

fn is_guarded(ptr: *mut u8) -> bool {
    let region = REGION.load(SeqCst);
    region != 0 && (region..region + REGION_BYTES).contains(&(ptr as usize))
}

/// # Safety
/// `pages` must be the pages of an allocation of `bytes` bytes.
unsafe fn slack<'a>(pages: *mut u8, bytes: usize) -> [&'a mut [u8]; 2] {
    let (pages_bytes, start) = place(bytes);
    // SAFETY: promised by the caller; both parts are within the pages.
    unsafe {
        [
            std::slice::from_raw_parts_mut(pages, start),
            std::slice::from_raw_parts_mut(pages.add(start + bytes), pages_bytes - start - bytes),
        ]
    }
}

// SAFETY: tensors get fresh pages of their own; everything else comes from the system's allocator.
unsafe impl GlobalAlloc for GuardAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.align() != TENSOR_ALIGN || !ENABLED.load(SeqCst) {
            // SAFETY: as the caller promised.
            return unsafe { System.alloc(layout) };
        }
        let (pages_bytes, start) = place(layout.size());
        let at = USED_BYTES.fetch_add(pages_bytes + PAGE_BYTES, SeqCst);
        if at + pages_bytes + PAGE_BYTES > REGION_BYTES {
            return std::ptr::null_mut();
        }
        let pages = (REGION.load(SeqCst) + at) as *mut u8;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: the pages are within the region and no other allocation uses them.
        unsafe {
            if libc::mprotect(pages.cast(), pages_bytes, access) != 0 {
                return std::ptr::null_mut();
            }
            slack(pages, layout.size()).into_iter().for_each(|part| part.fill(PATTERN));
            pages.add(start)
        }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        if !is_guarded(ptr) {
            // SAFETY: as the caller promised.
            return unsafe { System.dealloc(ptr, layout) };
        }
        let (pages_bytes, start) = place(layout.size());
        // SAFETY: these are the pages that `alloc` returned for this layout.
        unsafe {
            let pages = ptr.sub(start);
            if slack(pages, layout.size()).iter().any(|part| part.iter().any(|b| *b != PATTERN)) {
                let message = b"bytes outside a tensor were written\n";
                libc::write(2, message.as_ptr().cast(), message.len());
                libc::abort();
            }
            libc::mprotect(pages.cast(), pages_bytes, libc::PROT_NONE);
            libc::madvise(pages.cast(), pages_bytes, libc::MADV_DONTNEED);
        }
    }
}
