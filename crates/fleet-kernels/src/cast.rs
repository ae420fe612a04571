//! Casts between element types: f32, f64, f16, bf16, i32, i64, u8 and bool.
//!
//! Floats become integers by truncation; values out of range saturate, and NaN becomes 0. Wider
//! integers become narrower by dropping bits. Any value but zero becomes true. Half floats round to
//! nearest, ties to even.
//!
//! ```
//! use fleet_kernels::{cast::cast, pool::Pool};
//! let mut out = [0i32; 3];
//! cast(&Pool::new(1), &[1.9f32, -1.9, f32::NAN], &mut out);
//! assert_eq!(out, [1, -1, 0]);
//! ```

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use crate::elementwise::GRAIN;
use crate::kernel;
use crate::pool::Pool;
use crate::simd::SharedPtr;

/// A type that can be cast to `To`.
pub trait CastTo<To: Copy + Send + Sync>: Copy + Send + Sync {
    /// Casts one element.
    fn cast_to(self) -> To;

    /// Casts a slice. Types override it where there is a faster way than one element at a time.
    #[doc(hidden)]
    #[inline]
    fn cast_slice(from: &[Self], to: &mut [To]) {
        cast_kernel::<Self, To>(from, to);
    }
}

kernel! {
    fn cast_kernel<S, From: CastTo<To>, To: Element>(s: S, from: &[From], to: &mut [To]) {
        let _ = s;
        for (to, from) in to.iter_mut().zip(from) {
            *to = from.cast_to();
        }
    }
}

/// An element type, as the bound that [`kernel!`](crate::kernel) needs.
trait Element: Copy + Send + Sync {}
impl<T: Copy + Send + Sync> Element for T {}

/// Sets `to[i]` to `from[i]` in the other type.
pub fn cast<From: CastTo<To>, To: Copy + Send + Sync>(pool: &Pool, from: &[From], to: &mut [To]) {
    assert_eq!(from.len(), to.len(), "input and output differ in length");
    let target = SharedPtr::new_mut(to.as_mut_ptr());
    pool.run_ranges(from.len(), GRAIN, |range| {
        // SAFETY: ranges are disjoint and inside the output.
        let part = unsafe { std::slice::from_raw_parts_mut(target.at(range.start), range.len()) };
        From::cast_slice(&from[range], part);
    });
}

macro_rules! plain_casts {
    ($($from:ty => $($to:ty),*;)*) => {$($(
        impl CastTo<$to> for $from {
            #[inline(always)]
            fn cast_to(self) -> $to {
                self as $to
            }
        }
    )*)*};
}

plain_casts! {
    f32 => f32, f64, i32, i64, u8;
    f64 => f32, f64, i32, i64, u8;
    i32 => f32, f64, i32, i64, u8;
    i64 => f32, f64, i32, i64, u8;
    u8 => f32, f64, i32, i64, u8;
    bool => i32, i64, u8, bool;
}

macro_rules! other_casts {
    ($($from:ty => $to:ty: |$x:ident| $value:expr;)*) => {$(
        impl CastTo<$to> for $from {
            #[inline(always)]
            fn cast_to(self) -> $to {
                let $x = self;
                $value
            }
        }
    )*};
}

other_casts! {
    bool => f32: |x| f32::from(u8::from(x));
    bool => f64: |x| f64::from(u8::from(x));
    f32 => bool: |x| x != 0.0;
    f64 => bool: |x| x != 0.0;
    i32 => bool: |x| x != 0;
    i64 => bool: |x| x != 0;
    u8 => bool: |x| x != 0;
    f16 => f16: |x| x;
    bf16 => bf16: |x| x;
    f16 => bf16: |x| narrow(x.to_f32());
    bf16 => f16: |x| f16::from_f32(widen(x));
    f32 => bf16: |x| narrow(x);
    bf16 => f32: |x| widen(x);
    bf16 => f64: |x| f64::from(widen(x));
    bf16 => i32: |x| widen(x) as i32;
    bf16 => i64: |x| widen(x) as i64;
    bf16 => u8: |x| widen(x) as u8;
    bf16 => bool: |x| widen(x) != 0.0;
    f64 => bf16: |x| bf16::from_f64(x);
    i32 => bf16: |x| bf16::from_f64(f64::from(x));
    i64 => bf16: |x| bf16::from_f64(x as f64);
    u8 => bf16: |x| narrow(f32::from(x));
    bool => bf16: |x| narrow(f32::from(u8::from(x)));
    f16 => f64: |x| x.to_f64();
    f16 => i32: |x| x.to_f32() as i32;
    f16 => i64: |x| x.to_f32() as i64;
    f16 => u8: |x| x.to_f32() as u8;
    f16 => bool: |x| x.to_f32() != 0.0;
    f64 => f16: |x| f16::from_f64(x);
    i32 => f16: |x| f16::from_f64(f64::from(x));
    i64 => f16: |x| f16::from_f64(x as f64);
    u8 => f16: |x| f16::from_f32(f32::from(x));
    bool => f16: |x| f16::from_f32(f32::from(u8::from(x)));
}

