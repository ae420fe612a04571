//! Functions of two tensors with broadcasting: arithmetic, comparison, logic, and their gradients.
//!
//! A [`Broadcast`] is planned once from two shapes. Neighbouring axes that both operands treat alike
//! are merged, so that the same shape, a scalar, a bias row and a per-channel column all end in an
//! inner loop over contiguous elements. Arithmetic is there for f32, f64, i32 and i64 (integers
//! wrap, and division by zero gives 0); gradients are for f32, and sum over the broadcast axes.
//!
//! ```
//! use fleet_kernels::{binary::{binary, Binary, Broadcast}, pool::Pool};
//! let plan = Broadcast::new(&[2, 3], &[3]).unwrap();
//! let mut out = [0.0; 6];
//! binary(&Pool::new(1), Binary::Add, &plan, &[1f32; 6], &[10.0, 20.0, 30.0], &mut out);
//! assert_eq!(out, [11.0, 21.0, 31.0, 11.0, 21.0, 31.0]);
//! ```

use std::ops::Range;

use fleet_base::{Error, Result};

use crate::elementwise::GRAIN;
use crate::kernel;
use crate::pool::Pool;
use crate::reduce::{Plain, Product, Quotient, Reduction, SumOp, reduce_source};
use crate::simd::{Raw, keep_arrays_whole};
use crate::vmath::pow_f32;

/// Arithmetic on two elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Binary {
    Add,
    Sub,
    Mul,
    Div,
    /// A NaN on either side wins.
    Max,
    /// A NaN on either side wins.
    Min,
    Pow,
    /// What is left of the floored division; it has the sign of the divisor.
    Mod,
    FloorDiv,
}

/// Comparisons, with 1 for true.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compare {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
}

/// Logic on bytes, of which 0 is false.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Logical {
    And,
    Or,
    Xor,
}

/// How two contiguous tensors meet, by the rules of NumPy (axes aligned at the right).
#[derive(Clone, Debug)]
pub struct Broadcast {
    shape: Vec<usize>,
    /// Merged axes, outermost first: length, and the strides of both operands (0: repeated).
    axes: Vec<Axis>,
    len: usize,
    a_len: usize,
    b_len: usize,
    a_sums: Option<Reduction>,
    b_sums: Option<Reduction>,
}

#[derive(Clone, Copy, Debug)]
struct Axis {
    len: usize,
    a: usize,
    b: usize,
}

impl Broadcast {
    pub fn new(a: &[usize], b: &[usize]) -> Result<Self> {
        let rank = a.len().max(b.len());
        let dim = |shape: &[usize], axis: usize| {
            (axis + shape.len()).checked_sub(rank).map_or(1, |axis| shape[axis])
        };
        let mut shape = Vec::with_capacity(rank);
        for axis in 0..rank {
            shape.push(match (dim(a, axis), dim(b, axis)) {
                (x, y) if x == y => x,
                (1, y) => y,
                (x, 1) => x,
                _ => {
                    return Err(Error::invalid("shapes do not broadcast")
                        .expected(format!("{a:?}, up to axes of length 1"))
                        .got(format!("{b:?}")));
                }
            });
        }
        let mut axes: Vec<Axis> = Vec::new();
        let (mut a_stride, mut b_stride) = (1, 1);
        let (mut a_axes, mut b_axes) = (Vec::new(), Vec::new());
        for axis in (0..rank).rev() {
            let len = shape[axis];
            if len == 1 {
                continue;
            }
            let stride_of = |dim: usize, stride: &mut usize, repeated: &mut Vec<usize>| {
                if dim == 1 {
                    repeated.push(axis);
                    return 0;
                }
                std::mem::replace(stride, *stride * dim)
            };
            let here = Axis {
                len,
                a: stride_of(dim(a, axis), &mut a_stride, &mut a_axes),
                b: stride_of(dim(b, axis), &mut b_stride, &mut b_axes),
            };
            match axes.last_mut() {
                Some(inner)
                    if (inner.a == 0) == (here.a == 0) && (inner.b == 0) == (here.b == 0) =>
                {
                    inner.len *= len;
                }
                _ => axes.push(here),
            }
        }
        axes.reverse();
        if axes.is_empty() {
            axes.push(Axis { len: 1, a: 1, b: 1 });
        }
        let sums = |axes: &[usize]| (!axes.is_empty()).then(|| Reduction::new(&shape, axes));
        let (a_sums, b_sums) = (sums(&a_axes), sums(&b_axes));
        Ok(Broadcast {
            len: shape.iter().product(),
            a_len: a.iter().product(),
            b_len: b.iter().product(),
            axes,
            a_sums,
            b_sums,
            shape,
        })
    }

