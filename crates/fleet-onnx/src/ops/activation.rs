//! Functions of one element.

use super::Translate;
use crate::context::Context;
use crate::graph::{Attribute, Value};
use fleet_base::Result;
use fleet_tensor::DType;
use std::f64::consts::{FRAC_1_SQRT_2, PI};

pub(super) const RULES: &[(&str, Translate)] = &[
    ("abs", |c| plain(c, "Abs")),
    ("ceil", |c| rounded(c, "Ceil")),
    ("clip", clip),
    ("cos", |c| plain(c, "Cos")),
    ("dropout", dropout),
    ("elu", |c| with_alpha(c, "Elu")),
    ("erf", |c| plain(c, "Erf")),
    ("exp", |c| plain(c, "Exp")),
    ("floor", |c| rounded(c, "Floor")),
    ("gelu", |c| {
        let tanh = c.op.attr_bool("approximate");
        let dtype = c.dtype("X")?;
        unary(c, |c, x| if tanh { gelu_tanh(c, x, dtype) } else { gelu(c, x, dtype) })
    }),
    ("hard_sigmoid", hard_sigmoid),
    ("hard_swish", hard_swish),
    ("leaky_relu", |c| with_alpha(c, "LeakyRelu")),
    ("log", |c| plain(c, "Log")),
    ("logsigmoid", |c| {
        unary(c, |c, x| {
            let x = c.node("Neg", &[x]);
            let y = c.node("Softplus", &[x]);
            Ok(c.node("Neg", &[y]))
        })
    }),
    ("pow", |c| {
        let exponent = c.op.attr_float("factor");
        unary(c, |c, x| {
            let dtype = c.dtype("X")?;
            let exponent = c.scalar(dtype, exponent)?;
            Ok(c.node("Pow", &[x, exponent]))
        })
    }),
    ("reciprocal", |c| plain(c, "Reciprocal")),
    ("relu", |c| unary(c, |c, x| clipped(c, x, 0.0, f64::INFINITY))),
    ("relu6", |c| unary(c, |c, x| clipped(c, x, 0.0, 6.0))),
    ("round", round),
    ("rsqrt", |c| {
        unary(c, |c, x| {
            let root = c.node("Sqrt", &[x]);
            Ok(c.node("Reciprocal", &[root]))
        })
    }),
    ("selu", |c| {
        let (scale, alpha) = (c.op.attr_float("scale"), c.op.attr_float("alpha"));
        let attributes =
            vec![("alpha", Attribute::Float(alpha)), ("gamma", Attribute::Float(scale))];
        unary(c, |c, x| Ok(c.with("Selu", &[x], attributes)))
    }),
    ("sigmoid", |c| plain(c, "Sigmoid")),
    ("sign", |c| plain(c, "Sign")),
    ("silu", |c| unary(c, |c, x| swish(c, x, 1.0))),
    ("sin", |c| plain(c, "Sin")),
    ("softplus", softplus),
    ("softsign", |c| plain(c, "Softsign")),
    ("sqrt", |c| plain(c, "Sqrt")),
    ("square", |c| unary(c, |c, x| Ok(c.mul(x, x)))),
    ("swish", |c| {
        let beta = c.op.attr_float("beta");
        unary(c, |c, x| swish(c, x, beta))
    }),
    ("tanh", |c| plain(c, "Tanh")),
];

/// Writes `Out = f(X)`.
fn unary(
    c: &mut Context<'_, '_>,
    f: impl FnOnce(&mut Context<'_, '_>, Value) -> Result<Value>,
) -> Result<()> {
    let x = c.x("X")?;
    let y = f(c, x)?;
    c.set("Out", y)
}

fn plain(c: &mut Context<'_, '_>, node: &'static str) -> Result<()> {
    unary(c, |c, x| Ok(c.node(node, &[x])))
}

fn with_alpha(c: &mut Context<'_, '_>, node: &'static str) -> Result<()> {
    let alpha = Attribute::Float(c.op.attr_float("alpha"));
    unary(c, |c, x| Ok(c.with(node, &[x], vec![("alpha", alpha)])))
}

/// The activation of a fused op, by name; "" for none. The input of a slot has the type of `x`.
pub(super) fn activation(
    c: &mut Context<'_, '_>,
    name: &str,
    slot: &str,
    x: Value,
) -> Result<Value> {
    let dtype = c.dtype(slot)?;
    match name {
        "relu" => Ok(c.node("Relu", &[x])),
        "relu6" => {
            let (low, high) = (c.scalar(dtype, 0.0)?, c.scalar(dtype, 6.0)?);
            Ok(c.node("Clip", &[x, low, high]))
        }
        "sigmoid" => Ok(c.node("Sigmoid", &[x])),
        "tanh" => Ok(c.node("Tanh", &[x])),
        "gelu" => gelu(c, x, dtype),
        "" | "identity" => Ok(x),
        other => Err(fleet_base::Error::unsupported("unknown activation")
            .got(format!("'{other}' of {}", c.op.name()))),
    }
}

/// `x Φ(x)`.
fn gelu(c: &mut Context<'_, '_>, x: Value, dtype: DType) -> Result<Value> {
    if c.since(20) {
        return Ok(c.node("Gelu", &[x]));
    }
    let scale = c.scalar(dtype, FRAC_1_SQRT_2)?;
    let scaled = c.mul(x, scale);
    let erf = c.node("Erf", &[scaled]);
    let (one, half) = (c.scalar(dtype, 1.0)?, c.scalar(dtype, 0.5)?);
    let share = c.add(erf, one);
    let product = c.mul(x, share);
    Ok(c.mul(product, half))
}

