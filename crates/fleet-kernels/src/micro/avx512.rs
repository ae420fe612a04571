//! The register tile and the packing loops in AVX-512.

use super::{Finish, PANEL, TILE_ROWS, Tile};
use std::arch::x86_64::*;

type TileFn = unsafe fn(&Tile);

macro_rules! by_vectors {
    ($rows:literal) => {
        [tile_of::<$rows, 1>, tile_of::<$rows, 2>, tile_of::<$rows, 3>, tile_of::<$rows, 4>]
    };
}

/// Kernels by rows - 1, then by vectors of 16 columns - 1.
static TILES: [[TileFn; 4]; TILE_ROWS] = [
    by_vectors!(1),
    by_vectors!(2),
    by_vectors!(3),
    by_vectors!(4),
    by_vectors!(5),
    by_vectors!(6),
];

/// # Safety
/// The guarantees of [`Tile`] hold; AVX-512 F is available.
#[inline]
pub(crate) unsafe fn tile(tile: &Tile) {
    let kernel = TILES[tile.rows - 1][tile.cols.div_ceil(16) - 1];
    // SAFETY: promised by the caller.
    unsafe { kernel(tile) }
}

/// The loop that takes nearly all GEMM and convolution time. It is longer than a screen, so that
/// the accumulators stay in registers from the first term to the store.
#[target_feature(enable = "avx512f")]
unsafe fn tile_of<const ROWS: usize, const VECTORS: usize>(tile: &Tile) {
    // SAFETY: all addresses are promised by the caller.
    unsafe {
        // Prefetch the lines of C for writing while the sums run.
        for r in 0..ROWS {
            for v in 0..VECTORS {
                prefetch_write(tile.c[r].wrapping_add(v * 16));
            }
        }
        let mut acc = [[_mm512_setzero_ps(); VECTORS]; ROWS];
        let mut b = tile.b;
        let (a_step, b_step) = (tile.a_step, tile.b_step);
        let (mut prefetch, prefetch_step) = (tile.prefetch.at, tile.prefetch.step);
        for s in 0..tile.segment_count {
            let offset = *tile.segments.add(s);
            let a: [*const f32; ROWS] = std::array::from_fn(|r| tile.a[r].offset(offset));
            let mut at = 0usize;
            for _ in 0..tile.segment_len {
                let mut columns = [_mm512_setzero_ps(); VECTORS];
                for v in 0..VECTORS {
                    columns[v] = _mm512_loadu_ps(b.wrapping_add(v * 16));
                }
                for r in 0..ROWS {
                    let value = _mm512_set1_ps(*a[r].wrapping_add(at));
                    for v in 0..VECTORS {
                        acc[r][v] = _mm512_fmadd_ps(value, columns[v], acc[r][v]);
                    }
                }
                _mm_prefetch::<_MM_HINT_T1>(prefetch.cast());
                prefetch = prefetch.wrapping_add(prefetch_step);
                at += a_step;
                b = b.wrapping_add(b_step);
            }
        }
        finish::<ROWS, VECTORS>(tile, &mut acc);
    }
}

#[inline(always)]
fn prefetch_write<T>(address: *const T) {
    // SAFETY: a prefetch never faults, whatever the address.
    unsafe {
        std::arch::asm!(
            "prefetchw [{}]",
            in(reg) address,
            options(nostack, preserves_flags, readonly)
        );
    }
}

