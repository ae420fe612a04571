//! Scaled dot-product attention, fused: softmax(scale * Q K^T + mask) V without the [T, T] matrix.
//!
//! Tiles of 64 queries x 128 keys live in L1 and L2: scores by the register tile of [`crate::micro`],
//! softmax with a running maximum, product with V. The forward pass keeps only the logarithm of the
//! sum of exponentials of each row; the backward pass recomputes the tile and makes five products of
//! it. Tiles that a causal mask hides are skipped.
//!
//! Forward, a task owns up to 256 queries of one head of one sample; backward, one head of one
//! sample: the order of every sum is fixed by the shape. Dropout on the probabilities is a function
//! of (seed, stream, position), computed again in the backward pass. Scores are kept in units of
//! ln 2, so that the exponential is one of base 2.
//!
//! Sketch (batch 8, 12 heads, 128 x 128, dim 64): 0.4 GFLOP forward, 1.0 backward, against 178 GF/s
//! a core; one exponential per 128 multiply-adds costs about a quarter on top. Measured with 2
//! threads: see `examples/norm_bench.rs`.
//!
//! It is not a cache of keys for generation, and has no shared key heads.

use crate::micro::{self, Ahead, Finish, Isa, LINE, PANEL, TILE_ROWS, Tile, cut_aligned};
use crate::philox::{self, WORDS};
use crate::pool::{Pool, Shareable};
use crate::simd::{Level, Simd, level};
use std::f32::consts::LOG2_E;
use std::marker::PhantomData;
use std::ops::Range;

/// Floats from one sample, one position, one head to the next; the dim of a head is contiguous.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Strides {
    pub batch: usize,
    pub time: usize,
    pub head: usize,
}

impl Strides {
    /// Of a dense [batch, time, heads, dim].
    pub fn dense(time: usize, heads: usize, dim: usize) -> Strides {
        Strides { batch: time * heads * dim, time: heads * dim, head: dim }
    }

    /// Of one third of a packed [batch, time, 3, heads, dim].
    pub fn packed(time: usize, heads: usize, dim: usize) -> Strides {
        Strides { batch: time * 3 * heads * dim, time: 3 * heads * dim, head: dim }
    }
}

/// Queries, keys or values of all heads: a slice that begins at the first one.
#[derive(Clone, Copy, Debug)]
pub struct Heads<'a> {
    data: &'a [f32],
    strides: Strides,
}

impl<'a> Heads<'a> {
    pub fn new(data: &'a [f32], strides: Strides) -> Self {
        Heads { data, strides }
    }

    /// The three parts of a packed [batch, time, 3, heads, dim].
    pub fn split(qkv: &'a [f32], time: usize, heads: usize, dim: usize) -> [Self; 3] {
        let strides = Strides::packed(time, heads, dim);
        [0, 1, 2].map(|part| Heads::new(qkv.get(part * heads * dim..).unwrap_or(&[]), strides))
    }
}

/// As [`Heads`], to be written.
#[derive(Debug)]
pub struct HeadsMut<'a> {
    data: *mut f32,
    len: usize,
    strides: Strides,
    /// Floats of one position that belong to this part.
    width: usize,
    life: PhantomData<&'a mut [f32]>,
}

impl<'a> HeadsMut<'a> {
    pub fn new(data: &'a mut [f32], strides: Strides) -> Self {
        HeadsMut {
            data: data.as_mut_ptr(),
            len: data.len(),
            strides,
            width: usize::MAX,
            life: PhantomData,
        }
    }

    /// The three parts of a packed [batch, time, 3, heads, dim].
    pub fn split(qkv: &'a mut [f32], time: usize, heads: usize, dim: usize) -> [Self; 3] {
        let strides = Strides::packed(time, heads, dim);
        let (data, len) = (qkv.as_mut_ptr(), qkv.len());
        [0, 1, 2].map(|part| HeadsMut {
            data: data.wrapping_add(part * heads * dim),
            len: len.saturating_sub(part * heads * dim),
            strides,
            width: heads * dim,
            life: PhantomData,
        })
    }
}

/// An additive mask, [batch or 1, heads or 1, queries or 1, keys or 1].
#[derive(Clone, Copy, Debug)]
pub struct Mask<'a> {
    data: &'a [f32],
    shape: [usize; 4],
}

impl<'a> Mask<'a> {
    pub fn new(data: &'a [f32], shape: [usize; 4]) -> Self {
        assert_eq!(data.len(), shape.iter().product::<usize>(), "mask has the wrong length");
        Mask { data, shape }
    }
}

/// Dropout of probabilities: position ((b * heads + h) * queries + i) * keys + j is kept where
/// `Philox::new(seed, stream).unit(position) >= probability`, and divided by `1 - probability`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dropout {
    pub probability: f32,
    pub seed: u64,
    pub stream: u64,
}

