//! Ops of several operands, element by element: arithmetic, comparisons, logic, conversions.

use super::Translate;
use super::activation::activation;
use crate::context::Context;
use crate::graph::Value;
use fleet_base::{Error, Result};
use fleet_tensor::{DType, Shape};

pub(super) const RULES: &[(&str, Translate)] = &[
    ("assign", |c| {
        let x = c.x("X")?;
        c.set("Out", x)
    }),
    ("cast", |c| {
        let (x, dtype) = (c.x("X")?, c.op.attr_dtype("out_dtype"));
        let y = if c.dtype("X")? == dtype { x } else { c.cast(x, dtype) };
        c.set("Out", y)
    }),
    ("elementwise_add", |c| binary(c, "Add")),
    ("elementwise_div", |c| {
        // Integers are divided towards zero by both.
        binary(c, "Div")
    }),
    ("elementwise_floordiv", floor_div),
    ("elementwise_max", |c| binary(c, "Max")),
    ("elementwise_min", |c| binary(c, "Min")),
    ("elementwise_mod", modulo),
    ("elementwise_mul", |c| binary(c, "Mul")),
    ("elementwise_pow", |c| binary(c, "Pow")),
    ("elementwise_sub", |c| binary(c, "Sub")),
    ("equal", |c| compare(c, "Equal")),
    ("fused_elemwise_activation", fused),
    ("greater_equal", |c| compare(c, "GreaterOrEqual")),
    ("greater_than", |c| compare(c, "Greater")),
    ("increment", |c| {
        let (x, dtype, step) = (c.x("X")?, c.dtype("X")?, c.op.attr_float("step"));
        let step = c.scalar(dtype, step)?;
        let y = c.add(x, step);
        c.set("Out", y)
    }),
    ("isfinite_v2", is_finite),
    ("less_equal", |c| compare(c, "LessOrEqual")),
    ("less_than", |c| compare(c, "Less")),
    ("logical_and", |c| binary(c, "And")),
    ("logical_not", |c| {
        let x = c.x("X")?;
        let y = c.node("Not", &[x]);
        c.set("Out", y)
    }),
    ("logical_or", |c| binary(c, "Or")),
    ("logical_xor", |c| binary(c, "Xor")),
    ("not_equal", |c| {
        let [x, y] = operands(c)?;
        let same = c.node("Equal", &[x, y]);
        let differs = c.node("Not", &[same]);
        c.set("Out", differs)
    }),
    ("scale", scale),
    ("sum", sum),
    ("where", |c| {
        let inputs = [c.x("Condition")?, c.x("X")?, c.x("Y")?];
        let y = c.node("Where", &inputs);
        c.set("Out", y)
    }),
];

/// Returns X and Y, with dimensions of size 1 added so that they broadcast from the last one.
fn operands(c: &mut Context<'_, '_>) -> Result<[Value; 2]> {
    let (x, y) = (c.x("X")?, c.x("Y")?);
    let (from, to) = (c.shape("X")?, c.shape("Y")?);
    let axis = c.op.attr_int("axis");
    if to.rank() > from.rank() {
        let x = aligned(c, x, &from, &to, axis)?;
        return Ok([x, y]);
    }
    let y = aligned(c, y, &to, &from, axis)?;
    Ok([x, y])
}

/// Aligns the operand of lower rank at an axis of the other one.
fn aligned(
    c: &mut Context<'_, '_>,
    value: Value,
    own: &Shape,
    wide: &Shape,
    axis: i64,
) -> Result<Value> {
    let (rank, inner) = (wide.rank(), own.rank());
    if axis == -1 || rank == inner {
        return Ok(value);
    }
    let start = usize::try_from(axis).unwrap_or(0).min(rank);
    let mut value = value;
    let mut used = inner;
    // Trailing dimensions of size 1 may extend past the larger shape.
    if start + inner > rank {
        used = own.iter().rposition(|dim| *dim != 1).map_or(0, |last| last + 1);
        let extra: Vec<i64> = (used as i64..inner as i64).collect();
        if start + used > rank {
            return Err(Error::invalid(format!("shape {own} does not fit into {wide}")).at(axis));
        }
        value = c.squeeze(value, &extra)?;
    }
    let added: Vec<i64> = (used as i64..(rank - start) as i64).collect();
    if added.is_empty() { Ok(value) } else { c.unsqueeze(value, &added) }
}

fn binary(c: &mut Context<'_, '_>, node: &'static str) -> Result<()> {
    let inputs = operands(c)?;
    let y = c.node(node, &inputs);
    c.set("Out", y)
}

