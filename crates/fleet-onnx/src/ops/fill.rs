//! Constant tensors.

use super::Translate;
use crate::context::Context;
use crate::graph::{Attribute, Value};
use fleet_base::Result;
use fleet_tensor::{DType, Shape, Tensor};

pub(super) const RULES: &[(&str, Translate)] = &[
    ("assign_value", |c| {
        let shape = Shape::new(c.op.attr_ints("shape"))?;
        let (dtype, ints) = (c.op.attr_dtype("dtype"), c.op.attr_ints("ints_values"));
        let tensor = match ints.is_empty() {
            true => Tensor::from_slice(c.op.attr_floats("values"), shape)?,
            false => Tensor::from_slice(ints, shape)?,
        };
        let y = c.constant(tensor.cast(dtype)?);
        c.set("Out", y)
    }),
    ("eye", |c| {
        let (rows, columns) = (c.op.attr_int("num_rows"), c.op.attr_int("num_columns"));
        let columns = if columns == -1 { rows } else { columns };
        let mut tensor = Tensor::zeros(DType::F32, [rows, columns])?;
        for row in 0..rows.min(columns) {
            tensor.as_mut_slice::<f32>()?[(row * columns + row) as usize] = 1.0;
        }
        let y = c.constant(tensor.cast(c.op.attr_dtype("dtype"))?);
        c.set("Out", y)
    }),
    ("fill_any_like", |c| {
        let (x, rank, dtype) = (c.x("X")?, c.shape("X")?.rank(), c.out_meta("Out")?.dtype);
        let sizes = c.sizes(x, 0..rank);
        let y = filled(c, sizes, dtype)?;
        c.set("Out", y)
    }),
    ("fill_constant", |c| {
        let (dims, dtype) = (c.op.attr_ints("shape").to_vec(), c.op.attr_dtype("dtype"));
        let count = Shape::new(&dims)?.numel().unwrap_or(usize::MAX);
        let value = c.op.attr_float("value");
        let y = if count <= CONSTANT_LEN_MAX {
            c.filled(dtype, &dims, value)?
        } else {
            let sizes = c.ints(&dims)?;
            filled(c, sizes, dtype)?
        };
        c.set("Out", y)
    }),
    ("fill_constant_batch_size_like", batch_size_like),
    ("range", |c| {
        let (start, step) = (c.op.attr_float("start"), c.op.attr_float("step"));
        let count = c.out_meta("Out")?.shape.numel().unwrap_or(0);
        let values: Vec<f64> = (0..count).map(|at| start + step * at as f64).collect();
        let tensor = Tensor::from_slice(&values, [count as i64])?;
        let y = c.constant(tensor.cast(c.op.attr_dtype("dtype"))?);
        c.set("Out", y)
    }),
];

/// Number of elements up to which a filled tensor is in the file.
const CONSTANT_LEN_MAX: usize = 64;

/// Returns a tensor of these sizes that is filled with the attribute `value`.
fn filled(c: &mut Context<'_, '_>, sizes: Value, dtype: DType) -> Result<Value> {
    let element = Tensor::from_slice(&[c.op.attr_float("value")], [1])?.cast(dtype)?;
    Ok(c.with("ConstantOfShape", &[sizes], vec![("value", Attribute::Element(element))]))
}

/// Copies one dimension of the input into the shape.
fn batch_size_like(c: &mut Context<'_, '_>) -> Result<()> {
    let (x, input) = (c.x("Input")?, c.shape("Input")?);
    let dims = c.op.attr_ints("shape").to_vec();
    let from = input.axis(c.op.attr_int("input_dim_idx"))?;
    let to = Shape::new(&dims)?.axis(c.op.attr_int("output_dim_idx"))?;
    let mut parts = Vec::new();
    if to > 0 {
        parts.push(c.ints(&dims[..to])?);
    }
    parts.push(c.sizes(x, from..from + 1));
    if to + 1 < dims.len() {
        parts.push(c.ints(&dims[to + 1..])?);
    }
    let sizes = c.concat(&parts, 0);
    let y = filled(c, sizes, c.op.attr_dtype("dtype"))?;
    c.set("Out", y)
}