/// One attention: its sizes and what it computes.
///
/// ```
/// use fleet_kernels::attention::*;
/// use fleet_kernels::pool::Pool;
/// let attention = Attention {
///     batch: 1, heads: 1, queries: 1, keys: 2, dim: 2, scale: 1.0, is_causal: false, dropout: None,
/// };
/// let pool = Pool::new(1);
/// let dense = |time| Strides::dense(time, 1, 2);
/// let (q, k, v) = ([0.0, 0.0], [1.0, 2.0, 3.0, 4.0], [1.0, 10.0, 3.0, 30.0]);
/// let (mut out, mut lse) = ([0.0; 2], [0.0; 1]);
/// let mut scratch = vec![0.0; attention.forward_scratch_len(1)];
/// attention.forward(
///     &pool, Heads::new(&q, dense(1)), Heads::new(&k, dense(2)), Heads::new(&v, dense(2)), None,
///     HeadsMut::new(&mut out, dense(1)), &mut lse, &mut scratch,
/// );
/// assert_eq!(out, [2.0, 20.0]);
/// assert!((lse[0] - 2f32.ln()).abs() < 1e-6);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Attention {
    pub batch: usize,
    pub heads: usize,
    pub queries: usize,
    pub keys: usize,
    pub dim: usize,
    pub scale: f32,
    /// Query `i` sees keys up to `i + keys - queries`: the last query sees all.
    pub is_causal: bool,
    pub dropout: Option<Dropout>,
}

impl Attention {
    /// Floats of scratch of [`Attention::forward`] on a pool of `threads`.
    pub fn forward_scratch_len(&self, threads: usize) -> usize {
        threads * (ForwardScratch::len(self.dim) + LINE)
    }

    /// Floats of scratch of [`Attention::backward`] on a pool of `threads`.
    pub fn backward_scratch_len(&self, threads: usize) -> usize {
        threads * (BackwardScratch::len(self.dim) + LINE)
    }

    /// Floats of `lse`: [batch, heads, queries].
    pub fn lse_len(&self) -> usize {
        self.batch * self.heads * self.queries
    }

    /// Operations of the forward pass (two products), without what a causal mask hides.
    pub fn flops(&self) -> f64 {
        // In f64: a program may state sizes that no machine has.
        let pairs = self.queries as f64 * self.keys as f64 * if self.is_causal { 0.5 } else { 1.0 };
        4.0 * self.batch as f64 * self.heads as f64 * self.dim as f64 * pairs
    }

    /// `out` and the log-sum-exp of every row, which the backward pass needs; a row that sees no
    /// key gives zeros and an infinite `lse`.
    pub fn forward(
        &self,
        pool: &Pool,
        q: Heads<'_>,
        k: Heads<'_>,
        v: Heads<'_>,
        mask: Option<Mask<'_>>,
        out: HeadsMut<'_>,
        lse: &mut [f32],
        scratch: &mut [f32],
    ) {
        assert_eq!(lse.len(), self.lse_len(), "lse of attention has the wrong length");
        let threads = pool.threads();
        assert!(scratch.len() >= self.forward_scratch_len(threads), "scratch is too short");
        let pass = Forward {
            shape: *self,
            isa: isa(),
            q: self.checked(q, self.queries),
            k: self.checked(k, self.keys),
            v: self.checked(v, self.keys),
            out: self.checked_mut(&out, self.queries),
            mask: mask.map(|mask| self.mask_view(mask)),
            lse: Shareable::new(lse),
        };
        let each = ForwardScratch::len(self.dim) + LINE;
        let scratch = Shareable::new(scratch);
        let chunks = self.queries.div_ceil(QUERY_CHUNK);
        pool.run_with_worker(self.batch * self.heads * chunks, |task, worker| {
            // SAFETY: each worker has its own scratch.
            let scratch = unsafe { scratch.slice(worker * each, each) };
            let (head, chunk) = (task / chunks, task % chunks);
            let rows = chunk * QUERY_CHUNK..((chunk + 1) * QUERY_CHUNK).min(self.queries);
            let at = (head / self.heads, head % self.heads);
            // SAFETY: views and sizes were checked; tasks own disjoint rows of `out` and `lse`.
            unsafe { pass.chunk(at, rows, ForwardScratch::cut(scratch, self.dim)) };
        });
    }

