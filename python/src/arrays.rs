//! Tensors from arrays of NumPy, and back.
//!
//! A fed array is copied once, into a tensor that the executor keeps for the next step. It is not
//! lent: while a step runs without the interpreter's lock, other threads may write to the array.

use crate::error::OrRaise;
use fleet::{DType, Element, Shape, Tensor};
use half::{bf16, f16};
use numpy::{PyArray1, PyArrayDyn, PyArrayMethods, PyUntypedArrayMethods};
use pyo3::exceptions::{PyNotImplementedError, PyRuntimeError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

/// Returns `value` as a tensor of this type, and reuses `old` if it has the type and shape. `what`
/// names the value in errors.
///
/// An array must have the type. Its layout and byte order may be any. Numbers and lists are
/// converted.
pub fn tensor(
    what: &str,
    value: &Bound<'_, PyAny>,
    dtype: DType,
    old: Option<Tensor>,
) -> PyResult<Tensor> {
    let copied_at_once = match is_plain(value)? {
        true => copied(value, dtype, old)?,
        false => (None, old),
    };
    match copied_at_once {
        (Some(tensor), _) => Ok(tensor),
        (None, old) => {
            // Not an array of that type, contiguous and in native order: the general way.
            let arrays = value.py().import("fleet._arrays")?;
            let array = arrays.call_method1("as_array", (what, value, long_name(dtype)))?;
            let (made, _) = copied(&array, dtype, old)?;
            made.ok_or_else(|| {
                PyRuntimeError::new_err(format!("{what}: cannot read the array as {dtype}"))
            })
        }
    }
}

/// Imports NumPy at the first use, where Ctrl-C may come: the crate `numpy` would panic.
fn load_numpy(py: Python<'_>) -> PyResult<()> {
    static LOADED: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    LOADED.get_or_try_init(py, || py.import("numpy").map(Bound::unbind)).map(drop)
}

/// Returns whether a value is an array, and not of a class of its own, such as a masked array.
fn is_plain(value: &Bound<'_, PyAny>) -> PyResult<bool> {
    static ARRAY: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let py = value.py();
    let array = ARRAY.get_or_try_init(py, || {
        load_numpy(py)?;
        py.import("numpy")?.getattr("ndarray").map(Bound::unbind)
    })?;
    Ok(value.get_type().is(array))
}

/// Returns the name of the type in NumPy.
pub fn long_name(dtype: DType) -> &'static str {
    match dtype {
        DType::Bool => "bool",
        DType::U8 => "uint8",
        DType::I8 => "int8",
        DType::I16 => "int16",
        DType::I32 => "int32",
        DType::I64 => "int64",
        DType::F16 => "float16",
        DType::BF16 => "bfloat16",
        DType::F32 => "float32",
        DType::F64 => "float64",
    }
}

/// Copies an array of exactly this type; returns `old` if the value is not one.
fn copied(
    value: &Bound<'_, PyAny>,
    dtype: DType,
    old: Option<Tensor>,
) -> PyResult<(Option<Tensor>, Option<Tensor>)> {
    match dtype {
        DType::Bool => bools(value, old),
        DType::U8 => typed::<u8>(value, old),
        DType::I8 => typed::<i8>(value, old),
        DType::I16 => typed::<i16>(value, old),
        DType::I32 => typed::<i32>(value, old),
        DType::I64 => typed::<i64>(value, old),
        DType::F16 => typed::<f16>(value, old),
        DType::F32 => typed::<f32>(value, old),
        DType::F64 => typed::<f64>(value, old),
        DType::BF16 => Err(PyNotImplementedError::new_err(
            "NumPy has no bfloat16\n  help: feed float32, and cast it in the program",
        )),
    }
}

