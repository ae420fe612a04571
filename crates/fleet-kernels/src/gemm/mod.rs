//! Matrix products in f32: `C = act(alpha * op(A) * op(B) + beta * C + bias)`, whole or batched.
//!
//! Matrices are row-major with leading dimensions. Blocks of B are packed into panels of 64 columns
//! in the caches of the thread that uses them; A is read in place, except that a transposed A is
//! packed into strips of six rows of op(A). The output is cut into blocks and K into blocks of at
//! most [`K_BLOCK`]; a small output with a long K is summed in a fixed number of slices, added in
//! order. Results are bitwise the same for any number of threads.
//!
//! Products with one row or one column are bound by memory and go through `gemv`.
//!
//! ```
//! use fleet_kernels::{gemm::{Epilogue, Gemm}, pool::Pool};
//! let (a, b) = ([1.0, 2.0, 3.0, 4.0], [1.0, 1.0, 0.0, 1.0]);
//! let gemm = Gemm::nn(2, 2, 2);
//! let pool = Pool::new(1);
//! let mut c = [0.0; 4];
//! let mut scratch = vec![0.0; gemm.scratch_len(pool.threads())];
//! gemm.run(&pool, &a, &b, &mut c, &mut scratch, &Epilogue::NONE);
//! assert_eq!(c, [1.0, 3.0, 3.0, 7.0]);
//! ```

mod bf16;
mod block;
mod cut;
mod gemv;
mod pack;
mod queues;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
mod tiles;

pub use crate::micro::{Isa, PANEL};
pub use bf16::{Factor, Narrow};

use crate::pool::Pool;
use fleet_base::{Error, Result};

/// Terms summed in registers before C is touched: a panel of B is then 192 KB, well inside L2, and
/// the rounding error of long sums stays that of short ones.
pub const K_BLOCK: usize = 768;

/// One product, or a batch of equal ones: shapes, strides, scale factors.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gemm {
    /// Rows of C and of op(A).
    pub m: usize,
    /// Columns of C and of op(B).
    pub n: usize,
    /// Terms of each sum.
    pub k: usize,
    /// A is stored `[k][m]`, not `[m][k]`.
    pub trans_a: bool,
    /// B is stored `[n][k]`, not `[k][n]`.
    pub trans_b: bool,
    /// Elements from one stored row to the next.
    pub lda: usize,
    pub ldb: usize,
    pub ldc: usize,
    pub alpha: f32,
    /// With 0, C is written without being read.
    pub beta: f32,
    pub batch: Batch,
    /// Tests force it; the default is the best that the machine has.
    pub isa: Isa,
}

/// Two nested counts of products, and how far apart their matrices lie; a stride of 0 shares one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batch {
    pub count: [usize; 2],
    pub a: [usize; 2],
    pub b: [usize; 2],
    pub c: [usize; 2],
}

impl Batch {
    pub const ONE: Batch = Batch { count: [1, 1], a: [0, 0], b: [0, 0], c: [0, 0] };

    fn len(&self) -> usize {
        self.count[0] * self.count[1]
    }

    fn offset(&self, strides: [usize; 2], item: usize) -> usize {
        item / self.count[1] * strides[0] + item % self.count[1] * strides[1]
    }

    fn last(&self, strides: [usize; 2]) -> usize {
        (0..2).map(|level| (self.count[level].max(1) - 1) * strides[level]).sum()
    }
}

/// What is done to a tile of C while it is in registers or in L1.
#[derive(Clone, Copy, Default)]
pub struct Epilogue<'a> {
    /// One number a column, added to every row.
    pub bias: Option<&'a [f32]>,
    pub relu: bool,
    /// Laid out as C: where it is not positive, C becomes 0. The gradient of the relu that made the
    /// mask, for a product that makes the gradient of the relu's output.
    pub mask: Option<&'a [f32]>,
    /// Called once for each finished part of a row, last of all, in no fixed order.
    pub finish: Option<&'a (dyn Fn(RowPart<'_>) + Sync)>,
}

impl Epilogue<'_> {
    pub const NONE: Epilogue<'static> =
        Epilogue { bias: None, relu: false, mask: None, finish: None };
}

/// At most 64 finished columns of one row of C.
pub struct RowPart<'a> {
    /// Which product of the batch.
    pub item: usize,
    pub row: usize,
    pub col: usize,
    pub values: &'a mut [f32],
}

impl Gemm {
    /// `C[m][n] = A[m][k] * B[k][n]`, everything dense.
    pub fn nn(m: usize, n: usize, k: usize) -> Gemm {
        Gemm {
            m,
            n,
            k,
            trans_a: false,
            trans_b: false,
            lda: k,
            ldb: n,
            ldc: n,
            alpha: 1.0,
            beta: 0.0,
            batch: Batch::ONE,
            isa: Isa::best(),
        }
    }

    /// As [`Gemm::nn`] with B stored `[n][k]`.
    pub fn nt(m: usize, n: usize, k: usize) -> Gemm {
        Gemm { trans_b: true, ldb: k, ..Gemm::nn(m, n, k) }
    }

