//! Matrix products in f32: `C = act(alpha * op(A) * op(B) + beta * C + bias)`, single or batched.
//!
//! Matrices are row-major with leading dimensions. Each thread packs the blocks of B that it uses
//! into panels of 64 columns in its caches. A is read in place, but a transposed A is packed into
//! strips of six rows of op(A). The output is split into blocks, and K into blocks of at most
//! [`K_BLOCK`]. A small output with a long K is summed in a fixed number of slices, which are added
//! in order. Results are bitwise equal for any number of threads.
//!
//! Products with one row or one column are limited by memory bandwidth and use `gemv`.
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
mod gemv;
mod pack;
mod queues;
mod split;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
mod tiles;

pub use crate::micro::{Isa, PANEL};
pub use bf16::Factor;
pub use tiles::GemmOutput;

use crate::pool::Pool;
use fleet_base::{Error, Result};

/// Number of terms summed in registers before C is accessed. A panel of B is then 192 KB, well
/// inside L2, and the rounding error of long sums is that of short ones.
pub const K_BLOCK: usize = 768;

/// One product, or a batch of equal ones: shapes, strides and scale factors.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gemm {
    /// Number of rows of C and op(A).
    pub m: usize,
    /// Number of columns of C and op(B).
    pub n: usize,
    /// Number of terms of each sum.
    pub k: usize,
    /// Whether A is stored `[k][m]` rather than `[m][k]`.
    pub trans_a: bool,
    /// Whether B is stored `[n][k]` rather than `[k][n]`.
    pub trans_b: bool,
    /// Distance between stored rows, in elements.
    pub lda: usize,
    /// Distance between stored rows of B, in elements.
    pub ldb: usize,
    /// Distance between rows of C, in elements.
    pub ldc: usize,
    /// Factor on the product.
    pub alpha: f32,
    /// If 0, C is written without being read.
    pub beta: f32,
    /// Number of products, and where their matrices are.
    pub batch: Batch,
    /// Instruction set. The default is the best of the machine; tests set others.
    pub isa: Isa,
}

/// Two nested counts of products, and the strides of their matrices. A stride of 0 shares a matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batch {
    /// Number of products at the outer and the inner level.
    pub count: [usize; 2],
    /// Distance between matrices A at the two levels, in elements.
    pub a: [usize; 2],
    /// Like `a`, for B.
    pub b: [usize; 2],
    /// Like `a`, for C.
    pub c: [usize; 2],
}

impl Batch {
    /// One product.
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

/// Operations on a tile of C while it is in registers or in L1.
#[derive(Clone, Copy, Default)]
pub struct Epilogue<'a> {
    /// One number per column, added to every row.
    pub bias: Option<&'a [f32]>,
    /// Whether to replace negative numbers by 0, after the bias.
    pub relu: bool,
    /// A mask with the layout of C, which sets C to 0 where the mask is not positive. It computes
    /// the gradient of a relu within the product that computes the gradient of the relu's output.
    pub mask: Option<&'a [f32]>,
    /// A function called once for each finished part of a row, after all other operations, in no
    /// fixed order.
    pub finish: Option<&'a (dyn Fn(RowPart<'_>) + Sync)>,
}

impl Epilogue<'_> {
    /// No operation.
    pub const NONE: Epilogue<'static> =
        Epilogue { bias: None, relu: false, mask: None, finish: None };
}

/// At most 64 finished columns of one row of C.
pub struct RowPart<'a> {
    /// Index of the product in the batch.
    pub item: usize,
    /// Index of the row of C.
    pub row: usize,
    /// Index of the first column of the part.
    pub col: usize,
    /// The numbers, which the function may change.
    pub values: &'a mut [f32],
}

impl Gemm {
    /// Returns the product `C[m][n] = A[m][k] * B[k][n]` of dense matrices.
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

    /// Like [`Gemm::nn`], with B stored `[n][k]`.
    pub fn nt(m: usize, n: usize, k: usize) -> Gemm {
        Gemm { trans_b: true, ldb: k, ..Gemm::nn(m, n, k) }
    }

    /// Like [`Gemm::nn`], with A stored `[k][m]`.
    pub fn tn(m: usize, n: usize, k: usize) -> Gemm {
        Gemm { trans_a: true, lda: m, ..Gemm::nn(m, n, k) }
    }

    /// Like [`Gemm::nn`], with A stored `[k][m]` and B stored `[n][k]`.
    pub fn tt(m: usize, n: usize, k: usize) -> Gemm {
        Gemm { trans_a: true, lda: m, trans_b: true, ldb: k, ..Gemm::nn(m, n, k) }
    }

    /// Sets the factor on the product; 1 by default.
    pub fn alpha(self, alpha: f32) -> Gemm {
        Gemm { alpha, ..self }
    }

    /// Sets the factor on the previous C; 0 by default, which does not read C.
    pub fn beta(self, beta: f32) -> Gemm {
        Gemm { beta, ..self }
    }

    /// Sets the distances between stored rows of A, B and C, in elements.
    pub fn leading(self, lda: usize, ldb: usize, ldc: usize) -> Gemm {
        Gemm { lda, ldb, ldc, ..self }
    }

    /// Returns a batch of `count` products, with their matrices `a`, `b` and `c` elements apart.
    pub fn batched(self, count: usize, a: usize, b: usize, c: usize) -> Gemm {
        self.batched_2(Batch { count: [1, count], a: [0, a], b: [0, b], c: [0, c] })
    }

    /// Returns a batch with two levels, such as images and heads, without moving data.
    pub fn batched_2(self, batch: Batch) -> Gemm {
        Gemm { batch, ..self }
    }

    /// Returns the number of floating-point operations of all products.
    pub fn flops(&self) -> f64 {
        2.0 * (self.batch.len() * self.m) as f64 * self.n as f64 * self.k as f64
    }

    /// Returns the lengths of A, B and C, from the first to the last element that a call accesses.
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

    /// Returns an error if a leading dimension is too small, or if slices of these lengths are too
    /// short.
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

    /// Returns the length of the scratch memory for [`Gemm::run`] on a pool of `threads`, in
    /// floats.
    pub fn scratch_len(&self, threads: usize) -> usize {
        match self.is_gemv() {
            true => gemv::scratch_len(self),
            false => block::scratch_len(self, threads),
        }
    }

    /// Computes C.
    ///
    /// # Panics
    /// If a slice is shorter than [`Gemm::check`] or [`Gemm::scratch_len`] requires.
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
        let gemm = Gemm { isa: self.isa.or_best_available(), ..*self };
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
