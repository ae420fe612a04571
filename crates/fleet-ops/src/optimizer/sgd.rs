//! `w -= lr * g`; `fused_sgd` is the same over many parameters.

use super::common::{COEFF, Extra, LR_SCALE, METHOD, Slots, TRAITS, cpu, infer};
use super::reduced;
use crate::comm::{LABEL, NRANKS, RING_ID, USE_CALC_STREAM};
use crate::prelude::*;
use fleet_ir::{AttrSpec, Op};
use fleet_kernels::optim::Rule;

const ATTRS: &[AttrSpec] = &[METHOD, COEFF, LR_SCALE];

const SLOTS: Slots = Slots { full: &[], single: &[], sparse: true };

pub static DEF: OpDef = OpDef {
    spec: OpSpec {
        name: "sgd",
        inputs: &[one("Param"), one("Grad"), one("LearningRate"), optional("GradScale")],
        outputs: &[one("ParamOut")],
        attrs: ATTRS,
    },
    infer: |i| infer(i, &SLOTS),
    grad: Grad::None,
    cpu: |p| cpu(p, &SLOTS, rule(p.op), Extra::default()),
    traits: TRAITS,
};

pub static FUSED: OpDef = OpDef {
    spec: OpSpec {
        name: "fused_sgd",
        inputs: &[many("Param"), many("Grad"), one("LearningRate"), optional("GradScale")],
        outputs: &[many("ParamOut")],
        attrs: ATTRS,
    },
    infer: |i| infer(i, &SLOTS),
    grad: Grad::None,
    cpu: |p| cpu(p, &SLOTS, rule(p.op), Extra::default()),
    traits: TRAITS,
};

/// The sum over ranks and the update in one: see `reduced.rs`.
pub static REDUCED: OpDef = OpDef {
    spec: OpSpec {
        name: "allreduce_sgd",
        inputs: &[many("Param"), many("Grad"), one("LearningRate"), optional("GradScale")],
        outputs: &[many("ParamOut"), many("GradOut")],
        attrs: &[METHOD, COEFF, LR_SCALE, RING_ID, NRANKS, USE_CALC_STREAM, LABEL],
    },
    infer: |i| reduced::infer(i, &SLOTS),
    grad: Grad::None,
    cpu: |p| reduced::cpu(p, &SLOTS, rule(p.op), Extra::default()),
    traits: reduced::TRAITS,
};

fn rule(_: &Op) -> Rule {
    Rule::Sgd
}
