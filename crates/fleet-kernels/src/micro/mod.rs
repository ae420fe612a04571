//! The register tile of GEMM and convolution: 6 rows x 64 columns of the output.
//!
//! A tile is `C[r][j] (+)= sum over k of A[r][k] * B[k][j]`. Each of its (at most six) rows of A
//! has its own pointer, so that rows may be pixels anywhere in an image. B is a panel of 64
//! columns, stored row by row. The sum runs over `segments` of `segment_len` terms each. Segment
//! `s` starts `segments[s]` elements after the row pointers, and its term `k` is `k * a_step`
//! further. A k x k convolution has k segments, a GEMM one.
//!
//! Sketch (AVX-512): 24 accumulators; 4 loads of B and 6 broadcasts of A for 24 fused multiply-adds
//! in 12 cycles. B streams from L2 at 21 bytes a cycle, half of what L2 delivers. Every element of
//! C is one chain of additions over k in order, wherever it is in a tile. The result therefore does
//! not depend on how rows and columns are split, only on how k is split.
//!
//! This module does not know matrices or images, and is not a public interface for models.

#[cfg(target_arch = "x86_64")]
pub(crate) mod amx;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
#[cfg(target_arch = "x86_64")]
pub(crate) mod bf16;
#[cfg(target_arch = "x86_64")]
pub(crate) mod dot;
pub(crate) mod portable;
#[cfg(target_arch = "x86_64")]
pub(crate) mod unit;

pub use crate::simd::Isa;
use crate::simd::prefetch;

/// Number of rows of a register tile.
pub(crate) const TILE_ROWS: usize = 6;
/// Number of columns of a register tile, and width of a packed panel.
pub const PANEL: usize = 64;

/// One call of the register tile.
///
/// The caller guarantees that every address named below may be read or written. The rows of C must
/// not overlap each other, A, B or the bias.
#[derive(Clone, Copy)]
pub(crate) struct Tile {
    /// Row pointers of A; those from `rows` on are not read.
    pub a: [*const f32; TILE_ROWS],
    /// Distance between the terms of a segment, in elements.
    pub a_step: usize,
    /// Offsets of the segments from the row pointers, in elements.
    pub segments: *const isize,
    pub segment_count: usize,
    pub segment_len: usize,
    /// The panel. All columns up to the next multiple of 16 are read.
    pub b: *const f32,
    /// Distance between the rows of the panel, in elements.
    pub b_step: usize,
    /// Row pointers of C.
    pub c: [*mut f32; TILE_ROWS],
    /// Number of rows, 1 to 6.
    pub rows: usize,
    /// Number of columns, 1 to 64.
    pub cols: usize,
    pub finish: Finish,
    pub prefetch: Prefetch,
}

/// Memory that will be read soon. Each term prefetches one line of it, so that it arrives while the
/// sums run. Prefetching all of it at once would stall the loads of the sums.
#[derive(Clone, Copy)]
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))] // only the AVX-512 tile prefetches
pub(crate) struct Prefetch {
    /// Any address is allowed. One that is in L1 costs nothing.
    pub at: *const f32,
    /// Distance between the prefetches of successive terms, in elements.
    pub step: usize,
}

impl Prefetch {
    /// Returns a prefetch that repeats one address and so has no effect.
    pub fn none(at: *const f32) -> Prefetch {
        Prefetch { at, step: 0 }
    }

    /// Returns part number `part` of `parts` equal parts of `len` elements, spread over `terms`
    /// terms.
    pub fn part(
        first: *const f32,
        len: usize,
        part: usize,
        parts: usize,
        terms: usize,
    ) -> Prefetch {
        let step = len.div_ceil(parts.max(1)).div_ceil(terms.max(1));
        Prefetch { at: first.wrapping_add((part * step * terms).min(len)), step }
    }
}

/// Operations between the sums and the store: `C = act(alpha * sum + beta * C + bias)`.
#[derive(Clone, Copy)]
pub(crate) struct Finish {
    pub alpha: f32,
    /// C is read only if this is not 0.
    pub beta: f32,
    /// Null, or one number per column.
    pub bias: *const f32,
    pub relu: bool,
    /// Null, or 128 numbers to which the column statistics are added: the 64 sums of the stored
    /// values, then the 64 sums of their squares.
    pub stats: *mut f32,
}

