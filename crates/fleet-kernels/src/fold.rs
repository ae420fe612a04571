//! Combines several arrays into one, element by element: the arithmetic of reductions between
//! processes.
//!
//! `out[i] = inputs[0][i] op inputs[1][i] op ...`, always in the order of the inputs. Intermediate
//! values stay in registers, so each input is read once and each output is written once. Half
//! floats are summed in f32 and rounded once. Integers wrap. A NaN in any input gives NaN for
//! maximum and minimum.
//!
//! ```
//! use fleet_kernels::fold::{self, FoldOp};
//! let (a, b, mut out) = ([1.0f32, 2.0], [10.0f32, 20.0], [0.0f32; 2]);
//! fold::fold(FoldOp::Sum, &[&a[..], &b[..]], &mut out);
//! assert_eq!(out, [11.0, 22.0]);
//! ```

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use crate::kernel;

/// The operation that combines two elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FoldOp {
    /// The sum.
    Sum,
    /// The largest.
    Max,
    /// The smallest.
    Min,
    /// The product.
    Prod,
    /// The sum divided by the given count; integers are rounded toward zero.
    Mean(u32),
}

/// Number of elements loaded at a time: two registers of f32 with AVX-512.
const BLOCK: usize = 32;
/// Number of parts of each array that are read in parallel. A core's prefetchers follow a stream
/// within one page of 4 KB, so more streams keep more cache lines in flight.
const STREAMS: usize = 4;
/// Minimum array size for parallel streams, in bytes. Shorter arrays are in the cache anyway.
const SPREAD_BYTES_MIN: usize = 16 << 10;

/// Writes the fold of the inputs to `out`. All have the same length.
pub fn fold<T: FoldElement>(op: FoldOp, inputs: &[&[T]], out: &mut [T]) {
    assert!(!inputs.is_empty(), "fold: no inputs");
    let mut pointers = Vec::with_capacity(inputs.len());
    for input in inputs {
        assert_eq!(input.len(), out.len(), "input and output differ in length");
        pointers.push(input.as_ptr());
    }
    // SAFETY: lengths were checked, and `out` is borrowed exclusively.
    unsafe { fold_raw(op, &pointers, out.as_mut_ptr(), None, out.len()) }
}

/// Like [`fold`], from pointers into one or two outputs. An output may be one of the inputs.
///
/// # Safety
/// `inputs` is not empty. Each input is readable and each output is writable for `len` elements. No
/// other thread writes them during the call. An output overlaps an input only if both start at the
/// same address, and the outputs do not overlap each other.
pub unsafe fn fold_raw<T: FoldElement>(
    op: FoldOp,
    inputs: &[*const T],
    out: *mut T,
    copy: Option<*mut T>,
    len: usize,
) {
    let outs = [out, copy.unwrap_or(out)];
    // SAFETY: promised by the caller.
    unsafe {
        match op {
            FoldOp::Sum => blocks(Sum, 1, inputs, outs, len),
            FoldOp::Mean(count) => blocks(Sum, count, inputs, outs, len),
            FoldOp::Max => blocks(Max, 1, inputs, outs, len),
            FoldOp::Min => blocks(Min, 1, inputs, outs, len),
            FoldOp::Prod => blocks(Prod, 1, inputs, outs, len),
        }
    }
}

kernel! {
    unsafe fn blocks<S, T: FoldElement, O: Pairwise>(
        s: S, op: O, count: u32, inputs: &[*const T], outs: [*mut T; 2], len: usize,
    ) {
        let _ = s;
        let mut i = 0;
        if len * size_of::<T>() >= SPREAD_BYTES_MIN {
            let span = len / STREAMS / BLOCK * BLOCK;
            while i < span {
                for stream in 0..STREAMS {
                    block(op, count, inputs, outs, stream * span + i);
                }
                i += BLOCK;
            }
            i = STREAMS * span;
        }
        while i + BLOCK <= len {
            block(op, count, inputs, outs, i);
            i += BLOCK;
        }
        let rest = len - i;
        if rest > 0 {
            let acc = gather(op, count, inputs, #[inline(always)] |p: *const T| {
                let mut part = [T::default(); BLOCK];
                std::ptr::copy_nonoverlapping(p.add(i), part.as_mut_ptr(), rest);
                part
            });
            for out in outs {
                std::ptr::copy_nonoverlapping(acc.as_ptr(), out.add(i), rest);
            }
        }
    }
}

/// Folds the block at `i`.
#[inline(always)]
unsafe fn block<T: FoldElement, O: Pairwise>(
    op: O,
    count: u32,
    inputs: &[*const T],
    outs: [*mut T; 2],
    i: usize,
) {
    // SAFETY: promised by the caller of the kernel, whose length includes the block.
    unsafe {
        let acc =
            gather(op, count, inputs, |p: *const T| p.add(i).cast::<[T; BLOCK]>().read_unaligned());
        outs[0].add(i).cast::<[T; BLOCK]>().write_unaligned(acc);
        if outs[0] != outs[1] {
            outs[1].add(i).cast::<[T; BLOCK]>().write_unaligned(acc);
        }
    }
}

