//! Selection and update by index.

use super::Translate;
use crate::context::Context;
use crate::graph::{Attribute, Value};
use fleet_base::Result;
use fleet_tensor::{DType, Tensor};

pub(super) const RULES: &[(&str, Translate)] = &[
    ("gather", |c| {
        let (shape, index) = (c.shape("X")?, c.shape("Index")?);
        let axis = shape.axis(c.op.attr_int("axis"))?;
        gather(c, axis as i64, index.rank() == 2)
    }),
    ("gather_nd", |c| {
        let (x, index) = (c.x("X")?, wide(c, "Index")?);
        let y = c.node("GatherND", &[x, index]);
        c.set("Out", y)
    }),
    ("index_select", |c| {
        let axis = c.shape("X")?.axis(c.op.attr_int("dim"))?;
        gather(c, axis as i64, false)
    }),
    ("one_hot_v2", one_hot),
    ("scatter", scatter),
    ("scatter_nd_add", |c| {
        let inputs = [c.x("X")?, wide(c, "Index")?, c.x("Updates")?];
        let attributes = vec![("reduction", Attribute::Str("add"))];
        let y = c.with("ScatterND", &inputs, attributes);
        c.set("Out", y)
    }),
];

/// Returns indices as i64, the only type of some ops of ONNX.
pub(super) fn wide(c: &mut Context<'_, '_>, slot: &str) -> Result<Value> {
    let (index, dtype) = (c.x(slot)?, c.dtype(slot)?);
    Ok(if dtype == DType::I64 { index } else { c.cast(index, DType::I64) })
}

/// A column of indices counts as a list.
fn gather(c: &mut Context<'_, '_>, axis: i64, is_column: bool) -> Result<()> {
    let (x, mut index) = (c.x("X")?, c.x("Index")?);
    if is_column {
        index = c.reshape(index, &[-1])?;
    }
    let y = c.with("Gather", &[x, index], vec![("axis", Attribute::Int(axis))]);
    c.set("Out", y)
}

/// Compares with all numbers: other than `OneHot` of ONNX, a negative number gives zeros.
fn one_hot(c: &mut Context<'_, '_>) -> Result<()> {
    let x = wide(c, "X")?;
    let (depth, dtype) = (c.op.attr_int("depth"), c.op.attr_dtype("dtype"));
    let x = c.unsqueeze(x, &[-1])?;
    let classes: Vec<i64> = (0..depth).collect();
    let classes = c.constant(Tensor::from_slice(&classes, [depth])?);
    let hits = c.node("Equal", &[x, classes]);
    let y = if dtype == DType::Bool { hits } else { c.cast(hits, dtype) };
    c.set("Out", y)
}

fn scatter(c: &mut Context<'_, '_>) -> Result<()> {
    let (mut x, ids, updates) = (c.x("X")?, wide(c, "Ids")?, c.x("Updates")?);
    let ids = c.reshape(ids, &[-1, 1])?;
    if c.op.attr_bool("overwrite") {
        let y = c.node("ScatterND", &[x, ids, updates]);
        return c.set("Out", y);
    }
    // Updated rows start at zero.
    let (dtype, rank) = (c.dtype("X")?, c.shape("Updates")?.rank());
    let sizes = c.sizes(updates, 0..rank);
    let zero = Tensor::zeros(dtype, [1])?;
    let zeros = c.with("ConstantOfShape", &[sizes], vec![("value", Attribute::Element(zero))]);
    x = c.node("ScatterND", &[x, ids, zeros]);
    let attributes = vec![("reduction", Attribute::Str("add"))];
    let y = c.with("ScatterND", &[x, ids, updates], attributes);
    c.set("Out", y)
}
