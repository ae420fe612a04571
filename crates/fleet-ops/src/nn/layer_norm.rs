//! Layer normalization: `Y = (X - mean) / sqrt(variance + epsilon) * Scale + Bias` over the
//! dimensions from `begin_norm_axis` on. X may have half precision; the rest is f32. Mean and
//! Variance (the inverse standard deviation) have one number per row.
//!
//! With Residual, X + Residual is normalized and also written to Sum, so the residual addition
//! before a norm takes no extra pass. The gradient op then takes Skip, the gradient from other
//! consumers of Sum, and adds it to X@GRAD. A fusion pass makes these forms. Both are
//! differentiable.

use crate::prelude::*;
use crate::rules::{grads_like, set_requested};
use crate::widen::{FLOATS, any_float};
use fleet_kernels::layer_norm::{
    LayerNorm, Residual, layer_norm, layer_norm_grad, layer_norm_grad_scratch_len,
};

const X: usize = 0;
const SCALE: usize = 1;
const BIAS: usize = 2;
const RESIDUAL: usize = 3;
// Slots of the gradient op.
const MEAN: usize = 2;
const INV_STD: usize = 3;
const DY: usize = 4;
const SKIP: usize = 5;

pub static DEF: OpDef = OpDef {
    spec: OpSpec {
        name: "layer_norm",
        inputs: &[one("X"), optional("Scale"), optional("Bias"), optional("Residual")],
        outputs: &[one("Y"), one("Mean"), one("Variance"), optional("Sum")],
        attrs: &[attr("epsilon", Float(1e-5)), attr("begin_norm_axis", Int(1))],
    },
    infer: |i| {
        let (x, begin) = check(i)?;
        let width = width(&x, begin);
        i.check_dtype("Bias", &[DType::F32])?;
        if i.optional("Bias").is_some() {
            check_width(i, "Bias", width)?;
        }
        let dtype = i.input("X")?.dtype;
        i.set("Y", dtype, x);
        let rows = product(&x[..begin]);
        i.set("Mean", DType::F32, [rows]);
        i.set("Variance", DType::F32, [rows]);
        if i.optional("Residual").is_some() {
            i.check_dtype("Residual", &[dtype])?;
            i.check_shape("Residual", x)?;
            i.set("Sum", dtype, x);
        }
        Ok(())
    },
    grad: Grad::OpRule(&GRAD, rule),
    cpu: |p| any_float(p, cpu),
    traits: OpTraits { wide: &["Scale", "Bias"], cost, divide, ..OpTraits::amp(AmpClass::Black) },
};

pub static GRAD: OpDef = OpDef {
    spec: OpSpec {
        name: "layer_norm_grad",
        inputs: &[
            one("X"),
            optional("Scale"),
            one("Mean"),
            one("Variance"),
            one("Y@GRAD"),
            optional("Skip"),
        ],
        outputs: &[optional("X@GRAD"), optional("Scale@GRAD"), optional("Bias@GRAD")],
        attrs: &[attr("epsilon", Float(1e-5)), attr("begin_norm_axis", Int(1))],
    },
    infer: |i| {
        let (x, begin) = check(i)?;
        if i.optional("Skip").is_some() {
            i.check_dtype("Skip", FLOATS)?;
            i.check_shape("Skip", x)?;
        }
        let width = width(&x, begin);
        let scale = i.optional("Scale").map_or([width].into(), |scale| scale.shape);
        set_requested(i, "Scale@GRAD", DType::F32, scale);
        set_requested(i, "Bias@GRAD", DType::F32, [width]);
        grads_like(i, &["X"])
    },
    grad: Grad::None,
    cpu: |p| any_float(p, cpu_grad),
    traits: OpTraits {
        inplace: &[("X@GRAD", "Y@GRAD"), ("X@GRAD", "X"), ("X@GRAD", "Skip")],
        cost: cost_grad,
        ..OpTraits::amp(AmpClass::Black)
    },
};

/// Rows may be divided, but not the numbers of a row.
fn divide(d: &mut Divide<'_>) -> Result<()> {
    let begin = d.op.attr_int("begin_norm_axis");
    let along = d.along("X").filter(|along| (along.axis as i64) < begin);
    let Some(along) = along.filter(|_| !d.has("Residual")) else {
        return Err(d.unsupported("normalizes whole rows only"));
    };
    d.set_part("Y", along)?;
    // One number for each row.
    d.set_part("Mean", Along::axis(0))?;
    d.set_part("Variance", Along::axis(0))
}

/// Checks X, and returns its shape and the first normalized axis.
fn check(i: &InferCtx<'_>) -> Result<(Shape, usize)> {
    i.check_dtype("X", FLOATS)?;
    i.check_dtype("Scale", &[DType::F32])?;
    let x = i.input("X")?.shape;
    let begin = x.axis(i.op.attr_int("begin_norm_axis"))?;
    if i.optional("Scale").is_some() {
        check_width(i, "Scale", width(&x, begin))?;
    }
    Ok((x, begin))
}

fn check_width(i: &InferCtx<'_>, slot: &str, width: i64) -> Result<()> {
    let found = i.input(slot)?.shape;
    match found.numel() {
        Some(numel) if width >= 0 && numel as i64 != width => Err(i
            .error(slot, "does not have one number per normalized element")
            .expected(width)
            .got(found)),
        _ => Ok(()),
    }
}

fn width(x: &Shape, begin: usize) -> i64 {
    product(&x[begin..])
}

fn product(dims: &[i64]) -> i64 {
    if dims.iter().any(|dim| *dim < 0) {
        return -1;
    }
    // Saturates, because a program may declare sizes that exceed any memory.
    dims.iter().fold(1, |product: i64, dim| product.saturating_mul(*dim))
}

