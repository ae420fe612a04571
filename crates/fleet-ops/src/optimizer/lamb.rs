//! LAMB: `r = m^ / (sqrt(v^) + epsilon) + weight_decay * w` with the bias-corrected moments of
//! adam; `w -= lr * trust * r`. `trust` is `|w| / |r|` if both norms are positive and either
//! `weight_decay` is positive or `always_adapt` is set; else it is 1. If SkipUpdate (a bool) is
//! true, nothing changes.

use super::common::{COEFF, LR_SCALE, METHOD, RuleOptions, Slots, TRAITS, cpu, infer};
use crate::prelude::*;
use fleet_ir::{AttrSpec, Op};
use fleet_kernels::optim::Rule;

const ATTRS: &[AttrSpec] = &[
    attr("beta1", Float(0.9)),
    attr("beta2", Float(0.999)),
    attr("epsilon", Float(1e-6)),
    attr("weight_decay", Float(0.01)),
    attr("always_adapt", Bool(false)),
    METHOD,
    COEFF,
    LR_SCALE,
];

const SLOTS: Slots = Slots {
    full: &[("Moment1", "Moment1Out"), ("Moment2", "Moment2Out")],
    single: &[("Beta1Pow", "Beta1PowOut"), ("Beta2Pow", "Beta2PowOut")],
    sparse: false,
};

pub static DEF: OpDef = OpDef {
    spec: OpSpec {
        name: "lamb",
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
    cpu: |p| {
        cpu(
            p,
            &SLOTS,
            rule(p.op),
            RuleOptions { weight_decay: p.op.attr_float("weight_decay"), ..RuleOptions::default() },
        )
    },
    traits: TRAITS,
};

fn rule(op: &Op) -> Rule {
    let number = |name: &str| op.attr_float(name) as f32;
    Rule::Lamb {
        beta1: number("beta1"),
        beta2: number("beta2"),
        epsilon: number("epsilon"),
        always_adapt: op.attr_bool("always_adapt"),
    }
}
