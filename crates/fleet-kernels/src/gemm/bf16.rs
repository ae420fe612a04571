//! Products of bf16 by a dedicated hardware unit: bf16 in, sums in f32, rounded once on output.
//!
//! Where the machine has no such unit, callers widen to f32 and use the f32 product. The results
//! then differ in the order of additions. The unit also treats numbers below 2^-126 as zero.

#[cfg(target_arch = "x86_64")]
use super::tiles::{self, GemmOutput};
use super::{Epilogue, Gemm};
#[cfg(target_arch = "x86_64")]
use crate::micro::unit::Unit;
use crate::pool::Pool;
use half::bf16;

/// Number of multiplications from which packing pays off.
const WORK_MIN: usize = 1 << 15;

/// The element type of A and B.
pub trait Factor: Copy + Send + Sync {
    /// Like [`Gemm::scratch_len`].
    fn scratch_len(gemm: &Gemm, threads: usize) -> usize;
    /// Like [`Gemm::run`].
    fn run(gemm: &Gemm, pool: &Pool, a: &[Self], b: &[Self], c: &mut [Self], scratch: &mut [f32]);
}

impl Factor for f32 {
    fn scratch_len(gemm: &Gemm, threads: usize) -> usize {
        gemm.scratch_len(threads)
    }
    fn run(gemm: &Gemm, pool: &Pool, a: &[f32], b: &[f32], c: &mut [f32], scratch: &mut [f32]) {
        gemm.run(pool, a, b, c, scratch, &Epilogue::NONE);
    }
}

/// Only for products for which [`Gemm::is_bf16_native`] holds.
impl Factor for bf16 {
    fn scratch_len(gemm: &Gemm, threads: usize) -> usize {
        gemm.scratch_len_bf16(threads)
    }
    fn run(gemm: &Gemm, pool: &Pool, a: &[bf16], b: &[bf16], c: &mut [bf16], scratch: &mut [f32]) {
        gemm.run_bf16(pool, a, b, c, scratch, &Epilogue::NONE);
    }
}

impl Gemm {
    /// Whether [`Gemm::run_bf16`] may be called: the machine has a bf16 unit, and it speeds up this
    /// product.
    pub fn is_bf16_native(&self) -> bool {
        Unit::best().is_some()
            && self.batch.len() == 1
            && self.m > 1
            && self.n > 1
            && self.k > 1
            && self.flops() >= 2.0 * WORK_MIN as f64
    }

    /// Returns the length of the scratch memory for [`Gemm::run_bf16`], in floats.
    pub fn scratch_len_bf16(&self, threads: usize) -> usize {
        tiles::scratch_len(self, threads)
    }

    /// Like [`Gemm::run`], from bf16 to bf16 or f32.
    ///
    /// # Panics
    /// If a slice is too short, or if [`Gemm::is_bf16_native`] does not hold.
    pub fn run_bf16<C: GemmOutput>(
        &self,
        pool: &Pool,
        a: &[bf16],
        b: &[bf16],
        c: &mut [C],
        scratch: &mut [f32],
        epilogue: &Epilogue<'_>,
    ) {
        let unit = Unit::best().filter(|_| self.is_bf16_native());
        let unit = unit.expect("gemm: bf16 is not supported for this product");
        self.hold(a.len(), b.len(), c.len(), epilogue);
        assert!(
            scratch.len() >= self.scratch_len_bf16(pool.threads()),
            "gemm: scratch is too short"
        );
        tiles::run(unit, self, pool, a, b, c, scratch, epilogue);
    }
}

/// A placeholder for machines without a unit.
#[cfg(not(target_arch = "x86_64"))]
#[derive(Clone, Copy)]
#[allow(dead_code, reason = "never constructed")]
struct Unit;

#[cfg(not(target_arch = "x86_64"))]
impl Unit {
    fn best() -> Option<Unit> {
        None
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod tiles {
    use super::*;

    pub fn scratch_len(_: &Gemm, _: usize) -> usize {
        0
    }

    pub fn run<C: GemmOutput>(
        _: Unit,
        _: &Gemm,
        _: &Pool,
        _: &[bf16],
        _: &[bf16],
        _: &mut [C],
        _: &mut [f32],
        _: &Epilogue<'_>,
    ) {
        unreachable!("no bf16 unit on this architecture");
    }
}