/// `x/2 (1 + tanh(√(2/π) (x + 0.044715 x³)))`.
fn gelu_tanh(c: &mut Context<'_, '_>, x: Value, dtype: DType) -> Result<Value> {
    if c.since(20) {
        return Ok(c.with("Gelu", &[x], vec![("approximate", Attribute::Str("tanh"))]));
    }
    let square = c.mul(x, x);
    let cube = c.mul(square, x);
    let factor = c.scalar(dtype, 0.044_715)?;
    let cube = c.mul(cube, factor);
    let sum = c.add(x, cube);
    let factor = c.scalar(dtype, (2.0 / PI).sqrt())?;
    let inner = c.mul(sum, factor);
    let tanh = c.node("Tanh", &[inner]);
    let (one, half) = (c.scalar(dtype, 1.0)?, c.scalar(dtype, 0.5)?);
    let share = c.add(tanh, one);
    let product = c.mul(x, share);
    Ok(c.mul(product, half))
}

fn swish(c: &mut Context<'_, '_>, x: Value, beta: f64) -> Result<Value> {
    let (mut scaled, dtype) = (x, c.dtype("X")?);
    if beta != 1.0 {
        let beta = c.scalar(dtype, beta)?;
        scaled = c.mul(x, beta);
    }
    let gate = c.node("Sigmoid", &[scaled]);
    Ok(c.mul(x, gate))
}

/// Limits a value; integers to the whole numbers between the bounds.
fn clipped(c: &mut Context<'_, '_>, x: Value, low: f64, high: f64) -> Result<Value> {
    let dtype = c.dtype("X")?;
    if low == 0.0 && high == f64::INFINITY && dtype.is_float() {
        return Ok(c.node("Relu", &[x]));
    }
    let (low, high) = match dtype.is_float() {
        true => (low, high),
        false => (low.ceil(), high.floor()),
    };
    let mut bounds = [Value::NONE; 2];
    for (bound, limit) in bounds.iter_mut().zip([low, high]) {
        // The defaults of the op are the largest numbers: no limit.
        if limit.abs() < f64::MAX {
            *bound = c.scalar(dtype, limit)?;
        }
    }
    Ok(c.node("Clip", &[x, bounds[0], bounds[1]]))
}

fn clip(c: &mut Context<'_, '_>) -> Result<()> {
    let (low, high) = (c.op.attr_float("min"), c.op.attr_float("max"));
    unary(c, |c, x| clipped(c, x, low, high))
}

/// Changes nothing, or multiplies by the probability of an element to stay.
fn dropout(c: &mut Context<'_, '_>) -> Result<()> {
    let keeps = c.op.attr_str("dropout_implementation") == "upscale_in_train";
    let probability = c.op.attr_float("dropout_prob");
    unary(c, |c, x| {
        if keeps {
            return Ok(x);
        }
        let dtype = c.dtype("X")?;
        let share = c.scalar(dtype, 1.0 - probability)?;
        Ok(c.mul(x, share))
    })
}

fn rounded(c: &mut Context<'_, '_>, node: &'static str) -> Result<()> {
    let dtype = c.dtype("X")?;
    unary(c, |c, x| Ok(if dtype.is_float() { c.node(node, &[x]) } else { x }))
}

/// Rounds halves away from zero; the op of ONNX rounds them to even.
fn round(c: &mut Context<'_, '_>) -> Result<()> {
    let dtype = c.dtype("X")?;
    unary(c, |c, x| {
        if !dtype.is_float() {
            return Ok(x);
        }
        let size = c.node("Abs", &[x]);
        let whole = c.node("Floor", &[size]);
        let rest = c.sub(size, whole);
        let half = c.scalar(dtype, 0.5)?;
        let up = c.node("GreaterOrEqual", &[rest, half]);
        let up = c.cast(up, dtype);
        let size = c.add(whole, up);
        let sign = c.node("Sign", &[x]);
        Ok(c.mul(sign, size))
    })
}

fn hard_sigmoid(c: &mut Context<'_, '_>) -> Result<()> {
    let attributes = vec![
        ("alpha", Attribute::Float(c.op.attr_float("slope"))),
        ("beta", Attribute::Float(c.op.attr_float("offset"))),
    ];
    unary(c, |c, x| Ok(c.with("HardSigmoid", &[x], attributes)))
}

/// `x min(max(x + offset, 0), threshold) / scale`.
fn hard_swish(c: &mut Context<'_, '_>) -> Result<()> {
    let number = |name: &str| c.op.attr_float(name);
    let (threshold, scale, offset) = (number("threshold"), number("scale"), number("offset"));
    unary(c, |c, x| {
        let dtype = c.dtype("X")?;
        let offset = c.scalar(dtype, offset)?;
        let line = c.add(x, offset);
        let (low, high) = (c.scalar(dtype, 0.0)?, c.scalar(dtype, threshold)?);
        let gate = c.node("Clip", &[line, low, high]);
        let product = c.mul(x, gate);
        let factor = c.scalar(dtype, 1.0 / scale)?;
        Ok(c.mul(product, factor))
    })
}

/// `ln(1 + exp(beta x)) / beta`, or x where `beta x` is above the threshold.
fn softplus(c: &mut Context<'_, '_>) -> Result<()> {
    let (beta, threshold) = (c.op.attr_float("beta"), c.op.attr_float("threshold"));
    unary(c, |c, x| {
        let dtype = c.dtype("X")?;
        let (beta, threshold) = (c.scalar(dtype, beta)?, c.scalar(dtype, threshold)?);
        let scaled = c.mul(x, beta);
        let curve = c.node("Softplus", &[scaled]);
        let curve = c.div(curve, beta);
        let is_line = c.node("Greater", &[scaled, threshold]);
        Ok(c.node("Where", &[is_line, x, curve]))
    })
}
