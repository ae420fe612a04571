//! Functions of two tensors with broadcasting: arithmetic, comparison, logic, and their gradients.
//!
//! A [`Broadcast`] is planned once from two shapes. It merges adjacent axes that both operands
//! treat alike. The same shape, a scalar, a bias row and a per-channel column all become an inner
//! loop over contiguous elements. Arithmetic supports f32, f64, i32 and i64. Integers wrap, and
//! division by zero gives 0. Gradients support f32, and are summed over the broadcast axes.
//!
//! ```
//! use fleet_kernels::{binary::{binary, Binary, Broadcast}, pool::Pool};
//! let plan = Broadcast::new(&[2, 3], &[3]).unwrap();
//! let mut out = [0.0; 6];
//! binary(&Pool::new(1), Binary::Add, &plan, &[1f32; 6], &[10.0, 20.0, 30.0], &mut out);
//! assert_eq!(out, [11.0, 21.0, 31.0, 11.0, 21.0, 31.0]);
//! ```

mod broadcast;
mod grad;
#[cfg(test)]
mod tests;

pub use broadcast::Broadcast;
pub use grad::{binary_grad, binary_grad_scratch_len};

use std::ops::Range;

use crate::elementwise::GRAIN;
use crate::input::Input;
use crate::kernel;
use crate::pool::Pool;
use crate::simd::{SharedPtr, block_loop_vectorization};
use crate::vmath::pow_f32;

/// Arithmetic on two elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Binary {
    /// `a + b`.
    Add,
    /// `a - b`.
    Sub,
    /// `a * b`.
    Mul,
    /// `a / b`; integers round toward zero.
    Div,
    /// A NaN in either operand gives NaN.
    Max,
    /// A NaN in either operand gives NaN.
    Min,
    /// `a` to the power of `b`.
    Pow,
    /// The remainder of floored division, with the sign of the divisor.
    Mod,
    /// The quotient, rounded down.
    FloorDiv,
}

/// Comparisons; true is 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compare {
    /// `a == b`.
    Eq,
    /// `a != b`.
    Ne,
    /// `a < b`.
    Lt,
    /// `a <= b`.
    Le,
    /// `a > b`.
    Gt,
    /// `a >= b`.
    Ge,
}

/// Logical operations on bytes, where 0 is false.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Logical {
    /// Whether both are true.
    And,
    /// Whether at least one is true.
    Or,
    /// Whether exactly one is true.
    Xor,
}

/// The element types of arithmetic.
pub trait Number: Copy + Default + PartialOrd + Send + Sync + 'static {
    /// `self + b`.
    fn add(self, b: Self) -> Self;
    /// `self - b`.
    fn sub(self, b: Self) -> Self;
    /// `self * b`.
    fn mul(self, b: Self) -> Self;
    /// `self / b`; an integer divided by 0 is 0.
    fn div(self, b: Self) -> Self;
    /// `self` to the power of `b`.
    fn pow(self, b: Self) -> Self;
    /// The remainder, with the sign of `b`; that of an integer divided by 0 is 0.
    fn floor_mod(self, b: Self) -> Self;
    /// The quotient, rounded down; an integer divided by 0 is 0.
    fn floor_div(self, b: Self) -> Self;
}

macro_rules! float_number {
    ($type:ty, $pow:expr) => {
        impl Number for $type {
            #[inline(always)]
            fn add(self, b: Self) -> Self {
                self + b
            }
            #[inline(always)]
            fn sub(self, b: Self) -> Self {
                self - b
            }
            #[inline(always)]
            fn mul(self, b: Self) -> Self {
                self * b
            }
            #[inline(always)]
            fn div(self, b: Self) -> Self {
                self / b
            }
            #[inline(always)]
            fn pow(self, b: Self) -> Self {
                $pow(self, b)
            }
            #[inline(always)]
            fn floor_mod(self, b: Self) -> Self {
                let rest = self % b;
                if rest != 0.0 && (rest < 0.0) != (b < 0.0) { rest + b } else { rest }
            }
            #[inline(always)]
            fn floor_div(self, b: Self) -> Self {
                (self / b).floor()
            }
        }
    };
}

float_number!(f32, pow_f32);
float_number!(f64, f64::powf);

