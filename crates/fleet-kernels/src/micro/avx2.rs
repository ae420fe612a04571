//! The register tile and the transposing packing loop in AVX2 + FMA: 6 rows x 16 columns at a time.

pub(crate) use super::portable::copy_panel;
use super::{Finish, PANEL, TILE_ROWS, Tile};
use std::arch::x86_64::*;

type StripFn = unsafe fn(&Tile, usize);

static STRIPS: [StripFn; TILE_ROWS] =
    [strip_of::<1>, strip_of::<2>, strip_of::<3>, strip_of::<4>, strip_of::<5>, strip_of::<6>];

/// # Safety
/// The guarantees of [`Tile`] hold; AVX2 and FMA are available.
#[inline]
pub(crate) unsafe fn tile(tile: &Tile) {
    let kernel = STRIPS[tile.rows - 1];
    for first in (0..tile.cols).step_by(16) {
        // SAFETY: promised by the caller.
        unsafe { kernel(tile, first) }
    }
}

/// Computes columns `first..first + 16` of a tile.
#[target_feature(enable = "avx2,fma")]
unsafe fn strip_of<const ROWS: usize>(tile: &Tile, first: usize) {
    // SAFETY: all addresses are promised by the caller.
    unsafe {
        let mut acc = [[_mm256_setzero_ps(); 2]; ROWS];
        let mut b = tile.b.add(first);
        for s in 0..tile.segment_count {
            let offset = *tile.segments.add(s);
            let a: [*const f32; ROWS] = std::array::from_fn(|r| tile.a[r].offset(offset));
            let mut at = 0usize;
            for _ in 0..tile.segment_len {
                let columns = [_mm256_loadu_ps(b), _mm256_loadu_ps(b.add(8))];
                // The lines of this part of the panel share a few sets of L1, so they come from L2
                // each time.
                _mm_prefetch::<_MM_HINT_T0>(b.wrapping_add(8 * tile.b_step).cast());
                for r in 0..ROWS {
                    let value = _mm256_set1_ps(*a[r].add(at));
                    for v in 0..2 {
                        acc[r][v] = _mm256_fmadd_ps(value, columns[v], acc[r][v]);
                    }
                }
                at += tile.a_step;
                b = b.wrapping_add(tile.b_step);
            }
        }
        finish(tile, first, &mut acc);
    }
}

/// Runs in separate passes, each short enough to be unrolled. Only then do the sums stay in
/// registers in the loop above.
#[inline(always)]
unsafe fn finish<const ROWS: usize>(tile: &Tile, first: usize, acc: &mut [[__m256; 2]; ROWS]) {
    let Finish { alpha, beta, bias, relu, stats } = tile.finish;
    // SAFETY: all addresses are promised by the caller; masked lanes are not accessed.
    unsafe {
        let masks = [0, 8].map(|v| lane_mask(tile.cols.saturating_sub(first + v).min(8)));
        if alpha != 1.0 {
            let alpha = _mm256_set1_ps(alpha);
            for row in acc.iter_mut() {
                for value in row.iter_mut() {
                    *value = _mm256_mul_ps(*value, alpha);
                }
            }
        }
        if beta != 0.0 {
            let beta = _mm256_set1_ps(beta);
            for r in 0..ROWS {
                for v in 0..2 {
                    let old = _mm256_maskload_ps(tile.c[r].wrapping_add(first + v * 8), masks[v]);
                    acc[r][v] = _mm256_fmadd_ps(old, beta, acc[r][v]);
                }
            }
        }
        if !bias.is_null() {
            for v in 0..2 {
                let bias = _mm256_maskload_ps(bias.wrapping_add(first + v * 8), masks[v]);
                for row in acc.iter_mut() {
                    row[v] = _mm256_add_ps(row[v], bias);
                }
            }
        }
        if relu {
            let zero = _mm256_setzero_ps();
            for row in acc.iter_mut() {
                for value in row.iter_mut() {
                    // This order of operands preserves NaN.
                    *value = _mm256_max_ps(zero, *value);
                }
            }
        }
        for r in 0..ROWS {
            for v in 0..2 {
                let at = tile.c[r].wrapping_add(first + v * 8);
                _mm256_maskstore_ps(at, masks[v], acc[r][v]);
            }
        }
        if !stats.is_null() {
            for v in 0..2 {
                let mut sum = acc[0][v];
                let mut squares = _mm256_mul_ps(acc[0][v], acc[0][v]);
                for row in &acc[1..] {
                    sum = _mm256_add_ps(sum, row[v]);
                    squares = _mm256_fmadd_ps(row[v], row[v], squares);
                }
                let at = stats.add(first + v * 8);
                let at_squares = at.add(PANEL);
                _mm256_storeu_ps(at, _mm256_add_ps(_mm256_loadu_ps(at), sum));
                _mm256_storeu_ps(at_squares, _mm256_add_ps(_mm256_loadu_ps(at_squares), squares));
            }
        }
    }
}

