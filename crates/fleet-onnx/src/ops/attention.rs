//! Attention, written out: `softmax(scale Q K^T + Mask) V` per head.

use super::Translate;
use crate::context::Context;
use crate::graph::{Attribute, Value};
use fleet_base::Result;
use fleet_tensor::{DType, Tensor};

pub(super) const RULES: &[(&str, Translate)] = &[
    ("flash_attn", |c| {
        let (q, key, v) = (c.x("Q")?, c.x("K")?, c.x("V")?);
        let dim = c.shape("Q")?[3];
        // [batch, time, heads, dim] -> [batch, heads, time, dim], and K transposed.
        let q = c.transpose(q, &[0, 2, 1, 3]);
        let key = c.transpose(key, &[0, 2, 3, 1]);
        let v = c.transpose(v, &[0, 2, 1, 3]);
        attend(c, q, key, v, dim)
    }),
    ("flash_attn_qkvpacked", |c| {
        let (qkv, dim) = (c.x("QKV")?, c.shape("QKV")?[4]);
        let parts = c.transpose(qkv, &[2, 0, 3, 1, 4]);
        let mut part = |index: i64| -> Result<Value> {
            let at = c.int(index)?;
            Ok(c.with("Gather", &[parts, at], vec![("axis", Attribute::Int(0))]))
        };
        let (q, key, v) = (part(0)?, part(1)?, part(2)?);
        let key = c.transpose(key, &[0, 1, 3, 2]);
        attend(c, q, key, v, dim)
    }),
];

/// Q and V are `[batch, heads, time, dim]`, and K is `[batch, heads, dim, time]`.
fn attend(c: &mut Context<'_, '_>, q: Value, key: Value, v: Value, dim: i64) -> Result<()> {
    let dtype = c.out_meta("Out")?.dtype;
    let scale = match c.op.attr_float("scale") {
        0.0 => 1.0 / (dim.max(1) as f64).sqrt(),
        scale => scale,
    };
    let scale = c.scalar(dtype, scale)?;
    let scaled = c.mul(q, scale);
    let mut scores = c.node("MatMul", &[scaled, key]);
    if let Some(mask) = c.optional("Mask")? {
        scores = c.add(scores, mask);
    }
    if c.op.attr_bool("causal") {
        let hidden = hidden(c, q, key)?;
        let hidden = if dtype == DType::F32 { hidden } else { c.cast(hidden, dtype) };
        scores = c.add(scores, hidden);
    }
    let shares = c.with("Softmax", &[scores], vec![("axis", Attribute::Int(-1))]);
    let made = c.node("MatMul", &[shares, v]);
    let out = c.transpose(made, &[0, 2, 1, 3]);
    c.set("Out", out)
}

/// Returns `[queries, keys]`: minus infinity for keys after the query, 0 for others. The last query
/// is aligned with the last key.
fn hidden(c: &mut Context<'_, '_>, q: Value, key: Value) -> Result<Value> {
    let (queries, keys) = (c.sizes(q, 2..3), c.sizes(key, 3..4));
    let sizes = c.concat(&[queries, keys], 0);
    let element = Tensor::from_slice(&[f32::NEG_INFINITY], [1])?;
    let whole = c.with("ConstantOfShape", &[sizes], vec![("value", Attribute::Element(element))]);
    let offset = c.sub(keys, queries);
    let one = c.ints(&[1])?;
    let diagonal = c.add(offset, one);
    let diagonal = c.squeeze(diagonal, &[0])?;
    Ok(c.with("Trilu", &[whole, diagonal], vec![("upper", Attribute::Int(1))]))
}
