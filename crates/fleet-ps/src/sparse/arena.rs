//! Memory for rows and index pages: blocks of one size, cut from large chunks.
//!
//! Blocks never move, so that a row keeps its address while its table grows. Chunks start small,
//! for small tables, and grow to the size of a huge page: a table is read at random, and a page
//! walk costs as much as a row. Returned blocks are handed out again; chunks are kept until the
//! arena is dropped.

use fleet_base::sync::lock;
use fleet_base::{Error, Result, text};
use std::alloc::{Layout, alloc, dealloc};
use std::ptr::NonNull;
use std::sync::Mutex;

/// Largest size of a chunk, in bytes: a huge page of x86-64 and ARM.
const CHUNK_BYTES_MAX: usize = 2 << 20;
/// Size of the first chunk, in bytes.
const CHUNK_BYTES_MIN: usize = 64 << 10;
/// Alignment of blocks, in bytes: a cache line.
const ALIGN: usize = 64;

/// A source of blocks of one size.
pub(crate) struct Arena {
    block_bytes: usize,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    chunks: Vec<(NonNull<u8>, Layout)>,
    /// The part of the last chunk that was never handed out.
    fresh: Option<(NonNull<u8>, usize)>,
    free: Vec<NonNull<u8>>,
    bytes: usize,
}

// SAFETY: the pointers refer to memory that the arena owns; a block has one holder.
unsafe impl Send for Inner {}

impl Arena {
    pub fn new(block_bytes: usize) -> Arena {
        let block_bytes = block_bytes.next_multiple_of(ALIGN);
        Arena { block_bytes, inner: Mutex::default() }
    }

    /// Returns a block with arbitrary contents.
    pub fn take(&self) -> Result<NonNull<u8>> {
        let mut inner = self.lock();
        if let Some(block) = inner.free.pop() {
            return Ok(block);
        }
        if inner.fresh.is_none_or(|(_, bytes)| bytes < self.block_bytes) {
            inner.grow(self.block_bytes)?;
        }
        let Some((block, bytes)) = inner.fresh else {
            return Err(Error::internal("arena grew by zero bytes"));
        };
        // SAFETY: at least a block is left of the chunk, so its end lies within or just past it.
        let rest = unsafe { block.add(self.block_bytes) };
        inner.fresh = Some((rest, bytes - self.block_bytes));
        Ok(block)
    }

    /// Takes a block back.
    pub fn give(&self, block: NonNull<u8>) {
        self.lock().free.push(block);
    }

    /// Returns the bytes held, handed out or not.
    pub fn bytes(&self) -> usize {
        let inner = self.lock();
        let lists = inner.free.capacity() * size_of::<NonNull<u8>>()
            + inner.chunks.capacity() * size_of::<(NonNull<u8>, Layout)>();
        inner.bytes + lists
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Inner> {
        // No code panics while the lists are inconsistent.
        lock(&self.inner)
    }
}

impl Inner {
    fn grow(&mut self, block_bytes: usize) -> Result<()> {
        let wanted = self.bytes.clamp(CHUNK_BYTES_MIN, CHUNK_BYTES_MAX).next_power_of_two();
        let bytes = wanted.max(block_bytes);
        let align = if bytes >= CHUNK_BYTES_MAX { CHUNK_BYTES_MAX } else { ALIGN };
        let refused = || {
            Error::exhausted(format!("cannot allocate {} for a table", text::bytes(bytes as u64)))
        };
        let layout = Layout::from_size_align(bytes, align).map_err(|_| refused())?;
        // SAFETY: the size is not zero.
        let chunk = NonNull::new(unsafe { alloc(layout) }).ok_or_else(refused)?;
        advise_huge_pages(chunk.as_ptr(), bytes);
        self.chunks.push((chunk, layout));
        self.bytes += bytes;
        self.fresh = Some((chunk, bytes));
        Ok(())
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        for (chunk, layout) in self.chunks.drain(..) {
            // SAFETY: allocated in `grow` with this layout.
            unsafe { dealloc(chunk.as_ptr(), layout) };
        }
    }
}

#[cfg(target_os = "linux")]
fn advise_huge_pages(ptr: *mut u8, bytes: usize) {
    if bytes >= CHUNK_BYTES_MAX {
        // SAFETY: the range belongs to the arena; the call is a hint and its failure is harmless.
        unsafe { libc::madvise(ptr.cast(), bytes, libc::MADV_HUGEPAGE) };
    }
}

#[cfg(not(target_os = "linux"))]
fn advise_huge_pages(_ptr: *mut u8, _bytes: usize) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_aligned_apart_and_used_again() {
        let arena = Arena::new(1000);
        let mut blocks: Vec<usize> =
            (0..5000).map(|_| arena.take().unwrap().as_ptr() as usize).collect();
        blocks.sort_unstable();
        assert!(blocks.iter().all(|block| block % ALIGN == 0));
        assert!(blocks.windows(2).all(|pair| pair[1] - pair[0] >= 1000));
        let held = arena.bytes();
        arena.give(NonNull::new(blocks[7] as *mut u8).unwrap());
        assert_eq!(arena.take().unwrap().as_ptr() as usize, blocks[7]);
        assert!(arena.bytes() < held + CHUNK_BYTES_MAX && held < 5000 * 1024 + CHUNK_BYTES_MAX * 2);
    }
}