macro_rules! integer_number {
    ($type:ty) => {
        impl Number for $type {
            #[inline(always)]
            fn add(self, b: Self) -> Self {
                self.wrapping_add(b)
            }
            #[inline(always)]
            fn sub(self, b: Self) -> Self {
                self.wrapping_sub(b)
            }
            #[inline(always)]
            fn mul(self, b: Self) -> Self {
                self.wrapping_mul(b)
            }
            #[inline(always)]
            fn div(self, b: Self) -> Self {
                if b == 0 { 0 } else { self.wrapping_div(b) }
            }
            #[inline(always)]
            fn pow(self, b: Self) -> Self {
                match (self, b) {
                    (1, _) => 1,
                    (-1, _) if b % 2 == 0 => 1,
                    (-1, _) => -1,
                    (_, ..0) => 0,
                    _ => self.wrapping_pow(u32::try_from(b).unwrap_or(u32::MAX)),
                }
            }
            #[inline(always)]
            fn floor_mod(self, b: Self) -> Self {
                if b == 0 {
                    return 0;
                }
                let rest = self.wrapping_rem(b);
                if rest != 0 && (rest < 0) != (b < 0) { rest + b } else { rest }
            }
            #[inline(always)]
            fn floor_div(self, b: Self) -> Self {
                if b == 0 {
                    return 0;
                }
                let quotient = self.wrapping_div(b);
                let rest = self.wrapping_rem(b);
                if rest != 0 && (rest < 0) != (b < 0) { quotient - 1 } else { quotient }
            }
        }
    };
}

integer_number!(i32);
integer_number!(i64);

/// A function of two elements, and its gradients in f32.
trait PairOp<T, R>: Copy + Send + Sync {
    fn apply(a: T, b: T) -> R;
}

trait PairGrad: Copy + Send + Sync {
    fn da(a: f32, b: f32, dz: f32) -> f32;
    fn db(a: f32, b: f32, dz: f32) -> f32;
}

macro_rules! arithmetic {
    ($($name:ident |$a:ident, $b:ident| $value:expr;
        |$x:ident, $y:ident, $g:ident| $da:expr, $db:expr;)*) => {
        mod ops {
            use super::*;
            $(
                #[derive(Clone, Copy)]
                pub(super) struct $name;

                impl<T: Number> PairOp<T, T> for $name {
                    #[inline(always)]
                    fn apply($a: T, $b: T) -> T {
                        $value
                    }
                }

                impl PairGrad for $name {
                    #[inline(always)]
                    #[allow(unused_variables)]
                    fn da($x: f32, $y: f32, $g: f32) -> f32 {
                        $da
                    }
                    #[inline(always)]
                    #[allow(unused_variables)]
                    fn db($x: f32, $y: f32, $g: f32) -> f32 {
                        $db
                    }
                }
            )*
        }

        /// Binds `$o` to the op's type.
        macro_rules! with_binary {
            ($op:expr, $o:ident => $body:expr) => {
                match $op {
                    $(Binary::$name => {
                        let $o = ops::$name;
                        $body
                    })*
                }
            };
        }
    };
}

arithmetic! {
    Add |a, b| a.add(b);
    |a, b, g| g, g;

    Sub |a, b| a.sub(b);
    |a, b, g| g, -g;

    Mul |a, b| a.mul(b);
    |a, b, g| g * b, g * a;

    Div |a, b| a.div(b);
    |a, b, g| g / b, -g * a / (b * b);

    Max |a, b| if a > b || is_nan(a) { a } else { b };
    |a, b, g| if a > b { g } else { 0.0 }, if a > b { 0.0 } else { g };

    Min |a, b| if a < b || is_nan(a) { a } else { b };
    |a, b, g| if a < b { g } else { 0.0 }, if a < b { 0.0 } else { g };

    Pow |a, b| a.pow(b);
    |a, b, g| g * b * pow_f32(a, b - 1.0), g * (f64::from(a).ln() as f32) * pow_f32(a, b);

    Mod |a, b| a.floor_mod(b);
    |a, b, g| g, -g * (a / b).floor();

    FloorDiv |a, b| a.floor_div(b);
    |a, b, g| 0.0, 0.0;
}

use with_binary;

