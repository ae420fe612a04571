//! Tensors of any number type as `f64`, for printing and counting, not for computation.

use fleet_base::{Error, Result};
use fleet_tensor::{DType, Element, Layout, Tensor};

/// Returns the first `count_max` numbers of a row-major tensor.
pub(crate) fn numbers(tensor: &Tensor, count_max: usize) -> Result<Vec<f64>> {
    fn some<T: Element>(tensor: &Tensor, max: usize, f: impl Fn(T) -> f64) -> Result<Vec<f64>> {
        Ok(tensor.as_slice::<T>()?.iter().take(max).map(|value| f(*value)).collect())
    }
    if tensor.layout() != Layout::RowMajor {
        return Err(Error::internal("cannot read a tensor that is not row-major"));
    }
    match tensor.dtype() {
        DType::Bool => {
            Ok(tensor.as_bytes().iter().take(count_max).map(|it| f64::from(*it)).collect())
        }
        DType::U8 => some::<u8>(tensor, count_max, f64::from),
        DType::I8 => some::<i8>(tensor, count_max, f64::from),
        DType::I16 => some::<i16>(tensor, count_max, f64::from),
        DType::I32 => some::<i32>(tensor, count_max, f64::from),
        DType::I64 => some::<i64>(tensor, count_max, |value| value as f64),
        DType::F16 => some(tensor, count_max, half::f16::to_f64),
        DType::BF16 => some(tensor, count_max, half::bf16::to_f64),
        DType::F32 => some::<f32>(tensor, count_max, f64::from),
        DType::F64 => some::<f64>(tensor, count_max, |value| value),
    }
}

/// Formats a tensor for people; large tensors are cut after their first numbers.
pub(crate) fn format_values(tensor: &Tensor) -> String {
    let count = tensor.physical_len();
    // Floats of up to 32 bits print in their own precision: 0.1, not 0.10000000149011612.
    let texts: Vec<String> = match (tensor.dtype(), numbers(tensor, SHOWN_MAX)) {
        (_, Err(_)) => return format!("{}{}", tensor.dtype(), tensor.shape()),
        (DType::F64, Ok(values)) => values.iter().map(f64::to_string).collect(),
        (_, Ok(values)) => values.iter().map(|value| (*value as f32).to_string()).collect(),
    };
    match (&texts[..], count > SHOWN_MAX) {
        ([only], false) => only.clone(),
        (_, more) => format!("[{}{}]", texts.join(" "), if more { " .." } else { "" }),
    }
}

/// Maximum count of numbers shown per tensor.
const SHOWN_MAX: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_every_type_are_shown() {
        let check = |tensor: Tensor, expected: &str| assert_eq!(format_values(&tensor), expected);
        check(Tensor::from_slice(&[0.1f32], [1]).unwrap(), "0.1");
        check(Tensor::from_slice(&[0.1f64, 2.0], [2]).unwrap(), "[0.1 2]");
        check(Tensor::from_slice(&[7i64; 9], [3, 3]).unwrap(), "[7 7 7 7 7 7 7 7 ..]");
        check(Tensor::from_slice(&[255u8], [1]).unwrap(), "255");
        check(Tensor::from_bools(&[true, false], [2]).unwrap(), "[1 0]");
        check(Tensor::from_slice(&[half::bf16::from_f32(1.5)], [1]).unwrap(), "1.5");
    }
}
