//! Code shared by both passes: operands as rows in memory, packing, products of tiles, and the
//! softmax of a tile.

use super::{Attention, Dropout, Strides};
use crate::fill::limit_of;
use crate::micro::{self, Finish, Isa, PANEL, Prefetch, TILE_ROWS, Tile};
use crate::philox::{self, WORDS};
use crate::simd::Simd;
use crate::softmax::row_scale;
use std::f32::consts::LOG2_E;

/// Number of queries in a tile. With 128 keys, the scores take 36 KB.
pub(super) const QUERY_TILE: usize = 64;
/// Number of keys in a tile: two panels of the register tile.
pub(super) const KEY_TILE: usize = 2 * PANEL;

/// Distance between rows of scores, in floats. It is not a power of two, because the transposed
/// products read columns, which would otherwise share a few sets of L1.
pub(super) const SCORE_PITCH: usize = KEY_TILE + 16;

/// A checked operand.
#[derive(Clone, Copy)]
pub(super) struct View {
    pub(super) data: *mut f32,
    pub(super) strides: Strides,
}

// SAFETY: operands are only read, and results are written in disjoint parts.
unsafe impl Send for View {}
// SAFETY: as above.
unsafe impl Sync for View {}

impl View {
    /// Returns the first row of a head; the distance between rows is `strides.time`.
    #[inline(always)]
    pub(super) fn head(&self, (batch, head): (usize, usize)) -> Rows {
        let offset = batch * self.strides.batch + head * self.strides.head;
        Rows { data: self.data.wrapping_add(offset), pitch: self.strides.time }
    }
}

/// Rows of one head.
#[derive(Clone, Copy)]
pub(super) struct Rows {
    pub(super) data: *mut f32,
    pub(super) pitch: usize,
}

impl Rows {
    #[inline(always)]
    pub(super) fn row(&self, row: usize) -> *mut f32 {
        self.data.wrapping_add(row * self.pitch)
    }

    #[inline(always)]
    pub(super) fn from(&self, row: usize) -> Rows {
        Rows { data: self.row(row), pitch: self.pitch }
    }
}

#[derive(Clone, Copy)]
pub(super) struct MaskView {
    pub(super) data: *const f32,
    pub(super) strides: [usize; 4],
}

// SAFETY: it is only read.
unsafe impl Sync for MaskView {}

/// A product for the register tile: C[rows, cols] (+)= A[rows, depth] * B[depth, cols]. Row `r` of
/// A starts at `a + r * a_row`, and its terms are `a_step` apart. B is packed in panels.
#[derive(Clone, Copy)]
pub(super) struct Product {
    pub(super) a: *const f32,
    pub(super) a_row: usize,
    pub(super) a_step: usize,
    pub(super) depth: usize,
    pub(super) b: *const f32,
    /// Distance between panels, in floats.
    pub(super) b_panel: usize,
    pub(super) c: Rows,
    pub(super) rows: usize,
    pub(super) cols: usize,
    pub(super) finish: Finish,
}

impl Product {
    /// # Safety
    /// All memory named by the fields may be read and, for C, written.
    pub(super) unsafe fn run(&self, isa: Isa) {
        let zero = 0isize;
        for column in (0..self.cols).step_by(PANEL) {
            for row in (0..self.rows).step_by(TILE_ROWS) {
                let rows = TILE_ROWS.min(self.rows - row);
                let tile = Tile {
                    a: std::array::from_fn(|r| self.a.wrapping_add((row + r) * self.a_row)),
                    a_step: self.a_step,
                    segments: &zero,
                    segment_count: 1,
                    segment_len: self.depth,
                    b: self.b.wrapping_add(column / PANEL * self.b_panel),
                    b_step: PANEL,
                    c: std::array::from_fn(|r| self.c.row(row + r).wrapping_add(column)),
                    rows,
                    cols: PANEL.min(self.cols - column),
                    finish: self.finish,
                    prefetch: Prefetch::none(self.b),
                };
                // SAFETY: promised by the caller.
                unsafe { micro::tile(isa, &tile) };
            }
        }
    }
}

