//! Conversion of elements to other types.

use crate::{DType, Element, Tensor};
use fleet_base::Result;
use half::{bf16, f16};

/// A type of elements that can be converted to any other. Floats are truncated towards zero for
/// integers, and numbers outside of the range become the nearest one in it or wrap around, as with
/// `as`.
pub trait Convert: Element {
    /// Returns the number in the widest type of its kind, without loss.
    fn widest(self) -> Widest;
    /// Returns the number as this type.
    fn of(number: Widest) -> Self;
}

/// A number in the widest type of its kind.
#[derive(Clone, Copy, Debug)]
pub enum Widest {
    /// From an integer type, or a bool as 0 or 1.
    Int(i64),
    /// From a type of floats.
    Float(f64),
}

impl Widest {
    /// Returns whether the number is not zero, as the byte of a bool.
    pub fn truth(self) -> u8 {
        u8::from(match self {
            Widest::Int(value) => value != 0,
            Widest::Float(value) => value != 0.0,
        })
    }
}

macro_rules! ints {
    ($($ty:ty),*) => {$(
        impl Convert for $ty {
            #[inline(always)]
            fn widest(self) -> Widest {
                Widest::Int(i64::from(self))
            }
            #[inline(always)]
            fn of(number: Widest) -> Self {
                match number {
                    Widest::Int(value) => value as $ty,
                    Widest::Float(value) => value as $ty,
                }
            }
        }
    )*};
}
ints!(u8, i8, i16, i32, i64);

macro_rules! floats {
    ($($ty:ty, $from:expr);*) => {$(
        impl Convert for $ty {
            #[inline(always)]
            fn widest(self) -> Widest {
                Widest::Float(f64::from(self))
            }
            #[inline(always)]
            fn of(number: Widest) -> Self {
                match number {
                    Widest::Int(value) => $from(value as f64),
                    Widest::Float(value) => $from(value),
                }
            }
        }
    )*};
}
floats!(f32, |x: f64| x as f32; f64, |x: f64| x; f16, f16::from_f64; bf16, bf16::from_f64);

/// Runs `$body` with `$T` as the type of the elements of `$dtype`; bools are bytes.
macro_rules! with_type {
    ($dtype:expr, $T:ident => $body:expr) => {
        with_type!($dtype, $T => $body,
            [Bool => u8, U8 => u8, I8 => i8, I16 => i16, I32 => i32, I64 => i64,
             F16 => f16, BF16 => bf16, F32 => f32, F64 => f64])
    };
    ($dtype:expr, $T:ident => $body:expr, [$($D:ident => $ty:ty),*]) => {
        match $dtype {
            $(DType::$D => { type $T = $ty; $body })*
        }
    };
}

impl Tensor {
    /// Returns the tensor with its elements converted to another type. Floats are truncated towards
    /// zero for integers; any number but zero becomes a true bool.
    ///
    /// ```
    /// use fleet_tensor::{DType, Tensor, bf16};
    /// let half = Tensor::from_slice(&[1.5, -2.0].map(bf16::from_f32), [2])?;
    /// assert_eq!(half.cast(DType::F32)?.to_vec::<f32>()?, [1.5, -2.0]);
    /// assert_eq!(half.cast(DType::I64)?.to_vec::<i64>()?, [1, -2]);
    /// # Ok::<(), fleet_base::Error>(())
    /// ```
    pub fn cast(&self, dtype: DType) -> Result<Tensor> {
        let mut made = Tensor::zeros_in(dtype, *self.shape(), self.layout())?;
        with_type!(self.dtype(), A => {
            let from = self.as_slice::<A>()?;
            if dtype == DType::Bool {
                let to = made.as_mut_slice::<u8>()?;
                to.iter_mut().zip(from).for_each(|(to, from)| *to = from.widest().truth());
            } else {
                with_type!(dtype, B => {
                    let to = made.as_mut_slice::<B>()?;
                    to.iter_mut().zip(from).for_each(|(to, from)| *to = B::of(from.widest()));
                });
            }
        });
        Ok(made)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_converts_to_every_other() {
        let values = [0.0f32, 1.0, 2.75, 100.0];
        let numbers = Tensor::from_slice(&values, [4]).unwrap();
        for from in DType::ALL {
            let tensor = numbers.cast(from).unwrap();
            assert_eq!((tensor.dtype(), tensor.shape()), (from, numbers.shape()));
            for to in DType::ALL {
                let found = tensor.cast(to).unwrap();
                assert_eq!(found.dtype(), to);
                let found = found.cast(DType::F64).unwrap().to_vec::<f64>().unwrap();
                let expected = values.map(|value| match (from, to) {
                    (DType::Bool, _) | (_, DType::Bool) => f64::from(u8::from(value != 0.0)),
                    (from, to) if from.is_float() && to.is_float() => f64::from(value),
                    _ => f64::from(value).trunc(),
                });
                assert_eq!(found, expected, "{from} to {to}");
            }
        }
    }

    #[test]
    fn whole_numbers_stay_exact() {
        let large = Tensor::from_slice(&[i64::MAX, i64::MIN], [2]).unwrap();
        let same = large.cast(DType::I64).unwrap();
        assert_eq!(same.as_bytes(), large.as_bytes());
        let signed = Tensor::from_slice(&[f32::NAN, -7.9], [2]).unwrap();
        assert_eq!(signed.cast(DType::I32).unwrap().to_vec::<i32>().unwrap(), [0, -7]);
    }
}
