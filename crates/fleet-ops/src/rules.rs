//! Helpers shared by the shape rules, gradient rules and kernels of many ops.

use crate::{InferCtx, KernelCtx, Meta, PrepareCtx};
use fleet_base::{Error, Result};
use fleet_ir::{Op, VarKind};
use fleet_kernels::input::Input;
use fleet_tensor::{DType, Element, Layout, Shape, bf16, f16};

/// Returns whether an output slot has a variable. Gradient ops compute only requested outputs.
pub(crate) fn is_requested(i: &InferCtx<'_>, slot: &str) -> bool {
    !i.op.output(slot).is_empty()
}

/// Sets the type and shape of an output slot, if it has a variable.
pub(crate) fn set_requested(
    i: &mut InferCtx<'_>,
    slot: &str,
    dtype: DType,
    shape: impl Into<Shape>,
) {
    if is_requested(i, slot) {
        i.set(slot, dtype, shape);
    }
}

/// Rejects a variable of an input slot if its type or shape differs from `like`. The slot may be
/// empty.
pub(crate) fn check_like(i: &InferCtx<'_>, slot: &str, like: Meta) -> Result<()> {
    if i.optional(slot).is_none() {
        return Ok(());
    }
    i.check_dtype(slot, &[like.dtype])?;
    i.check_shape(slot, like.shape)
}

/// Gives each requested output `S@GRAD` the type and shape of input `S`.
pub(crate) fn grads_like(i: &mut InferCtx<'_>, slots: &[&str]) -> Result<()> {
    for slot in slots {
        let grad = format!("{slot}@GRAD");
        if is_requested(i, &grad) {
            let Meta { dtype, shape, .. } = i.input(slot)?;
            i.set(&grad, dtype, shape);
        }
    }
    Ok(())
}

/// Checks the input that is added to a gradient, if there is one: a tensor of its type and shape.
pub(crate) fn check_added(i: &InferCtx<'_>, (grad, added): (&str, &str)) -> Result<()> {
    let Some(have) = i.optional(added) else { return Ok(()) };
    let Some(want) = i.output(grad) else {
        return Err(i.error(added, "has no result").expected(format!("an output {grad}")));
    };
    if have.kind != VarKind::Dense || want.kind != VarKind::Dense {
        return Err(i.error(added, "holds sparse rows").expected("a dense tensor"));
    }
    i.check_dtype(added, &[want.dtype])?;
    i.check_shape(added, want.shape)
}

/// Begins an output to which an optional input is added: copies the input to `out`, the memory of
/// the output, unless it is there already. Returns whether the kernel has the input.
pub(crate) fn begin_sum<T: Element>(
    k: &KernelCtx<'_>,
    (output, input): (usize, usize),
    out: &mut [T],
) -> bool {
    if !k.has_input(input) {
        return false;
    }
    if let Input::Separate(from) = k.input_or_output::<T>(input, output) {
        k.pool.run_parts(out, COPY_GRAIN, |start, to| {
            to.copy_from_slice(&from[start..][..to.len()]);
        });
    }
    true
}

/// Elements copied per task.
const COPY_GRAIN: usize = 1 << 15;

/// Returns the product of dimensions, or -1 if one is unknown. Saturates at the largest number,
/// which exceeds any memory.
pub(crate) fn dim_product(dims: &[i64]) -> i64 {
    if dims.iter().any(|dim| *dim < 0) {
        return -1;
    }
    dims.iter().fold(1, |product: i64, dim| product.saturating_mul(*dim))
}

/// Maximum number of variables that an op may make. A wrong attribute must give an error, not
/// exhaust memory.
pub(crate) const PARTS_MAX: i64 = 1 << 16;

/// Merges two descriptions of one dimension; `None` if they conflict.
pub(crate) fn same_dim(a: i64, b: i64) -> Option<i64> {
    match (a, b) {
        (a, b) if a == b => Some(a),
        (-1, b) => Some(b),
        (a, -1) => Some(a),
        _ => None,
    }
}

