//! Softmax and layer normalization.

use super::Translate;
use crate::context::Context;
use crate::graph::{Attribute, Value};
use fleet_base::Result;
use fleet_tensor::{DType, Shape};

pub(super) const RULES: &[(&str, Translate)] = &[
    ("layer_norm", layer_norm),
    ("log_softmax", |c| along_axis(c, "LogSoftmax")),
    ("softmax", |c| along_axis(c, "Softmax")),
];

fn along_axis(c: &mut Context<'_, '_>, node: &'static str) -> Result<()> {
    let (x, axis) = (c.x("X")?, c.op.attr_int("axis"));
    let y = c.with(node, &[x], vec![("axis", Attribute::Int(axis))]);
    c.set("Out", y)
}

fn layer_norm(c: &mut Context<'_, '_>) -> Result<()> {
    let (mut x, shape, dtype) = (c.x("X")?, c.shape("X")?, c.dtype("X")?);
    let begin = shape.axis(c.op.attr_int("begin_norm_axis"))?;
    if let Some(residual) = c.optional("Residual")? {
        x = c.add(x, residual);
        c.set("Sum", x)?;
    }
    // Scale and bias are f32, and ONNX has one type for all.
    x = if dtype == DType::F32 { x } else { c.cast(x, DType::F32) };
    let scale = affine(c, "Scale", &shape, begin)?;
    let bias = affine(c, "Bias", &shape, begin)?;
    let scale = match scale {
        Some(scale) => scale,
        // The op of ONNX needs a scale; one number is broadcast.
        None => c.filled(DType::F32, &[1], 1.0)?,
    };
    let attributes = vec![
        ("axis", Attribute::Int(begin as i64)),
        ("epsilon", Attribute::Float(c.op.attr_float("epsilon"))),
    ];
    let bias = bias.unwrap_or(Value::NONE);
    let y = c.with("LayerNormalization", &[x, scale, bias], attributes);
    let y = if dtype == DType::F32 { y } else { c.cast(y, dtype) };
    c.set("Y", y)
}

/// Returns an affine parameter in the shape of the normalized dimensions.
fn affine(
    c: &mut Context<'_, '_>,
    slot: &str,
    shape: &Shape,
    begin: usize,
) -> Result<Option<Value>> {
    let Some(value) = c.optional(slot)? else { return Ok(None) };
    let wanted = &shape[begin..];
    match c.shape(slot)?[..] == *wanted {
        true => Ok(Some(value)),
        false => c.reshape(value, wanted).map(Some),
    }
}
