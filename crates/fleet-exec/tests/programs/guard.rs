//! An allocator that ends every tensor at a page without access.
//!
//! Tensors are told by their alignment of 64 bytes. Each gets pages of its own between two guard
//! pages and ends at the second one, but for the bytes that the alignment asks for; those, and the
//! bytes before it, hold a pattern that is checked when it is freed. Freed pages are never used
//! again. So a write or read outside of a tensor, or after its end of life, ends the process.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

/// Alignment of `fleet_tensor::Buffer`.
const TENSOR_ALIGN: usize = 64;

const PAGE_BYTES: usize = 4096;

/// Addresses set aside for tensors: what a batch of programs allocates in all, since no page is
/// used twice. They cost nothing until they are touched.
const REGION_BYTES: usize = 1 << 40;

const PATTERN: u8 = 0xa5;

pub struct GuardAllocator;

static ENABLED: AtomicBool = AtomicBool::new(false);
static REGION: AtomicUsize = AtomicUsize::new(0);
static USED_BYTES: AtomicUsize = AtomicUsize::new(0);

/// From here on, tensors end at guard pages.
pub fn enable() {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new mapping wherever there is room.
    let map =
        unsafe { libc::mmap(std::ptr::null_mut(), REGION_BYTES, libc::PROT_NONE, flags, -1, 0) };
    assert!(map != libc::MAP_FAILED, "no room for guarded tensors");
    REGION.store(map as usize, SeqCst);
    ENABLED.store(true, SeqCst);
}

/// Where a tensor of so many bytes lies: its pages, and its own first byte in them.
fn place(bytes: usize) -> (usize, usize) {
    let pages_bytes = bytes.next_multiple_of(PAGE_BYTES);
    (pages_bytes, pages_bytes - bytes.next_multiple_of(TENSOR_ALIGN))
}

fn is_guarded(ptr: *mut u8) -> bool {
    let region = REGION.load(SeqCst);
    region != 0 && (region..region + REGION_BYTES).contains(&(ptr as usize))
}

/// # Safety
/// The pages are those of an allocation of so many bytes.
unsafe fn slack<'a>(pages: *mut u8, bytes: usize) -> [&'a mut [u8]; 2] {
    let (pages_bytes, start) = place(bytes);
    // SAFETY: promised by the caller; both parts lie in the pages.
    unsafe {
        [
            std::slice::from_raw_parts_mut(pages, start),
            std::slice::from_raw_parts_mut(pages.add(start + bytes), pages_bytes - start - bytes),
        ]
    }
}

// SAFETY: tensors get fresh pages of their own, everything else comes from the system's allocator.
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
        // SAFETY: the pages lie in the region and belong to nobody else.
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
        // SAFETY: the pages that `alloc` gave for this layout.
        unsafe {
            let pages = ptr.sub(start);
            if slack(pages, layout.size()).iter().any(|part| part.iter().any(|b| *b != PATTERN)) {
                let message = b"bytes beside a tensor were written\n";
                libc::write(2, message.as_ptr().cast(), message.len());
                libc::abort();
            }
            libc::mprotect(pages.cast(), pages_bytes, libc::PROT_NONE);
            libc::madvise(pages.cast(), pages_bytes, libc::MADV_DONTNEED);
        }
    }
}
