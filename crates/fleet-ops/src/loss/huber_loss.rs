//! Huber loss of predictions X and labels Y. With `r = Y - X`, it is `r^2 / 2` up to `|r| = delta`,
//! and `delta * (|r| - delta / 2)` beyond; f32.

use super::pointwise::{check_pair, check_separate, infer_pair};
use crate::prelude::*;
use crate::rules::grads_like;
use fleet_kernels::map::zip;

const X: usize = 0;
const Y: usize = 1;
const DY: usize = 2;

pub static DEF: OpDef = OpDef {
    spec: OpSpec {
        name: "huber_loss",
        inputs: &[one("X"), one("Y")],
        outputs: &[one("Out")],
        attrs: &[attr("delta", Float(1.0))],
    },
    infer: |i| infer_pair(i, "X", "Y", "Out"),
    grad: Grad::Op(&GRAD),
    cpu: |p| {
        let delta = p.op.attr_float("delta") as f32;
        Ok(Kernel::infallible(move |k| {
            let inputs = [k.input_or_output(X, 0), k.input_or_output(Y, 0)];
            zip(k.pool, inputs, k.output::<f32>(0), |[x, y]| {
                let size = (y - x).abs();
                if size <= delta { 0.5 * size * size } else { delta * (size - 0.5 * delta) }
            });
        }))
    },
    traits: OpTraits { elementwise: true, ..OpTraits::amp(AmpClass::Black) },
};

pub static GRAD: OpDef = OpDef {
    spec: OpSpec {
        name: "huber_loss_grad",
        inputs: &[one("X"), one("Y"), one("Out@GRAD")],
        outputs: &[optional("X@GRAD"), optional("Y@GRAD")],
        attrs: &[attr("delta", Float(1.0))],
    },
    infer: |i| {
        check_pair(i, "X", "Y")?;
        check_separate(i)?;
        grads_like(i, &["X", "Y"])
    },
    grad: Grad::None,
    cpu: |p| {
        let delta = p.op.attr_float("delta") as f32;
        Ok(Kernel::infallible(move |k| {
            for (slot, sign) in [(0, 1.0), (1, -1.0)] {
                if let Some(out) = k.optional_output::<f32>(slot) {
                    let inputs = [X, Y, DY].map(|input| k.input_or_output(input, slot));
                    zip(k.pool, inputs, out, |[x, y, dy]| sign * (x - y).clamp(-delta, delta) * dy);
                }
            }
        }))
    },
    traits: OpTraits { elementwise: true, ..OpTraits::amp(AmpClass::Black) },
};
