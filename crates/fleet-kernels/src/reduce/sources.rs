//! Inputs and operations of reductions: values from memory, and folds on registers.

use crate::simd::{SharedPtr, Simd};

/// A function that combines two values into one.
pub(crate) trait ReduceOp: Copy + Send + Sync {
    const IDENTITY: f32;
    fn fold<S: Simd>(s: S, a: S::F, b: S::F) -> S::F;
    fn fold_f64(a: f64, b: f64) -> f64;
    fn lanes<S: Simd>(s: S, a: S::F) -> f64;
}

macro_rules! reduce_ops {
    ($($name:ident from $identity:expr; |$s:ident, $a:ident, $b:ident| $fold:expr;
        |$x:ident, $y:ident| $wide:expr; |$v:ident, $r:ident| $lanes:expr;)*) => {$(
        #[derive(Clone, Copy)]
        pub(crate) struct $name;

        impl ReduceOp for $name {
            const IDENTITY: f32 = $identity;
            #[inline(always)]
            fn fold<S: Simd>($s: S, $a: S::F, $b: S::F) -> S::F {
                $fold
            }
            #[inline(always)]
            fn fold_f64($x: f64, $y: f64) -> f64 {
                $wide
            }
            #[inline(always)]
            fn lanes<S: Simd>($v: S, $r: S::F) -> f64 {
                $lanes
            }
        }
    )*};
}

// Each has the fold of two registers, of two numbers, and of the lanes of a register.
reduce_ops! {
    SumOp from 0.0;
    |s, a, b| s.add(a, b); |a, b| a + b; |s, a| f64::from(s.sum(a));

    MaxOp from f32::NEG_INFINITY;
    |s, a, b| s.max(a, b); |a, b| if a > b { a } else { b }; |s, a| f64::from(s.max_lane(a));

    MinOp from f32::INFINITY;
    |s, a, b| s.min(a, b); |a, b| if a < b { a } else { b }; |s, a| f64::from(s.min_lane(a));

    ProdOp from 1.0;
    |s, a, b| s.mul(a, b); |a, b| a * b; |s, a| {
        let mut lanes = [1f32; 16];
        // SAFETY: no register has more than 16 lanes.
        unsafe { s.store(lanes.as_mut_ptr(), a) };
        lanes.iter().map(|lane| f64::from(*lane)).product()
    };
}

/// The source of the reduced values: a tensor, or a function of two tensors that is computed on
/// load.
pub(crate) trait Source: Copy + Send + Sync {
    /// Loads `n` of `LANES` lanes, as [`Simd::load_n`] does. The other lanes have undefined values.
    ///
    /// # Safety
    /// `n` elements exist at `i`.
    unsafe fn load<S: Simd>(self, s: S, i: usize, n: usize) -> S::F;
}

#[derive(Clone, Copy)]
pub(crate) struct Plain(pub(crate) SharedPtr<f32>);

impl Source for Plain {
    #[inline(always)]
    unsafe fn load<S: Simd>(self, s: S, i: usize, n: usize) -> S::F {
        // SAFETY: the contract is the same.
        unsafe { s.load_n(self.0.at(i), n) }
    }
}

/// The product of two tensors of one shape, or the square of one if both are the same.
#[derive(Clone, Copy)]
pub(crate) struct Product(pub(crate) SharedPtr<f32>, pub(crate) SharedPtr<f32>);

impl Source for Product {
    #[inline(always)]
    unsafe fn load<S: Simd>(self, s: S, i: usize, n: usize) -> S::F {
        // SAFETY: the contract is the same.
        unsafe { s.mul(s.load_n(self.0.at(i), n), s.load_n(self.1.at(i), n)) }
    }
}

/// The quotient of two tensors of one shape.
#[derive(Clone, Copy)]
pub(crate) struct Quotient(pub(crate) SharedPtr<f32>, pub(crate) SharedPtr<f32>);

impl Source for Quotient {
    #[inline(always)]
    unsafe fn load<S: Simd>(self, s: S, i: usize, n: usize) -> S::F {
        // SAFETY: the contract is the same.
        unsafe { s.div(s.load_n(self.0.at(i), n), s.load_n(self.1.at(i), n)) }
    }
}