fn rule(g: &mut GradCtx<'_, '_>, def: &'static OpDef) -> Result<()> {
    let (x, scale) = (g.x("X")?, g.maybe_x("Scale"));
    let normalised = g.maybe_y("Sum").unwrap_or(x);
    let (mean, inv_std) = (g.y("Mean")?, g.y("Variance")?);
    let (epsilon, begin) = (g.op.attr_float("epsilon"), g.op.attr_int("begin_norm_axis"));
    let (dy, skip) = (g.maybe_dy("Y"), g.maybe_dy("Sum"));
    let residual = g.maybe_x("Residual");
    let Some(dy) = dy else {
        // Only the sum has consumers, so its gradient passes through.
        let skip = match skip {
            Some(skip) => skip,
            None => g.dy("Y")?,
        };
        for var in [Some(x), residual].into_iter().flatten() {
            g.alias_grad(var, skip);
        }
        return Ok(());
    };
    let wants_sum = g.wants("X") || g.wants("Residual");
    let dx = match wants_sum {
        true if g.wants("X") => g.dx("X")?,
        true => g.dx("Residual")?,
        false => None,
    };
    if let (Some(dx), Some(residual), true) = (dx, residual, g.wants("X")) {
        g.alias_grad(residual, dx);
    }
    let (dscale, dbias) = (g.dx("Scale")?, g.dx("Bias")?);
    if dx.is_none() && dscale.is_none() && dbias.is_none() {
        return Ok(());
    }
    g.op(def)
        .input("X", normalised)
        .maybe("Scale", scale)
        .input("Mean", mean)
        .input("Variance", inv_std)
        .input("Y@GRAD", dy)
        .maybe("Skip", skip)
        .attr("epsilon", epsilon)
        .attr("begin_norm_axis", begin)
        .maybe_output("X@GRAD", dx)
        .maybe_output("Scale@GRAD", dscale)
        .maybe_output("Bias@GRAD", dbias)
        .done()?;
    Ok(())
}

/// Returns the number of rows and their length.
fn sizes(p: &PrepareCtx<'_>) -> Result<(usize, usize)> {
    let x = p.input("X").shape;
    let begin = x.axis(p.op.attr_int("begin_norm_axis"))?;
    Ok((x.product(0..begin), x.product(begin..x.rank())))
}

fn cpu(p: &PrepareCtx<'_>) -> Result<Kernel> {
    let (rows, len) = sizes(p)?;
    let epsilon = p.op.attr_float("epsilon") as f32;
    // The kernel always writes the sum, so it needs memory even if the sum is not requested.
    let has_residual = p.optional("Residual").is_some();
    let spare = if has_residual && p.optional_output("Sum").is_none() { rows * len } else { 0 };
    Ok(Kernel::infallible(move |k| {
        let (y, mean, inv_std) = (k.output(0), k.output(1), k.output(2));
        if len == 0 {
            mean.fill(0.0);
            inv_std.fill(0.0);
        }
        if rows * len == 0 {
            return;
        }
        let norm = LayerNorm { len, epsilon, gamma: k.optional(SCALE), beta: k.optional(BIAS) };
        let sum = || k.optional_output(3).unwrap_or_else(|| k.scratch());
        let residual = k.optional(RESIDUAL).map(|addend| Residual { addend, sum: sum() });
        layer_norm(k.pool, norm, k.input(X), residual, y, mean, inv_std);
    })
    .scratch::<f32>(spare))
}

fn cpu_grad(p: &PrepareCtx<'_>) -> Result<Kernel> {
    let (rows, len) = sizes(p)?;
    let epsilon = p.op.attr_float("epsilon") as f32;
    let own = layer_norm_grad_scratch_len(rows, len);
    // The kernel always writes all gradients, so those that are not requested need memory too.
    let spare = if p.optional_output("X@GRAD").is_some() { 0 } else { rows * len };
    Ok(Kernel::infallible(move |k| {
        let (scratch, rest) = k.scratch::<f32>().split_at_mut(own);
        let (spare_gamma, rest) = rest.split_at_mut(len);
        let (spare_beta, rest) = rest.split_at_mut(len);
        let dgamma = k.optional_output(1).unwrap_or(spare_gamma);
        let dbeta = k.optional_output(2).unwrap_or(spare_beta);
        if rows * len == 0 {
            dgamma.fill(0.0);
            dbeta.fill(0.0);
            return;
        }
        let norm = LayerNorm { len, epsilon, gamma: k.optional(SCALE), beta: None };
        let read = |slot: usize| match k.has_output(0) {
            true => k.input_or_output::<f32>(slot, 0),
            false => Input::Separate(k.input(slot)),
        };
        let skip = k.has_input(SKIP).then(|| read(SKIP));
        let (x, dy, mean, inv_std) = (read(X), read(DY), k.input(MEAN), k.input(INV_STD));
        let dx = k.optional_output(0).unwrap_or(&mut rest[..spare]);
        layer_norm_grad(k.pool, norm, x, mean, inv_std, dy, skip, dx, dgamma, dbeta, scratch);
    })
    .scratch::<f32>(own + 2 * len + spare))
}

fn cost(c: &CostCtx<'_>) -> Cost {
    Cost { flops: 8.0 * c.input("X").map_or(0, Meta::numel) as f64, bytes: c.bytes() }
}

fn cost_grad(c: &CostCtx<'_>) -> Cost {
    Cost { flops: 14.0 * c.input("X").map_or(0, Meta::numel) as f64, bytes: c.bytes() }
}
