//! Adam with decoupled weight decay: `w *= 1 - lr * coeff` (with `with_decay`), then the step of
//! adam. `fused_adamw` is the same op for many parameters.

use super::adam::{FUSED_INPUTS, FUSED_OUTPUTS};
use super::common::{COEFF, LR_SCALE, METHOD, RuleOptions, Slots, TRAITS, cpu, infer};
use super::reduced::{self, joined};
use crate::prelude::*;
use fleet_ir::{AttrSpec, Op};
use fleet_kernels::optim::Rule;

const ATTRS: &[AttrSpec] = &[
    attr("beta1", Float(0.9)),
    attr("beta2", Float(0.999)),
    attr("epsilon", Float(1e-8)),
    attr("lazy_mode", Bool(false)),
    attr("coeff", Float(0.01)),
    attr("with_decay", Bool(true)),
    METHOD,
    COEFF,
    LR_SCALE,
];

const SLOTS: Slots = Slots {
    full: &[("Moment1", "Moment1Out"), ("Moment2", "Moment2Out")],
    single: &[("Beta1Pow", "Beta1PowOut"), ("Beta2Pow", "Beta2PowOut")],
    sparse: true,
};

pub static DEF: OpDef = OpDef {
    spec: OpSpec {
        name: "adamw",
        inputs: &[
            one("Param"),
            one("Grad"),
            one("LearningRate"),
            optional("GradScale"),
            one("Moment1"),
            one("Moment2"),
            one("Beta1Pow"),
            one("Beta2Pow"),
            optional("SkipUpdate"),
        ],
        outputs: &[
            one("ParamOut"),
            one("Moment1Out"),
            one("Moment2Out"),
            one("Beta1PowOut"),
            one("Beta2PowOut"),
        ],
        attrs: ATTRS,
    },
    infer: |i| infer(i, &SLOTS),
    grad: Grad::None,
    cpu: |p| cpu(p, &SLOTS, rule(p.op), options(p.op)),
    traits: TRAITS,
};

pub static FUSED: OpDef = OpDef {
    spec: OpSpec {
        name: "fused_adamw",
        inputs: FUSED_INPUTS,
        outputs: FUSED_OUTPUTS,
        attrs: ATTRS,
    },
    infer: |i| infer(i, &SLOTS),
    grad: Grad::None,
    cpu: |p| cpu(p, &SLOTS, rule(p.op), options(p.op)),
    traits: TRAITS,
};

/// Sum over ranks and update in one op: see `reduced.rs`.
pub static REDUCED: OpDef = OpDef {
    spec: OpSpec {
        name: "allreduce_adamw",
        inputs: FUSED_INPUTS,
        outputs: &joined::<_, { FUSED_OUTPUTS.len() + reduced::OUTPUTS.len() }>(
            FUSED_OUTPUTS,
            reduced::OUTPUTS,
        ),
        attrs: &joined::<_, { ATTRS.len() + reduced::ATTRS.len() }>(ATTRS, reduced::ATTRS),
    },
    infer: |i| reduced::infer(i, &SLOTS),
    grad: Grad::None,
    cpu: |p| reduced::cpu(p, &SLOTS, rule(p.op), options(p.op)),
    traits: reduced::TRAITS,
};

fn rule(op: &Op) -> Rule {
    let number = |name: &str| op.attr_float(name) as f32;
    Rule::AdamW { beta1: number("beta1"), beta2: number("beta2"), epsilon: number("epsilon") }
}

fn options(op: &Op) -> RuleOptions {
    let coeff = op.attr_float("coeff");
    RuleOptions {
        weight_decay: if op.attr_bool("with_decay") { coeff } else { 0.0 },
        moves_all_rows: !op.attr_bool("lazy_mode"),
    }
}
