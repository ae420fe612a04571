//! Aligned memory.

use fleet_base::{Error, Result, text};
use std::alloc::{Layout as AllocLayout, alloc_zeroed, dealloc};
use std::ptr::NonNull;

/// Alignment of every buffer, in bytes: one cache line, one AVX-512 register.
pub const ALIGN: usize = 64;

/// Size from which a buffer gets a mapping of its own, in bytes. The kernel may back such a mapping
/// with huge pages. A read of a random row of a large table then costs one cache miss, without a
/// page walk.
const LARGE_BYTES_MIN: usize = 8 << 20;

/// Owned, zero-initialized, 64-byte aligned memory.
pub struct Buffer {
    ptr: NonNull<u8>,
    bytes: usize,
}

// SAFETY: a buffer owns its memory, and access follows the borrow of the buffer.
unsafe impl Send for Buffer {}
// SAFETY: as above.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// Returns a buffer without memory.
    pub fn empty() -> Buffer {
        Buffer { ptr: NonNull::<Aligned>::dangling().cast(), bytes: 0 }
    }

    /// Allocates `bytes` zero bytes. Returns an error if the allocation fails.
    pub fn zeroed(bytes: usize) -> Result<Buffer> {
        if bytes == 0 {
            return Ok(Buffer::empty());
        }
        let ptr =
            if bytes >= LARGE_BYTES_MIN { large::zeroed(bytes) } else { small::zeroed(bytes) };
        let ptr = ptr.ok_or_else(|| {
            Error::exhausted(format!("cannot allocate {} of memory", text::bytes(bytes as u64)))
        })?;
        Ok(Buffer { ptr, bytes })
    }

    /// Returns the size of the memory.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the address of the memory.
    pub fn as_ptr(&self) -> *mut u8 {
        self.ptr.as_ptr()
    }

    /// Returns the bytes.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: the memory is owned, initialized and `bytes` long.
        unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.bytes) }
    }

    /// Returns the bytes, to be changed.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as above, and the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr(), self.bytes) }
    }
}

#[repr(align(64))]
struct Aligned;

impl Drop for Buffer {
    fn drop(&mut self) {
        if self.bytes >= LARGE_BYTES_MIN {
            // SAFETY: `large::zeroed` returned it for as many bytes.
            unsafe { large::free(self.ptr, self.bytes) };
        } else if self.bytes > 0 {
            // SAFETY: `small::zeroed` returned it for as many bytes.
            unsafe { small::free(self.ptr, self.bytes) };
        }
    }
}

/// Small buffers, from the allocator of the process.
mod small {
    use super::{ALIGN, AllocLayout, NonNull, alloc_zeroed, dealloc};

    pub fn zeroed(bytes: usize) -> Option<NonNull<u8>> {
        let layout = AllocLayout::from_size_align(bytes, ALIGN).ok()?;
        // SAFETY: the size is not zero.
        NonNull::new(unsafe { alloc_zeroed(layout) })
    }

    /// # Safety
    /// `zeroed` returned `ptr` for the same `bytes`, and `ptr` is not used afterwards.
    pub unsafe fn free(ptr: NonNull<u8>, bytes: usize) {
        // SAFETY: the layout is the one that `zeroed` used.
        unsafe { dealloc(ptr.as_ptr(), AllocLayout::from_size_align_unchecked(bytes, ALIGN)) };
    }
}

#[cfg(not(target_os = "linux"))]
use small as large;

/// Large buffers, mapped from the kernel, which zeroes them. Huge pages must be requested before
/// the first access. An allocator that is asked for zeros at a large alignment would write the
/// zeros itself and so access the memory first.
#[cfg(target_os = "linux")]
mod large {
    use super::NonNull;

    const HUGE_PAGE_BYTES: usize = 2 << 20;

    pub fn zeroed(bytes: usize) -> Option<NonNull<u8>> {
        let used = pages(bytes)?;
        let room = used.checked_add(HUGE_PAGE_BYTES)?;
        let (access, kind) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: an anonymous mapping at an address that the kernel chooses.
        let map = unsafe { libc::mmap(std::ptr::null_mut(), room, access, kind, -1, 0) };
        if map == libc::MAP_FAILED {
            return None;
        }
        let map = map.cast::<u8>();
        let head = map.align_offset(HUGE_PAGE_BYTES);
        // SAFETY: both ends are inside the mapping, are page-aligned and are not in use. The advice
        // is a hint, so its failure is harmless.
        unsafe {
            let start = map.add(head);
            unmap(map, head);
            unmap(start.add(used), room - head - used);
            libc::madvise(start.cast(), used, libc::MADV_HUGEPAGE);
            NonNull::new(start)
        }
    }

    /// # Safety
    /// `zeroed` returned `ptr` for the same `bytes`, and `ptr` is not used afterwards.
    pub unsafe fn free(ptr: NonNull<u8>, bytes: usize) {
        // SAFETY: promised by the caller; `zeroed` mapped this number of bytes.
        unsafe { unmap(ptr.as_ptr(), pages(bytes).unwrap_or(bytes)) };
    }

    unsafe fn unmap(start: *mut u8, bytes: usize) {
        if bytes > 0 {
            // SAFETY: promised by the caller. `munmap` fails if the process has too many mappings.
            // Then the memory stays mapped, which wastes it but does no other harm.
            unsafe { libc::munmap(start.cast(), bytes) };
        }
    }

    /// Rounds `bytes` up to whole pages of the kernel. Rounding up to a huge page would waste
    /// memory.
    fn pages(bytes: usize) -> Option<usize> {
        const PAGE_BYTES_MAX: usize = 64 << 10;
        bytes.checked_next_multiple_of(PAGE_BYTES_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The sizes lie around the threshold for mapping, and some are not whole pages.
    #[test]
    fn buffers_are_zero_aligned_and_writable_to_the_end() {
        for bytes in [1, 4097, LARGE_BYTES_MIN - 1, LARGE_BYTES_MIN, 3 * LARGE_BYTES_MIN + 4097] {
            let mut buffer = Buffer::zeroed(bytes).unwrap();
            assert!(buffer.as_ptr().addr().is_multiple_of(ALIGN) && buffer.bytes() == bytes);
            assert!(buffer.as_slice().iter().all(|byte| *byte == 0), "{bytes}");
            buffer.as_mut_slice().fill(7);
            assert_eq!(buffer.as_slice().last(), Some(&7));
        }
        let error = Buffer::zeroed(usize::MAX - 1)
            .err()
            .expect("more memory than any machine has")
            .to_string();
        assert!(error.contains("cannot allocate"), "{error}");
    }
}
