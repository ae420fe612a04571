//! Small pieces that shape rules, gradient rules and kernels of many ops share.

use crate::{InferCtx, Meta, PrepareCtx};
use fleet_base::{Error, Result};
use fleet_ir::Op;
use fleet_tensor::{DType, Layout, Shape, bf16, f16};

/// Whether an output slot was given a variable: gradient ops make only what is asked for.
pub(crate) fn wants(i: &InferCtx<'_>, slot: &str) -> bool {
    !i.op.output(slot).is_empty()
}

/// Refuses a variable of an input slot, if there is one, that has another type or shape.
pub(crate) fn check_like(i: &InferCtx<'_>, slot: &str, like: Meta) -> Result<()> {
    if i.optional(slot).is_none() {
        return Ok(());
    }
    i.check_dtype(slot, &[like.dtype])?;
    i.check_shape(slot, like.shape)
}

/// Each wanted output `S@GRAD` looks like input `S`.
pub(crate) fn grads_like(i: &mut InferCtx<'_>, slots: &[&str]) -> Result<()> {
    for slot in slots {
        let grad = format!("{slot}@GRAD");
        if wants(i, &grad) {
            let meta = i.input(slot)?;
            i.push(&grad, Meta::dense(meta.dtype, meta.shape));
        }
    }
    Ok(())
}

/// The product of dimensions, -1 if one is unknown; what does not fit stays at the largest number,
/// which no memory holds.
pub(crate) fn flat(dims: &[i64]) -> i64 {
    if dims.iter().any(|dim| *dim < 0) {
        return -1;
    }
    dims.iter().fold(1, |product: i64, dim| product.saturating_mul(*dim))
}

/// Variables that an op may make: a wrong attribute is to be an error, not a full memory.
pub(crate) const PARTS_MAX: i64 = 1 << 16;

/// The number that two descriptions of one dimension agree on; none if they do not.
pub(crate) fn same_dim(a: i64, b: i64) -> Option<i64> {
    match (a, b) {
        (a, b) if a == b => Some(a),
        (-1, b) => Some(b),
        (a, -1) => Some(a),
        _ => None,
    }
}

/// An axis attribute of an op, counted from the end when negative.
pub(crate) fn axis_of(op: &Op, name: &str, shape: &Shape) -> Result<usize> {
    shape.axis(op.attr_int(name)).map_err(|error| error.at(format!("attribute '{name}'")))
}

/// Axes of an attribute: checked, without doubles, ascending.
pub(crate) fn axes_of(axes: &[i64], shape: &Shape) -> Result<Vec<usize>> {
    let mut found: Vec<usize> = axes.iter().map(|axis| shape.axis(*axis)).collect::<Result<_>>()?;
    found.sort_unstable();
    found.dedup();
    Ok(found)
}

/// A known shape as a list.
pub(crate) fn sizes(shape: &Shape) -> Vec<usize> {
    shape.iter().map(|dim| *dim as usize).collect()
}

/// Elements in memory of the first variable of an input slot, the layout's padding included.
pub(crate) fn physical_len(p: &PrepareCtx<'_>, slot: usize) -> usize {
    let (meta, layout) = (&p.inputs[slot][0], p.input_layouts[slot][0]);
    meta.physical_len(layout)
}

/// Refuses operands in another layout than row-major.
pub(crate) fn check_row_major(p: &PrepareCtx<'_>) -> Result<()> {
    let mut all = p.input_layouts.iter().chain(p.output_layouts).flatten();
    match all.find(|layout| **layout != Layout::RowMajor) {
        None => Ok(()),
        Some(layout) => Err(Error::internal(format!("{} reads row-major tensors", p.op.name()))
            .expected(Layout::RowMajor)
            .got(*layout)),
    }
}

/// `(outer, length, inner)`: the elements before, along and behind an axis of a known shape.
pub(crate) fn around(shape: &Shape, axis: usize) -> (usize, usize, usize) {
    (shape.product(0..axis), shape.at(axis), shape.product(axis + 1..shape.rank()))
}

/// The bytes of one element of `dtype` that holds `value`, in the first places.
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

/// Runs `$body` with `$T` as the type of elements of `$dtype`, one of those listed.
macro_rules! by_type {
    ($dtype:expr, $else:expr, [$($D:ident => $ty:ty),*], $T:ident => $body:expr) => {
        match $dtype {
            $(fleet_tensor::DType::$D => { type $T = $ty; $body })*
            _ => $else,
        }
    };
}

/// Runs `$body` with `$T` as an unsigned integer as wide as elements of `$dtype`: for ops that move
/// elements and do not look at them.
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
