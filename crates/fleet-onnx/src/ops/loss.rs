//! Losses.

use super::Translate;
use super::reduce::whole;
use crate::context::Context;
use crate::graph::{Attribute, Value};
use fleet_base::{Error, Result};
use fleet_tensor::DType;

pub(super) const RULES: &[(&str, Translate)] = &[
    ("cross_entropy", cross_entropy),
    ("huber_loss", huber),
    ("kldiv_loss", kldiv),
    ("label_smooth", label_smooth),
    ("log_loss", log_loss),
    ("nll_loss", nll),
    ("sigmoid_cross_entropy_with_logits", sigmoid_cross_entropy),
    ("smooth_l1_loss", smooth_l1),
    ("softmax_with_cross_entropy", softmax_with_cross_entropy),
    ("square_error_cost", |c| {
        let (x, y) = (c.x("X")?, c.x("Y")?);
        let d = c.sub(x, y);
        let square = c.mul(d, d);
        c.set("Out", square)
    }),
];

fn number(c: &mut Context<'_, '_>, value: f64) -> Result<Value> {
    c.scalar(DType::F32, value)
}

/// Class numbers of a slot: with the axis of the classes, i64, and 0 in place of ignored ones; and
/// which of them are ignored.
struct Labels {
    safe: Value,
    is_ignored: Value,
}

fn labels(c: &mut Context<'_, '_>, axis: usize, rank: usize) -> Result<Labels> {
    let mut label = super::index::wide(c, "Label")?;
    if c.shape("Label")?.rank() < rank {
        label = c.unsqueeze(label, &[axis as i64])?;
    }
    let ignore = c.op.attr_int("ignore_index");
    let (ignore, zero) = (c.int(ignore)?, c.int(0)?);
    let is_ignored = c.node("Equal", &[label, ignore]);
    let safe = c.node("Where", &[is_ignored, zero, label]);
    Ok(Labels { safe, is_ignored })
}

/// Returns minus the log-probabilities of the labels, 0 for ignored ones; or minus their mean under
/// soft labels.
fn negative_log(
    c: &mut Context<'_, '_>,
    logs: Value,
    dtype: DType,
    (axis, rank): (usize, usize),
) -> Result<Value> {
    if c.op.attr_bool("soft_label") {
        let label = c.x("Label")?;
        let terms = c.mul(label, logs);
        let total = c.reduce("ReduceSum", terms, &[axis as i64], true)?;
        return Ok(c.node("Neg", &[total]));
    }
    let Labels { safe, is_ignored } = labels(c, axis, rank)?;
    let attributes = vec![("axis", Attribute::Int(axis as i64))];
    let picked = c.with("GatherElements", &[logs, safe], attributes);
    let loss = c.node("Neg", &[picked]);
    let zero = c.scalar(dtype, 0.0)?;
    Ok(c.node("Where", &[is_ignored, zero, loss]))
}

fn softmax_with_cross_entropy(c: &mut Context<'_, '_>) -> Result<()> {
    let (logits, meta) = (c.x("Logits")?, c.meta("Logits")?);
    let axis = meta.shape.axis(c.op.attr_int("axis"))?;
    let along = || vec![("axis", Attribute::Int(axis as i64))];
    let softmax = c.with("Softmax", &[logits], along());
    c.set("Softmax", softmax)?;
    let logs = c.with("LogSoftmax", &[logits], along());
    let loss = negative_log(c, logs, meta.dtype, (axis, meta.shape.rank()))?;
    c.set("Loss", loss)
}

/// Logarithms are at least -1e20.
fn cross_entropy(c: &mut Context<'_, '_>) -> Result<()> {
    let (x, rank) = (c.x("X")?, c.shape("X")?.rank());
    let logs = c.node("Log", &[x]);
    let least = number(c, -1e20)?;
    let logs = c.node("Max", &[logs, least]);
    let loss = negative_log(c, logs, DType::F32, (rank - 1, rank))?;
    c.set("Y", loss)
}

fn nll(c: &mut Context<'_, '_>) -> Result<()> {
    let (x, rank) = (c.x("X")?, c.shape("X")?.rank());
    let Labels { safe, is_ignored } = labels(c, 1, rank)?;
    let attributes = vec![("axis", Attribute::Int(1))];
    let picked = c.with("GatherElements", &[x, safe], attributes);
    let (zero, one) = (number(c, 0.0)?, number(c, 1.0)?);
    let weight = match c.optional("Weight")? {
        Some(weight) => c.with("Gather", &[weight, safe], vec![("axis", Attribute::Int(0))]),
        None => one,
    };
    let weight = c.node("Where", &[is_ignored, zero, weight]);
    let terms = c.mul(weight, picked);
    let terms = c.node("Neg", &[terms]);
    let total = whole(c, "ReduceSum", weight)?;
    c.set("Total_weight", total)?;
    let out = match c.op.attr_str("reduction") {
        "none" => c.squeeze(terms, &[1])?,
        "sum" => whole(c, "ReduceSum", terms)?,
        _ => {
            let sum = whole(c, "ReduceSum", terms)?;
            let is_empty = c.node("Equal", &[total, zero]);
            let divisor = c.node("Where", &[is_empty, one, total]);
            c.div(sum, divisor)
        }
    };
    c.set("Out", out)
}

