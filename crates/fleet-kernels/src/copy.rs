//! Copies of large memory regions.
//!
//! A core's prefetchers follow a stream within one page of 4 KB and restart at the next page. Four
//! parallel streams therefore keep more cache lines in flight. Storing whole lines lets the core
//! prefetch more of the lines that it overwrites. Measured on one core of a Xeon (Sapphire Rapids),
//! 64 KB at a time: 9.9 GB/s for `memcpy` and 13.2 GB/s for four streams from memory; 13 GB/s and
//! 17 GB/s from the cache of another core.

use crate::kernel;

/// Number of parallel streams.
const STREAMS: usize = 4;
/// Minimum size for parallel streams, in bytes. Shorter copies gain nothing from them.
const SPREAD_BYTES_MIN: usize = 16 << 10;
const LINE: usize = 64;

/// Copies `bytes` bytes.
///
/// # Safety
/// As for `std::ptr::copy_nonoverlapping`: `from` is readable and `to` is writable for `bytes`
/// bytes, and the two regions do not overlap.
#[inline]
pub unsafe fn copy(from: *const u8, to: *mut u8, bytes: usize) {
    if bytes < SPREAD_BYTES_MIN {
        // SAFETY: promised by the caller.
        return unsafe { std::ptr::copy_nonoverlapping(from, to, bytes) };
    }
    // SAFETY: as above.
    unsafe { streams(from, to, bytes) }
}

kernel! {
    unsafe fn streams<S>(s: S, from: *const u8, to: *mut u8, bytes: usize) {
        let _ = s;
        let span = bytes / STREAMS / LINE * LINE;
        let mut offset = 0;
        while offset < span {
            for stream in 0..STREAMS {
                // The offset is at most STREAMS * span minus one line, which is within both
                // regions.
                let at = stream * span + offset;
                let line = from.add(at).cast::<[u8; LINE]>().read_unaligned();
                to.add(at).cast::<[u8; LINE]>().write_unaligned(line);
            }
            offset += LINE;
        }
        let done = STREAMS * span;
        std::ptr::copy_nonoverlapping(from.add(done), to.add(done), bytes - done);
    }
}

#[cfg(test)]
mod tests {
    use crate::simd::for_every_isa;

    #[test]
    fn every_length_is_copied_whole() {
        let from: Vec<u8> = (0..200_000u32).map(|i| (i * 7 + i / 251) as u8).collect();
        for_every_isa(|_| {
            for bytes in [0, 1, 64, 16_383, 16_384, 16_385, 16_640, 65_535, 131_072, 199_999] {
                let mut to = vec![0u8; from.len()];
                // SAFETY: both slices are longer than `bytes`.
                unsafe { super::copy(from[1..].as_ptr(), to.as_mut_ptr(), bytes) };
                assert_eq!(to[..bytes], from[1..=bytes], "{bytes}");
                assert!(to[bytes..].iter().all(|byte| *byte == 0), "{bytes}");
            }
        });
    }
}
