//! Aligned memory.

use fleet_base::{Error, Result, text};
use std::alloc::{Layout as AllocLayout, alloc_zeroed, dealloc};
use std::ptr::NonNull;

/// Alignment of every buffer in bytes: a cache line and an AVX-512 register.
pub const ALIGN: usize = 64;

/// From this size on, buffers ask for huge pages: a random row of a large table then costs one
/// cache miss and not also a page walk.
const HUGE_PAGE_BYTES_MIN: usize = 8 << 20;

/// Owned, zero-initialised, 64-byte aligned memory.
pub struct Buffer {
    ptr: NonNull<u8>,
    bytes: usize,
}

// SAFETY: a buffer owns its memory; access follows the borrow of the buffer.
unsafe impl Send for Buffer {}
// SAFETY: as above.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// No memory at all.
    pub fn empty() -> Buffer {
        Buffer { ptr: NonNull::<Aligned>::dangling().cast(), bytes: 0 }
    }

    /// `bytes` zero bytes, or an error when the machine has not that much.
    pub fn zeroed(bytes: usize) -> Result<Buffer> {
        let refused =
            || Error::exhausted(format!("cannot allocate {} of memory", text::bytes(bytes as u64)));
        if bytes == 0 {
            return Ok(Buffer::empty());
        }
        let align = if bytes >= HUGE_PAGE_BYTES_MIN { HUGE_PAGE_BYTES_ALIGN } else { ALIGN };
        let layout = AllocLayout::from_size_align(bytes, align).map_err(|_| refused())?;
        // SAFETY: the size is not zero.
        let ptr = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or_else(refused)?;
        advise_huge_pages(ptr.as_ptr(), bytes);
        Ok(Buffer { ptr, bytes })
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub fn as_ptr(&self) -> *mut u8 {
        self.ptr.as_ptr()
    }

    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: the memory is owned, initialised and `bytes` long.
        unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.bytes) }
    }

    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as above, and the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr(), self.bytes) }
    }
}

const HUGE_PAGE_BYTES_ALIGN: usize = 2 << 20;

#[repr(align(64))]
struct Aligned;

impl Drop for Buffer {
    fn drop(&mut self) {
        if self.bytes > 0 {
            let align =
                if self.bytes >= HUGE_PAGE_BYTES_MIN { HUGE_PAGE_BYTES_ALIGN } else { ALIGN };
            // SAFETY: allocated in `zeroed` with this very layout.
            unsafe {
                dealloc(
                    self.ptr.as_ptr(),
                    AllocLayout::from_size_align_unchecked(self.bytes, align),
                );
            }
        }
    }
}

#[cfg(target_os = "linux")]
fn advise_huge_pages(ptr: *mut u8, bytes: usize) {
    if bytes >= HUGE_PAGE_BYTES_MIN {
        // SAFETY: the range is ours; the call is a hint and its failure is harmless.
        unsafe { libc::madvise(ptr.cast(), bytes, libc::MADV_HUGEPAGE) };
    }
}

#[cfg(not(target_os = "linux"))]
fn advise_huge_pages(_ptr: *mut u8, _bytes: usize) {}