/// Packs rows without transposing: panels of `[rows][64]`, `capacity * 64` floats apart.
///
/// # Safety
/// The rows exist, and `target` has space for all panels.
pub(super) unsafe fn pack(
    isa: Isa,
    from: Rows,
    rows: usize,
    dim: usize,
    capacity: usize,
    target: *mut f32,
) {
    for column in (0..dim).step_by(PANEL) {
        let panel = target.wrapping_add(column * capacity);
        let cols = PANEL.min(dim - column);
        // SAFETY: promised by the caller.
        unsafe { micro::copy_panel(isa, from.data.add(column), from.pitch, rows, cols, panel) };
    }
}

/// Packs the transpose: panels of 64 rows each, `[dim][64]`.
///
/// # Safety
/// As for [`pack`].
pub(super) unsafe fn pack_transposed(
    isa: Isa,
    from: Rows,
    rows: usize,
    dim: usize,
    target: *mut f32,
) {
    for row in (0..rows).step_by(PANEL) {
        let cols = PANEL.min(rows - row);
        let panel = target.wrapping_add(row * dim);
        // SAFETY: promised by the caller.
        unsafe { micro::transpose_panel(isa, from.row(row), from.pitch, dim, cols, panel) };
    }
}

/// The queries and keys of a tile.
#[derive(Clone, Copy)]
pub(super) struct TileIndex {
    pub(super) at: (usize, usize),
    pub(super) first: usize,
    pub(super) count: usize,
    pub(super) first_key: usize,
    /// Number of keys that at least one query of the tile sees.
    pub(super) seen: usize,
}

impl TileIndex {
    /// Returns the number of keys of this tile that its query `row` sees.
    #[inline(always)]
    pub(super) fn keys_of(&self, shape: &Attention, row: usize) -> usize {
        shape.keys_seen(self.first + row + 1).saturating_sub(self.first_key).min(self.seen)
    }

    /// Returns the mask of query `row` from the first key on, and its stride (0 or 1).
    #[inline(always)]
    pub(super) fn mask_of(&self, mask: &MaskView, row: usize) -> (*const f32, usize) {
        let [batch, head, query, key] = mask.strides;
        let offset = self.at.0 * batch
            + self.at.1 * head
            + (self.first + row) * query
            + self.first_key * key;
        (mask.data.wrapping_add(offset), key)
    }

    /// Returns the dropout position of query `row` and the first key.
    #[inline(always)]
    pub(super) fn position(&self, shape: &Attention, row: usize) -> u64 {
        let (part, parts) = shape.dropout.map_or((0, 1), |dropout| dropout.part);
        let head = (self.at.0 * parts + part) as u64 * shape.heads as u64 + self.at.1 as u64;
        let query = head.wrapping_mul(shape.queries as u64) + (self.first + row) as u64;
        query.wrapping_mul(shape.keys as u64) + self.first_key as u64
    }
}

pub(super) struct Softmax<'a> {
    pub(super) shape: &'a Attention,
    pub(super) mask: Option<MaskView>,
    pub(super) place: TileIndex,
    pub(super) scores: Rows,
    pub(super) out: Rows,
    pub(super) max: *mut f32,
    pub(super) sum: *mut f32,
    pub(super) keep: *mut f32,
}

/// Returns one register of scores plus the mask, in units of ln 2, with -infinity beyond `keys`.
///
/// # Safety
/// A whole register of scores is readable at `scores + column`, and the mask has `keys` entries.
#[inline(always)]
pub(super) unsafe fn masked_scores<S: Simd>(
    s: S,
    scores: *const f32,
    column: usize,
    keys: usize,
    mask: Option<(*const f32, usize)>,
) -> S::F {
    // SAFETY: promised by the caller.
    unsafe {
        let mut x = s.load(scores.add(column));
        let live = keys.saturating_sub(column).min(S::LANES);
        if let Some((mask, stride)) = mask {
            let bias = if stride == 0 {
                s.splat(*mask)
            } else if live == S::LANES {
                s.load(mask.add(column))
            } else {
                s.load_part(mask.wrapping_add(column), live)
            };
            x = s.fma(bias, s.splat(LOG2_E), x);
        }
        if live < S::LANES {
            s.select(first_lanes(s, live), x, s.splat(f32::NEG_INFINITY))
        } else {
            x
        }
    }
}