impl Finish {
    /// Stores the product without change.
    pub const STORE: Finish = Finish {
        alpha: 1.0,
        beta: 0.0,
        bias: std::ptr::null(),
        relu: false,
        stats: std::ptr::null_mut(),
    };

    /// Adds to the existing values.
    pub const ADD: Finish = Finish { beta: 1.0, ..Finish::STORE };
}

/// Defines functions that call the function of the same name for an instruction set.
macro_rules! dispatch {
    ($($(#[$meta:meta])* unsafe fn $name:ident($($arg:ident: $ty:ty),* $(,)?);)*) => {$(
        $(#[$meta])*
        #[inline]
        pub(crate) unsafe fn $name(isa: Isa, $($arg: $ty),*) {
            match isa {
                // SAFETY: promised by the caller, here and in the other arms.
                #[cfg(target_arch = "x86_64")]
                Isa::Avx512 => unsafe { avx512::$name($($arg),*) },
                #[cfg(target_arch = "x86_64")]
                // SAFETY: as above.
                Isa::Avx2 => unsafe { avx2::$name($($arg),*) },
                // SAFETY: as above.
                _ => unsafe { portable::$name($($arg),*) },
            }
        }
    )*};
}

dispatch! {
    /// Runs one tile.
    ///
    /// # Safety
    /// The guarantees of [`Tile`] hold, and `isa` is available.
    unsafe fn tile(tile: &Tile);

    /// Stores 0 to the elements of a tile's C where `mask` (row pointers, as for C) is not
    /// positive.
    ///
    /// # Safety
    /// The tile's rows and columns of C are writable, those of the mask are readable, and `isa` is
    /// available.
    unsafe fn clear_where_not_positive(tile: &Tile, mask: &[*const f32; TILE_ROWS]);

    /// Copies `rows` rows of `cols` (at most 64) floats to rows of 64, with zeros beyond `cols`.
    ///
    /// # Safety
    /// `source` holds the rows at `pitch`, `target` has space for `rows * 64`, and `isa` is
    /// available.
    unsafe fn copy_panel(
        source: *const f32, pitch: usize, rows: usize, cols: usize, target: *mut f32,
    );

    /// Transposes `cols` (at most 64) rows of `rows` floats into `rows` rows of 64, with zeros
    /// beyond `cols`: `target[k * 64 + j] = source[j * pitch + k]`.
    ///
    /// # Safety
    /// `source` holds `cols` rows at `pitch`, `target` has space for `rows * 64`, and `isa` is
    /// available.
    unsafe fn transpose_panel(
        source: *const f32, pitch: usize, rows: usize, cols: usize, target: *mut f32,
    );

    /// Copies columns `0..cols` of `rows` rows into strips of six columns:
    /// `target[(j / 6 * rows + k) * 6 + j % 6] = source[k * pitch + j]`, with zeros beyond `cols`.
    ///
    /// # Safety
    /// `source` holds the rows at `pitch`, `target` has space for [`strips_len`], and `isa` is
    /// available.
    unsafe fn copy_strips(
        source: *const f32, pitch: usize, rows: usize, cols: usize, target: *mut f32,
    );
}

/// Prefetches `cols` floats of each row.
#[inline]
pub(crate) fn prefetch_rows(rows: &[*const f32], cols: usize) {
    for row in rows {
        // Also prefetch the last line, wherever in a line the row starts.
        for at in (0..cols).step_by(LINE).chain([cols.max(1) - 1]) {
            prefetch(row.wrapping_add(at));
        }
    }
}

/// Returns the number of floats that [`copy_strips`] writes.
pub(crate) fn strips_len(rows: usize, cols: usize) -> usize {
    cols.div_ceil(TILE_ROWS) * rows * TILE_ROWS
}

/// Number of floats in 64 bytes, the alignment of packed panels.
pub(crate) const LINE: usize = 16;

/// Splits `len` floats of scratch off the front of a slice, aligned to a cache line.
///
/// For the first alignment, a caller adds [`LINE`] floats to the total length, once.
pub(crate) fn cut_aligned(scratch: &mut [f32], len: usize) -> (&mut [f32], &mut [f32]) {
    let skip = scratch.as_ptr().align_offset(64).min(LINE);
    let (_, rest) = scratch.split_at_mut(skip);
    rest.split_at_mut(len)
}