    /// Gradients of q, k and v, for the gradient `d_out` of `out`.
    pub fn backward(
        &self,
        pool: &Pool,
        (q, k, v): (Heads<'_>, Heads<'_>, Heads<'_>),
        mask: Option<Mask<'_>>,
        (out, d_out): (Heads<'_>, Heads<'_>),
        lse: &[f32],
        (dq, dk, dv): (HeadsMut<'_>, HeadsMut<'_>, HeadsMut<'_>),
        scratch: &mut [f32],
    ) {
        assert_eq!(lse.len(), self.lse_len(), "lse of attention has the wrong length");
        let threads = pool.threads();
        assert!(scratch.len() >= self.backward_scratch_len(threads), "scratch is too short");
        let pass = Backward {
            shape: *self,
            isa: isa(),
            q: self.checked(q, self.queries),
            k: self.checked(k, self.keys),
            v: self.checked(v, self.keys),
            out: self.checked(out, self.queries),
            d_out: self.checked(d_out, self.queries),
            dq: self.checked_mut(&dq, self.queries),
            dk: self.checked_mut(&dk, self.keys),
            dv: self.checked_mut(&dv, self.keys),
            mask: mask.map(|mask| self.mask_view(mask)),
            lse,
        };
        let each = BackwardScratch::len(self.dim) + LINE;
        let scratch = Shareable::new(scratch);
        pool.run_with_worker(self.batch * self.heads, |head, worker| {
            // SAFETY: each worker has its own scratch.
            let scratch = unsafe { scratch.slice(worker * each, each) };
            let at = (head / self.heads, head % self.heads);
            // SAFETY: views and sizes were checked; tasks own disjoint heads of the gradients.
            unsafe { pass.head(at, BackwardScratch::cut(scratch, self.dim)) };
        });
    }

    fn is_empty(&self, time: usize) -> bool {
        self.batch * self.heads * time * self.dim == 0
    }

    fn checked(&self, heads: Heads<'_>, time: usize) -> View {
        let Strides { batch, time: step, head } = heads.strides;
        let end = if self.is_empty(time) {
            0
        } else {
            (self.batch - 1) * batch + (time - 1) * step + (self.heads - 1) * head + self.dim
        };
        assert!(end <= heads.data.len(), "an operand of attention is too short");
        View { data: heads.data.as_ptr().cast_mut(), strides: heads.strides }
    }

    fn checked_mut(&self, heads: &HeadsMut<'_>, time: usize) -> View {
        // Sorted from the inside out, each stride must step over all that lies inside.
        let Strides { batch, time: step, head } = heads.strides;
        let mut axes = [(batch, self.batch), (step, time), (head, self.heads)];
        axes.sort_unstable();
        let mut extent = self.dim;
        for (stride, count) in axes.into_iter().filter(|axis| axis.1 > 1) {
            assert!(stride >= extent, "rows of a result of attention overlap");
            extent += (count - 1) * stride;
        }
        assert!(self.is_empty(time) || extent <= heads.len, "a result of attention is too short");
        // Parts of one packed buffer lie between each other.
        let width = self.heads.saturating_sub(1) * head + self.dim;
        assert!(width <= heads.width, "attention has more heads than its packed result");
        View { data: heads.data, strides: heads.strides }
    }

    fn mask_view(&self, mask: Mask<'_>) -> MaskView {
        let sizes = [self.batch, self.heads, self.queries, self.keys];
        let mut strides = [0; 4];
        let mut stride = 1;
        for axis in (0..4).rev() {
            assert!(
                mask.shape[axis] == 1 || mask.shape[axis] == sizes[axis],
                "mask of attention does not broadcast"
            );
            strides[axis] = if mask.shape[axis] == 1 { 0 } else { stride };
            stride *= mask.shape[axis];
        }
        MaskView { data: mask.data.as_ptr(), strides }
    }

    /// Keys that queries below `end` may see.
    fn keys_seen(&self, end: usize) -> usize {
        if self.is_causal {
            (end + self.keys).saturating_sub(self.queries).min(self.keys)
        } else {
            self.keys
        }
    }
}

/// Queries of one tile: with 128 keys, scores of 36 KB.
const QUERY_TILE: usize = 64;
/// Keys of one tile: two panels of the register tile.
const KEY_TILE: usize = 2 * PANEL;
/// Queries of one forward task: the packing of keys and values is shared by these.
const QUERY_CHUNK: usize = 256;
/// Floats from one row of scores to the next. Not a power of two: the transposed products walk down
/// columns, which would else fall into few sets of L1.
const SCORE_PITCH: usize = KEY_TILE + 16;

fn isa() -> Isa {
    match level() {
        Level::Avx512 => Isa::Avx512.or_best(),
        Level::Avx2 => Isa::Avx2.or_best(),
        Level::Portable => Isa::Portable,
    }
}

/// A checked operand.
#[derive(Clone, Copy)]
struct View {
    data: *mut f32,
    strides: Strides,
}

// SAFETY: operands are only read, results are written in disjoint parts.
unsafe impl Send for View {}
// SAFETY: as above.
unsafe impl Sync for View {}

impl View {
    /// The first row of a head; rows follow at `strides.time`.
    #[inline(always)]
    fn head(&self, (batch, head): (usize, usize)) -> Rows {
        let offset = batch * self.strides.batch + head * self.strides.head;
        Rows { data: self.data.wrapping_add(offset), pitch: self.strides.time }
    }
}

/// Rows of one head.
#[derive(Clone, Copy)]
struct Rows {
    data: *mut f32,
    pitch: usize,
}

impl Rows {
    #[inline(always)]
    fn row(&self, row: usize) -> *mut f32 {
        self.data.wrapping_add(row * self.pitch)
    }

    #[inline(always)]
    fn from(&self, row: usize) -> Rows {
        Rows { data: self.row(row), pitch: self.pitch }
    }
}

#[derive(Clone, Copy)]
struct MaskView {
    data: *const f32,
    strides: [usize; 4],
}

// SAFETY: only read.
unsafe impl Sync for MaskView {}

/// A product for the register tile: C[rows, cols] (+)= A[rows, depth] * B[depth, cols], where row `r`
/// of A begins at `a + r * a_row` and its terms are `a_step` apart; B is packed in panels.
#[derive(Clone, Copy)]
struct Product {
    a: *const f32,
    a_row: usize,
    a_step: usize,
    depth: usize,
    b: *const f32,
    /// Floats from one panel to the next.
    b_panel: usize,
    c: Rows,
    rows: usize,
    cols: usize,
    finish: Finish,
}

impl Product {
    /// # Safety
    /// All that is named may be read or written.
    unsafe fn run(&self, isa: Isa) {
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
                    ahead: Ahead::nothing(self.b),
                };
                // SAFETY: promised by the caller.
                unsafe { micro::run(isa, &tile) };
            }
        }
    }
}

