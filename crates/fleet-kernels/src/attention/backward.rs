//! The backward pass.

use super::Attention;
use super::tiles::*;
use crate::micro::{Finish, Isa, LINE, PANEL, cut_aligned};
use crate::softmax::row_dot;
use std::f32::consts::LOG2_E;

/// Scratch memory of one worker in the backward pass.
pub(super) struct BackwardScratch<'s> {
    keys_transposed: &'s mut [f32],
    values_transposed: &'s mut [f32],
    keys: &'s mut [f32],
    queries: &'s mut [f32],
    d_out: &'s mut [f32],
    /// Probabilities, and gradients of the scores.
    scores: &'s mut [f32],
    d_scores: &'s mut [f32],
    keep: &'s mut [f32],
}

impl<'s> BackwardScratch<'s> {
    pub(super) fn len(dim: usize) -> usize {
        let padded = dim.next_multiple_of(PANEL);
        2 * (KEY_TILE * dim).next_multiple_of(LINE)
            + (KEY_TILE + 2 * QUERY_TILE) * padded
            + 2 * QUERY_TILE * SCORE_PITCH
            + KEY_TILE
            + 8 * LINE
    }

    pub(super) fn cut(scratch: &'s mut [f32], dim: usize) -> Self {
        let padded = dim.next_multiple_of(PANEL);
        let transposed = (KEY_TILE * dim).next_multiple_of(LINE);
        let (keys_transposed, rest) = cut_aligned(scratch, transposed);
        let (values_transposed, rest) = cut_aligned(rest, transposed);
        let (keys, rest) = cut_aligned(rest, KEY_TILE * padded);
        let (queries, rest) = cut_aligned(rest, QUERY_TILE * padded);
        let (d_out, rest) = cut_aligned(rest, QUERY_TILE * padded);
        let (scores, rest) = cut_aligned(rest, QUERY_TILE * SCORE_PITCH);
        let (d_scores, rest) = cut_aligned(rest, QUERY_TILE * SCORE_PITCH);
        let (keep, _) = cut_aligned(rest, KEY_TILE);
        BackwardScratch {
            keys_transposed,
            values_transposed,
            keys,
            queries,
            d_out,
            scores,
            d_scores,
            keep,
        }
    }
}

pub(super) struct Backward<'a> {
    pub(super) shape: Attention,
    pub(super) isa: Isa,
    pub(super) q: View,
    pub(super) k: View,
    pub(super) v: View,
    pub(super) out: View,
    pub(super) d_out: View,
    pub(super) dq: View,
    pub(super) dk: View,
    pub(super) dv: View,
    pub(super) mask: Option<MaskView>,
    pub(super) lse: &'a [f32],
}

