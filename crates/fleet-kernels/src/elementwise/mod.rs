//! Functions of one f32 element, forward and backward, over contiguous slices.
//!
//! [`Unary`] names the function. [`Unary::saved`] names the value that its gradient reads: the
//! input, the output, or nothing. Both directions exist out of place, in place, and over raw
//! pointers that may be equal, for a planner that shares memory. For two operands, see `binary`;
//! for several functions in one pass, see `chain`.
//!
//! ```
//! use fleet_kernels::{elementwise::{unary, unary_grad, Unary}, pool::Pool};
//! let pool = Pool::new(2);
//! let mut y = [0.0; 3];
//! unary(&pool, Unary::Relu, &[-1.0, 0.5, 2.0], &mut y);
//! assert_eq!(y, [0.0, 0.5, 2.0]);
//! let mut dx = [0.0; 3];
//! unary_grad(&pool, Unary::Relu, &y, &[1.0; 3], &mut dx); // relu's gradient reads its output
//! assert_eq!(dx, [0.0, 1.0, 1.0]);
//! ```

#[cfg(test)]
mod tests;

use crate::input::Input;
use crate::pool::Pool;
use crate::simd::{SharedPtr, Simd};
use crate::vmath;
use crate::{for_registers, kernel};

/// Number of elements per task: 64 KB in and 64 KB out, enough to hide the cost of starting a task.
pub(crate) const GRAIN: usize = 16 * 1024;

/// Returns the number of rows of `len` elements per task.
pub(crate) fn grain_rows(len: usize) -> usize {
    (GRAIN / len.max(1)).max(1)
}

/// The value that the gradient of a function reads, besides the gradient of its output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Saved {
    /// The element that the function was applied to.
    Input,
    /// The result of the function.
    Output,
    /// No value.
    Nothing,
}

/// A function of one element, on registers.
pub(crate) trait UnaryOp: Copy + Send + Sync {
    fn forward<S: Simd>(self, s: S, x: S::F) -> S::F;
    /// Computes the gradient of the input from the saved value and the gradient of the output.
    fn backward<S: Simd>(self, s: S, saved: S::F, dy: S::F) -> S::F;
}