/// Packs rows as they are: panels of `[rows][64]`, `capacity * 64` floats apart.
///
/// # Safety
/// The rows exist; `target` has room for all panels.
unsafe fn pack(isa: Isa, from: Rows, rows: usize, dim: usize, capacity: usize, target: *mut f32) {
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
/// As [`pack`].
unsafe fn pack_transposed(isa: Isa, from: Rows, rows: usize, dim: usize, target: *mut f32) {
    for row in (0..rows).step_by(PANEL) {
        let cols = PANEL.min(rows - row);
        let panel = target.wrapping_add(row * dim);
        // SAFETY: promised by the caller.
        unsafe { micro::transpose_panel(isa, from.row(row), from.pitch, dim, cols, panel) };
    }
}

/// Scratch of one worker in the forward pass.
struct ForwardScratch<'s> {
    keys: &'s mut [f32],
    values: &'s mut [f32],
    scores: &'s mut [f32],
    /// Largest score and sum of exponentials of every row of a chunk, then one row of dropout.
    max: &'s mut [f32],
    sum: &'s mut [f32],
    keep: &'s mut [f32],
}

impl<'s> ForwardScratch<'s> {
    fn len(dim: usize) -> usize {
        KEY_TILE * dim
            + KEY_TILE * dim.next_multiple_of(PANEL)
            + QUERY_TILE * SCORE_PITCH
            + 2 * QUERY_CHUNK
            + KEY_TILE
            + 6 * LINE
    }

    fn cut(scratch: &'s mut [f32], dim: usize) -> Self {
        let (keys, rest) = cut_aligned(scratch, (KEY_TILE * dim).next_multiple_of(LINE));
        let (values, rest) = cut_aligned(rest, KEY_TILE * dim.next_multiple_of(PANEL));
        let (scores, rest) = cut_aligned(rest, QUERY_TILE * SCORE_PITCH);
        let (max, rest) = cut_aligned(rest, QUERY_CHUNK);
        let (sum, rest) = cut_aligned(rest, QUERY_CHUNK);
        let (keep, _) = cut_aligned(rest, KEY_TILE);
        ForwardScratch { keys, values, scores, max, sum, keep }
    }
}

struct Forward {
    shape: Attention,
    isa: Isa,
    q: View,
    k: View,
    v: View,
    out: View,
    mask: Option<MaskView>,
    lse: Shareable<f32>,
}

impl Forward {
    /// Queries `rows` (at most a chunk) of one head.
    ///
    /// # Safety
    /// The views were checked against the shape; no other task writes these rows.
    unsafe fn chunk(&self, at: (usize, usize), rows: Range<usize>, scratch: ForwardScratch<'_>) {
        let Attention { heads, queries, dim, scale, .. } = self.shape;
        let (q, k, v) = (self.q.head(at), self.k.head(at), self.v.head(at));
        let out = self.out.head(at);
        let ForwardScratch { keys, values, scores, max, sum, keep } = scratch;
        let scores = Rows { data: scores.as_mut_ptr(), pitch: SCORE_PITCH };
        max.fill(f32::NEG_INFINITY);
        sum.fill(0.0);
        let keys_end = self.shape.keys_seen(rows.end);
        for first_key in (0..keys_end).step_by(KEY_TILE) {
            let key_count = KEY_TILE.min(keys_end - first_key);
            // SAFETY: these keys exist, and the scratch was sized for a tile.
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
                let place = TilePlace { at, first, count, first_key, seen };
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
        let lse_start = (at.0 * heads + at.1) * queries;
        for (local, row) in rows.clone().enumerate() {
            // SAFETY: the row is this task's.
            let (out, lse) = unsafe {
                let out = std::slice::from_raw_parts_mut(out.row(row), dim);
                (out, &mut *self.lse.ptr().add(lse_start + row))
            };
            // No tile had a key for this row: nothing was written.
            if sum[local] == 0.0 {
                out.fill(0.0);
                *lse = f32::INFINITY;
            } else {
                let inverse = 1.0 / sum[local];
                out.iter_mut().for_each(|value| *value *= inverse);
                *lse = (max[local] + sum[local].log2()) * std::f32::consts::LN_2;
            }
        }
    }
}

/// Which queries and keys a tile holds.
#[derive(Clone, Copy)]
struct TilePlace {
    at: (usize, usize),
    first: usize,
    count: usize,
    first_key: usize,
    /// Keys that some query of the tile sees.
    seen: usize,
}

impl TilePlace {
    /// Keys of this tile that the query `row` of it sees.
    #[inline(always)]
    fn keys_of(&self, shape: &Attention, row: usize) -> usize {
        shape.keys_seen(self.first + row + 1).saturating_sub(self.first_key).min(self.seen)
    }

