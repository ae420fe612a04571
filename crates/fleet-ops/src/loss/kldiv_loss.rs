//! Kullback-Leibler divergence of log-probabilities X from probabilities Target:
//! `Target * (ln Target - X)`, 0 where Target is not positive; f32.
//!
//! `reduction`: "none" keeps the shape; "sum", "mean" (over elements) and "batchmean" (over the
//! first dimension) give `[1]`. No gradient flows to Target.

use super::pointwise::{check_pair, fill, partial_len, sum};
use crate::prelude::*;
use crate::rules::grads_like;

const X: usize = 0;
const TARGET: usize = 1;
const DY: usize = 2;

pub static DEF: OpDef = OpDef {
    spec: OpSpec {
        name: "kldiv_loss",
        inputs: &[one("X"), one("Target")],
        outputs: &[one("Loss")],
        attrs: &[attr("reduction", Str("mean"))],
    },
    infer: |i| {
        check_pair(i, "X", "Target")?;
        let shape = i.input("X")?.shape;
        match i.op.attr_str("reduction") {
            "none" => i.set("Loss", DType::F32, shape),
            "sum" | "mean" | "batchmean" => i.set("Loss", DType::F32, [1]),
            other => {
                return Err(Error::invalid("unknown reduction of kldiv_loss")
                    .expected("none, sum, mean or batchmean")
                    .got(other));
            }
        }
        Ok(())
    },
    grad: Grad::Op(&GRAD),
    cpu: |p| {
        let len = p.input("X").numel();
        let (reduce, scale) = prepare(p);
        Ok(Kernel::infallible(move |k| {
            let (x, target) = (k.input::<f32>(X), k.input::<f32>(TARGET));
            let term = |i: usize| match target[i] > 0.0 {
                true => target[i] * (target[i].ln() - x[i]),
                false => 0.0,
            };
            let out = k.output::<f32>(0);
            if reduce {
                let total = sum(k.pool, len, k.scratch(), |i| f64::from(term(i)));
                out[0] = total as f32 * scale;
            } else {
                fill(k.pool, out, term);
            }
        })
        .scratch::<f64>(partial_len(len)))
    },
    traits: OpTraits::plain(),
};

pub static GRAD: OpDef = OpDef {
    spec: OpSpec {
        name: "kldiv_loss_grad",
        inputs: &[one("X"), one("Target"), one("Loss@GRAD")],
        outputs: &[one("X@GRAD")],
        attrs: &[attr("reduction", Str("mean"))],
    },
    infer: |i| {
        check_pair(i, "X", "Target")?;
        grads_like(i, &["X"])
    },
    grad: Grad::None,
    cpu: |p| {
        let (reduce, scale) = prepare(p);
        Ok(Kernel::infallible(move |k| {
            let (target, dy) = (k.input::<f32>(TARGET), k.input::<f32>(DY));
            fill(k.pool, k.output(0), |i| {
                let dy = if reduce { dy[0] } else { dy[i] };
                -scale * target[i].max(0.0) * dy
            });
        }))
    },
    traits: OpTraits { shape_only: &["X"], ..OpTraits::plain() },
};

/// Returns whether the loss is one number, and the factor of its sum.
fn prepare(p: &PrepareCtx<'_>) -> (bool, f32) {
    let shape = p.input("X").shape;
    let count = match p.op.attr_str("reduction") {
        "none" => return (false, 1.0),
        "mean" => shape.len(),
        "batchmean" => shape.first().map_or(1, |dim| *dim as usize),
        _ => 1,
    };
    (true, 1.0 / count.max(1) as f32)
}