#[inline(always)]
#[allow(clippy::eq_op)]
fn is_nan<T: PartialEq>(a: T) -> bool {
    a != a
}

macro_rules! predicates {
    ($bound:ident: $($name:ident |$a:ident, $b:ident| $value:expr;)*) => {$(
        #[derive(Clone, Copy)]
        struct $name;

        impl<T: $bound> PairOp<T, u8> for $name {
            #[inline(always)]
            fn apply($a: T, $b: T) -> u8 {
                u8::from($value)
            }
        }
    )*};
}

predicates! { PartialOrd:
    IsEq |a, b| a == b;
    IsNe |a, b| a != b;
    IsLt |a, b| a < b;
    IsLe |a, b| a <= b;
    IsGt |a, b| a > b;
    IsGe |a, b| a >= b;
}

/// Types with a truth value.
trait Truth: Copy {
    fn truth(self) -> bool;
}

impl Truth for u8 {
    #[inline(always)]
    fn truth(self) -> bool {
        self != 0
    }
}

predicates! { Truth:
    And |a, b| a.truth() & b.truth();
    Or |a, b| a.truth() | b.truth();
    Xor |a, b| a.truth() ^ b.truth();
}

/// Number of elements handled as one array, which the compiler keeps in registers.
const CHUNK: usize = 16;

/// Computes a contiguous piece. `STEP_*` is 0 for an operand that is repeated along it. Each array
/// is read whole before the output is written, so that the output may equal an operand.
#[inline(always)]
unsafe fn segment<T: Copy, R: Copy, O: PairOp<T, R>, const STEP_A: usize, const STEP_B: usize>(
    _op: O,
    a: *const T,
    b: *const T,
    out: *mut R,
    n: usize,
) {
    // SAFETY: the caller provides `n` elements of each operand that steps, and one of each other.
    unsafe {
        let mut i = 0;
        let (first_a, first_b) = (*a, *b);
        while i + CHUNK <= n {
            block_loop_vectorization();
            let xs = if STEP_A == 0 {
                [first_a; CHUNK]
            } else {
                a.add(i).cast::<[T; CHUNK]>().read_unaligned()
            };
            let ys = if STEP_B == 0 {
                [first_b; CHUNK]
            } else {
                b.add(i).cast::<[T; CHUNK]>().read_unaligned()
            };
            let results: [R; CHUNK] = std::array::from_fn(
                #[inline(always)]
                |k| O::apply(xs[k], ys[k]),
            );
            out.add(i).cast::<[R; CHUNK]>().write_unaligned(results);
            i += CHUNK;
        }
        while i < n {
            let x = if STEP_A == 0 { first_a } else { *a.add(i) };
            let y = if STEP_B == 0 { first_b } else { *b.add(i) };
            *out.add(i) = O::apply(x, y);
            i += 1;
        }
    }
}

kernel! {
    unsafe fn walk_kernel<S, T: Copy, R: Copy, O: PairOp<T, R>>(
        s: S, op: O, plan: &Broadcast, a: *const T, b: *const T, out: *mut R, range: Range<usize>,
    ) {
        let _ = s;
        match plan.steps() {
            (0, _) => plan.walk(range, #[inline(always)] |i, x, y, n| {
                segment::<T, R, O, 0, 1>(op, a.add(x), b.add(y), out.add(i), n);
            }),
            (_, 0) => plan.walk(range, #[inline(always)] |i, x, y, n| {
                segment::<T, R, O, 1, 0>(op, a.add(x), b.add(y), out.add(i), n);
            }),
            _ => plan.walk(range, #[inline(always)] |i, x, y, n| {
                segment::<T, R, O, 1, 1>(op, a.add(x), b.add(y), out.add(i), n);
            }),
        }
    }
}

unsafe fn run_walk<T: Copy + Send + Sync, R: Copy + Send + Sync, O: PairOp<T, R>>(
    pool: &Pool,
    op: O,
    plan: &Broadcast,
    a: *const T,
    b: *const T,
    out: *mut R,
) {
    let (a, b, out) = (SharedPtr::new(a), SharedPtr::new(b), SharedPtr::new_mut(out));
    pool.run_ranges(plan.len, GRAIN, |range| {
        // SAFETY: ranges are disjoint parts of the output.
        unsafe {
            walk_kernel(op, plan, a.at(0).cast_const(), b.at(0).cast_const(), out.at(0), range)
        }
    });
}

