//! LARS: momentum with a rate scaled by the norms of the layer. With `p = |w|`, `q = |g|` and
//! `wd = lars_weight_decay`: `local = lr * lars_coeff * p / (q + wd * p + epsilon)` if `wd`, `p`
//! and `q` are all positive, else `lr`; `v = mu * v + local * (g + wd * w); w -= v`.

use super::common::{COEFF, LR_SCALE, METHOD, RuleOptions, Slots, TRAITS, cpu, infer};
use crate::prelude::*;
use fleet_ir::{AttrSpec, Op};
use fleet_kernels::optim::Rule;

const ATTRS: &[AttrSpec] = &[
    attr("mu", Float(0.9)),
    attr("lars_coeff", Float(0.001)),
    attr("lars_weight_decay", Float(0.0005)),
    attr("epsilon", Float(0.0)),
    METHOD,
    COEFF,
    LR_SCALE,
];

const SLOTS: Slots = Slots { full: &[("Velocity", "VelocityOut")], single: &[], sparse: false };

pub static DEF: OpDef = OpDef {
    spec: OpSpec {
        name: "lars_momentum",
        inputs: &[
            one("Param"),
            one("Grad"),
            one("LearningRate"),
            optional("GradScale"),
            one("Velocity"),
        ],
        outputs: &[one("ParamOut"), one("VelocityOut")],
        attrs: ATTRS,
    },
    infer: |i| infer(i, &SLOTS),
    grad: Grad::None,
    cpu: |p| {
        cpu(
            p,
            &SLOTS,
            rule(p.op),
            RuleOptions {
                weight_decay: p.op.attr_float("lars_weight_decay"),
                ..RuleOptions::default()
            },
        )
    },
    traits: TRAITS,
};

fn rule(op: &Op) -> Rule {
    let number = |name: &str| op.attr_float(name) as f32;
    Rule::Lars { mu: number("mu"), coeff: number("lars_coeff"), epsilon: number("epsilon") }
}