/// `max(x, 0) - x z + ln(1 + exp(-|x|))`.
fn sigmoid_cross_entropy(c: &mut Context<'_, '_>) -> Result<()> {
    let (x, z) = (c.x("X")?, c.x("Label")?);
    let positive = c.node("Relu", &[x]);
    let product = c.mul(x, z);
    let size = c.node("Abs", &[x]);
    let below = c.node("Neg", &[size]);
    let curve = c.node("Softplus", &[below]);
    let line = c.sub(positive, product);
    let loss = c.add(line, curve);
    let (ignore, zero) = (c.op.attr_int("ignore_index") as f64, number(c, 0.0)?);
    let ignore = number(c, ignore)?;
    let is_ignored = c.node("Equal", &[z, ignore]);
    let mut loss = c.node("Where", &[is_ignored, zero, loss]);
    if c.op.attr_bool("normalize") {
        let one = number(c, 1.0)?;
        let counted = c.node("Not", &[is_ignored]);
        let counted = c.cast(counted, DType::F32);
        let count = c.reduce("ReduceSum", counted, &[], false)?;
        let count = c.node("Max", &[count, one]);
        loss = c.div(loss, count);
    }
    c.set("Out", loss)
}

fn huber(c: &mut Context<'_, '_>) -> Result<()> {
    let (x, y, delta) = (c.x("X")?, c.x("Y")?, c.op.attr_float("delta"));
    let d = c.sub(y, x);
    let size = c.node("Abs", &[d]);
    let (half, delta_half) = (number(c, 0.5)?, number(c, 0.5 * delta)?);
    let delta = number(c, delta)?;
    let square = c.mul(size, size);
    let square = c.mul(square, half);
    let line = c.sub(size, delta_half);
    let line = c.mul(line, delta);
    let is_near = c.node("LessOrEqual", &[size, delta]);
    let loss = c.node("Where", &[is_near, square, line]);
    c.set("Out", loss)
}

/// `Target (ln Target - X)`, 0 where Target is not positive.
fn kldiv(c: &mut Context<'_, '_>) -> Result<()> {
    let (x, target) = (c.x("X")?, c.x("Target")?);
    let log = c.node("Log", &[target]);
    let d = c.sub(log, x);
    let term = c.mul(target, d);
    let zero = number(c, 0.0)?;
    let is_positive = c.node("Greater", &[target, zero]);
    let term = c.node("Where", &[is_positive, term, zero]);
    let loss = match c.op.attr_str("reduction") {
        "none" => term,
        "sum" => whole(c, "ReduceSum", term)?,
        "mean" => whole(c, "ReduceMean", term)?,
        _ => {
            let sum = whole(c, "ReduceSum", term)?;
            let count = c.sizes(x, 0..1);
            let count = c.cast(count, DType::F32);
            c.div(sum, count)
        }
    };
    c.set("Loss", loss)
}

fn label_smooth(c: &mut Context<'_, '_>) -> Result<()> {
    let (x, shape, epsilon) = (c.x("X")?, c.shape("X")?, c.op.attr_float("epsilon"));
    let classes = shape[shape.rank() - 1];
    let keep = number(c, 1.0 - epsilon)?;
    let kept = c.mul(x, keep);
    let added = match c.optional("PriorDist")? {
        Some(prior) => {
            let (prior, share) = (c.reshape(prior, &[-1])?, number(c, epsilon)?);
            c.mul(prior, share)
        }
        None if classes > 0 => number(c, epsilon / classes as f64)?,
        None => {
            return Err(Error::unsupported("label_smooth of an unknown number of classes")
                .help("declare the last dimension of the input"));
        }
    };
    let y = c.add(kept, added);
    c.set("Out", y)
}

/// `-y ln(p + epsilon) - (1 - y) ln(1 - p + epsilon)`.
fn log_loss(c: &mut Context<'_, '_>) -> Result<()> {
    let (p, y, epsilon) = (c.x("Predicted")?, c.x("Labels")?, c.op.attr_float("epsilon"));
    let (one, epsilon) = (number(c, 1.0)?, number(c, epsilon)?);
    let term = |c: &mut Context<'_, '_>, p: Value, y: Value| {
        let p = c.add(p, epsilon);
        let log = c.node("Log", &[p]);
        c.mul(y, log)
    };
    let hit = term(c, p, y);
    let (rest_p, rest_y) = (c.sub(one, p), c.sub(one, y));
    let miss = term(c, rest_p, rest_y);
    let sum = c.add(hit, miss);
    let loss = c.node("Neg", &[sum]);
    c.set("Loss", loss)
}

fn smooth_l1(c: &mut Context<'_, '_>) -> Result<()> {
    let (x, y) = (c.x("X")?, c.x("Y")?);
    let square = c.op.attr_float("sigma").powi(2);
    let mut d = c.sub(x, y);
    if let Some(weight) = c.optional("InsideWeight")? {
        d = c.mul(weight, d);
    }
    c.set("Diff", d)?;
    let size = c.node("Abs", &[d]);
    let (edge, half) = (number(c, 1.0 / square)?, number(c, 0.5 * square)?);
    let offset = number(c, 0.5 / square)?;
    let near = c.mul(size, size);
    let near = c.mul(near, half);
    let far = c.sub(size, offset);
    let is_near = c.node("Less", &[size, edge]);
    let mut loss = c.node("Where", &[is_near, near, far]);
    if let Some(weight) = c.optional("OutsideWeight")? {
        loss = c.mul(weight, loss);
    }
    let rows = c.with("Flatten", &[loss], vec![("axis", Attribute::Int(1))]);
    let total = c.reduce("ReduceSum", rows, &[1], true)?;
    c.set("Out", total)
}
