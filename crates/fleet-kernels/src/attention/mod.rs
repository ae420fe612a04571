//! Fused scaled dot-product attention: softmax(scale * Q K^T + mask) V without the [T, T] matrix.
//!
//! Tiles of 64 queries x 128 keys are processed in L1 and L2: scores by the register tile of
//! [`crate::micro`], softmax with a running maximum, product with V. The forward pass stores only
//! the log-sum-exp of each row. The backward pass recomputes the tile and computes five products
//! from it. Tiles that a causal mask hides are skipped.
//!
//! In the forward pass, a task owns up to 256 queries of one head of one sample. In the backward
//! pass, it owns one head of one sample. The order of every sum is therefore fixed by the shape.
//! Dropout of the probabilities is a function of (seed, stream, position), which the backward pass
//! evaluates again. Scores are in units of ln 2, so that the exponential has base 2.
//!
//! Sketch (batch 8, 12 heads, 128 x 128, dim 64): 0.4 GFLOP forward and 1.0 backward, at 178
//! GFLOP/s per core. One exponential per 128 multiply-adds adds about a quarter. For measurements
//! with 2 threads, see `examples/norm_bench.rs`.
//!
//! Key caches for generation and shared key heads are not supported.

mod backward;
mod forward;
#[cfg(test)]
mod tests;
mod tiles;

use self::backward::{Backward, BackwardScratch};
use self::forward::{Forward, ForwardScratch};
use self::tiles::*;
use crate::micro::{Isa, LINE};
use crate::pool::{Pool, Shareable};
use std::marker::PhantomData;

/// Distances between samples, positions and heads, in floats. The dim of a head is contiguous.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Strides {
    /// From one sample to the next.
    pub batch: usize,
    /// From one position to the next.
    pub time: usize,
    /// From one head to the next.
    pub head: usize,
}

impl Strides {
    /// Returns the strides of a dense [batch, time, heads, dim].
    pub fn dense(time: usize, heads: usize, dim: usize) -> Strides {
        Strides { batch: time * heads * dim, time: heads * dim, head: dim }
    }

    /// Returns the strides of one third of a packed [batch, time, 3, heads, dim].
    pub fn packed(time: usize, heads: usize, dim: usize) -> Strides {
        Strides { batch: time * 3 * heads * dim, time: 3 * heads * dim, head: dim }
    }
}

/// Queries, keys or values of all heads: a slice that starts at the first one.
#[derive(Clone, Copy, Debug)]
pub struct Heads<'a> {
    data: &'a [f32],
    strides: Strides,
}

impl<'a> Heads<'a> {
    /// Returns a view of `data`. [`Attention::forward`] checks its length.
    pub fn new(data: &'a [f32], strides: Strides) -> Self {
        Heads { data, strides }
    }

    /// Returns the three parts of a packed [batch, time, 3, heads, dim].
    pub fn split(qkv: &'a [f32], time: usize, heads: usize, dim: usize) -> [Self; 3] {
        let strides = Strides::packed(time, heads, dim);
        [0, 1, 2].map(|part| Heads::new(qkv.get(part * heads * dim..).unwrap_or(&[]), strides))
    }
}

/// Like [`Heads`], but writable.
#[derive(Debug)]
pub struct HeadsMut<'a> {
    data: *mut f32,
    len: usize,
    strides: Strides,
    /// Number of floats per position that belong to this part.
    width: usize,
    life: PhantomData<&'a mut [f32]>,
}

impl<'a> HeadsMut<'a> {
    /// Like [`Heads::new`], for writing.
    pub fn new(data: &'a mut [f32], strides: Strides) -> Self {
        HeadsMut {
            data: data.as_mut_ptr(),
            len: data.len(),
            strides,
            width: usize::MAX,
            life: PhantomData,
        }
    }

    /// Returns the three parts of a packed [batch, time, 3, heads, dim].
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
    /// Returns a mask of shape `[batch, heads, queries, keys]`, where a size of 1 broadcasts.
    /// Panics if the length of `data` differs.
    pub fn new(data: &'a [f32], shape: [usize; 4]) -> Self {
        assert_eq!(
            data.len(),
            shape.iter().product::<usize>(),
            "attention: mask has the wrong length"
        );
        Mask { data, shape }
    }
}

/// Dropout of probabilities. The position of a probability is
/// `((b * heads + h) * queries + i) * keys + j`, with the heads of all parts. A probability is kept
/// if `Philox::new(seed, stream).unit(position) >= probability`, and then divided by
/// `1 - probability`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dropout {
    /// Share of the probabilities that are dropped.
    pub probability: f32,
    /// Seed of the random numbers.
    pub seed: u64,
    /// Stream of the random numbers.
    pub stream: u64,
    /// The part of the heads that this attention has, and the number of parts: (0, 1) for all.
    pub part: (usize, usize),
}

/// The sizes and parameters of one attention.
///
/// ```
/// use fleet_kernels::attention::*;
/// use fleet_kernels::pool::Pool;
/// let attention = Attention {
///     batch: 1, heads: 1, queries: 1, keys: 2, dim: 2, scale: 1.0, is_causal: false,
///     dropout: None,
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
    /// Number of samples.
    pub batch: usize,
    /// Number of heads per sample.
    pub heads: usize,
    /// Number of positions that attend.
    pub queries: usize,
    /// Number of positions that are attended to.
    pub keys: usize,
    /// Number of floats per head and position.
    pub dim: usize,
    /// Factor on the scores.
    pub scale: f32,
    /// Whether query `i` sees only keys up to `i + keys - queries`, so that the last query sees
    /// all.
    pub is_causal: bool,
    /// Dropout of the probabilities; `None` keeps all.
    pub dropout: Option<Dropout>,
}