#[inline(always)]
unsafe fn finish<const ROWS: usize, const VECTORS: usize>(
    tile: &Tile,
    acc: &mut [[__m512; VECTORS]; ROWS],
) {
    let Finish { alpha, beta, bias, relu, stats } = tile.finish;
    let tail = tile.cols - (VECTORS - 1) * 16;
    let last: __mmask16 = (((1u32 << tail) - 1) & 0xffff) as __mmask16;
    let mask = |v: usize| if v + 1 == VECTORS { last } else { 0xffff };
    // SAFETY: all addresses are promised by the caller; masked lanes are not accessed.
    unsafe {
        if alpha != 1.0 {
            let alpha = _mm512_set1_ps(alpha);
            for row in acc.iter_mut() {
                for value in row.iter_mut() {
                    *value = _mm512_mul_ps(*value, alpha);
                }
            }
        }
        if beta != 0.0 {
            let beta = _mm512_set1_ps(beta);
            for r in 0..ROWS {
                for v in 0..VECTORS {
                    let old = _mm512_maskz_loadu_ps(mask(v), tile.c[r].add(v * 16));
                    acc[r][v] = _mm512_fmadd_ps(old, beta, acc[r][v]);
                }
            }
        }
        if !bias.is_null() {
            for v in 0..VECTORS {
                let bias = _mm512_maskz_loadu_ps(mask(v), bias.add(v * 16));
                for row in acc.iter_mut() {
                    row[v] = _mm512_add_ps(row[v], bias);
                }
            }
        }
        if relu {
            let zero = _mm512_setzero_ps();
            for row in acc.iter_mut() {
                for value in row.iter_mut() {
                    // This order of operands preserves NaN.
                    *value = _mm512_max_ps(zero, *value);
                }
            }
        }
        for r in 0..ROWS {
            for v in 0..VECTORS {
                _mm512_mask_storeu_ps(tile.c[r].add(v * 16), mask(v), acc[r][v]);
            }
        }
        if !stats.is_null() {
            for v in 0..VECTORS {
                let mut sum = acc[0][v];
                let mut squares = _mm512_mul_ps(acc[0][v], acc[0][v]);
                for row in &acc[1..] {
                    sum = _mm512_add_ps(sum, row[v]);
                    squares = _mm512_fmadd_ps(row[v], row[v], squares);
                }
                let (at, at_squares) = (stats.add(v * 16), stats.add(PANEL + v * 16));
                _mm512_storeu_ps(at, _mm512_add_ps(_mm512_loadu_ps(at), sum));
                _mm512_storeu_ps(at_squares, _mm512_add_ps(_mm512_loadu_ps(at_squares), squares));
            }
        }
    }
}

/// # Safety
/// As for [`super::clear_where_not_positive`].
#[target_feature(enable = "avx512f")]
pub(crate) unsafe fn clear_where_not_positive(tile: &Tile, mask: &[*const f32; TILE_ROWS]) {
    let zero = _mm512_setzero_ps();
    for r in 0..tile.rows {
        for col in (0..tile.cols).step_by(16) {
            let live = column_mask(tile.cols, col);
            // SAFETY: promised by the caller; masked lanes are not accessed.
            unsafe {
                let values = _mm512_maskz_loadu_ps(live, mask[r].add(col));
                let clear = live & !_mm512_cmp_ps_mask::<_CMP_GT_OQ>(values, zero);
                _mm512_mask_storeu_ps(tile.c[r].add(col), clear, zero);
            }
        }
    }
}

/// # Safety
/// As for [`super::copy_panel`].
#[target_feature(enable = "avx512f")]
pub(crate) unsafe fn copy_panel(
    source: *const f32,
    pitch: usize,
    rows: usize,
    cols: usize,
    target: *mut f32,
) {
    let masks: [__mmask16; 4] = std::array::from_fn(|v| column_mask(cols, v * 16));
    for k in 0..rows {
        for v in 0..4 {
            // SAFETY: promised by the caller; masked lanes are not accessed.
            unsafe {
                let values =
                    _mm512_maskz_loadu_ps(masks[v], source.wrapping_add(k * pitch + v * 16));
                _mm512_storeu_ps(target.add(k * PANEL + v * 16), values);
            }
        }
    }
}

#[inline(always)]
fn column_mask(cols: usize, first: usize) -> __mmask16 {
    let live = cols.saturating_sub(first).min(16);
    ((1u32 << live) - 1) as __mmask16
}

/// # Safety
/// As for [`super::transpose_panel`].
#[target_feature(enable = "avx512f")]
pub(crate) unsafe fn transpose_panel(
    source: *const f32,
    pitch: usize,
    rows: usize,
    cols: usize,
    target: *mut f32,
) {
    for k in (0..rows).step_by(16) {
        let live_rows = (rows - k).min(16);
        for j in (0..PANEL).step_by(16) {
            let live_cols = cols.saturating_sub(j).min(16);
            // SAFETY: only live rows and columns are accessed.
            unsafe {
                let from = source.wrapping_add(j * pitch + k);
                transpose_16(from, pitch, live_rows, live_cols, target.add(k * PANEL + j));
            }
        }
    }
}