    /// The shape of the result.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Elements of the result.
    pub fn out_len(&self) -> usize {
        self.len
    }

    /// Calls `segment(out, a, b, len)` for the contiguous pieces of the flat range.
    #[inline(always)]
    fn walk(&self, range: Range<usize>, mut segment: impl FnMut(usize, usize, usize, usize)) {
        let (outer, inner) = self.axes.split_at(self.axes.len() - 1);
        let inner = inner[0];
        let mut i = range.start;
        while i < range.end {
            let (mut rest, column) = (i / inner.len, i % inner.len);
            let (mut a, mut b) = (column * inner.a, column * inner.b);
            for axis in outer.iter().rev() {
                let index = rest % axis.len;
                rest /= axis.len;
                a += index * axis.a;
                b += index * axis.b;
            }
            let n = (inner.len - column).min(range.end - i);
            segment(i, a, b, n);
            i += n;
        }
    }

    fn steps(&self) -> (usize, usize) {
        let inner = self.axes[self.axes.len() - 1];
        (inner.a, inner.b)
    }
}

/// The element types of arithmetic.
pub trait Number: Copy + Default + PartialOrd + Send + Sync + 'static {
    fn add(self, b: Self) -> Self;
    fn sub(self, b: Self) -> Self;
    fn mul(self, b: Self) -> Self;
    fn div(self, b: Self) -> Self;
    fn pow(self, b: Self) -> Self;
    fn floor_mod(self, b: Self) -> Self;
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
                    (-1, _) => {
                        if b % 2 == 0 {
                            1
                        } else {
                            -1
                        }
                    }
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

/// Bytes as truth values.
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
    Both |a, b| a.truth() & b.truth();
    Either |a, b| a.truth() | b.truth();
    OneOf |a, b| a.truth() ^ b.truth();
}

/// Elements handled as one array, which the compiler keeps in registers.
const CHUNK: usize = 16;