    /// The mask of query `row` from the first key on, and its stride (0 or 1).
    #[inline(always)]
    fn mask_of(&self, mask: &MaskView, row: usize) -> (*const f32, usize) {
        let [batch, head, query, key] = mask.strides;
        let offset = self.at.0 * batch
            + self.at.1 * head
            + (self.first + row) * query
            + self.first_key * key;
        (mask.data.wrapping_add(offset), key)
    }

    /// The dropout position of query `row` and the first key.
    #[inline(always)]
    fn position(&self, shape: &Attention, row: usize) -> u64 {
        let query = (self.at.0 * shape.heads + self.at.1) * shape.queries + self.first + row;
        (query * shape.keys + self.first_key) as u64
    }
}

struct Softmax<'a> {
    shape: &'a Attention,
    mask: Option<MaskView>,
    place: TilePlace,
    scores: Rows,
    out: Rows,
    max: *mut f32,
    sum: *mut f32,
    keep: *mut f32,
}

/// Scores of one register with the mask added, in units of ln 2, and -infinity beyond `keys`.
///
/// # Safety
/// A whole register of scores is readable at `scores + column`; the mask has `keys` entries.
#[inline(always)]
unsafe fn masked_scores<S: Simd>(
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

/// 2^x for x <= 128 within 2 units in the last place; 0 below the normal numbers, which would only
/// slow the products down. A NaN stays one.
#[inline(always)]
fn exp2<S: Simd>(s: S, x: S::F) -> S::F {
    // Minimax fit on [-1/2, 1/2] that is exact at 0; its slope there is not quite ln 2.
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

/// True in the first `n` lanes.
#[inline(always)]
fn first_lanes<S: Simd>(s: S, n: usize) -> S::M {
    const INDEX: [f32; 16] = [0., 1., 2., 3., 4., 5., 6., 7., 8., 9., 10., 11., 12., 13., 14., 15.];
    // SAFETY: no register is longer than 16 floats.
    s.lt(unsafe { s.load(INDEX.as_ptr()) }, s.splat(n as f32))
}

crate::kernel! {
    /// Turns the scores of a tile into exponentials relative to the running maximum, keeps maximum
    /// and sum of each row, and rescales what `out` holds from the tiles before.
    unsafe fn softmax_rows<S>(s: S, args: &Softmax<'_>) {
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
            // A row that sees nothing yet has exponentials of 0, not of infinity minus infinity.
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
                scale_row(s, args.out.row(row), shape.dim, correction);
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

/// # Safety
/// `dim` floats at `row`.
#[inline(always)]
unsafe fn scale_row<S: Simd>(s: S, row: *mut f32, dim: usize, factor: f32) {
    let factor = s.splat(factor);
    let mut column = 0;
    // SAFETY: promised by the caller.
    unsafe {
        while column + S::LANES <= dim {
            s.store(row.add(column), s.mul(s.load(row.add(column)), factor));
            column += S::LANES;
        }
        let rest = dim - column;
        if rest > 0 {
            let value = s.load_part(row.add(column), rest);
            s.store_part(row.add(column), s.mul(value, factor), rest);
        }
    }
}

/// Writes 0 or 1 / (1 - p) for `count` positions from `position` on, and more up to the next
/// multiple of a register (`keep` holds a whole tile).
///
/// # Safety
/// `keep` has room for a tile of keys.
#[inline(always)]
unsafe fn keep_factors<S: Simd>(
    s: S,
    dropout: &Dropout,
    position: u64,
    count: usize,
    keep: *mut f32,
) {
    let scale = 1.0 / (1.0 - dropout.probability);
    // A word is kept where its upper 24 bits, as a fraction, reach the probability: an integer
    // comparison that is exact, since the product is.
    let limit = (f64::from(dropout.probability) * f64::from(1u32 << 24)).ceil() as u32;
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

/// Scratch of one worker in the backward pass.
struct BackwardScratch<'s> {
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
    fn len(dim: usize) -> usize {
        let padded = dim.next_multiple_of(PANEL);
        2 * (KEY_TILE * dim).next_multiple_of(LINE)
            + (KEY_TILE + 2 * QUERY_TILE) * padded
            + 2 * QUERY_TILE * SCORE_PITCH
            + KEY_TILE
            + 8 * LINE
    }

    fn cut(scratch: &'s mut [f32], dim: usize) -> Self {
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

struct Backward<'a> {
    shape: Attention,
    isa: Isa,
    q: View,
    k: View,
    v: View,
    out: View,
    d_out: View,
    dq: View,
    dk: View,
    dv: View,
    mask: Option<MaskView>,
    lse: &'a [f32],
}

impl Backward<'_> {
    /// One head of one sample.
    ///
    /// # Safety
    /// The views were checked against the shape; no other task writes this head.
    unsafe fn head(&self, at: (usize, usize), mut scratch: BackwardScratch<'_>) {
        let Attention { queries, keys, dim, .. } = self.shape;
        let (k, v) = (self.k.head(at), self.v.head(at));
        // SAFETY: the head is this task's.
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
                        TilePlace { at, first, count, first_key, seen: seen.min(key_count) };
                    if place.seen > 0 {
                        if std::mem::take(&mut is_first) {
                            // The first tile stores what later ones add to; keys that it does not
                            // see start from zero.
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

    /// What one tile adds to the three gradients; `finish` is for those of keys and values.
    ///
    /// # Safety
    /// As [`Backward::head`]; keys and values of the tile are packed.
    unsafe fn tile(&self, place: TilePlace, finish: Finish, scratch: &mut BackwardScratch<'_>) {
        let Attention { heads, queries, dim, scale, .. } = self.shape;
        let TilePlace { at, first, count, first_key, seen } = place;
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
        // SAFETY: rows and keys exist; the scratch was sized for a tile.
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
/// The rows exist and are the caller's.
unsafe fn clear(rows: Rows, count: usize, dim: usize) {
    for row in 0..count {
        // SAFETY: promised by the caller.
        unsafe { rows.row(row).write_bytes(0, dim) };
    }
}

struct Gradient<'a> {
    shape: &'a Attention,
    mask: Option<MaskView>,
    place: TilePlace,
    /// In: scaled scores; out: probabilities, dropped.
    scores: Rows,
    /// In: gradients of the dropped probabilities; out: of the unscaled scores.
    d_scores: Rows,
    out: Rows,
    d_out: Rows,
    lse: *const f32,
    keep: *mut f32,
}

crate::kernel! {
    /// dS = P * (keep * dP - sum(dO * O)) * scale, and P * keep in place of the scores.
    unsafe fn gradient_rows<S>(s: S, args: &Gradient<'_>) {
        let Gradient { shape, place, .. } = *args;
        for row in 0..place.count {
            let (scores, d_scores) = (args.scores.row(row), args.d_scores.row(row));
            let keys = place.keys_of(shape, row);
            let mask = args.mask.as_ref().map(|mask| place.mask_of(mask, row));
            let delta = s.splat(dot(s, args.out.row(row), args.d_out.row(row), shape.dim));
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
                    // Scores beyond the keys were never computed and may be anything.
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

/// # Safety
/// `len` floats at both places.
#[inline(always)]
unsafe fn dot<S: Simd>(s: S, a: *const f32, b: *const f32, len: usize) -> f32 {
    let mut sum = s.zero();
    let mut at = 0;
    // SAFETY: promised by the caller.
    unsafe {
        while at + S::LANES <= len {
            sum = s.fma(s.load(a.add(at)), s.load(b.add(at)), sum);
            at += S::LANES;
        }
        if at < len {
            let (x, y) = (s.load_part(a.add(at), len - at), s.load_part(b.add(at), len - at));
            sum = s.fma(x, y, sum);
        }
    }
    s.sum(sum)
}

#[cfg(test)]
mod tests {
    use super::*;
    use fleet_base::rng::{Philox, Sequence};

    #[derive(Clone)]
    struct Case {
        shape: Attention,
        q: Vec<f32>,
        k: Vec<f32>,
        v: Vec<f32>,
        d_out: Vec<f32>,
        mask: Option<(Vec<f32>, [usize; 4])>,
    }

    fn case(shape: Attention, mask: Option<[usize; 4]>) -> Case {
        let mut random = Sequence::new(3, (shape.queries * 1000 + shape.keys) as u64);
        let mut floats =
            |count: usize| -> Vec<f32> { (0..count).map(|_| random.normal() as f32).collect() };
        let Attention { batch, heads, queries, keys, dim, .. } = shape;
        let (of_q, of_k) = (batch * heads * queries * dim, batch * heads * keys * dim);
        Case {
            shape,
            q: floats(of_q),
            k: floats(of_k),
            v: floats(of_k),
            d_out: floats(of_q),
            mask: mask.map(|shape| {
                let mut mask = floats(shape.iter().product());
                // Some keys are hidden altogether.
                mask.iter_mut().step_by(7).for_each(|m| *m = f32::NEG_INFINITY);
                (mask, shape)
            }),
        }
    }

    fn shape(batch: usize, heads: usize, queries: usize, keys: usize, dim: usize) -> Attention {
        let scale = 1.0 / (dim as f32).sqrt();
        Attention { batch, heads, queries, keys, dim, scale, is_causal: false, dropout: None }
    }

    struct Oracle {
        out: Vec<f64>,
        lse: Vec<f64>,
        dq: Vec<f64>,
        dk: Vec<f64>,
        dv: Vec<f64>,
    }

    /// The plain formulas in f64, tensors [batch, time, heads, dim].
    fn oracle(case: &Case) -> Oracle {
        let Attention { batch, heads, queries, keys, dim, scale, is_causal, dropout } = case.shape;
        let at = |time: usize, b: usize, t: usize, h: usize| ((b * time + t) * heads + h) * dim;
        let mut o = Oracle {
            out: vec![0.0; case.q.len()],
            lse: vec![0.0; case.shape.lse_len()],
            dq: vec![0.0; case.q.len()],
            dk: vec![0.0; case.k.len()],
            dv: vec![0.0; case.k.len()],
        };
        let product = |a: &[f32], b: &[f32]| -> f64 {
            a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
        };
        for (b, h, i) in (0..batch * heads * queries)
            .map(|n| (n / (heads * queries), n / queries % heads, n % queries))
        {
            let q = &case.q[at(queries, b, i, h)..][..dim];
            let go = &case.d_out[at(queries, b, i, h)..][..dim];
            let mut scores: Vec<f64> = (0..keys)
                .map(|j| {
                    let mut score =
                        product(q, &case.k[at(keys, b, j, h)..][..dim]) * f64::from(scale);
                    if let Some((mask, [mb, mh, mq, mk])) = &case.mask {
                        let pick = |index: usize, size: usize| if size == 1 { 0 } else { index };
                        let index = ((pick(b, *mb) * mh + pick(h, *mh)) * mq + pick(i, *mq)) * mk
                            + pick(j, *mk);
                        score += f64::from(mask[index]);
                    }
                    if is_causal && j + queries > i + keys { f64::NEG_INFINITY } else { score }
                })
                .collect();
            let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let row = (b * heads + h) * queries + i;
            if max == f64::NEG_INFINITY {
                o.lse[row] = f64::INFINITY;
                continue;
            }
            let sum: f64 = scores.iter().map(|s| (s - max).exp()).sum();
            o.lse[row] = max + sum.ln();
            scores.iter_mut().for_each(|s| *s = (*s - max).exp() / sum);
            let keep: Vec<f64> = (0..keys)
                .map(|j| match dropout {
                    None => 1.0,
                    Some(Dropout { probability, seed, stream }) => {
                        let unit = Philox::new(seed, stream).unit((row * keys + j) as u64);
                        f64::from(u8::from(unit >= probability)) / (1.0 - f64::from(probability))
                    }
                })
                .collect();
            let dp: Vec<f64> = (0..keys)
                .map(|j| product(go, &case.v[at(keys, b, j, h)..][..dim]) * keep[j])
                .collect();
            let delta: f64 = (0..keys).map(|j| scores[j] * dp[j]).sum();
            for j in 0..keys {
                let ds = scores[j] * (dp[j] - delta) * f64::from(scale);
                for d in 0..dim {
                    let (of_q, of_k) = (at(queries, b, i, h) + d, at(keys, b, j, h) + d);
                    o.out[of_q] += scores[j] * keep[j] * f64::from(case.v[of_k]);
                    o.dv[of_k] += scores[j] * keep[j] * f64::from(go[d]);
                    o.dq[of_q] += ds * f64::from(case.k[of_k]);
                    o.dk[of_k] += ds * f64::from(q[d]);
                }
            }
        }
        o
    }

    fn run(case: &Case, threads: usize) -> [Vec<f32>; 5] {
        let pool = Pool::new(threads);
        let shape = case.shape;
        let of_q = Strides::dense(shape.queries, shape.heads, shape.dim);
        let of_k = Strides::dense(shape.keys, shape.heads, shape.dim);
        let (q, k, v) =
            (Heads::new(&case.q, of_q), Heads::new(&case.k, of_k), Heads::new(&case.v, of_k));
        let mask = case.mask.as_ref().map(|(data, shape)| Mask::new(data, *shape));
        let mut out = vec![f32::NAN; case.q.len()];
        let mut lse = vec![f32::NAN; shape.lse_len()];
        let mut scratch = vec![f32::NAN; shape.forward_scratch_len(threads)];
        shape.forward(&pool, q, k, v, mask, HeadsMut::new(&mut out, of_q), &mut lse, &mut scratch);
        let (mut dq, mut dk, mut dv) = (
            vec![f32::NAN; case.q.len()],
            vec![f32::NAN; case.k.len()],
            vec![f32::NAN; case.k.len()],
        );
        let mut scratch = vec![f32::NAN; shape.backward_scratch_len(threads)];
        shape.backward(
            &pool,
            (q, k, v),
            mask,
            (Heads::new(&out, of_q), Heads::new(&case.d_out, of_q)),
            &lse,
            (
                HeadsMut::new(&mut dq, of_q),
                HeadsMut::new(&mut dk, of_k),
                HeadsMut::new(&mut dv, of_k),
            ),
            &mut scratch,
        );
        [out, lse, dq, dk, dv]
    }

    fn check(case: &Case) {
        let expected = oracle(case);
        let ours = run(case, 1);
        let expected = [expected.out, expected.lse, expected.dq, expected.dk, expected.dv];
        for (part, (ours, expected)) in ours.iter().zip(&expected).enumerate() {
            for (i, (&a, &b)) in ours.iter().zip(expected).enumerate() {
                let same = f64::from(a) == b || (f64::from(a) - b).abs() <= 2e-5 * (1.0 + b.abs());
                assert!(same, "part {part}, {i}: {a} against {b} in {:?}", case.shape);
            }
        }
        assert_eq!(ours, run(case, 3));
    }

    #[test]
    fn matches_the_plain_formulas() {
        for (b, h, tq, tk, d) in [
            (1, 1, 1, 1, 1),
            (2, 3, 5, 7, 8),
            (1, 2, 65, 129, 64),
            (2, 1, 300, 70, 20),
            (1, 1, 130, 300, 80),
        ] {
            let plain = shape(b, h, tq, tk, d);
            check(&case(plain, None));
            check(&case(Attention { is_causal: true, ..plain }, None));
            check(&case(plain, Some([b, 1, 1, tk])));
            check(&case(plain, Some([1, h, tq, 1])));
            check(&case(Attention { is_causal: true, ..plain }, Some([b, h, tq, tk])));
            let dropout = Some(Dropout { probability: 0.3, seed: 5, stream: 9 });
            check(&case(Attention { dropout, ..plain }, None));
            check(&case(Attention { dropout, is_causal: true, ..plain }, Some([1, 1, tq, tk])));
        }
    }

    #[test]
    fn every_instruction_set_is_right() {
        crate::simd::at_every_level(|_| {
            let dropout = Some(Dropout { probability: 0.5, seed: 1, stream: 2 });
            let case =
                case(Attention { is_causal: true, dropout, ..shape(1, 2, 70, 140, 24) }, None);
            let expected = oracle(&case);
            let ours = run(&case, 1);
            for (ours, expected) in ours.iter().zip([&expected.out, &expected.lse, &expected.dq]) {
                for (&a, &b) in ours.iter().zip(expected) {
                    assert!((f64::from(a) - b).abs() <= 2e-5 * (1.0 + b.abs()), "{a} {b}");
                }
            }
        });
    }

    #[test]
    fn packed_operands_need_no_copies() {
        let shape = Attention { is_causal: true, ..shape(2, 3, 70, 70, 16) };
        let dense = case(shape, None);
        let (time, heads, dim) = (70, 3, 16);
        let mut qkv = vec![0.0; 3 * dense.q.len()];
        for (part, data) in [&dense.q, &dense.k, &dense.v].into_iter().enumerate() {
            for (row, data) in data.chunks(heads * dim).enumerate() {
                qkv[(row * 3 + part) * heads * dim..][..heads * dim].copy_from_slice(data);
            }
        }
        let expected = run(&dense, 1);
        let pool = Pool::new(2);
        let strides = Strides::dense(time, heads, dim);
        let [q, k, v] = Heads::split(&qkv, time, heads, dim);
        let (mut out, mut lse) = (vec![0.0; dense.q.len()], vec![0.0; shape.lse_len()]);
        let len = shape.forward_scratch_len(2).max(shape.backward_scratch_len(2));
        let mut scratch = vec![0.0; len];
        shape.forward(
            &pool,
            q,
            k,
            v,
            None,
            HeadsMut::new(&mut out, strides),
            &mut lse,
            &mut scratch,
        );
        assert_eq!(out, expected[0]);
        let mut gradient = vec![0.0; qkv.len()];
        let [dq, dk, dv] = HeadsMut::split(&mut gradient, time, heads, dim);
        let outs = (Heads::new(&out, strides), Heads::new(&dense.d_out, strides));
        shape.backward(&pool, (q, k, v), None, outs, &lse, (dq, dk, dv), &mut scratch);
        for (part, data) in expected[2..].iter().enumerate() {
            for (row, data) in data.chunks(heads * dim).enumerate() {
                assert_eq!(&gradient[(row * 3 + part) * heads * dim..][..heads * dim], data);
            }
        }
    }

    #[test]
    fn gradients_agree_with_finite_differences() {
        let base = case(shape(1, 2, 4, 5, 3), Some([1, 1, 4, 5]));
        let ours = run(&base, 1);
        let loss = |case: &Case| -> f64 {
            let out = oracle(case).out;
            out.iter().zip(&case.d_out).map(|(o, g)| o * f64::from(*g)).sum()
        };
        let step = 1.0 / 1024.0;
        for (part, pick) in [
            (|case: &mut Case| &mut case.q) as fn(&mut Case) -> &mut Vec<f32>,
            |case| &mut case.k,
            |case| &mut case.v,
        ]
        .into_iter()
        .enumerate()
        {
            for i in 0..pick(&mut base.clone()).len() {
                let (mut more, mut less) = (base.clone(), base.clone());
                let width = {
                    pick(&mut more)[i] += step;
                    pick(&mut less)[i] -= step;
                    f64::from(pick(&mut more)[i]) - f64::from(pick(&mut less)[i])
                };
                let slope = (loss(&more) - loss(&less)) / width;
                assert!((slope - f64::from(ours[2 + part][i])).abs() < 1e-4, "{part} {i}");
            }
        }
    }
}