impl CastTo<f16> for f32 {
    #[inline(always)]
    fn cast_to(self) -> f16 {
        f16::from_f32(self)
    }
    // For slices, `half` uses the machine's conversion instruction.
    fn cast_slice(from: &[f32], to: &mut [f16]) {
        to.convert_from_f32_slice(from);
    }
}

impl CastTo<f32> for f16 {
    #[inline(always)]
    fn cast_to(self) -> f32 {
        self.to_f32()
    }
    fn cast_slice(from: &[f16], to: &mut [f32]) {
        from.convert_to_f32_slice(to);
    }
}

/// Rounds to bf16 without branches, so that the compiler vectorizes it. A NaN stays a NaN.
#[inline(always)]
pub(crate) fn narrow(x: f32) -> bf16 {
    let bits = x.to_bits();
    let rounded = (bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16) as u16;
    let quiet = (bits >> 16) as u16 | 0x40;
    let is_nan = bits & 0x7fff_ffff > 0x7f80_0000;
    bf16::from_bits(if is_nan { quiet } else { rounded })
}

#[inline(always)]
fn widen(x: bf16) -> f32 {
    f32::from_bits(u32::from(x.to_bits()) << 16)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::for_every_isa;

    const X: [f32; 19] = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        0.3,
        -2.5,
        255.0,
        256.5,
        -300.0,
        3e9,
        -3e10,
        65504.0,
        65520.0,
        1e-7,
        1.0039062,
        f32::MAX,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
    ];

    fn run<A: CastTo<B>, B: Copy + Send + Sync + Default>(x: &[A]) -> Vec<B> {
        let mut out = vec![B::default(); x.len()];
        cast(&Pool::new(1), x, &mut out);
        out
    }

    #[test]
    fn half_floats_are_those_of_the_crate() {
        for_every_isa(|_| {
            let (halves, brains) = (run::<f32, f16>(&X), run::<f32, bf16>(&X));
            for (i, x) in X.iter().enumerate() {
                let (half, brain) = (f16::from_f32(*x), bf16::from_f32(*x));
                assert!(halves[i] == half || (half.is_nan() && halves[i].is_nan()), "{x}");
                assert!(brains[i] == brain || (brain.is_nan() && brains[i].is_nan()), "{x}");
            }
            for (i, half) in run::<f16, f32>(&halves).iter().enumerate() {
                assert!(*half == halves[i].to_f32() || half.is_nan());
            }
            for (i, brain) in run::<bf16, f32>(&brains).iter().enumerate() {
                assert!(*brain == brains[i].to_f32() || brain.is_nan());
            }
        });
    }

    #[test]
    fn numbers_and_truth() {
        assert_eq!(run::<f32, i32>(&X)[3..7], [-1, 0, -2, 255]);
        assert_eq!(run::<f32, i32>(&X)[9], i32::MAX);
        assert_eq!(run::<f32, u8>(&X)[5..9], [0, 255, 255, 0]);
        assert_eq!(run::<f32, i64>(&X)[9], 3_000_000_000);
        assert_eq!(run::<f32, bool>(&X)[..3], [false, false, true]);
        assert_eq!(run::<bool, f32>(&[true, false]), [1.0, 0.0]);
        assert_eq!(run::<i64, i32>(&[1 << 33 | 5]), [5]);
        assert_eq!(run::<i64, f64>(&[-7]), [-7.0]);
        assert_eq!(run::<u8, f16>(&[200]), [f16::from_f32(200.0)]);
        assert_eq!(run::<f16, i64>(&[f16::from_f32(-3.7)]), [-3]);
    }

    #[test]
    fn threads_change_nothing() {
        let x: Vec<f64> = (0..100_001).map(|i| i as f64 * 0.37).collect();
        let mut out = vec![0f32; x.len()];
        cast(&Pool::new(3), &x, &mut out);
        assert!(out == run::<f64, f32>(&x));
    }
}