/// Folds one block of every input.
#[inline(always)]
fn gather<T: FoldElement, O: Pairwise>(
    op: O,
    count: u32,
    inputs: &[*const T],
    load: impl Fn(*const T) -> [T; BLOCK],
) -> [T; BLOCK] {
    if inputs.len() == 2 && count == 1 {
        // The most common case, without a loop around the registers.
        let (mut acc, next) = (T::widen(load(inputs[0])), T::widen(load(inputs[1])));
        for k in 0..BLOCK {
            acc[k] = op.apply(acc[k], next[k]);
        }
        return T::narrow(acc);
    }
    let mut acc = T::widen(load(inputs[0]));
    for input in &inputs[1..] {
        let next = T::widen(load(*input));
        for k in 0..BLOCK {
            acc[k] = op.apply(acc[k], next[k]);
        }
    }
    if count != 1 {
        for value in &mut acc {
            *value = value.over(count);
        }
    }
    T::narrow(acc)
}

/// An element that can be folded, and the type used for accumulation.
pub trait FoldElement: Copy + Default + Send + Sync + 'static {
    /// The type in which elements are combined.
    type Acc: Number;
    #[doc(hidden)]
    fn widen(block: [Self; BLOCK]) -> [Self::Acc; BLOCK];
    #[doc(hidden)]
    fn narrow(block: [Self::Acc; BLOCK]) -> [Self; BLOCK];
}

/// Operations of accumulators.
#[doc(hidden)]
pub trait Number: Copy {
    fn plus(self, other: Self) -> Self;
    fn times(self, other: Self) -> Self;
    fn larger(self, other: Self) -> Self;
    fn smaller(self, other: Self) -> Self;
    fn over(self, count: u32) -> Self;
}

trait Pairwise: Copy {
    fn apply<N: Number>(self, a: N, b: N) -> N;
}

macro_rules! pairwise {
    ($($name:ident => $method:ident),*) => {$(
        #[derive(Clone, Copy)]
        struct $name;
        impl Pairwise for $name {
            #[inline(always)]
            fn apply<N: Number>(self, a: N, b: N) -> N {
                a.$method(b)
            }
        }
    )*};
}
pairwise!(Sum => plus, Max => larger, Min => smaller, Prod => times);

macro_rules! floats {
    ($($ty:ty),*) => {$(
        impl Number for $ty {
            #[inline(always)]
            fn plus(self, other: Self) -> Self {
                self + other
            }
            #[inline(always)]
            fn times(self, other: Self) -> Self {
                self * other
            }
            // A NaN in either operand gives NaN.
            #[inline(always)]
            fn larger(self, other: Self) -> Self {
                if self > other || self.is_nan() { self } else { other }
            }
            #[inline(always)]
            fn smaller(self, other: Self) -> Self {
                if self < other || self.is_nan() { self } else { other }
            }
            #[inline(always)]
            fn over(self, count: u32) -> Self {
                self / count as $ty
            }
        }
    )*};
}
floats!(f32, f64);

macro_rules! integers {
    ($($ty:ty),*) => {$(
        impl Number for $ty {
            #[inline(always)]
            fn plus(self, other: Self) -> Self {
                self.wrapping_add(other)
            }
            #[inline(always)]
            fn times(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }
            #[inline(always)]
            fn larger(self, other: Self) -> Self {
                if self > other { self } else { other }
            }
            #[inline(always)]
            fn smaller(self, other: Self) -> Self {
                if self < other { self } else { other }
            }
            #[inline(always)]
            fn over(self, count: u32) -> Self {
                (i128::from(self) / i128::from(count)) as $ty
            }
        }
    )*};
}
integers!(i32, i64, u8);

macro_rules! as_they_are {
    ($($ty:ty),*) => {$(
        impl FoldElement for $ty {
            type Acc = $ty;
            #[inline(always)]
            fn widen(block: [Self; BLOCK]) -> [Self; BLOCK] {
                block
            }
            #[inline(always)]
            fn narrow(block: [Self; BLOCK]) -> [Self; BLOCK] {
                block
            }
        }
    )*};
}
as_they_are!(f32, f64, i32, i64, u8);

impl FoldElement for f16 {
    type Acc = f32;
    // For slices, `half` uses the machine's conversion instruction.
    #[inline(always)]
    fn widen(block: [Self; BLOCK]) -> [f32; BLOCK] {
        let mut wide = [0.0; BLOCK];
        block.convert_to_f32_slice(&mut wide);
        wide
    }
    #[inline(always)]
    fn narrow(block: [f32; BLOCK]) -> [Self; BLOCK] {
        let mut half = [f16::ZERO; BLOCK];
        half.convert_from_f32_slice(&block);
        half
    }
}