fn compare(c: &mut Context<'_, '_>, node: &'static str) -> Result<()> {
    let [mut x, mut y] = operands(c)?;
    // Runtimes order no bytes.
    if node != "Equal" && matches!(c.dtype("X")?, DType::Bool | DType::U8) {
        (x, y) = (c.cast(x, DType::I32), c.cast(y, DType::I32));
    }
    let holds = c.node(node, &[x, y]);
    c.set("Out", holds)
}

/// The quotient, rounded down.
fn floor_div(c: &mut Context<'_, '_>) -> Result<()> {
    let ([x, y], dtype) = (operands(c)?, c.dtype("X")?);
    let quotient = c.div(x, y);
    if dtype.is_float() {
        let floor = c.node("Floor", &[quotient]);
        return c.set("Out", floor);
    }
    // Division of integers rounds towards zero: one too high if the signs differ.
    let product = c.mul(quotient, y);
    let rest = c.sub(x, product);
    let zero = c.scalar(dtype, 0.0)?;
    let is_high = signs_differ(c, rest, y, zero);
    let one = c.cast(is_high, dtype);
    let floor = c.sub(quotient, one);
    c.set("Out", floor)
}

/// Whether the remainder of division towards zero is not zero and has another sign than the
/// divisor.
fn signs_differ(c: &mut Context<'_, '_>, rest: Value, divisor: Value, zero: Value) -> Value {
    let is_whole = c.node("Equal", &[rest, zero]);
    let is_below = c.node("Less", &[rest, zero]);
    let is_negative = c.node("Less", &[divisor, zero]);
    let differ = c.node("Xor", &[is_below, is_negative]);
    let has_rest = c.node("Not", &[is_whole]);
    c.node("And", &[differ, has_rest])
}

/// The remainder of floored division, with the sign of the divisor.
fn modulo(c: &mut Context<'_, '_>) -> Result<()> {
    let ([x, y], dtype) = (operands(c)?, c.dtype("X")?);
    if !dtype.is_float() {
        let rest = c.node("Mod", &[x, y]);
        return c.set("Out", rest);
    }
    let attributes = vec![("fmod", crate::graph::Attribute::Int(1))];
    let rest = c.with("Mod", &[x, y], attributes);
    let zero = c.scalar(dtype, 0.0)?;
    let is_low = signs_differ(c, rest, y, zero);
    let raised = c.add(rest, y);
    let y = c.node("Where", &[is_low, raised, rest]);
    c.set("Out", y)
}

fn fused(c: &mut Context<'_, '_>) -> Result<()> {
    let [x, y] = operands(c)?;
    let total = c.add(x, y);
    let name = c.op.attr_strs("functor_list").first().cloned().unwrap_or_default();
    let out = activation(c, &name, "X", total)?;
    c.set("Out", out)
}

/// Neither infinite nor NaN: the difference to itself is zero.
fn is_finite(c: &mut Context<'_, '_>) -> Result<()> {
    let (x, dtype) = (c.x("X")?, c.dtype("X")?);
    let x = if dtype.is_float() { x } else { c.cast(x, DType::F32) };
    let dtype = if dtype.is_float() { dtype } else { DType::F32 };
    let difference = c.sub(x, x);
    let zero = c.scalar(dtype, 0.0)?;
    let holds = c.node("Equal", &[difference, zero]);
    c.set("Out", holds)
}

fn scale(c: &mut Context<'_, '_>) -> Result<()> {
    let (x, own) = (c.x("X")?, c.dtype("X")?);
    let (scale, bias) = (c.op.attr_float("scale"), c.op.attr_float("bias"));
    let bias = if c.op.attr_bool("bias_after_scale") { bias } else { bias * scale };
    // Integers are scaled in f64.
    let dtype = if own.is_float() { own } else { DType::F64 };
    let mut y = if own.is_float() { x } else { c.cast(x, dtype) };
    if scale != 1.0 {
        let scale = c.scalar(dtype, scale)?;
        y = c.mul(y, scale);
    }
    if bias != 0.0 {
        let bias = c.scalar(dtype, bias)?;
        y = c.add(y, bias);
    }
    let y = if own == dtype { y } else { c.cast(y, own) };
    c.set("Out", y)
}

fn sum(c: &mut Context<'_, '_>) -> Result<()> {
    for var in c.op.input("X") {
        c.check_dense(*var)?;
    }
    let mut parts = c.all("X")?.into_iter();
    let first = parts.next().ok_or_else(|| Error::invalid("missing input 'X' of 'sum'"))?;
    let total = parts.fold(first, |total, part| c.add(total, part));
    c.set("Out", total)
}
