//! `Y = relu(batch_norm(X) + Z)`, the end of a residual block, in one pass after the statistics. A
//! fusion pass makes this op. Z@GRAD is the gradient of Y where Y is positive, and may share the
//! memory of Y@GRAD.

use super::batch_norm::{OUTPUTS, backward, cost_grad, forward, infer, infer_grad, traits};
use super::fused_batch_norm_act::{FUSED_ATTRS, act_of};
use super::half::any_float;
use crate::prelude::*;

pub static DEF: OpDef = OpDef {
    spec: OpSpec {
        name: "fused_bn_add_activation",
        inputs: &[
            one("X"),
            one("Scale"),
            one("Bias"),
            one("Mean"),
            one("Variance"),
            optional("Stats"),
            one("Z"),
        ],
        outputs: OUTPUTS,
        attrs: FUSED_ATTRS,
    },
    infer: |i| {
        act_of(i.op)?;
        infer(i)
    },
    grad: Grad::Op(&GRAD),
    cpu: |p| any_float(p, |p| forward(p, act_of(p.op)?, None)),
    traits: traits(Images { format: "data_layout", slots: &["X", "Z", "Y"] }, AmpClass::White),
};

pub static GRAD: OpDef = OpDef {
    spec: OpSpec {
        name: "fused_bn_add_activation_grad",
        inputs: &[
            one("X"),
            one("Scale"),
            one("Bias"),
            one("SavedMean"),
            one("SavedVariance"),
            one("Y@GRAD"),
            optional("Addend"),
            one("Y"),
        ],
        outputs: &[
            optional("X@GRAD"),
            optional("Scale@GRAD"),
            optional("Bias@GRAD"),
            optional("Z@GRAD"),
        ],
        attrs: FUSED_ATTRS,
    },
    infer: infer_grad,
    grad: Grad::None,
    cpu: |p| any_float(p, |p| backward(p, act_of(p.op)?, None)),
    traits: OpTraits {
        inplace: &[("Z@GRAD", "Y@GRAD"), ("X@GRAD", "X")],
        images: Some(Images {
            format: "data_layout",
            slots: &["X", "Y@GRAD", "Addend", "Y", "X@GRAD", "Z@GRAD"],
        }),
        cost: cost_grad,
        ..OpTraits::amp(AmpClass::White)
    },
};