#[inline]
#[target_feature(enable = "avx2")]
fn lane_mask(live: usize) -> __m256i {
    let lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    _mm256_cmpgt_epi32(_mm256_set1_epi32(live as i32), lanes)
}

/// # Safety
/// As for [`super::clear_where_not_positive`].
#[target_feature(enable = "avx2")]
pub(crate) unsafe fn clear_where_not_positive(tile: &Tile, mask: &[*const f32; TILE_ROWS]) {
    let zero = _mm256_setzero_ps();
    for r in 0..tile.rows {
        for col in (0..tile.cols).step_by(8) {
            let live = lane_mask((tile.cols - col).min(8));
            // SAFETY: promised by the caller; masked lanes are not accessed.
            unsafe {
                let values = _mm256_maskload_ps(mask[r].add(col), live);
                let keep = _mm256_cmp_ps::<_CMP_GT_OQ>(values, zero); // false for a NaN
                let at = tile.c[r].add(col);
                _mm256_maskstore_ps(at, live, _mm256_and_ps(_mm256_maskload_ps(at, live), keep));
            }
        }
    }
}

/// # Safety
/// As for [`super::copy_strips`].
#[target_feature(enable = "avx2")]
pub(crate) unsafe fn copy_strips(
    source: *const f32,
    pitch: usize,
    rows: usize,
    cols: usize,
    target: *mut f32,
) {
    // A few rows at a time, so that their lines stay in L1 from the first strip to the last.
    const ROWS: usize = 16;
    let six = lane_mask(TILE_ROWS);
    for first in (0..rows).step_by(ROWS) {
        for strip in 0..cols.div_ceil(TILE_ROWS) {
            let live = lane_mask((cols - strip * TILE_ROWS).min(TILE_ROWS));
            let from = source.wrapping_add(strip * TILE_ROWS);
            for k in first..(first + ROWS).min(rows) {
                // SAFETY: only live columns are read, and six are written.
                unsafe {
                    let values = _mm256_maskload_ps(from.wrapping_add(k * pitch), live);
                    _mm256_maskstore_ps(target.add((strip * rows + k) * TILE_ROWS), six, values);
                }
            }
        }
    }
}

/// # Safety
/// As for [`super::transpose_panel`].
#[target_feature(enable = "avx2")]
pub(crate) unsafe fn transpose_panel(
    source: *const f32,
    pitch: usize,
    rows: usize,
    cols: usize,
    target: *mut f32,
) {
    for k in (0..rows).step_by(8) {
        let live_rows = (rows - k).min(8);
        let mask = lane_mask(live_rows);
        for j in (0..PANEL).step_by(8) {
            let mut lines = [_mm256_setzero_ps(); 8];
            for line in 0..cols.saturating_sub(j).min(8) {
                // SAFETY: row `j + line` exists; lanes beyond the last row are not read.
                lines[line] =
                    unsafe { _mm256_maskload_ps(source.add((j + line) * pitch + k), mask) };
            }
            let lines = transpose_8(lines);
            for row in 0..live_rows {
                // SAFETY: the panel has that row.
                unsafe { _mm256_storeu_ps(target.add((k + row) * PANEL + j), lines[row]) };
            }
        }
    }
}

#[inline]
#[target_feature(enable = "avx2")]
fn transpose_8(lines: [__m256; 8]) -> [__m256; 8] {
    let mut pairs = lines;
    for i in 0..4 {
        pairs[2 * i] = _mm256_unpacklo_ps(lines[2 * i], lines[2 * i + 1]);
        pairs[2 * i + 1] = _mm256_unpackhi_ps(lines[2 * i], lines[2 * i + 1]);
    }
    let mut out = lines;
    for c in 0..4 {
        let pick = |i: usize| _mm256_castps_pd(pairs[i + c / 2]);
        let join = |low, high| {
            _mm256_castpd_ps(if c % 2 == 0 {
                _mm256_unpacklo_pd(low, high)
            } else {
                _mm256_unpackhi_pd(low, high)
            })
        };
        let (top, bottom) = (join(pick(0), pick(2)), join(pick(4), pick(6)));
        out[c] = _mm256_permute2f128_ps::<0x20>(top, bottom);
        out[c + 4] = _mm256_permute2f128_ps::<0x31>(top, bottom);
    }
    out
}