/// Computes 2^x for x <= 128 to within 2 units in the last place. Results below the normal numbers
/// are 0, because denormals would slow the products down. A NaN stays a NaN.
#[inline(always)]
pub(super) fn exp2<S: Simd>(s: S, x: S::F) -> S::F {
    // A minimax fit on [-1/2, 1/2] that is exact at 0. Its slope there is not quite ln 2.
    #[allow(clippy::approx_constant)]
    const FIT: [f32; 5] = [0.693_147, 0.240_222_42, 0.055_507_34, 0.009_671_505, 0.001_326_462_6];
    let n = s.round(x);
    let f = s.sub(x, n);
    let mut p = s.splat(FIT[4]);
    for k in (0..4).rev() {
        p = s.fma(p, f, s.splat(FIT[k]));
    }
    p = s.fma(p, f, s.splat(1.0));
    s.select(s.lt(x, s.splat(-126.0)), s.zero(), s.scale2(p, s.max(s.splat(-127.0), n)))
}

/// Returns a mask that is true in the first `n` lanes.
#[inline(always)]
pub(super) fn first_lanes<S: Simd>(s: S, n: usize) -> S::M {
    const INDEX: [f32; 16] = [0., 1., 2., 3., 4., 5., 6., 7., 8., 9., 10., 11., 12., 13., 14., 15.];
    // SAFETY: no register has more than 16 floats.
    s.lt(unsafe { s.load(INDEX.as_ptr()) }, s.splat(n as f32))
}

crate::kernel! {
    /// Turns the scores of a tile into exponentials relative to the running maximum. Updates the
    /// maximum and the sum of each row, and rescales the `out` of earlier tiles.
    pub(super) unsafe fn softmax_rows<S>(s: S, args: &Softmax<'_>) {
        let Softmax { shape, place, .. } = *args;
        for row in 0..place.count {
            let scores = args.scores.row(row);
            let keys = place.keys_of(shape, row);
            let mask = args.mask.as_ref().map(|mask| place.mask_of(mask, row));
            let mut top = s.splat(f32::NEG_INFINITY);
            let mut column = 0;
            while column < place.seen {
                top = s.max(top, masked_scores(s, scores, column, keys, mask));
                column += S::LANES;
            }
            let (max, sum) = (&mut *args.max.add(row), &mut *args.sum.add(row));
            let old = *max;
            let new = old.max(s.max_lane(top));
            // For a row without visible keys so far, exponentials must be 0, not infinity minus
            // infinity.
            let base = s.splat(if new == f32::NEG_INFINITY { 0.0 } else { new });
            let mut total = s.zero();
            let mut column = 0;
            while column < place.seen {
                let x = exp2(s, s.sub(masked_scores(s, scores, column, keys, mask), base));
                s.store(scores.add(column), x);
                total = s.add(total, x);
                column += S::LANES;
            }
            if place.first_key > 0 && new > old {
                let correction = (old - new).exp2();
                *sum *= correction;
                row_scale(s, args.out.row(row), correction, shape.dim);
            }
            *max = new;
            *sum += s.sum(total);
            if let Some(dropout) = &shape.dropout {
                keep_factors(s, dropout, place.position(shape, row), place.seen, args.keep);
                let mut column = 0;
                while column < place.seen {
                    let at = scores.add(column);
                    s.store(at, s.mul(s.load(at), s.load(args.keep.add(column))));
                    column += S::LANES;
                }
            }
        }
    }
}

/// Writes 0 or 1 / (1 - p) for `count` positions from `position` on. It may write up to the next
/// multiple of a register; `keep` holds a whole tile.
///
/// # Safety
/// `keep` has space for a tile of keys.
#[inline(always)]
pub(super) unsafe fn keep_factors<S: Simd>(
    s: S,
    dropout: &Dropout,
    position: u64,
    count: usize,
    keep: *mut f32,
) {
    let scale = 1.0 / (1.0 - dropout.probability);
    // A word is kept if its upper 24 bits, as a fraction, are at least the probability.
    let limit = limit_of(dropout.probability);
    let mut block = position / 4;
    let mut done = 0;
    let mut skip = (position % 4) as usize;
    while done < count {
        let words = philox::words(s, dropout.seed, dropout.stream, block);
        let mut factors = [0.0f32; WORDS];
        for (factor, word) in factors.iter_mut().zip(words) {
            *factor = if word >> 8 >= limit { scale } else { 0.0 };
        }
        let part = (WORDS - skip).min(KEY_TILE - done);
        // SAFETY: `done + part` is at most a tile.
        unsafe { keep.add(done).copy_from_nonoverlapping(factors.as_ptr().add(skip), part) };
        done += part;
        skip = 0;
        block += (WORDS / 4) as u64;
    }
}
