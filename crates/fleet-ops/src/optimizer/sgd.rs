//! `w -= lr * g`. `fused_sgd` is the same op for many parameters.

use super::common::{self, COEFF, LR_SCALE, METHOD, RuleOptions, Slots};
use super::forms::{self, forms};
use super::reduced;
use crate::prelude::*;
use fleet_ir::{AttrSpec, Op, SlotSpec};
use fleet_kernels::optim::Rule;

const ATTRS: &[AttrSpec] = &[METHOD, COEFF, LR_SCALE];

const SLOTS: Slots = Slots { full: &[], single: &[], sparse: true };

const INPUTS: &[SlotSpec] =
    &[many("Param"), many("Grad"), one("LearningRate"), optional("GradScale")];
const OUTPUTS: &[SlotSpec] = &[many("ParamOut")];

forms! {
    DEF { name: "sgd" }
    FUSED { name: "fused_sgd" }
    REDUCED { name: "allreduce_sgd" }
}

fn rule(_: &Op) -> Rule {
    Rule::Sgd
}

fn options(_: &Op) -> RuleOptions {
    RuleOptions::default()
}
