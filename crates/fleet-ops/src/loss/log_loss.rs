//! `Loss = -y ln(p + epsilon) - (1 - y) ln(1 - p + epsilon)` of probabilities and 0/1 labels; f32.
//! No gradient flows to the labels.

use super::pointwise::{check_pair, infer_pair};
use crate::prelude::*;
use crate::rules::grads_like;
use fleet_kernels::softmax;

const P: usize = 0;
const Y: usize = 1;
const DY: usize = 2;

pub static DEF: OpDef = OpDef {
    spec: OpSpec {
        name: "log_loss",
        inputs: &[one("Predicted"), one("Labels")],
        outputs: &[one("Loss")],
        attrs: &[attr("epsilon", Float(1e-4))],
    },
    infer: |i| infer_pair(i, "Predicted", "Labels", "Loss"),
    grad: Grad::Op(&GRAD),
    cpu: |p| {
        let epsilon = p.op.attr_float("epsilon") as f32;
        Ok(Kernel::infallible(move |k| {
            softmax::log_loss(k.pool, k.input(P), k.input(Y), epsilon, k.output(0))
        }))
    },
    traits: OpTraits::amp(AmpClass::Black),
};

pub static GRAD: OpDef = OpDef {
    spec: OpSpec {
        name: "log_loss_grad",
        inputs: &[one("Predicted"), one("Labels"), one("Loss@GRAD")],
        outputs: &[one("Predicted@GRAD")],
        attrs: &[attr("epsilon", Float(1e-4))],
    },
    infer: |i| {
        check_pair(i, "Predicted", "Labels")?;
        grads_like(i, &["Predicted"])
    },
    grad: Grad::None,
    cpu: |p| {
        let epsilon = p.op.attr_float("epsilon") as f32;
        Ok(Kernel::infallible(move |k| {
            let (p, y, dy) = (k.input(P), k.input(Y), k.input(DY));
            softmax::log_loss_grad(k.pool, p, y, epsilon, dy, k.output(0));
        }))
    },
    traits: OpTraits::amp(AmpClass::Black),
};