    /// As [`Gemm::nn`] with A stored `[k][m]`.
    pub fn tn(m: usize, n: usize, k: usize) -> Gemm {
        Gemm { trans_a: true, lda: m, ..Gemm::nn(m, n, k) }
    }

    /// As [`Gemm::nn`] with A stored `[k][m]` and B stored `[n][k]`.
    pub fn tt(m: usize, n: usize, k: usize) -> Gemm {
        Gemm { trans_a: true, lda: m, trans_b: true, ldb: k, ..Gemm::nn(m, n, k) }
    }

    pub fn alpha(self, alpha: f32) -> Gemm {
        Gemm { alpha, ..self }
    }

    pub fn beta(self, beta: f32) -> Gemm {
        Gemm { beta, ..self }
    }

    pub fn leading(self, lda: usize, ldb: usize, ldc: usize) -> Gemm {
        Gemm { lda, ldb, ldc, ..self }
    }

    /// `count` products, their matrices `a`, `b` and `c` elements apart.
    pub fn batched(self, count: usize, a: usize, b: usize, c: usize) -> Gemm {
        self.batched_2(Batch { count: [1, count], a: [0, a], b: [0, b], c: [0, c] })
    }

    /// Two levels of batch: images and heads, say, without moving either.
    pub fn batched_2(self, batch: Batch) -> Gemm {
        Gemm { batch, ..self }
    }

    pub fn flops(&self) -> f64 {
        2.0 * (self.batch.len() * self.m) as f64 * self.n as f64 * self.k as f64
    }

    /// Elements of A, B and C that a call touches, from the first to the last.
    pub fn lens(&self) -> [usize; 3] {
        let span = |rows: usize, cols: usize, pitch: usize, strides: [usize; 2]| {
            if rows == 0 || cols == 0 || self.batch.len() == 0 {
                return 0;
            }
            (rows - 1) * pitch + cols + self.batch.last(strides)
        };
        let (a_rows, a_cols) = if self.trans_a { (self.k, self.m) } else { (self.m, self.k) };
        let (b_rows, b_cols) = if self.trans_b { (self.n, self.k) } else { (self.k, self.n) };
        [
            span(a_rows, a_cols, self.lda, self.batch.a),
            span(b_rows, b_cols, self.ldb, self.batch.b),
            span(self.m, self.n, self.ldc, self.batch.c),
        ]
    }

    /// Whether the strides make sense and slices of these lengths hold the matrices.
    pub fn check(&self, a_len: usize, b_len: usize, c_len: usize) -> Result<()> {
        let a_cols = if self.trans_a { self.m } else { self.k };
        let b_cols = if self.trans_b { self.k } else { self.n };
        let leading = [("A", self.lda, a_cols), ("B", self.ldb, b_cols), ("C", self.ldc, self.n)];
        for (name, pitch, cols) in leading {
            if pitch < cols {
                return Err(Error::invalid(format!("leading dimension of {name} is too small"))
                    .expected(format!("at least {cols}"))
                    .got(pitch));
            }
        }
        for ((name, have), need) in
            [("A", a_len), ("B", b_len), ("C", c_len)].into_iter().zip(self.lens())
        {
            if have < need {
                return Err(Error::invalid(format!("matrix {name} is too short"))
                    .expected(format!("at least {need} elements"))
                    .got(have));
            }
        }
        Ok(())
    }

    /// Floats of scratch that [`Gemm::run`] needs on a pool of `threads`.
    pub fn scratch_len(&self, threads: usize) -> usize {
        match self.is_gemv() {
            true => gemv::scratch_len(self),
            false => block::scratch_len(self, threads),
        }
    }

    /// Computes C.
    ///
    /// # Panics
    /// If a slice is shorter than [`Gemm::check`] and [`Gemm::scratch_len`] ask for.
    pub fn run(
        &self,
        pool: &Pool,
        a: &[f32],
        b: &[f32],
        c: &mut [f32],
        scratch: &mut [f32],
        epilogue: &Epilogue<'_>,
    ) {
        self.hold(a.len(), b.len(), c.len(), epilogue);
        assert!(scratch.len() >= self.scratch_len(pool.threads()), "gemm: scratch is too short");
        if self.m == 0 || self.n == 0 || self.batch.len() == 0 {
            return;
        }
        let gemm = Gemm { isa: self.isa.or_best(), ..*self };
        if self.is_gemv() {
            gemv::run(&gemm, pool, a, b, c, scratch, epilogue);
        } else {
            block::run(&gemm, pool, a, b, c, scratch, epilogue);
        }
    }

    fn is_gemv(&self) -> bool {
        (self.m == 1 || self.n == 1) && self.k > 1
    }

    fn hold(&self, a_len: usize, b_len: usize, c_len: usize, epilogue: &Epilogue<'_>) {
        if let Err(error) = self.check(a_len, b_len, c_len) {
            panic!("gemm: {error}");
        }
        assert!(epilogue.bias.is_none_or(|bias| bias.len() >= self.n), "gemm: bias is too short");
        let [_, _, c_span] = self.lens();
        assert!(epilogue.mask.is_none_or(|mask| mask.len() >= c_span), "gemm: mask is too short");
    }
}