impl Backward<'_> {
    /// Computes the gradients of one head of one sample.
    ///
    /// # Safety
    /// The views were checked against the shape, and no other task writes this head.
    pub(super) unsafe fn head(&self, at: (usize, usize), mut scratch: BackwardScratch<'_>) {
        let Attention { queries, keys, dim, .. } = self.shape;
        let (k, v) = (self.k.head(at), self.v.head(at));
        // SAFETY: the head belongs to this task.
        unsafe {
            if keys == 0 {
                clear(self.dq.head(at), queries, dim);
            }
            for first_key in (0..keys).step_by(KEY_TILE) {
                let key_count = KEY_TILE.min(keys - first_key);
                let (k, v) = (k.from(first_key), v.from(first_key));
                let (kt, vt) =
                    (scratch.keys_transposed.as_mut_ptr(), scratch.values_transposed.as_mut_ptr());
                pack_transposed(self.isa, k, key_count, dim, kt);
                pack_transposed(self.isa, v, key_count, dim, vt);
                pack(self.isa, k, key_count, dim, KEY_TILE, scratch.keys.as_mut_ptr());
                let mut is_first = true;
                for first in (0..queries).step_by(QUERY_TILE) {
                    let count = QUERY_TILE.min(queries - first);
                    let seen = self.shape.keys_seen(first + count).saturating_sub(first_key);
                    let place =
                        TileIndex { at, first, count, first_key, seen: seen.min(key_count) };
                    if place.seen > 0 {
                        if std::mem::take(&mut is_first) {
                            // The first tile stores, later tiles add. Keys that the first tile does
                            // not see start from zero.
                            let (unseen, left) = (first_key + place.seen, key_count - place.seen);
                            clear(self.dk.head(at).from(unseen), left, dim);
                            clear(self.dv.head(at).from(unseen), left, dim);
                            self.tile(place, Finish::STORE, &mut scratch);
                        } else {
                            self.tile(place, Finish::ADD, &mut scratch);
                        }
                    } else if first_key == 0 {
                        clear(self.dq.head(at).from(first), count, dim);
                    }
                }
                if is_first {
                    clear(self.dk.head(at).from(first_key), key_count, dim);
                    clear(self.dv.head(at).from(first_key), key_count, dim);
                }
            }
        }
    }

    /// Adds one tile to the three gradients; `finish` applies to those of keys and values.
    ///
    /// # Safety
    /// As for [`Backward::head`]; keys and values of the tile are packed.
    pub(super) unsafe fn tile(
        &self,
        place: TileIndex,
        finish: Finish,
        scratch: &mut BackwardScratch<'_>,
    ) {
        let Attention { heads, queries, dim, scale, .. } = self.shape;
        let TileIndex { at, first, count, first_key, seen } = place;
        let (q, d_out) = (self.q.head(at).from(first), self.d_out.head(at).from(first));
        let scores = Rows { data: scratch.scores.as_mut_ptr(), pitch: SCORE_PITCH };
        let d_scores = Rows { data: scratch.d_scores.as_mut_ptr(), pitch: SCORE_PITCH };
        let of_rows = |from: Rows, b: &[f32], c: Rows, alpha: f32| Product {
            a: from.data,
            a_row: from.pitch,
            a_step: 1,
            depth: dim,
            b: b.as_ptr(),
            b_panel: PANEL * dim,
            c,
            rows: count,
            cols: seen,
            finish: Finish { alpha, ..Finish::STORE },
        };
        // SAFETY: the rows and keys exist, and the scratch memory has the size of a tile.
        unsafe {
            of_rows(q, scratch.keys_transposed, scores, scale * LOG2_E).run(self.isa);
            of_rows(d_out, scratch.values_transposed, d_scores, 1.0).run(self.isa);
            gradient_rows(&Gradient {
                shape: &self.shape,
                mask: self.mask,
                place,
                scores,
                d_scores,
                out: self.out.head(at).from(first),
                d_out,
                lse: self.lse[(at.0 * heads + at.1) * queries + first..].as_ptr(),
                keep: scratch.keep.as_mut_ptr(),
            });
            pack(self.isa, q, count, dim, QUERY_TILE, scratch.queries.as_mut_ptr());
            pack(self.isa, d_out, count, dim, QUERY_TILE, scratch.d_out.as_mut_ptr());
            let dq = Product {
                a: d_scores.data,
                a_row: SCORE_PITCH,
                a_step: 1,
                depth: seen,
                b: scratch.keys.as_ptr(),
                b_panel: KEY_TILE * PANEL,
                c: self.dq.head(at).from(first),
                rows: count,
                cols: dim,
                finish: if first_key == 0 { Finish::STORE } else { Finish::ADD },
            };
            dq.run(self.isa);
            let of_columns = |a: Rows, b: &[f32], c: Rows| Product {
                a: a.data,
                a_row: 1,
                a_step: SCORE_PITCH,
                depth: count,
                b: b.as_ptr(),
                b_panel: QUERY_TILE * PANEL,
                c,
                rows: seen,
                cols: dim,
                finish,
            };
            of_columns(scores, scratch.d_out, self.dv.head(at).from(first_key)).run(self.isa);
            of_columns(d_scores, scratch.queries, self.dk.head(at).from(first_key)).run(self.isa);
        }
    }
}

/// # Safety
/// The rows exist and belong to the caller.
pub(super) unsafe fn clear(rows: Rows, count: usize, dim: usize) {
    for row in 0..count {
        // SAFETY: promised by the caller.
        unsafe { rows.row(row).write_bytes(0, dim) };
    }
}

pub(super) struct Gradient<'a> {
    shape: &'a Attention,
    mask: Option<MaskView>,
    place: TileIndex,
    /// On entry: scaled scores. On return: probabilities after dropout.
    scores: Rows,
    /// On entry: gradients of the probabilities after dropout. On return: gradients of the unscaled
    /// scores.
    d_scores: Rows,
    out: Rows,
    d_out: Rows,
    lse: *const f32,
    keep: *mut f32,
}

crate::kernel! {
    /// Computes dS = P * (keep * dP - sum(dO * O)) * scale, and replaces the scores with P * keep.
    pub(super) unsafe fn gradient_rows<S>(s: S, args: &Gradient<'_>) {
        let Gradient { shape, place, .. } = *args;
        for row in 0..place.count {
            let (scores, d_scores) = (args.scores.row(row), args.d_scores.row(row));
            let keys = place.keys_of(shape, row);
            let mask = args.mask.as_ref().map(|mask| place.mask_of(mask, row));
            let delta = s.splat(row_dot(s, args.out.row(row), args.d_out.row(row), shape.dim));
            let lse = s.splat(*args.lse.add(row) * LOG2_E);
            let scale = s.splat(shape.scale);
            if let Some(dropout) = &shape.dropout {
                keep_factors(s, dropout, place.position(shape, row), place.seen, args.keep);
            }
            let mut column = 0;
            while column < place.seen {
                let x = masked_scores(s, scores, column, keys, mask);
                let p = exp2(s, s.sub(x, lse));
                let mut dp = s.load(d_scores.add(column));
                let mut dropped = p;
                if shape.dropout.is_some() {
                    let keep = s.load(args.keep.add(column));
                    dropped = s.mul(p, keep);
                    dp = s.mul(dp, keep);
                }
                let mut ds = s.mul(s.mul(p, s.sub(dp, delta)), scale);
                if column + S::LANES > keys {
                    // Scores beyond the keys were never computed and may hold any value.
                    let live = first_lanes(s, keys.saturating_sub(column));
                    ds = s.select(live, ds, s.zero());
                }
                s.store(scores.add(column), dropped);
                s.store(d_scores.add(column), ds);
                column += S::LANES;
            }
        }
    }
}