impl FoldElement for bf16 {
    type Acc = f32;
    #[inline(always)]
    fn widen(block: [Self; BLOCK]) -> [f32; BLOCK] {
        let mut wide = [0.0; BLOCK];
        for k in 0..BLOCK {
            wide[k] = f32::from_bits(u32::from(block[k].to_bits()) << 16);
        }
        wide
    }
    #[inline(always)]
    fn narrow(block: [f32; BLOCK]) -> [Self; BLOCK] {
        let mut half = [bf16::ZERO; BLOCK];
        for k in 0..BLOCK {
            half[k] = crate::cast::narrow(block[k]);
        }
        half
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::for_every_isa;

    /// Compares with folding one element at a time, at lengths around the block size, with an
    /// output in place of an input.
    fn check<T: FoldElement + PartialEq + std::fmt::Debug>(
        op: FoldOp,
        make: impl Fn(usize, usize) -> T,
        one: impl Fn(&[T]) -> T,
    ) {
        for len in [0, 1, 31, 32, 33, 100, 17_003] {
            for count in [1, 2, 3, 9] {
                let inputs: Vec<Vec<T>> =
                    (0..count).map(|r| (0..len).map(|i| make(r, i % 101)).collect()).collect();
                let expected: Vec<T> = (0..len)
                    .map(|i| one(&inputs.iter().map(|x| x[i]).collect::<Vec<_>>()))
                    .collect();
                for_every_isa(|_| {
                    let mut own = inputs.clone();
                    let mut copy = vec![T::default(); len];
                    let pointers: Vec<*const T> = own.iter().map(|x| x.as_ptr()).collect();
                    let last = own[count - 1].as_mut_ptr();
                    // SAFETY: all arrays are `len` long; the output is the last input.
                    unsafe { fold_raw(op, &pointers, last, Some(copy.as_mut_ptr()), len) };
                    assert_eq!(own[count - 1], expected, "{op:?} of {count} x {len}");
                    assert_eq!(copy, expected);
                });
            }
        }
    }

    #[test]
    fn folds_are_those_of_single_elements() {
        let float = |r: usize, i: usize| (i as f32 * 0.37 - 3.0) * (r as f32 - 1.5);
        check(FoldOp::Sum, float, |x| x[1..].iter().fold(x[0], |a, b| a + b));
        check(FoldOp::Max, float, |x| x.iter().copied().fold(f32::MIN, f32::max));
        check(FoldOp::Min, float, |x| x.iter().copied().fold(f32::MAX, f32::min));
        check(FoldOp::Prod, float, |x| x[1..].iter().fold(x[0], |a, b| a * b));
        check(FoldOp::Mean(3), float, |x| x[1..].iter().fold(x[0], |a, b| a + b) / 3.0);
        let whole = |r: usize, i: usize| (i as i64 - 7) * (1 << (r * 7));
        check(FoldOp::Sum, whole, |x| x.iter().sum());
        check(FoldOp::Mean(3), whole, |x| x.iter().sum::<i64>() / 3);
        check(
            FoldOp::Sum,
            |r, i| (r * 100 + i) as u8,
            |x| x.iter().fold(0, |a, b| a.wrapping_add(*b)),
        );
        check(FoldOp::Max, |r, i| (r * i) as i32 - 5, |x| x.iter().copied().max().unwrap_or(0));
        check(
            FoldOp::Prod,
            |r, i| f64::from((r + i) as u32),
            |x| x[1..].iter().fold(x[0], |a, b| a * b),
        );
        check(
            FoldOp::Sum,
            |r, i| f16::from_f32(float(r, i)),
            |x| f16::from_f32(x[1..].iter().fold(x[0].to_f32(), |a, b| a + b.to_f32())),
        );
        check(
            FoldOp::Mean(9),
            |r, i| bf16::from_f32(float(r, i)),
            |x| bf16::from_f32(x[1..].iter().fold(x[0].to_f32(), |a, b| a + b.to_f32()) / 9.0),
        );
    }

    #[test]
    fn a_nan_anywhere_is_a_nan_in_the_extremes() {
        for place in 0..3 {
            let mut inputs = [[1.0f32; 40], [2.0; 40], [0.5; 40]];
            inputs[place][35] = f32::NAN;
            let slices: Vec<&[f32]> = inputs.iter().map(|x| &x[..]).collect();
            for op in [FoldOp::Max, FoldOp::Min] {
                let mut out = [0.0; 40];
                fold(op, &slices, &mut out);
                assert!(out[35].is_nan() && !out[34].is_nan(), "{op:?} with NaN in {place}");
            }
        }
    }
}