/// Transposes `cols` rows of `rows` floats (both at most 16) into a 16-wide column of a panel.
#[target_feature(enable = "avx512f")]
unsafe fn transpose_16(
    source: *const f32,
    pitch: usize,
    rows: usize,
    cols: usize,
    target: *mut f32,
) {
    let mask = column_mask(rows, 0);
    let mut lines = [_mm512_setzero_ps(); 16];
    for j in 0..cols {
        // SAFETY: row `j` exists; lanes beyond `rows` are not read.
        lines[j] = unsafe { _mm512_maskz_loadu_ps(mask, source.add(j * pitch)) };
    }
    let lines = transpose_registers(lines);
    for k in 0..rows {
        // SAFETY: the panel has `rows` rows.
        unsafe { _mm512_storeu_ps(target.add(k * PANEL), lines[k]) };
    }
}

/// Turns rows into columns by exchanging pairs, then fours, then whole quarters.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn transpose_registers(lines: [__m512; 16]) -> [__m512; 16] {
    let mut pairs = lines;
    for i in 0..8 {
        pairs[2 * i] = _mm512_unpacklo_ps(lines[2 * i], lines[2 * i + 1]);
        pairs[2 * i + 1] = _mm512_unpackhi_ps(lines[2 * i], lines[2 * i + 1]);
    }
    let mut fours = pairs;
    for i in 0..4 {
        for half in 0..2 {
            let low = _mm512_castps_pd(pairs[4 * i + half]);
            let high = _mm512_castps_pd(pairs[4 * i + 2 + half]);
            fours[4 * i + 2 * half] = _mm512_castpd_ps(_mm512_unpacklo_pd(low, high));
            fours[4 * i + 2 * half + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(low, high));
        }
    }
    // `fours[4 i + c]` holds rows 4i..4i+4 of the columns c, c + 4, c + 8, c + 12.
    let mut out = fours;
    for c in 0..4 {
        let (a, b, d, e) = (fours[c], fours[4 + c], fours[8 + c], fours[12 + c]);
        let ab_even = _mm512_shuffle_f32x4::<0b10_00_10_00>(a, b);
        let ab_odd = _mm512_shuffle_f32x4::<0b11_01_11_01>(a, b);
        let de_even = _mm512_shuffle_f32x4::<0b10_00_10_00>(d, e);
        let de_odd = _mm512_shuffle_f32x4::<0b11_01_11_01>(d, e);
        out[c] = _mm512_shuffle_f32x4::<0b10_00_10_00>(ab_even, de_even);
        out[8 + c] = _mm512_shuffle_f32x4::<0b11_01_11_01>(ab_even, de_even);
        out[4 + c] = _mm512_shuffle_f32x4::<0b10_00_10_00>(ab_odd, de_odd);
        out[12 + c] = _mm512_shuffle_f32x4::<0b11_01_11_01>(ab_odd, de_odd);
    }
    out
}

/// # Safety
/// As for [`super::copy_strips`].
#[target_feature(enable = "avx512f,avx512vl")]
pub(crate) unsafe fn copy_strips(
    source: *const f32,
    pitch: usize,
    rows: usize,
    cols: usize,
    target: *mut f32,
) {
    // A few rows at a time, so that their lines stay in L1 from the first strip to the last.
    // Prefetching the next rows was slower: rows some KB apart share a few sets of L1 and are
    // evicted before they are read.
    const ROWS: usize = 16;
    const SIX: __mmask8 = 0x3f;
    for first in (0..rows).step_by(ROWS) {
        for strip in 0..cols.div_ceil(TILE_ROWS) {
            let live = (cols - strip * TILE_ROWS).min(TILE_ROWS);
            let mask = ((1u32 << live) - 1) as __mmask8;
            let from = source.wrapping_add(strip * TILE_ROWS);
            for k in first..(first + ROWS).min(rows) {
                // SAFETY: only live columns are read, and six are written.
                unsafe {
                    let values = _mm256_maskz_loadu_ps(mask, from.wrapping_add(k * pitch));
                    _mm256_mask_storeu_ps(target.add((strip * rows + k) * TILE_ROWS), SIX, values);
                }
            }
        }
    }
}