fn typed<T: Element + numpy::Element>(
    value: &Bound<'_, PyAny>,
    old: Option<Tensor>,
) -> PyResult<(Option<Tensor>, Option<Tensor>)> {
    let Ok(array) = value.cast::<PyArrayDyn<T>>() else { return Ok((None, old)) };
    let Ok(shape) = shape_of(array.shape()) else { return Ok((None, old)) };
    let Ok(array) = array.try_readonly() else { return Ok((None, old)) };
    // A column-major array is contiguous too, but in another order.
    if !array.is_c_contiguous() {
        return Ok((None, old));
    }
    let Ok(values) = array.as_slice() else { return Ok((None, old)) };
    let mut tensor = match old {
        Some(old) if old.dtype() == T::DTYPE && *old.shape() == shape => old,
        _ => Tensor::zeros(T::DTYPE, shape).or_raise()?,
    };
    tensor.as_mut_slice::<T>().or_raise()?.copy_from_slice(values);
    Ok((Some(tensor), None))
}

fn bools(
    value: &Bound<'_, PyAny>,
    old: Option<Tensor>,
) -> PyResult<(Option<Tensor>, Option<Tensor>)> {
    let Ok(array) = value.cast::<PyArrayDyn<bool>>() else { return Ok((None, old)) };
    let shape = shape_of(array.shape())?;
    let Ok(array) = array.try_readonly() else { return Ok((None, old)) };
    match array.as_slice() {
        Ok(values) if array.is_c_contiguous() => {
            Ok((Some(Tensor::from_bools(values, shape).or_raise()?), None))
        }
        _ => Ok((None, old)),
    }
}

fn shape_of(sizes: &[usize]) -> PyResult<Shape> {
    let dims: Vec<i64> = sizes.iter().map(|size| *size as i64).collect();
    Shape::new(&dims).or_raise()
}

/// Returns a row-major tensor as a new array. NumPy has no bfloat16, so such tensors are widened to
/// float32, which is exact.
pub fn array<'py>(py: Python<'py>, tensor: &Tensor) -> PyResult<Bound<'py, PyAny>> {
    load_numpy(py)?;
    match tensor.dtype() {
        DType::Bool => {
            let values: Vec<bool> = tensor.as_bytes().iter().map(|byte| *byte != 0).collect();
            made(py, &values, tensor)
        }
        DType::U8 => typed_array::<u8>(py, tensor),
        DType::I8 => typed_array::<i8>(py, tensor),
        DType::I16 => typed_array::<i16>(py, tensor),
        DType::I32 => typed_array::<i32>(py, tensor),
        DType::I64 => typed_array::<i64>(py, tensor),
        DType::F16 => typed_array::<f16>(py, tensor),
        DType::F32 => typed_array::<f32>(py, tensor),
        DType::F64 => typed_array::<f64>(py, tensor),
        DType::BF16 => {
            let values = tensor.as_slice::<bf16>().or_raise()?;
            made(py, &values.iter().map(|value| value.to_f32()).collect::<Vec<f32>>(), tensor)
        }
    }
}

fn typed_array<'py, T: Element + numpy::Element>(
    py: Python<'py>,
    tensor: &Tensor,
) -> PyResult<Bound<'py, PyAny>> {
    made(py, tensor.as_slice::<T>().or_raise()?, tensor)
}

/// Size from which a result is copied without the interpreter's lock: about 0.1 ms.
const UNLOCKED_MIN_BYTES: usize = 1 << 20;

fn made<'py, T: numpy::Element + Clone + Sync + Send>(
    py: Python<'py>,
    values: &[T],
    tensor: &Tensor,
) -> PyResult<Bound<'py, PyAny>> {
    let sizes: Vec<usize> = tensor.shape().iter().map(|size| *size as usize).collect();
    let flat = match size_of_val(values) > UNLOCKED_MIN_BYTES {
        // No other thread knows the copy yet. Arrays that are fed are read under the lock, since
        // other threads may write to them.
        true => PyArray1::from_vec(py, py.detach(|| values.to_vec())),
        false => PyArray1::from_slice(py, values),
    };
    Ok(flat.reshape(sizes)?.into_any())
}
