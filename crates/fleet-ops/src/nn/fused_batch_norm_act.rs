//! `Y = relu(batch_norm(X))`, with no more passes over memory than batch norm alone. A fusion pass
//! makes this op.
//!
//! The gradient recomputes the ReLU's mask from X, so it does not read Y.

use super::batch_norm::{
    ATTRS, GRAD_IMAGES, GRAD_INPUTS, GRAD_OUTPUTS, IMAGES, INPUTS, OUTPUTS, backward, cost_grad,
    forward, infer, infer_grad, traits,
};
use super::half::any_float;
use crate::prelude::*;
use fleet_ir::{AttrSpec, Op};
use fleet_kernels::batch_norm::Act;

/// Attributes of batch_norm, then `act_type`.
pub(super) const FUSED_ATTRS: &[AttrSpec] =
    &[ATTRS[0], ATTRS[1], ATTRS[2], ATTRS[3], ATTRS[4], attr("act_type", Str("relu"))];

pub static DEF: OpDef = OpDef {
    spec: OpSpec {
        name: "fused_batch_norm_act",
        inputs: INPUTS,
        outputs: OUTPUTS,
        attrs: FUSED_ATTRS,
    },
    infer: |i| {
        act_of(i.op)?;
        infer(i)
    },
    grad: Grad::Op(&GRAD),
    cpu: |p| any_float(p, |p| forward(p, act_of(p.op)?, None)),
    traits: traits(IMAGES, AmpClass::Gray),
};

pub static GRAD: OpDef = OpDef {
    spec: OpSpec {
        name: "fused_batch_norm_act_grad",
        inputs: GRAD_INPUTS,
        outputs: GRAD_OUTPUTS,
        attrs: FUSED_ATTRS,
    },
    infer: infer_grad,
    grad: Grad::None,
    cpu: |p| any_float(p, |p| backward(p, act_of(p.op)?, None)),
    traits: OpTraits {
        inplace: &[("X@GRAD", "Y@GRAD"), ("X@GRAD", "X")],
        images: Some(GRAD_IMAGES),
        cost: cost_grad,
        ..OpTraits::amp(AmpClass::Gray)
    },
};

pub(super) fn act_of(op: &Op) -> Result<Act> {
    match op.attr_str("act_type") {
        "relu" => Ok(Act::Relu),
        "" => Ok(Act::None),
        other => Err(Error::unsupported(format!("unknown activation of {}", op.name()))
            .expected("relu")
            .got(other)),
    }
}
