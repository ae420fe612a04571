//! `Y = relu(batch_norm(X) + Z)`, the end of a residual block, in one pass after the statistics. A
//! fusion pass makes this op. Z@GRAD is the gradient of Y where Y is positive, and may share the
//! memory of Y@GRAD.

use super::batch_norm::{self, TRAITS};
use super::fused_batch_norm_act::FUSED_ATTRS;
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
        attrs: FUSED_ATTRS,
        ..batch_norm::DEF.spec
    },
    grad: Grad::Op(&GRAD),
    traits: OpTraits {
        images: Some(Images { format: "data_layout", slots: &["X", "Z", "Y"] }),
        amp: AmpClass::White,
        ..TRAITS
    },
    ..batch_norm::DEF
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
    traits: OpTraits {
        inplace: &[("Z@GRAD", "Y@GRAD"), ("X@GRAD", "X")],
        images: Some(Images {
            format: "data_layout",
            slots: &["X", "Y@GRAD", "Addend", "Y", "X@GRAD", "Z@GRAD"],
        }),
        amp: AmpClass::White,
        ..batch_norm::GRAD.traits
    },
    ..batch_norm::GRAD
};
