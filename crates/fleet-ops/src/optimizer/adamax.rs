//! Adamax: `m = b1 m + (1 - b1) g; u = max(|g|, b2 u + epsilon); w -= lr / (1 - b1^t) * m / u`.
//! Beta1Pow starts at `b1` and is multiplied by it after each update.

use super::common::{COEFF, LR_SCALE, METHOD, RuleOptions, Slots, TRAITS, cpu, infer};
use crate::prelude::*;
use fleet_ir::{AttrSpec, Op};
use fleet_kernels::optim::Rule;

const ATTRS: &[AttrSpec] = &[
    attr("beta1", Float(0.9)),
    attr("beta2", Float(0.999)),
    attr("epsilon", Float(1e-8)),
    METHOD,
    COEFF,
    LR_SCALE,
];

const SLOTS: Slots = Slots {
    full: &[("Moment", "MomentOut"), ("InfNorm", "InfNormOut")],
    single: &[("Beta1Pow", "Beta1PowOut")],
    sparse: false,
};

pub static DEF: OpDef = OpDef {
    spec: OpSpec {
        name: "adamax",
        inputs: &[
            one("Param"),
            one("Grad"),
            one("LearningRate"),
            optional("GradScale"),
            one("Moment"),
            one("InfNorm"),
            one("Beta1Pow"),
        ],
        outputs: &[one("ParamOut"), one("MomentOut"), one("InfNormOut"), one("Beta1PowOut")],
        attrs: ATTRS,
    },
    infer: |i| infer(i, &SLOTS),
    grad: Grad::None,
    cpu: |p| cpu(p, &SLOTS, rule(p.op), RuleOptions::default()),
    traits: TRAITS,
};

fn rule(op: &Op) -> Rule {
    let number = |name: &str| op.attr_float(name) as f32;
    Rule::Adamax { beta1: number("beta1"), beta2: number("beta2"), epsilon: number("epsilon") }
}