/// Returns an axis attribute of an op as an index. A negative attribute counts from the end.
pub(crate) fn axis_of(op: &Op, name: &str, shape: &Shape) -> Result<usize> {
    shape.axis(op.attr_int(name)).map_err(|error| error.at(format!("attribute '{name}'")))
}

/// Returns a float attribute of an op, for kernels in f32.
pub(crate) fn number(op: &Op, attr: &str) -> f32 {
    op.attr_float(attr) as f32
}

/// Returns the axes of an attribute: checked, deduplicated, ascending.
pub(crate) fn axes_of(axes: &[i64], shape: &Shape) -> Result<Vec<usize>> {
    let mut found: Vec<usize> = axes.iter().map(|axis| shape.axis(*axis)).collect::<Result<_>>()?;
    found.sort_unstable();
    found.dedup();
    Ok(found)
}

/// Returns a known shape as a list.
pub(crate) fn sizes(shape: &Shape) -> Vec<usize> {
    shape.iter().map(|dim| *dim as usize).collect()
}

/// Number of elements in memory of the first variable of an input slot, including the layout's
/// padding.
pub(crate) fn physical_len(p: &PrepareCtx<'_>, slot: usize) -> usize {
    let (meta, layout) = (&p.inputs[slot][0], p.input_layouts[slot][0]);
    meta.physical_len(layout)
}

/// Rejects operands whose layout is not row-major.
pub(crate) fn check_row_major(p: &PrepareCtx<'_>) -> Result<()> {
    let mut all = p.input_layouts.iter().chain(p.output_layouts).flatten();
    match all.find(|layout| **layout != Layout::RowMajor) {
        None => Ok(()),
        Some(layout) => {
            Err(Error::internal(format!("{} supports only row-major tensors", p.op.name()))
                .expected(Layout::RowMajor)
                .got(*layout))
        }
    }
}

/// Returns `(outer, length, inner)`: the number of elements before, along and after an axis of a
/// known shape.
pub(crate) fn split_at_axis(shape: &Shape, axis: usize) -> (usize, usize, usize) {
    (shape.product(0..axis), shape.at(axis), shape.product(axis + 1..shape.rank()))
}

/// Returns the bytes of one element of `dtype` with `value`, at the start of the array.
pub(crate) fn element_bytes(dtype: DType, value: f64) -> [u8; 8] {
    let mut bytes = [0; 8];
    let mut put = |from: &[u8]| bytes[..from.len()].copy_from_slice(from);
    match dtype {
        DType::Bool => put(&[u8::from(value != 0.0)]),
        DType::U8 => put(&(value as u8).to_ne_bytes()),
        DType::I8 => put(&(value as i8).to_ne_bytes()),
        DType::I16 => put(&(value as i16).to_ne_bytes()),
        DType::I32 => put(&(value as i32).to_ne_bytes()),
        DType::I64 => put(&(value as i64).to_ne_bytes()),
        DType::F16 => put(&f16::from_f64(value).to_ne_bytes()),
        DType::BF16 => put(&bf16::from_f64(value).to_ne_bytes()),
        DType::F32 => put(&(value as f32).to_ne_bytes()),
        DType::F64 => put(&value.to_ne_bytes()),
    }
    bytes
}

/// Runs `$body` with `$T` as the element type of `$dtype`, which must be a listed type.
macro_rules! by_type {
    ($dtype:expr, $else:expr, [$($D:ident => $ty:ty),*], $T:ident => $body:expr) => {
        match $dtype {
            $(fleet_tensor::DType::$D => { type $T = $ty; $body })*
            _ => $else,
        }
    };
}

/// Runs `$body` with `$T` as an unsigned integer as wide as the elements of `$dtype`. For ops that
/// move elements without reading their values.
macro_rules! by_width {
    ($dtype:expr, $T:ident => $body:expr) => {
        match $dtype.size() {
            1 => {
                type $T = u8;
                $body
            }
            2 => {
                type $T = u16;
                $body
            }
            4 => {
                type $T = u32;
                $body
            }
            _ => {
                type $T = u64;
                $body
            }
        }
    };
}

pub(crate) use {by_type, by_width};
