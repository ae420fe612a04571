//! The forward pass.

use super::tiles::*;
use super::{Attention, QUERY_CHUNK};
use crate::micro::{Finish, Isa, LINE, PANEL, cut_aligned};
use crate::pool::Shareable;
use std::f32::consts::LOG2_E;
use std::ops::Range;

/// Scratch memory of one worker in the forward pass.
pub(super) struct ForwardScratch<'s> {
    keys: &'s mut [f32],
    values: &'s mut [f32],
    scores: &'s mut [f32],
    /// Maximum score of every row of a chunk. `sum` holds the rows' sums of exponentials, and
    /// `keep` one row of dropout.
    max: &'s mut [f32],
    sum: &'s mut [f32],
    keep: &'s mut [f32],
}

impl<'s> ForwardScratch<'s> {
    pub(super) fn len(dim: usize) -> usize {
        KEY_TILE * dim
            + KEY_TILE * dim.next_multiple_of(PANEL)
            + QUERY_TILE * SCORE_PITCH
            + 2 * QUERY_CHUNK
            + KEY_TILE
            + 6 * LINE
    }

    pub(super) fn cut(scratch: &'s mut [f32], dim: usize) -> Self {
        let (keys, rest) = cut_aligned(scratch, (KEY_TILE * dim).next_multiple_of(LINE));
        let (values, rest) = cut_aligned(rest, KEY_TILE * dim.next_multiple_of(PANEL));
        let (scores, rest) = cut_aligned(rest, QUERY_TILE * SCORE_PITCH);
        let (max, rest) = cut_aligned(rest, QUERY_CHUNK);
        let (sum, rest) = cut_aligned(rest, QUERY_CHUNK);
        let (keep, _) = cut_aligned(rest, KEY_TILE);
        ForwardScratch { keys, values, scores, max, sum, keep }
    }
}

pub(super) struct Forward {
    pub(super) shape: Attention,
    pub(super) isa: Isa,
    pub(super) q: View,
    pub(super) k: View,
    pub(super) v: View,
    pub(super) out: View,
    pub(super) mask: Option<MaskView>,
    pub(super) lse: Shareable<f32>,
}

impl Forward {
    /// Computes the queries `rows` (at most a chunk) of one head. The loops over keys and queries
    /// stay in one function, because both products and the softmax of a tile use the same packed
    /// keys, scores and row sums.
    ///
    /// # Safety
    /// The views were checked against the shape, and no other task writes these rows.
    pub(super) unsafe fn chunk(
        &self,
        at: (usize, usize),
        rows: Range<usize>,
        scratch: ForwardScratch<'_>,
    ) {
        let Attention { dim, scale, .. } = self.shape;
        let (q, k, v) = (self.q.head(at), self.k.head(at), self.v.head(at));
        let out = self.out.head(at);
        let ForwardScratch { keys, values, scores, max, sum, keep } = scratch;
        let scores = Rows { data: scores.as_mut_ptr(), pitch: SCORE_PITCH };
        max.fill(f32::NEG_INFINITY);
        sum.fill(0.0);
        let keys_end = self.shape.keys_seen(rows.end);
        for first_key in (0..keys_end).step_by(KEY_TILE) {
            let key_count = KEY_TILE.min(keys_end - first_key);
            // SAFETY: these keys exist, and the scratch memory has the size of a tile.
            unsafe {
                pack_transposed(self.isa, k.from(first_key), key_count, dim, keys.as_mut_ptr());
                let target = values.as_mut_ptr();
                pack(self.isa, v.from(first_key), key_count, dim, KEY_TILE, target);
            }
            for first in rows.clone().step_by(QUERY_TILE) {
                let count = QUERY_TILE.min(rows.end - first);
                let seen = self.shape.keys_seen(first + count).saturating_sub(first_key);
                let seen = seen.min(key_count);
                if seen == 0 {
                    continue;
                }
                let place = TileIndex { at, first, count, first_key, seen };
                let local = first - rows.start;
                let product = Product {
                    a: q.row(first),
                    a_row: q.pitch,
                    a_step: 1,
                    depth: dim,
                    b: keys.as_ptr(),
                    b_panel: PANEL * dim,
                    c: scores,
                    rows: count,
                    cols: seen,
                    finish: Finish { alpha: scale * LOG2_E, ..Finish::STORE },
                };
                // SAFETY: rows, keys and scratch as above.
                unsafe { product.run(self.isa) };
                let softmax = Softmax {
                    shape: &self.shape,
                    mask: self.mask,
                    place,
                    scores,
                    out: out.from(first),
                    max: max[local..].as_mut_ptr(),
                    sum: sum[local..].as_mut_ptr(),
                    keep: keep.as_mut_ptr(),
                };
                // SAFETY: as above.
                unsafe { softmax_rows(&softmax) };
                let product = Product {
                    a: scores.data,
                    a_row: SCORE_PITCH,
                    a_step: 1,
                    depth: seen,
                    b: values.as_ptr(),
                    b_panel: KEY_TILE * PANEL,
                    c: out.from(first),
                    rows: count,
                    cols: dim,
                    finish: if first_key == 0 { Finish::STORE } else { Finish::ADD },
                };
                // SAFETY: as above.
                unsafe { product.run(self.isa) };
            }
        }
        // SAFETY: as above.
        unsafe { self.normalise(at, rows, max, sum) };
    }

    /// Divides the rows of `out` by their sums of exponentials, and writes their `lse`.
    ///
    /// # Safety
    /// As for [`Forward::chunk`].
    unsafe fn normalise(&self, at: (usize, usize), rows: Range<usize>, max: &[f32], sum: &[f32]) {
        let Attention { heads, queries, dim, .. } = self.shape;
        let lse_start = (at.0 * heads + at.1) * queries;
        let out = self.out.head(at);
        for (row, (max, sum)) in rows.zip(max.iter().zip(sum)) {
            // SAFETY: the row belongs to this task.
            let (out, lse) = unsafe {
                let out = std::slice::from_raw_parts_mut(out.row(row), dim);
                (out, &mut *self.lse.ptr().add(lse_start + row))
            };
            // No tile had a key for this row, so nothing was written.
            if *sum == 0.0 {
                out.fill(0.0);
                *lse = f32::INFINITY;
            } else {
                let inverse = 1.0 / sum;
                out.iter_mut().for_each(|value| *value *= inverse);
                *lse = (max + sum.log2()) * std::f32::consts::LN_2;
            }
        }
    }
}