/// Defines the functions. Each entry has name and parameters, the saved value, y(x), and dx(saved,
/// dy).
macro_rules! unary_functions {
    ($(
        $(#[$meta:meta])*
        $name:ident $({ $($param:ident),* })? saves $saved:ident;
        |$s:ident, $x:ident| $forward:expr;
        |$s2:ident, $v:ident, $g:ident| $backward:expr;
    )*) => {
        /// The functions. Their parameters are documented at the ops of the same names.
        #[derive(Clone, Copy, Debug, PartialEq)]
        pub enum Unary {
            $(
                $(#[$meta])*
                $name $({
                    $(
                        #[doc = concat!("The number `", stringify!($param), "` of the formula.")]
                        $param: f32,
                    )*
                })?,
            )*
        }

        impl Unary {
            /// Returns which value [`unary_grad`] needs in `saved`.
            pub fn saved(&self) -> Saved {
                match self {
                    $(Unary::$name { .. } => Saved::$saved,)*
                }
            }
        }

        pub(crate) mod ops {
            use super::*;
            $(
                #[derive(Clone, Copy)]
                pub(crate) struct $name { $($(pub(crate) $param: f32),*)? }

                impl UnaryOp for $name {
                    #[inline(always)]
                    #[allow(unused_variables)]
                    fn forward<S: Simd>(self, $s: S, $x: S::F) -> S::F {
                        let $name { $($($param),*)? } = self;
                        $forward
                    }
                    #[inline(always)]
                    #[allow(unused_variables)]
                    fn backward<S: Simd>(self, $s2: S, $v: S::F, $g: S::F) -> S::F {
                        let $name { $($($param),*)? } = self;
                        $backward
                    }
                }
            )*
        }

        /// Computes `out[i] = op(x[i])` on this thread.
        ///
        /// # Safety
        /// `len` floats are readable at `x` and writable at `out`. The regions are equal or
        /// disjoint.
        pub(crate) unsafe fn forward_tile(op: Unary, x: *const f32, out: *mut f32, len: usize) {
            // SAFETY: the contract is the same.
            unsafe {
                match op {
                    $(Unary::$name $({ $($param),* })? => {
                        forward_kernel(ops::$name { $($($param),*)? }, x, out, len)
                    })*
                }
            }
        }

        /// Computes `dx[i]` from `saved[i]` and `dy[i]` on this thread.
        ///
        /// # Safety
        /// As for [`forward_tile`], for all three pointers.
        pub(crate) unsafe fn backward_tile(
            op: Unary,
            saved: *const f32,
            dy: *const f32,
            dx: *mut f32,
            len: usize,
        ) {
            // SAFETY: the contract is the same.
            unsafe {
                match op {
                    $(Unary::$name $({ $($param),* })? => {
                        backward_kernel(ops::$name { $($($param),*)? }, saved, dy, dx, len)
                    })*
                }
            }
        }
    };
}

unary_functions! {
    /// max(x, 0).
    Relu saves Output;
    |s, x| s.max(s.zero(), x);
    |s, y, g| s.select(s.gt(y, s.zero()), g, s.zero());

    /// min(max(x, 0), 6).
    Relu6 saves Output;
    |s, x| s.min(s.splat(6.0), s.max(s.zero(), x));
    |s, y, g| {
        let inside = s.and_m(s.gt(y, s.zero()), s.lt(y, s.splat(6.0)));
        s.select(inside, g, s.zero())
    };

    /// x if it is positive, else slope x.
    LeakyRelu { slope } saves Input;
    |s, x| s.select(s.gt(x, s.zero()), x, s.mul(x, s.splat(slope)));
    |s, x, g| s.select(s.gt(x, s.zero()), g, s.mul(g, s.splat(slope)));

    /// 1 / (1 + exp(-x)).
    Sigmoid saves Output;
    |s, x| vmath::sigmoid(s, x);
    |s, y, g| s.mul(g, s.neg_fma(y, y, y));

    /// ln(sigmoid(x)).
    LogSigmoid saves Input;
    |s, x| s.neg(vmath::softplus(s, s.neg(x)));
    |s, x, g| s.mul(g, vmath::sigmoid(s, s.neg(x)));

    /// The hyperbolic tangent.
    Tanh saves Output;
    |s, x| vmath::tanh(s, x);
    |s, y, g| s.mul(g, s.neg_fma(y, y, s.splat(1.0)));

    /// x Φ(x) with the exact normal distribution.
    Gelu saves Input;
    |s, x| s.mul(x, normal_cdf(s, x));
    |s, x, g| {
        let density = vmath::exp(s, s.mul(s.mul(x, x), s.splat(-0.5)));
        let slope = s.mul(x, s.mul(density, s.splat(FRAC_1_SQRT_TAU)));
        s.mul(g, s.add(normal_cdf(s, x), slope))
    };

    /// x/2 (1 + tanh(√(2/π) (x + 0.044715 x³))).
    GeluTanh saves Input;
    |s, x| s.mul(x, vmath::sigmoid(s, gelu_tanh_argument(s, x)));
    |s, x, g| {
        // 1 + tanh(a) is 2 sigmoid(2a).
        let p = vmath::sigmoid(s, gelu_tanh_argument(s, x));
        let square = s.mul(x, x);
        let third = s.splat(6.0 * 0.044_715 * SQRT_2_OVER_PI);
        let inner = s.fma(square, third, s.splat(2.0 * SQRT_2_OVER_PI));
        s.mul(g, s.fma(s.mul(x, inner), s.neg_fma(p, p, p), p))
    };

    /// exp(x).
    Exp saves Output;
    |s, x| vmath::exp(s, x);
    |s, y, g| s.mul(g, y);

    /// ln(x).
    Log saves Input;
    |s, x| vmath::log(s, x);
    |s, x, g| s.div(g, x);

    /// √x.
    Sqrt saves Output;
    |s, x| s.sqrt(x);
    |s, y, g| s.div(s.mul(g, s.splat(0.5)), y);

    /// 1 / √x.
    Rsqrt saves Output;
    |s, x| vmath::rsqrt(s, x);
    |s, y, g| s.mul(s.mul(g, s.splat(-0.5)), s.mul(s.mul(y, y), y));

    /// x².
    Square saves Input;
    |s, x| s.mul(x, x);
    |s, x, g| s.mul(g, s.add(x, x));

    /// |x|.
    Abs saves Input;
    |s, x| s.abs(x);
    |s, x, g| s.mul(g, sign(s, x));

    /// -x.
    Neg saves Nothing;
    |s, x| s.neg(x);
    |s, x, g| s.neg(g);

    /// 1 / x.
    Reciprocal saves Output;
    |s, x| s.div(s.splat(1.0), x);
    |s, y, g| s.neg(s.mul(g, s.mul(y, y)));

    /// ln(1 + exp(beta x)) / beta, or x itself where beta x > threshold.
    Softplus { beta, threshold } saves Input;
    |s, x| {
        let scaled = s.mul(x, s.splat(beta));
        let y = s.mul(vmath::softplus(s, scaled), s.splat(1.0 / beta));
        s.select(s.gt(scaled, s.splat(threshold)), x, y)
    };
    |s, x, g| {
        let scaled = s.mul(x, s.splat(beta));
        s.select(s.gt(scaled, s.splat(threshold)), g, s.mul(g, vmath::sigmoid(s, scaled)))
    };

    /// x / (1 + |x|).
    Softsign saves Input;
    |s, x| s.div(x, s.add(s.splat(1.0), s.abs(x)));
    |s, x, g| {
        let root = s.add(s.splat(1.0), s.abs(x));
        s.div(g, s.mul(root, root))
    };

    /// min(max(slope x + offset, 0), 1).
    HardSigmoid { slope, offset } saves Output;
    |s, x| {
        let line = s.fma(x, s.splat(slope), s.splat(offset));
        s.min(s.splat(1.0), s.max(s.zero(), line))
    };
    |s, y, g| {
        let inside = s.and_m(s.gt(y, s.zero()), s.lt(y, s.splat(1.0)));
        s.select(inside, s.mul(g, s.splat(slope)), s.zero())
    };

    /// x min(max(x + offset, 0), threshold) / scale.
    HardSwish { threshold, scale, offset } saves Input;
    |s, x| {
        let line = s.add(x, s.splat(offset));
        let gate = s.min(s.splat(threshold), s.max(s.zero(), line));
        s.mul(s.mul(x, gate), s.splat(1.0 / scale))
    };
    |s, x, g| {
        let line = s.add(x, s.splat(offset));
        let slope = s.mul(s.add(x, line), s.splat(1.0 / scale));
        let high = s.select(s.lt(line, s.splat(threshold)), slope, s.splat(threshold / scale));
        s.mul(g, s.select(s.gt(line, s.zero()), high, s.zero()))
    };

    /// x sigmoid(beta x). silu has beta = 1.
    Swish { beta } saves Input;
    |s, x| s.mul(x, vmath::sigmoid(s, s.mul(x, s.splat(beta))));
    |s, x, g| {
        let scaled = s.mul(x, s.splat(beta));
        let p = vmath::sigmoid(s, scaled);
        s.mul(g, s.fma(scaled, s.neg_fma(p, p, p), p))
    };

    /// x if it is positive, else alpha (exp(x) - 1).
    Elu { alpha } saves Input;
    |s, x| {
        let below = s.mul(vmath::expm1(s, s.min(s.zero(), x)), s.splat(alpha));
        s.select(s.gt(x, s.zero()), x, below)
    };
    |s, x, g| {
        let below = s.mul(vmath::exp(s, s.min(s.zero(), x)), s.splat(alpha));
        s.select(s.gt(x, s.zero()), g, s.mul(g, below))
    };

    /// scale x if x is positive, else scale alpha (exp(x) - 1).
    Selu { scale, alpha } saves Input;
    |s, x| {
        let below = s.mul(vmath::expm1(s, s.min(s.zero(), x)), s.splat(scale * alpha));
        s.select(s.gt(x, s.zero()), s.mul(x, s.splat(scale)), below)
    };
    |s, x, g| {
        let below = s.mul(vmath::exp(s, s.min(s.zero(), x)), s.splat(scale * alpha));
        s.mul(g, s.select(s.gt(x, s.zero()), s.splat(scale), below))
    };

    /// 1, 0 or -1.
    Sign saves Nothing;
    |s, x| sign(s, x);
    |s, x, g| s.zero();

    /// Rounds down.
    Floor saves Nothing;
    |s, x| s.floor(x);
    |s, x, g| s.zero();

    /// Rounds up.
    Ceil saves Nothing;
    |s, x| s.ceil(x);
    |s, x, g| s.zero();

    /// Rounds to the nearest integer, halves away from zero.
    Round saves Nothing;
    |s, x| {
        let size = s.abs(x);
        let whole = s.floor(size);
        let up = s.le(s.splat(0.5), s.sub(size, whole));
        s.copysign(s.select(up, s.add(whole, s.splat(1.0)), whole), x)
    };
    |s, x, g| s.zero();

    /// x to the power of the exponent.
    Pow { exponent } saves Input;
    |s, x| vmath::pow(s, x, s.splat(exponent));
    |s, x, g| {
        let slope = vmath::pow(s, x, s.splat(exponent - 1.0));
        s.mul(s.mul(g, s.splat(exponent)), slope)
    };

    /// scale x + bias.
    Scale { scale, bias } saves Nothing;
    |s, x| s.fma(x, s.splat(scale), s.splat(bias));
    |s, x, g| s.mul(g, s.splat(scale));

    /// min(max(x, min), max). The gradient passes only strictly between the bounds.
    Clip { min, max } saves Input;
    |s, x| s.min(s.splat(max), s.max(s.splat(min), x));
    |s, x, g| {
        let inside = s.and_m(s.gt(x, s.splat(min)), s.lt(x, s.splat(max)));
        s.select(inside, g, s.zero())
    };

    /// The sine, with x in radians.
    Sin saves Input;
    |s, x| vmath::sin(s, x);
    |s, x, g| s.mul(g, vmath::cos(s, x));

    /// The cosine, with x in radians.
    Cos saves Input;
    |s, x| vmath::cos(s, x);
    |s, x, g| s.neg(s.mul(g, vmath::sin(s, x)));

    /// The error function.
    Erf saves Input;
    |s, x| vmath::erf(s, x);
    |s, x, g| {
        let density = vmath::exp(s, s.neg(s.mul(x, x)));
        s.mul(g, s.mul(density, s.splat(std::f32::consts::FRAC_2_SQRT_PI)))
    };
}

const FRAC_1_SQRT_TAU: f32 = 0.398_942_3;
const SQRT_2_OVER_PI: f32 = 0.797_884_6;

/// Computes Φ(x), the normal distribution function.
#[inline(always)]
fn normal_cdf<S: Simd>(s: S, x: S::F) -> S::F {
    let e = vmath::erf(s, s.mul(x, s.splat(std::f32::consts::FRAC_1_SQRT_2)));
    s.fma(e, s.splat(0.5), s.splat(0.5))
}

/// Computes 2 √(2/π) (x + 0.044715 x³).
#[inline(always)]
fn gelu_tanh_argument<S: Simd>(s: S, x: S::F) -> S::F {
    let inner = s.fma(
        s.mul(x, x),
        s.splat(2.0 * SQRT_2_OVER_PI * 0.044_715),
        s.splat(2.0 * SQRT_2_OVER_PI),
    );
    s.mul(x, inner)
}

/// Returns -1, 0 or 1; NaN gives 0.
#[inline(always)]
fn sign<S: Simd>(s: S, x: S::F) -> S::F {
    let positive = s.select(s.gt(x, s.zero()), s.splat(1.0), s.zero());
    s.select(s.lt(x, s.zero()), s.splat(-1.0), positive)
}

kernel! {
    unsafe fn forward_kernel<S, O: UnaryOp>(
        s: S, op: O, x: *const f32, out: *mut f32, len: usize,
    ) {
        for_registers!(S, len, |i, n| {
            s.store_n(out.add(i), op.forward(s, s.load_n(x.add(i), n)), n);
        });
    }
}

kernel! {
    unsafe fn backward_kernel<S, O: UnaryOp>(
        s: S, op: O, saved: *const f32, dy: *const f32, dx: *mut f32, len: usize,
    ) {
        for_registers!(S, len, |i, n| {
            let d = op.backward(s, s.load_n(saved.add(i), n), s.load_n(dy.add(i), n));
            s.store_n(dx.add(i), d, n);
        });
    }
}

/// Computes `y = op(x)`.
///
/// # Panics
/// Panics if input and output differ in length.
pub fn unary<'a>(pool: &Pool, op: Unary, x: impl Into<Input<'a, f32>>, y: &mut [f32]) {
    let (len, y) = (y.len(), y.as_mut_ptr());
    let (x, y) = (SharedPtr::new(x.into().start(len, y, len)), SharedPtr::new_mut(y));
    pool.run_ranges(len, GRAIN, |range| {
        // SAFETY: both hold `len` floats, and are equal or disjoint because `y` is exclusive. Tasks
        // have disjoint ranges.
        unsafe { forward_tile(op, x.at(range.start), y.at(range.start), range.len()) }
    });
}

/// Computes `dx`, the gradient of the input. `saved` is the value that [`Unary::saved`] names, or
/// anything of that length (such as `dy`) if it names none.
///
/// # Panics
/// Panics if the operands differ in length.
pub fn unary_grad<'a>(
    pool: &Pool,
    op: Unary,
    saved: impl Into<Input<'a, f32>>,
    dy: impl Into<Input<'a, f32>>,
    dx: &mut [f32],
) {
    let (len, dx) = (dx.len(), dx.as_mut_ptr());
    let saved = SharedPtr::new(saved.into().start(len, dx, len));
    let (dy, dx) = (SharedPtr::new(dy.into().start(len, dx, len)), SharedPtr::new_mut(dx));
    pool.run_ranges(len, GRAIN, |range| {
        let i = range.start;
        // SAFETY: as in `unary`.
        unsafe { backward_tile(op, saved.at(i), dy.at(i), dx.at(i), range.len()) }
    });
}
