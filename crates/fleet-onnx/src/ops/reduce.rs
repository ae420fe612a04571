//! Reductions, extremes, norms of vectors and counts.

use super::Translate;
use crate::context::Context;
use crate::graph::{Attribute, Value};
use fleet_base::Result;
use fleet_tensor::DType;

pub(super) const RULES: &[(&str, Translate)] = &[
    ("accuracy", accuracy),
    ("arg_max", |c| arg_extreme(c, "ArgMax")),
    ("arg_min", |c| arg_extreme(c, "ArgMin")),
    ("clip_by_norm", clip_by_norm),
    ("cumsum", cumsum),
    ("global_norm_scale", global_norm_scale),
    ("mean", |c| {
        let x = c.x("X")?;
        let y = whole(c, "ReduceMean", x)?;
        c.set("Out", y)
    }),
    ("reduce_max", |c| reduce(c, "ReduceMax")),
    ("reduce_mean", |c| reduce(c, "ReduceMean")),
    ("reduce_min", |c| reduce(c, "ReduceMin")),
    ("reduce_prod", |c| reduce(c, "ReduceProd")),
    ("reduce_sum", |c| reduce(c, "ReduceSum")),
    ("squared_l2_norm", |c| {
        let (x, dtype) = (c.x("X")?, c.dtype("X")?);
        let x = if dtype == DType::F32 { x } else { c.cast(x, DType::F32) };
        let y = whole(c, "ReduceSumSquare", x)?;
        c.set("Out", y)
    }),
    ("top_k_v2", top_k),
];

/// Reduces all elements, to shape `[1]`.
pub(super) fn whole(c: &mut Context<'_, '_>, node: &'static str, x: Value) -> Result<Value> {
    let number = c.reduce(node, x, &[], false)?;
    c.reshape(number, &[1])
}

fn reduce(c: &mut Context<'_, '_>, node: &'static str) -> Result<()> {
    let (x, shape, keep) = (c.x("X")?, c.shape("X")?, c.op.attr_bool("keep_dim"));
    let mut axes = Vec::new();
    if !c.op.attr_bool("reduce_all") {
        for axis in c.op.attr_ints("dim") {
            axes.push(shape.axis(*axis)? as i64);
        }
        axes.sort_unstable();
        axes.dedup();
    }
    let is_whole = axes.is_empty() || axes.len() == shape.rank();
    let y = match is_whole && (!keep || shape.rank() == 0) {
        true => whole(c, node, x)?,
        false => c.reduce(node, x, &axes, keep)?,
    };
    c.set("Out", y)
}

fn arg_extreme(c: &mut Context<'_, '_>, node: &'static str) -> Result<()> {
    let (mut x, shape, keep) = (c.x("X")?, c.shape("X")?, c.op.attr_bool("keepdims"));
    let flatten = c.op.attr_bool("flatten") || shape.rank() <= 1;
    let axis = if flatten { 0 } else { shape.axis(c.op.attr_int("axis"))? as i64 };
    if flatten && shape.rank() != 1 {
        x = c.reshape(x, &[-1])?;
    }
    let attributes = vec![
        ("axis", Attribute::Int(axis)),
        ("keepdims", Attribute::Int((keep || flatten).into())),
    ];
    let mut y = c.with(node, &[x], attributes);
    if flatten && keep && shape.rank() > 1 {
        y = c.reshape(y, &vec![1; shape.rank()])?;
    }
    c.set("Out", y)
}

fn top_k(c: &mut Context<'_, '_>) -> Result<()> {
    let (x, shape) = (c.x("X")?, c.shape("X")?);
    let axis = shape.axis(c.op.attr_int("axis"))? as i64;
    let count = c.op.attr_int("k");
    let count = c.ints(&[count])?;
    let attributes = vec![
        ("axis", Attribute::Int(axis)),
        ("largest", Attribute::Int(c.op.attr_bool("largest").into())),
        ("sorted", Attribute::Int(1)),
    ];
    let made = c.many("TopK", &[x, count], attributes, 2);
    c.set("Out", made[0])?;
    c.set("Indices", made[1])
}

fn cumsum(c: &mut Context<'_, '_>) -> Result<()> {
    let (x, shape) = (c.x("X")?, c.shape("X")?);
    let axis = c.int(shape.axis(c.op.attr_int("axis"))? as i64)?;
    let flag = |name: &'static str| (name, Attribute::Int(c.op.attr_bool(name).into()));
    let attributes = vec![flag("exclusive"), flag("reverse")];
    let y = c.with("CumSum", &[x, axis], attributes);
    c.set("Out", y)
}

/// `X min(1, max_norm / norm)`.
fn clip_by_norm(c: &mut Context<'_, '_>) -> Result<()> {
    let (x, dtype, max) = (c.x("X")?, c.dtype("X")?, c.op.attr_float("max_norm"));
    let norm = c.reduce("ReduceL2", x, &[], false)?;
    let max = c.scalar(dtype, max)?;
    let divisor = c.node("Max", &[norm, max]);
    let share = c.div(max, divisor);
    let y = c.mul(x, share);
    c.set("Out", y)
}

fn global_norm_scale(c: &mut Context<'_, '_>) -> Result<()> {
    let squares = c.all("X")?;
    let total = c.node("Sum", &squares);
    let total = c.reshape(total, &[1])?;
    let norm = c.node("Sqrt", &[total]);
    let max = c.op.attr_float("clip_norm");
    let max = c.filled(DType::F32, &[1], max)?;
    let divisor = c.node("Max", &[norm, max]);
    let share = c.div(max, divisor);
    c.set("Out", share)?;
    c.set("Norm", norm)
}

/// The share of rows whose label is among the indices.
fn accuracy(c: &mut Context<'_, '_>) -> Result<()> {
    let (indices, label) = (c.x("Indices")?, c.x("Label")?);
    let wide = c.dtype("Label")? == DType::I64;
    let label = if wide { label } else { c.cast(label, DType::I64) };
    let label = c.reshape(label, &[-1, 1])?;
    let hits = c.node("Equal", &[indices, label]);
    let hits = c.cast(hits, DType::I32);
    let correct = whole(c, "ReduceSum", hits)?;
    let total = c.sizes(indices, 0..1);
    let total = c.cast(total, DType::I32);
    let one = c.filled(DType::I32, &[1], 1.0)?;
    let divisor = c.node("Max", &[total, one]);
    let (share, divisor) = (c.cast(correct, DType::F32), c.cast(divisor, DType::F32));
    let share = c.div(share, divisor);
    c.set("Accuracy", share)?;
    c.set("Correct", correct)?;
    c.set("Total", total)
}