fn check_lens<T, R>(plan: &Broadcast, a: &[T], b: &[T], out: &[R]) {
    assert_eq!(a.len(), plan.a_len, "left operand has the wrong length");
    assert_eq!(b.len(), plan.b_len, "right operand has the wrong length");
    assert_eq!(out.len(), plan.len, "output has the wrong length");
}

/// Computes `out = a op b`. An operand in the output must have the shape of the result.
///
/// # Panics
/// Panics if an operand or the output has another length than planned.
pub fn binary<'a, T: Number>(
    pool: &Pool,
    op: Binary,
    plan: &Broadcast,
    a: impl Into<Input<'a, T>>,
    b: impl Into<Input<'a, T>>,
    out: &mut [T],
) {
    assert_eq!(out.len(), plan.len, "output has the wrong length");
    let (len, out) = (out.len(), out.as_mut_ptr());
    let a = a.into().start(plan.a_len, out, len);
    let b = b.into().start(plan.b_len, out, len);
    // SAFETY: the lengths match the plan. `out` is exclusive, and an operand in it has its length,
    // so it is not repeated: each element is read before it is written.
    with_binary!(op, o => unsafe { run_walk::<T, T, _>(pool, o, plan, a, b, out) });
}

kernel! {
    unsafe fn tile_kernel<S, O: PairOp<f32, f32>>(
        s: S, op: O, a: *const f32, b: *const f32, out: *mut f32, len: usize,
    ) {
        let _ = s;
        if len > 0 {
            segment::<f32, f32, O, 1, 1>(op, a, b, out, len);
        }
    }
}

/// Computes `out[i] = a[i] op b[i]` on this thread.
///
/// # Safety
/// `len` floats are readable at `a` and `b` and writable at `out`. The regions are equal or
/// disjoint.
pub(crate) unsafe fn binary_tile(
    op: Binary,
    a: *const f32,
    b: *const f32,
    out: *mut f32,
    len: usize,
) {
    // SAFETY: the contract is the same.
    with_binary!(op, o => unsafe { tile_kernel(o, a, b, out, len) });
}

/// Computes `out = a op b` as 0 or 1.
pub fn compare<T: Number>(
    pool: &Pool,
    op: Compare,
    plan: &Broadcast,
    a: &[T],
    b: &[T],
    out: &mut [u8],
) {
    check_lens(plan, a, b, out);
    let (a, b, out) = (a.as_ptr(), b.as_ptr(), out.as_mut_ptr());
    // SAFETY: the lengths match the plan, and `out` is exclusive.
    unsafe {
        match op {
            Compare::Eq => run_walk(pool, IsEq, plan, a, b, out),
            Compare::Ne => run_walk(pool, IsNe, plan, a, b, out),
            Compare::Lt => run_walk(pool, IsLt, plan, a, b, out),
            Compare::Le => run_walk(pool, IsLe, plan, a, b, out),
            Compare::Gt => run_walk(pool, IsGt, plan, a, b, out),
            Compare::Ge => run_walk(pool, IsGe, plan, a, b, out),
        }
    }
}

/// Computes `out = a op b` on truth values.
pub fn logical(pool: &Pool, op: Logical, plan: &Broadcast, a: &[u8], b: &[u8], out: &mut [u8]) {
    check_lens(plan, a, b, out);
    let (a, b, out) = (a.as_ptr(), b.as_ptr(), out.as_mut_ptr());
    // SAFETY: the lengths match the plan, and `out` is exclusive.
    unsafe {
        match op {
            Logical::And => run_walk(pool, And, plan, a, b, out),
            Logical::Or => run_walk(pool, Or, plan, a, b, out),
            Logical::Xor => run_walk(pool, Xor, plan, a, b, out),
        }
    }
}

/// Computes `out = !a` on truth values.
pub fn logical_not(pool: &Pool, a: &[u8], out: &mut [u8]) {
    assert_eq!(a.len(), out.len(), "input and output differ in length");
    pool.run_parts(out, 4 * GRAIN, |start, part| {
        for (out, a) in part.iter_mut().zip(&a[start..]) {
            *out = u8::from(*a == 0);
        }
    });
}
