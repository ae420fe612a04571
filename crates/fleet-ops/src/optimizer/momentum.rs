//! `v = mu * v + g; w -= lr * v`, or with `use_nesterov` `w -= lr * (g + mu * v)`. `fused_momentum`
//! is the same op for many parameters.

use super::common::{self, COEFF, LR_SCALE, METHOD, RuleOptions, Slots};
use super::forms::{self, forms};
use super::reduced;
use crate::prelude::*;
use fleet_ir::{AttrSpec, Op, SlotSpec};
use fleet_kernels::optim::Rule;

const ATTRS: &[AttrSpec] =
    &[attr("mu", Float(0.9)), attr("use_nesterov", Bool(false)), METHOD, COEFF, LR_SCALE];

const SLOTS: Slots = Slots { full: &[("Velocity", "VelocityOut")], single: &[], sparse: true };

const INPUTS: &[SlotSpec] =
    &[many("Param"), many("Grad"), one("LearningRate"), optional("GradScale"), many("Velocity")];
const OUTPUTS: &[SlotSpec] = &[many("ParamOut"), many("VelocityOut")];

forms! {
    DEF { name: "momentum" }
    FUSED { name: "fused_momentum" }
    REDUCED { name: "allreduce_momentum" }
}

fn rule(op: &Op) -> Rule {
    Rule::Momentum { mu: op.attr_float("mu") as f32, nesterov: op.attr_bool("use_nesterov") }
}

fn options(_: &Op) -> RuleOptions {
    RuleOptions::default()
}
