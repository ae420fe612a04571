//! Inputs and operations of reductions: values from memory, and folds on registers.

use crate::simd::{SharedPtr, Simd};

/// A function that combines two values into one.
pub(crate) trait ReduceOp: Copy + Send + Sync {
    const IDENTITY: f32;
    fn fold<S: Simd>(s: S, a: S::F, b: S::F) -> S::F;
    fn fold_f64(a: f64, b: f64) -> f64;
    fn lanes<S: Simd>(s: S, a: S::F) -> f64;
}

#[derive(Clone, Copy)]
pub(crate) struct SumOp;

impl ReduceOp for SumOp {
    const IDENTITY: f32 = 0.0;
    #[inline(always)]
    fn fold<S: Simd>(s: S, a: S::F, b: S::F) -> S::F {
        s.add(a, b)
    }
    #[inline(always)]
    fn fold_f64(a: f64, b: f64) -> f64 {
        a + b
    }
    #[inline(always)]
    fn lanes<S: Simd>(s: S, a: S::F) -> f64 {
        f64::from(s.sum(a))
    }
}

#[derive(Clone, Copy)]
pub(super) struct MaxOp;

impl ReduceOp for MaxOp {
    const IDENTITY: f32 = f32::NEG_INFINITY;
    #[inline(always)]
    fn fold<S: Simd>(s: S, a: S::F, b: S::F) -> S::F {
        s.max(a, b)
    }
    #[inline(always)]
    fn fold_f64(a: f64, b: f64) -> f64 {
        if a > b { a } else { b }
    }
    #[inline(always)]
    fn lanes<S: Simd>(s: S, a: S::F) -> f64 {
        f64::from(s.max_lane(a))
    }
}

#[derive(Clone, Copy)]
pub(super) struct MinOp;

impl ReduceOp for MinOp {
    const IDENTITY: f32 = f32::INFINITY;
    #[inline(always)]
    fn fold<S: Simd>(s: S, a: S::F, b: S::F) -> S::F {
        s.min(a, b)
    }
    #[inline(always)]
    fn fold_f64(a: f64, b: f64) -> f64 {
        if a < b { a } else { b }
    }
    #[inline(always)]
    fn lanes<S: Simd>(s: S, a: S::F) -> f64 {
        f64::from(s.min_lane(a))
    }
}

#[derive(Clone, Copy)]
pub(super) struct ProdOp;

impl ReduceOp for ProdOp {
    const IDENTITY: f32 = 1.0;
    #[inline(always)]
    fn fold<S: Simd>(s: S, a: S::F, b: S::F) -> S::F {
        s.mul(a, b)
    }
    #[inline(always)]
    fn fold_f64(a: f64, b: f64) -> f64 {
        a * b
    }
    #[inline(always)]
    fn lanes<S: Simd>(s: S, a: S::F) -> f64 {
        let mut lanes = [1f32; 16];
        // SAFETY: no register has more than 16 lanes.
        unsafe { s.store(lanes.as_mut_ptr(), a) };
        lanes.iter().map(|lane| f64::from(*lane)).product()
    }
}

/// The source of the reduced values: a tensor, or a function of two tensors that is computed on
/// load.
pub(crate) trait Source: Copy + Send + Sync {
    /// # Safety
    /// `LANES` elements exist at `i`.
    unsafe fn load<S: Simd>(self, s: S, i: usize) -> S::F;
    /// # Safety
    /// `n <= LANES` elements exist at `i`. The other lanes have undefined values.
    unsafe fn load_part<S: Simd>(self, s: S, i: usize, n: usize) -> S::F;
}

#[derive(Clone, Copy)]
pub(crate) struct Plain(pub(crate) SharedPtr<f32>);

impl Source for Plain {
    #[inline(always)]
    unsafe fn load<S: Simd>(self, s: S, i: usize) -> S::F {
        // SAFETY: the contract is the same.
        unsafe { s.load(self.0.at(i)) }
    }
    #[inline(always)]
    unsafe fn load_part<S: Simd>(self, s: S, i: usize, n: usize) -> S::F {
        // SAFETY: the contract is the same.
        unsafe { s.load_part(self.0.at(i), n) }
    }
}

/// The product of two tensors of one shape, or the square of one if both are the same.
#[derive(Clone, Copy)]
pub(crate) struct Product(pub(crate) SharedPtr<f32>, pub(crate) SharedPtr<f32>);

impl Source for Product {
    #[inline(always)]
    unsafe fn load<S: Simd>(self, s: S, i: usize) -> S::F {
        // SAFETY: the contract is the same.
        unsafe { s.mul(s.load(self.0.at(i)), s.load(self.1.at(i))) }
    }
    #[inline(always)]
    unsafe fn load_part<S: Simd>(self, s: S, i: usize, n: usize) -> S::F {
        // SAFETY: the contract is the same.
        unsafe { s.mul(s.load_part(self.0.at(i), n), s.load_part(self.1.at(i), n)) }
    }
}

/// The quotient of two tensors of one shape.
#[derive(Clone, Copy)]
pub(crate) struct Quotient(pub(crate) SharedPtr<f32>, pub(crate) SharedPtr<f32>);

impl Source for Quotient {
    #[inline(always)]
    unsafe fn load<S: Simd>(self, s: S, i: usize) -> S::F {
        // SAFETY: the contract is the same.
        unsafe { s.div(s.load(self.0.at(i)), s.load(self.1.at(i))) }
    }
    #[inline(always)]
    unsafe fn load_part<S: Simd>(self, s: S, i: usize, n: usize) -> S::F {
        // SAFETY: the contract is the same.
        unsafe { s.div(s.load_part(self.0.at(i), n), s.load_part(self.1.at(i), n)) }
    }
}