impl Attention {
    /// Returns the length of the scratch memory for [`Attention::forward`] on a pool of `threads`,
    /// in floats.
    pub fn forward_scratch_len(&self, threads: usize) -> usize {
        threads * (ForwardScratch::len(self.dim) + LINE)
    }

    /// Returns the length of the scratch memory for [`Attention::backward`] on a pool of `threads`,
    /// in floats.
    pub fn backward_scratch_len(&self, threads: usize) -> usize {
        threads * (BackwardScratch::len(self.dim) + LINE)
    }

    /// Returns the length of `lse`, [batch, heads, queries].
    pub fn lse_len(&self) -> usize {
        self.batch * self.heads * self.queries
    }

    /// Returns the floating-point operations of the forward pass (two products), without those that
    /// a causal mask hides.
    pub fn flops(&self) -> f64 {
        // Computed in f64, because a program may declare sizes that overflow integers.
        let pairs = self.queries as f64 * self.keys as f64 * if self.is_causal { 0.5 } else { 1.0 };
        4.0 * self.batch as f64 * self.heads as f64 * self.dim as f64 * pairs
    }

    /// Computes `out`, and the log-sum-exp of every row for the backward pass. A row that sees no
    /// key gets zeros and an infinite `lse`.
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
        assert_eq!(lse.len(), self.lse_len(), "attention: lse has the wrong length");
        let threads = pool.threads();
        assert!(
            scratch.len() >= self.forward_scratch_len(threads),
            "attention: scratch is too short"
        );
        let pass = Forward {
            shape: *self,
            isa: Isa::best(),
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
            // SAFETY: each worker has its own scratch memory.
            let scratch = unsafe { scratch.slice(worker * each, each) };
            let (head, chunk) = (task / chunks, task % chunks);
            let rows = chunk * QUERY_CHUNK..((chunk + 1) * QUERY_CHUNK).min(self.queries);
            let at = (head / self.heads, head % self.heads);
            // SAFETY: views and sizes were checked, and tasks own disjoint rows of `out` and `lse`.
            unsafe { pass.chunk(at, rows, ForwardScratch::cut(scratch, self.dim)) };
        });
    }

    /// Computes the gradients of q, k and v from `d_out`, the gradient of `out`.
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
        assert_eq!(lse.len(), self.lse_len(), "attention: lse has the wrong length");
        let threads = pool.threads();
        assert!(
            scratch.len() >= self.backward_scratch_len(threads),
            "attention: scratch is too short"
        );
        let pass = Backward {
            shape: *self,
            isa: Isa::best(),
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
            // SAFETY: each worker has its own scratch memory.
            let scratch = unsafe { scratch.slice(worker * each, each) };
            let at = (head / self.heads, head % self.heads);
            // SAFETY: views and sizes were checked, and tasks own disjoint heads of the gradients.
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
        assert!(end <= heads.data.len(), "attention: operand is too short");
        View { data: heads.data.as_ptr().cast_mut(), strides: heads.strides }
    }

    fn checked_mut(&self, heads: &HeadsMut<'_>, time: usize) -> View {
        if self.is_empty(time) {
            return View { data: heads.data, strides: heads.strides };
        }
        // In order of increasing stride, each stride must exceed the extent of the inner axes.
        let Strides { batch, time: step, head } = heads.strides;
        let mut axes = [(batch, self.batch), (step, time), (head, self.heads)];
        axes.sort_unstable();
        let mut extent = self.dim;
        for (stride, count) in axes.into_iter().filter(|axis| axis.1 > 1) {
            assert!(stride >= extent, "attention: rows of an output overlap");
            extent += (count - 1) * stride;
        }
        assert!(extent <= heads.len, "attention: output is too short");
        // The parts of a packed buffer are interleaved.
        let width = self.heads.saturating_sub(1) * head + self.dim;
        assert!(width <= heads.width, "attention: more heads than the packed output");
        View { data: heads.data, strides: heads.strides }
    }

    fn mask_view(&self, mask: Mask<'_>) -> MaskView {
        let sizes = [self.batch, self.heads, self.queries, self.keys];
        let mut strides = [0; 4];
        let mut stride = 1;
        for axis in (0..4).rev() {
            assert!(
                mask.shape[axis] == 1 || mask.shape[axis] == sizes[axis],
                "attention: mask cannot be broadcast"
            );
            strides[axis] = if mask.shape[axis] == 1 { 0 } else { stride };
            stride *= mask.shape[axis];
        }
        MaskView { data: mask.data.as_ptr(), strides }
    }

    /// Returns the number of keys that queries below `end` may see.
    fn keys_seen(&self, end: usize) -> usize {
        if self.is_causal {
            (end + self.keys).saturating_sub(self.queries).min(self.keys)
        } else {
            self.keys
        }
    }
}

/// Number of queries of one forward task. They share the packed keys and values.
const QUERY_CHUNK: usize = 256;
