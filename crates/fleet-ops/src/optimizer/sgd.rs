//! `w -= lr * g`. `fused_sgd` is the same op for many parameters.

use super::common::{COEFF, LR_SCALE, METHOD, RuleOptions, Slots, TRAITS, cpu, infer};
use super::reduced::{self, joined};
use crate::prelude::*;
use fleet_ir::{AttrSpec, Op, SlotSpec};
use fleet_kernels::optim::Rule;

const ATTRS: &[AttrSpec] = &[METHOD, COEFF, LR_SCALE];

const SLOTS: Slots = Slots { full: &[], single: &[], sparse: true };

const FUSED_INPUTS: &[SlotSpec] =
    &[many("Param"), many("Grad"), one("LearningRate"), optional("GradScale")];
const FUSED_OUTPUTS: &[SlotSpec] = &[many("ParamOut")];

pub static DEF: OpDef = OpDef {
    spec: OpSpec {
        name: "sgd",
        inputs: &[one("Param"), one("Grad"), one("LearningRate"), optional("GradScale")],
        outputs: &[one("ParamOut")],
        attrs: ATTRS,
    },
    infer: |i| infer(i, &SLOTS),
    grad: Grad::None,
    cpu: |p| cpu(p, &SLOTS, rule(p.op), RuleOptions::default()),
    traits: TRAITS,
};

pub static FUSED: OpDef = OpDef {
    spec: OpSpec { name: "fused_sgd", inputs: FUSED_INPUTS, outputs: FUSED_OUTPUTS, attrs: ATTRS },
    infer: |i| infer(i, &SLOTS),
    grad: Grad::None,
    cpu: |p| cpu(p, &SLOTS, rule(p.op), RuleOptions::default()),
    traits: TRAITS,
};

/// Sum over ranks and update in one op: see `reduced.rs`.
pub static REDUCED: OpDef = OpDef {
    spec: OpSpec {
        name: "allreduce_sgd",
        inputs: FUSED_INPUTS,
        outputs: &joined::<_, { FUSED_OUTPUTS.len() + reduced::OUTPUTS.len() }>(
            FUSED_OUTPUTS,
            reduced::OUTPUTS,
        ),
        attrs: &joined::<_, { ATTRS.len() + reduced::ATTRS.len() }>(ATTRS, reduced::ATTRS),
    },
    infer: |i| reduced::infer(i, &SLOTS),
    grad: Grad::None,
    cpu: |p| reduced::cpu(p, &SLOTS, rule(p.op), RuleOptions::default()),
    traits: reduced::TRAITS,
};

fn rule(_: &Op) -> Rule {
    Rule::Sgd
}
