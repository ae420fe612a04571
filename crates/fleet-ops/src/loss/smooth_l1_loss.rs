//! Smooth L1 loss of predictions X and labels Y, one number per row. With `s = sigma^2` and
//! `d = InsideWeight * (X - Y)`, it is the sum over a row of
//! `OutsideWeight * (|d| < 1/s ? s * d^2 / 2 : |d| - 1/(2 s))`; f32.
//!
//! Diff holds `d` for the gradient. No gradient flows to the weights.

use super::pointwise::{check_pair, fill};
use crate::prelude::*;
use crate::rules::grads_like;

const X: usize = 0;
const Y: usize = 1;
const INSIDE: usize = 2;
const OUTSIDE: usize = 3;

pub static DEF: OpDef = OpDef {
    spec: OpSpec {
        name: "smooth_l1_loss",
        inputs: &[one("X"), one("Y"), optional("InsideWeight"), optional("OutsideWeight")],
        outputs: &[one("Diff"), one("Out")],
        attrs: &[attr("sigma", Float(1.0))],
    },
    infer: |i| {
        check_pair(i, "X", "Y")?;
        let x = i.input("X")?.shape;
        if x.rank() == 0 {
            return Err(i.error("X", "has no rows").expected("[N, ...]").got(x));
        }
        for slot in ["InsideWeight", "OutsideWeight"] {
            if i.optional(slot).is_some() {
                check_pair(i, "X", slot)?;
            }
        }
        i.set("Diff", DType::F32, x);
        i.set("Out", DType::F32, [x[0], 1]);
        Ok(())
    },
    grad: Grad::Op(&GRAD),
    cpu: |p| {
        let (square, width) = prepare(p);
        Ok(Kernel::infallible(move |k| {
            let (x, y) = (k.input::<f32>(X), k.input::<f32>(Y));
            let inside = k.optional::<f32>(INSIDE);
            let outside = k.optional::<f32>(OUTSIDE);
            let diff = k.output::<f32>(0);
            fill(k.pool, diff, |i| inside.map_or(1.0, |weight| weight[i]) * (x[i] - y[i]));
            let diff = &*diff;
            fill(k.pool, k.output(1), |row| {
                let loss = |i: usize| {
                    let size = diff[i].abs();
                    let loss = match size < 1.0 / square {
                        true => 0.5 * square * size * size,
                        false => size - 0.5 / square,
                    };
                    outside.map_or(1.0, |weight| weight[i]) * loss
                };
                (row * width..(row + 1) * width).map(loss).sum()
            });
        }))
    },
    traits: OpTraits::plain(),
};

pub static GRAD: OpDef = OpDef {
    spec: OpSpec {
        name: "smooth_l1_loss_grad",
        inputs: &[
            one("X"),
            one("Y"),
            optional("InsideWeight"),
            optional("OutsideWeight"),
            one("Diff"),
            one("Out@GRAD"),
        ],
        outputs: &[optional("X@GRAD"), optional("Y@GRAD")],
        attrs: &[attr("sigma", Float(1.0))],
    },
    infer: |i| {
        check_pair(i, "X", "Y")?;
        grads_like(i, &["X", "Y"])
    },
    grad: Grad::None,
    cpu: |p| {
        let (square, width) = prepare(p);
        Ok(Kernel::infallible(move |k| {
            let inside = k.optional::<f32>(INSIDE);
            let outside = k.optional::<f32>(OUTSIDE);
            let (diff, dy) = (k.input::<f32>(4), k.input::<f32>(5));
            for (slot, sign) in [(0, 1.0), (1, -1.0)] {
                let Some(out) = k.optional_output::<f32>(slot) else { continue };
                fill(k.pool, out, |i| {
                    let slope = (square * diff[i]).clamp(-1.0, 1.0);
                    let weight =
                        inside.map_or(1.0, |w| w[i]) * outside.map_or(1.0, |weight| weight[i]);
                    sign * slope * weight * dy[i / width]
                });
            }
        }))
    },
    traits: OpTraits { shape_only: &["X", "Y"], ..OpTraits::plain() },
};

/// Returns sigma squared and the number of elements per row.
fn prepare(p: &PrepareCtx<'_>) -> (f32, usize) {
    let sigma = p.op.attr_float("sigma") as f32;
    let shape = p.input("X").shape;
    (sigma * sigma, shape.product(1..shape.rank()))
}
