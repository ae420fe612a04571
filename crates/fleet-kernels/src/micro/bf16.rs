//! Blocks of bf16 products: 32 x 32 sums in f32, 32 terms a step.
//!
//! Both sides are packed into tiles of 16 lines of 64 bytes. On the left side, a line is 32 terms
//! of a row of A. On the right side, a line is two terms of 16 columns of B, interleaved by pairs.
//! Products of two bf16 are exact in f32. The units that read these tiles are in
//! [`unit`](super::unit).

use super::avx512::transpose_registers;
use std::arch::x86_64::*;

/// Number of rows of a tile, and of columns of its sums.
pub(crate) const TILE: usize = 16;
/// Number of terms in a step.
pub(crate) const TERMS: usize = 32;
/// Number of bf16 elements in a tile.
pub(crate) const TILE_LEN: usize = TILE * TERMS;
/// Number of rows and columns of the sums of one call.
pub(crate) const BLOCK: usize = 2 * TILE;

/// One block: two packed strips of 16 rows of A times two of 16 columns of B.
pub(crate) struct Block {
    /// The first tile of each strip. The tiles of a strip are consecutive.
    pub a: [*const u16; 2],
    pub b: [*const u16; 2],
    /// Number of steps of 32 terms, at least 1.
    pub steps: usize,
    /// The 32 x 32 sums.
    pub sums: *mut f32,
    /// Whether to add to the existing sums.
    pub add: bool,
}

/// Packs one tile of the left side from A stored `[row][term]`: `rows` rows of `terms` terms, with
/// zeros beyond.
///
/// # Safety
/// `from` holds the rows, `pitch` apart, and `to` has space for a tile. AVX-512 F and BW are
/// available.
#[target_feature(enable = "avx512f,avx512bw")]
pub(crate) unsafe fn pack_rows(
    from: *const u16,
    pitch: usize,
    rows: usize,
    terms: usize,
    to: *mut u16,
) {
    for r in 0..TILE {
        // SAFETY: row `r` exists; masked lanes are not read.
        unsafe {
            let mask = if r < rows { lanes_32(terms) } else { 0 };
            let line = _mm512_maskz_loadu_epi16(mask, from.wrapping_add(r * pitch).cast());
            _mm512_storeu_si512(to.add(r * TERMS).cast(), line);
        }
    }
}

/// Packs one tile of the right side from B stored `[term][column]`: `cols` columns, `terms` terms.
///
/// # Safety
/// As for [`pack_rows`], with one row per term.
#[target_feature(enable = "avx512f,avx512bw")]
pub(crate) unsafe fn pack_pairs(
    from: *const u16,
    pitch: usize,
    terms: usize,
    cols: usize,
    to: *mut u16,
) {
    for pair in 0..TILE {
        // SAFETY: promised by the caller; `to` has a line for each pair.
        unsafe {
            let line = pair_line(from, pitch, terms, cols, pair);
            _mm512_storeu_si512(to.add(pair * TERMS).cast(), line);
        }
    }
}

/// Packs one tile of the left side from A stored `[term][row]`.
///
/// # Safety
/// As for [`pack_pairs`].
#[target_feature(enable = "avx512f,avx512bw")]
pub(crate) unsafe fn pack_rows_transposed(
    from: *const u16,
    pitch: usize,
    rows: usize,
    terms: usize,
    to: *mut u16,
) {
    let mut lines = [_mm512_setzero_ps(); TILE];
    for (pair, line) in lines.iter_mut().enumerate() {
        // SAFETY: promised by the caller.
        *line = _mm512_castsi512_ps(unsafe { pair_line(from, pitch, terms, rows, pair) });
    }
    // SAFETY: there is space for a tile.
    unsafe { store_tile(transpose_registers(lines), to) };
}

/// Packs one tile of the right side from B stored `[column][term]`.
///
/// # Safety
/// As for [`pack_rows`].
#[target_feature(enable = "avx512f,avx512bw")]
pub(crate) unsafe fn pack_pairs_transposed(
    from: *const u16,
    pitch: usize,
    terms: usize,
    cols: usize,
    to: *mut u16,
) {
    let mut lines = [_mm512_setzero_ps(); TILE];
    for (col, line) in lines.iter_mut().enumerate().take(cols) {
        // SAFETY: this column's row exists; masked lanes are not read.
        *line = _mm512_castsi512_ps(unsafe {
            _mm512_maskz_loadu_epi16(lanes_32(terms), from.wrapping_add(col * pitch).cast())
        });
    }
    // SAFETY: there is space for a tile.
    unsafe { store_tile(transpose_registers(lines), to) };
}

/// Returns terms `2 pair` and `2 pair + 1` of 16 columns, interleaved.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn pair_line(
    from: *const u16,
    pitch: usize,
    terms: usize,
    cols: usize,
    pair: usize,
) -> __m512i {
    let mask = lanes_32(cols);
    let load = |term: usize| -> __m512i {
        let mask = if term < terms { mask } else { 0 };
        // SAFETY: masked lanes are not read; the others exist.
        unsafe { _mm512_maskz_loadu_epi16(mask, from.wrapping_add(term * pitch).cast()) }
    };
    let (even, odd) = (load(2 * pair), load(2 * pair + 1));
    let widen = |x: __m512i| _mm512_cvtepu16_epi32(_mm512_castsi512_si256(x));
    _mm512_or_si512(widen(even), _mm512_slli_epi32::<16>(widen(odd)))
}

/// Returns a mask of the first `count` of 32 lanes.
fn lanes_32(count: usize) -> u32 {
    if count >= 32 { u32::MAX } else { (1 << count) - 1 }
}

#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn store_tile(lines: [__m512; TILE], to: *mut u16) {
    for (r, line) in lines.into_iter().enumerate() {
        // SAFETY: the caller promises space for 16 lines of 32.
        unsafe { _mm512_storeu_ps(to.add(r * TERMS).cast(), line) };
    }
}