/// A contiguous piece; `STEP_*` is 0 for an operand that is repeated along it. Whole arrays are read
/// before one is written, so that the output may be an operand.
#[inline(always)]
unsafe fn segment<T: Copy, R: Copy, O: PairOp<T, R>, const STEP_A: usize, const STEP_B: usize>(
    _op: O,
    a: *const T,
    b: *const T,
    out: *mut R,
    n: usize,
) {
    // SAFETY: the caller hands `n` elements of each operand that steps, one of each that does not.
    unsafe {
        let mut i = 0;
        let (first_a, first_b) = (*a, *b);
        while i + CHUNK <= n {
            keep_arrays_whole();
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
    let (a, b, out) = (Raw::new(a), Raw::new(b), Raw::new_mut(out));
    pool.run_ranges(plan.len, GRAIN, |range| {
        // SAFETY: ranges are disjoint parts of the output.
        unsafe {
            walk_kernel(op, plan, a.at(0).cast_const(), b.at(0).cast_const(), out.at(0), range)
        }
    });
}

fn check_lens<T, R>(plan: &Broadcast, a: &[T], b: &[T], out: &[R]) {
    assert_eq!(a.len(), plan.a_len, "wrong number of elements on the left");
    assert_eq!(b.len(), plan.b_len, "wrong number of elements on the right");
    assert_eq!(out.len(), plan.len, "wrong number of results");
}

/// `out = a op b`.
pub fn binary<T: Number>(
    pool: &Pool,
    op: Binary,
    plan: &Broadcast,
    a: &[T],
    b: &[T],
    out: &mut [T],
) {
    check_lens(plan, a, b, out);
    // SAFETY: the lengths are those of the plan; `out` is exclusive.
    unsafe { binary_raw(pool, op, plan, a.as_ptr(), b.as_ptr(), out.as_mut_ptr()) }
}

/// `a = a op b`, for an `a` that has the shape of the result.
pub fn binary_inplace<T: Number>(pool: &Pool, op: Binary, plan: &Broadcast, a: &mut [T], b: &[T]) {
    check_lens(plan, a, b, a);
    // SAFETY: the lengths are those of the plan; `a` is not repeated, so it is read where written.
    unsafe { binary_raw(pool, op, plan, a.as_ptr(), b.as_ptr(), a.as_mut_ptr()) }
}

/// [`binary`] over pointers.
///
/// # Safety
/// The operands hold the elements of the plan's shapes, `out` those of the result, and nobody else
/// writes them; `out` is disjoint from each operand, or equal to one that is not repeated.
pub unsafe fn binary_raw<T: Number>(
    pool: &Pool,
    op: Binary,
    plan: &Broadcast,
    a: *const T,
    b: *const T,
    out: *mut T,
) {
    // SAFETY: the contract is the same.
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

/// `out[i] = a[i] op b[i]` on this thread.
///
/// # Safety
/// `len` floats are readable at `a` and `b` and writable at `out`, equal or disjoint.
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

/// `out = a op b` as 0 or 1.
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
    // SAFETY: the lengths are those of the plan; `out` is exclusive.
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

/// `out = a op b` over truth values.
pub fn logical(pool: &Pool, op: Logical, plan: &Broadcast, a: &[u8], b: &[u8], out: &mut [u8]) {
    check_lens(plan, a, b, out);
    let (a, b, out) = (a.as_ptr(), b.as_ptr(), out.as_mut_ptr());
    // SAFETY: the lengths are those of the plan; `out` is exclusive.
    unsafe {
        match op {
            Logical::And => run_walk(pool, Both, plan, a, b, out),
            Logical::Or => run_walk(pool, Either, plan, a, b, out),
            Logical::Xor => run_walk(pool, OneOf, plan, a, b, out),
        }
    }
}

/// `out = !a` over truth values.
pub fn logical_not(pool: &Pool, a: &[u8], out: &mut [u8]) {
    assert_eq!(a.len(), out.len(), "input and output differ in length");
    let target = Raw::new_mut(out.as_mut_ptr());
    pool.run_ranges(a.len(), 4 * GRAIN, |range| {
        for i in range {
            // SAFETY: ranges are disjoint and inside `out`.
            unsafe { *target.at(i) = u8::from(a[i] == 0) };
        }
    });
}

/// Floats of scratch that [`binary_grad`] needs for both gradients.
pub fn binary_grad_scratch_len(op: Binary, plan: &Broadcast) -> usize {
    let need = |sums: &Option<Reduction>, side| match sums {
        None => 0,
        Some(sums) if fused_sum(op, plan, side) => sums.scratch_len(),
        Some(sums) => plan.len + sums.scratch_len(),
    };
    need(&plan.a_sums, Side::A).max(need(&plan.b_sums, Side::B))
}

#[derive(Clone, Copy, PartialEq)]
enum Side {
    A,
    B,
}

/// Whether the sum over the repeated axes can take its terms straight from two whole tensors.
fn fused_sum(op: Binary, plan: &Broadcast, side: Side) -> bool {
    match op {
        Binary::Add | Binary::Sub => true,
        Binary::Mul if side == Side::A => plan.b_sums.is_none(),
        Binary::Div if side == Side::A => plan.b_sums.is_none(),
        Binary::Mul | Binary::Div => plan.a_sums.is_none(),
        _ => false,
    }
}

/// The gradients `da` and `db` of `a op b` from `dz`, each where it is asked for. `scratch` holds
/// [`binary_grad_scratch_len`] floats. Where both operands are equal, max and min give the gradient to
/// `b`.
pub fn binary_grad(
    pool: &Pool,
    op: Binary,
    plan: &Broadcast,
    a: &[f32],
    b: &[f32],
    dz: &[f32],
    da: Option<&mut [f32]>,
    db: Option<&mut [f32]>,
    scratch: &mut [f32],
) {
    check_lens(plan, a, b, dz);
    assert!(scratch.len() >= binary_grad_scratch_len(op, plan), "too little scratch");
    let operands =
        Operands { a: Raw::new(a.as_ptr()), b: Raw::new(b.as_ptr()), dz: Raw::new(dz.as_ptr()) };
    if let Some(da) = da {
        assert_eq!(da.len(), a.len(), "wrong number of gradients on the left");
        side_grad(pool, op, plan, Side::A, operands, da, scratch);
    }
    if let Some(db) = db {
        assert_eq!(db.len(), b.len(), "wrong number of gradients on the right");
        side_grad(pool, op, plan, Side::B, operands, db, scratch);
    }
}

#[derive(Clone, Copy)]
struct Operands {
    a: Raw<f32>,
    b: Raw<f32>,
    dz: Raw<f32>,
}

fn side_grad(
    pool: &Pool,
    op: Binary,
    plan: &Broadcast,
    side: Side,
    operands: Operands,
    out: &mut [f32],
    scratch: &mut [f32],
) {
    let sums = if side == Side::A { &plan.a_sums } else { &plan.b_sums };
    let Some(sums) = sums else {
        local_grad(pool, op, plan, side, operands, Raw::new_mut(out.as_mut_ptr()));
        return;
    };
    let Operands { a, b, dz } = operands;
    if !fused_sum(op, plan, side) {
        let (local, scratch) = scratch.split_at_mut(plan.len);
        let local = Raw::new_mut(local.as_mut_ptr());
        local_grad(pool, op, plan, side, operands, local);
        reduce_source(pool, SumOp, sums, Plain(local), 1.0, out, scratch);
        return;
    }
    match (op, side) {
        (Binary::Add, _) | (Binary::Sub, Side::A) => {
            reduce_source(pool, SumOp, sums, Plain(dz), 1.0, out, scratch);
        }
        (Binary::Sub, _) => reduce_source(pool, SumOp, sums, Plain(dz), -1.0, out, scratch),
        (Binary::Mul, Side::A) => {
            reduce_source(pool, SumOp, sums, Product(dz, b), 1.0, out, scratch);
        }
        (Binary::Mul, _) => reduce_source(pool, SumOp, sums, Product(dz, a), 1.0, out, scratch),
        (_, Side::A) => reduce_source(pool, SumOp, sums, Quotient(dz, b), 1.0, out, scratch),
        (_, Side::B) => {
            // The divisor is one number for all terms of a sum: it comes in afterwards.
            reduce_source(pool, SumOp, sums, Product(dz, a), -1.0, out, scratch);
            for (i, d) in out.iter_mut().enumerate() {
                // SAFETY: `out` has the length of `b`.
                let divisor = unsafe { *b.at(i) };
                *d /= divisor * divisor;
            }
        }
    }
}

kernel! {
    unsafe fn grad_kernel<S, O: PairGrad>(
        s: S, op: O, plan: &Broadcast, left: bool, operands: Operands, out: Raw<f32>,
        range: Range<usize>,
    ) {
        let _ = (s, op);
        let (step_a, step_b) = plan.steps();
        let (step_a, step_b) = (step_a.min(1), step_b.min(1));
        plan.walk(range, #[inline(always)] |i, x, y, n| {
            let (a, b) = (operands.a.at(x).cast_const(), operands.b.at(y).cast_const());
            let (dz, out) = (operands.dz.at(i).cast_const(), out.at(i));
            match (left, step_a, step_b) {
                (true, 1, 1) => grad_segment::<O, true, 1, 1>(a, b, dz, out, n),
                (true, 0, _) => grad_segment::<O, true, 0, 1>(a, b, dz, out, n),
                (true, _, _) => grad_segment::<O, true, 1, 0>(a, b, dz, out, n),
                (false, 1, 1) => grad_segment::<O, false, 1, 1>(a, b, dz, out, n),
                (false, 0, _) => grad_segment::<O, false, 0, 1>(a, b, dz, out, n),
                (false, _, _) => grad_segment::<O, false, 1, 0>(a, b, dz, out, n),
            }
        });
    }
}

#[inline(always)]
fn one_grad<O: PairGrad, const LEFT: bool>(a: f32, b: f32, dz: f32) -> f32 {
    if LEFT { O::da(a, b, dz) } else { O::db(a, b, dz) }
}

#[inline(always)]
unsafe fn grad_segment<O: PairGrad, const LEFT: bool, const STEP_A: usize, const STEP_B: usize>(
    a: *const f32,
    b: *const f32,
    dz: *const f32,
    out: *mut f32,
    n: usize,
) {
    // SAFETY: as for `segment`.
    unsafe {
        let mut i = 0;
        while i + CHUNK <= n {
            keep_arrays_whole();
            let xs: [f32; CHUNK] = std::array::from_fn(
                #[inline(always)]
                |k| *a.add((i + k) * STEP_A),
            );
            let ys: [f32; CHUNK] = std::array::from_fn(
                #[inline(always)]
                |k| *b.add((i + k) * STEP_B),
            );
            let gs = dz.add(i).cast::<[f32; CHUNK]>().read_unaligned();
            let results: [f32; CHUNK] = std::array::from_fn(
                #[inline(always)]
                |k| one_grad::<O, LEFT>(xs[k], ys[k], gs[k]),
            );
            out.add(i).cast::<[f32; CHUNK]>().write_unaligned(results);
            i += CHUNK;
        }
        while i < n {
            *out.add(i) = one_grad::<O, LEFT>(*a.add(i * STEP_A), *b.add(i * STEP_B), *dz.add(i));
            i += 1;
        }
    }
}

/// The terms of a gradient before any sum, one for every element of the result.
fn local_grad(
    pool: &Pool,
    op: Binary,
    plan: &Broadcast,
    side: Side,
    operands: Operands,
    out: Raw<f32>,
) {
    let left = side == Side::A;
    pool.run_ranges(plan.len, GRAIN, |range| {
        // SAFETY: ranges are disjoint; `out` holds the elements of the result.
        with_binary!(op, o => unsafe { grad_kernel(o, plan, left, operands, out, range.clone()) });
    });
}

/// [`binary_tile`]'s gradients on this thread: that of the left operand if `LEFT`, else the right.
///
/// # Safety
/// `len` floats are readable at `a`, `b` and `dz` and writable at `out`, which may be `dz`.
pub(crate) unsafe fn binary_grad_tile(
    op: Binary,
    left: bool,
    a: *const f32,
    b: *const f32,
    dz: *const f32,
    out: *mut f32,
    len: usize,
) {
    // SAFETY: the contract is the same.
    with_binary!(op, o => unsafe { grad_tile_kernel(o, left, a, b, dz, out, len) });
}

kernel! {
    unsafe fn grad_tile_kernel<S, O: PairGrad>(
        s: S, op: O, left: bool, a: *const f32, b: *const f32, dz: *const f32, out: *mut f32,
        len: usize,
    ) {
        let _ = (s, op);
        if left {
            grad_segment::<O, true, 1, 1>(a, b, dz, out, len);
        } else {
            grad_segment::<O, false, 1, 1>(a, b, dz, out, len);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::at_every_level;
    use fleet_base::rng::Sequence;

    const SHAPES: [(&[usize], &[usize]); 14] = [
        (&[], &[]),
        (&[37], &[37]),
        (&[5, 37], &[1]),
        (&[], &[4, 9]),
        (&[5, 37], &[37]),
        (&[37], &[5, 37]),
        (&[5, 37], &[5, 1]),
        (&[2, 5, 37], &[5, 1]),
        (&[2, 1, 5], &[1, 3, 5]),
        (&[7, 1], &[1, 33]),
        (&[4, 3, 2, 5], &[1, 3, 1, 5]),
        (&[4, 1, 2, 1], &[1, 3, 1, 5]),
        (&[200, 300], &[300]),
        (&[0, 3], &[3]),
    ];
    const OPS: [Binary; 9] = [
        Binary::Add,
        Binary::Sub,
        Binary::Mul,
        Binary::Div,
        Binary::Max,
        Binary::Min,
        Binary::Pow,
        Binary::Mod,
        Binary::FloorDiv,
    ];

    fn numbers(shape: &[usize], salt: u64) -> Vec<f32> {
        let mut random = Sequence::new(9, salt);
        (0..shape.iter().product()).map(|_| (random.unit() * 3.0 + 0.3) as f32).collect()
    }

    /// The flat positions of both operands for every element of the result.
    fn pairs(a: &[usize], b: &[usize], out: &[usize]) -> Vec<(usize, usize)> {
        let position = |shape: &[usize], index: &[usize]| {
            let index = &index[index.len() - shape.len()..];
            shape
                .iter()
                .zip(index)
                .fold(0, |at, (len, i)| at * len + if *len == 1 { 0 } else { *i })
        };
        (0..out.iter().product())
            .map(|mut flat| {
                let mut index = vec![0; out.len()];
                for axis in (0..out.len()).rev() {
                    index[axis] = flat % out[axis];
                    flat /= out[axis];
                }
                (position(a, &index), position(b, &index))
            })
            .collect()
    }

    fn reference(op: Binary, a: f64, b: f64) -> f64 {
        match op {
            Binary::Add => a + b,
            Binary::Sub => a - b,
            Binary::Mul => a * b,
            Binary::Div => a / b,
            Binary::Max => a.max(b),
            Binary::Min => a.min(b),
            Binary::Pow => a.powf(b),
            Binary::Mod => a - b * (a / b).floor(),
            Binary::FloorDiv => (a / b).floor(),
        }
    }

    #[test]
    fn every_op_broadcasts() {
        at_every_level(|level| {
            let pool = Pool::new(1);
            for (a_shape, b_shape) in SHAPES {
                let plan = Broadcast::new(a_shape, b_shape).unwrap();
                let (a, b) = (numbers(a_shape, 1), numbers(b_shape, 2));
                let pairs = pairs(a_shape, b_shape, plan.shape());
                assert_eq!(pairs.len(), plan.out_len());
                for op in OPS {
                    let mut out = vec![f32::NAN; pairs.len()];
                    binary(&pool, op, &plan, &a, &b, &mut out);
                    for (got, (i, j)) in out.iter().zip(&pairs) {
                        let expected = reference(op, f64::from(a[*i]), f64::from(b[*j]));
                        let error = (f64::from(*got) - expected).abs();
                        assert!(
                            error <= 1e-6 * expected.abs().max(1.0),
                            "{op:?} of {a_shape:?} and {b_shape:?} at {level:?}: {got}, {expected}"
                        );
                    }
                    if a.len() == out.len() {
                        let mut a = a.clone();
                        binary_inplace(&pool, op, &plan, &mut a, &b);
                        assert_eq!(a, out);
                    }
                }
                let mut truth = vec![9; pairs.len()];
                compare(&pool, Compare::Lt, &plan, &a, &b, &mut truth);
                let expected = pairs.iter().map(|(i, j)| u8::from(a[*i] < b[*j]));
                assert!(truth.iter().copied().eq(expected));
            }
        });
    }

    #[test]
    fn gradients_sum_over_repeated_axes() {
        for threads in [1, 3] {
            let pool = Pool::new(threads);
            for (a_shape, b_shape) in SHAPES {
                let plan = Broadcast::new(a_shape, b_shape).unwrap();
                let (a, b) = (numbers(a_shape, 3), numbers(b_shape, 4));
                let dz = numbers(plan.shape(), 5);
                let pairs = pairs(a_shape, b_shape, plan.shape());
                for op in OPS {
                    let (mut da, mut db) = (vec![f32::NAN; a.len()], vec![f32::NAN; b.len()]);
                    let mut scratch = vec![f32::NAN; binary_grad_scratch_len(op, &plan)];
                    binary_grad(
                        &pool,
                        op,
                        &plan,
                        &a,
                        &b,
                        &dz,
                        Some(&mut da),
                        Some(&mut db),
                        &mut scratch,
                    );
                    let (mut ea, mut eb) = (vec![0f64; a.len()], vec![0f64; b.len()]);
                    for (dz, (i, j)) in dz.iter().zip(&pairs) {
                        let (x, y, dz) = (f64::from(a[*i]), f64::from(b[*j]), f64::from(*dz));
                        let h = 1e-6;
                        let slope = |f: &dyn Fn(f64) -> f64| (f(h) - f(-h)) / (2.0 * h);
                        ea[*i] += dz * slope(&|h| reference(op, x + h, y));
                        eb[*j] += dz * slope(&|h| reference(op, x, y + h));
                    }
                    for (got, expected) in da.iter().zip(&ea).chain(db.iter().zip(&eb)) {
                        let error = (f64::from(*got) - expected).abs();
                        assert!(
                            error <= 1e-4 * expected.abs().max(1.0),
                            "{op:?}' of {a_shape:?} and {b_shape:?}: {got} for {expected}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn integers_and_doubles() {
        let pool = Pool::new(1);
        let plan = Broadcast::new(&[6], &[6]).unwrap();
        let a = [7, -7, 7, -7, i32::MIN, 5];
        let b = [2, 2, -2, -2, -1, 0];
        let run = |op| {
            let mut out = [99; 6];
            binary(&pool, op, &plan, &a, &b, &mut out);
            out
        };
        assert_eq!(run(Binary::Mod), [1, 1, -1, -1, 0, 0]);
        assert_eq!(run(Binary::FloorDiv), [3, -4, -4, 3, i32::MIN, 0]);
        assert_eq!(run(Binary::Div), [3, -3, -3, 3, i32::MIN, 0]);
        assert_eq!(run(Binary::Pow), [49, 49, 0, 0, 0, 1]);
        assert_eq!(run(Binary::Max), [7, 2, 7, -2, -1, 5]);
        let plan = Broadcast::new(&[3], &[]).unwrap();
        let mut out = [0f64; 3];
        binary(&pool, Binary::Mod, &plan, &[5.5, -5.5, 1e300], &[2.0], &mut out);
        assert_eq!(out, [1.5, 0.5, 0.0]);
    }

    #[test]
    fn truth_tables() {
        let pool = Pool::new(1);
        let plan = Broadcast::new(&[4], &[4]).unwrap();
        let (a, b) = ([0, 0, 1, 7], [0, 5, 0, 9]);
        let run = |op| {
            let mut out = [9; 4];
            logical(&pool, op, &plan, &a, &b, &mut out);
            out
        };
        assert_eq!(run(Logical::And), [0, 0, 0, 1]);
        assert_eq!(run(Logical::Or), [0, 1, 1, 1]);
        assert_eq!(run(Logical::Xor), [0, 1, 1, 0]);
        let mut out = [9; 4];
        logical_not(&pool, &a, &mut out);
        assert_eq!(out, [1, 1, 0, 0]);
    }

    #[test]
    fn shapes_that_do_not_fit_are_refused() {
        let error = Broadcast::new(&[2, 3], &[2]).unwrap_err();
        assert!(error.to_string().contains("do not broadcast"));
    }
}
