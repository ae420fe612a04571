//! `Y = relu(batch_norm(X))`, with no more passes over memory than batch norm alone. A fusion pass
//! makes this op.
//!
//! The gradient recomputes the ReLU's mask from X, so it does not read Y.

use super::batch_norm::{self, ATTRS, TRAITS};
use crate::prelude::*;
use fleet_ir::AttrSpec;

/// Attributes of batch_norm, then `act_type`.
pub(super) const FUSED_ATTRS: &[AttrSpec] =
    &[ATTRS[0], ATTRS[1], ATTRS[2], ATTRS[3], ATTRS[4], attr("act_type", Str("relu"))];

pub static DEF: OpDef = OpDef {
    spec: OpSpec { name: "fused_batch_norm_act", attrs: FUSED_ATTRS, ..batch_norm::DEF.spec },
    grad: Grad::Op(&GRAD),
    traits: TRAITS,
    ..batch_norm::DEF
};

pub static GRAD: OpDef = OpDef {
    spec: OpSpec { name: "fused_batch_norm_act_grad", attrs: FUSED_ATTRS, ..batch_norm::GRAD.spec },
    ..batch_norm::GRAD
};
