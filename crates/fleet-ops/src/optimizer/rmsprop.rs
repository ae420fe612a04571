//! RMSProp: `ms = decay ms + (1 - decay) g^2; mom = momentum mom + lr g / sqrt(ms + epsilon);
//! w -= mom`. `centered` keeps `mg = decay mg + (1 - decay) g` in MeanGrad and divides by
//! `sqrt(ms - mg^2 + epsilon)` instead.

use super::common::{COEFF, LR_SCALE, METHOD, RuleOptions, Slots, TRAITS, cpu, infer};
use crate::prelude::*;
use fleet_ir::{AttrSpec, Op};
use fleet_kernels::optim::Rule;

const ATTRS: &[AttrSpec] = &[
    attr("decay", Float(0.95)),
    attr("epsilon", Float(1e-6)),
    attr("momentum", Float(0.0)),
    attr("centered", Bool(false)),
    METHOD,
    COEFF,
    LR_SCALE,
];

const SLOTS: Slots = Slots {
    full: &[("MeanSquare", "MeanSquareOut"), ("Moment", "MomentOut"), ("MeanGrad", "MeanGradOut")],
    single: &[],
    sparse: false,
};

pub static DEF: OpDef = OpDef {
    spec: OpSpec {
        name: "rmsprop",
        inputs: &[
            one("Param"),
            one("Grad"),
            one("LearningRate"),
            optional("GradScale"),
            one("MeanSquare"),
            one("Moment"),
            optional("MeanGrad"),
        ],
        outputs: &[
            one("ParamOut"),
            one("MeanSquareOut"),
            one("MomentOut"),
            optional("MeanGradOut"),
        ],
        attrs: ATTRS,
    },
    infer: |i| infer(i, &SLOTS),
    grad: Grad::None,
    cpu: |p| cpu(p, &SLOTS, rule(p.op), RuleOptions::default()),
    traits: TRAITS,
};

fn rule(op: &Op) -> Rule {
    let number = |name: &str| op.attr_float(name) as f32;
    Rule::RmsProp {
        rho: number("decay"),
        epsilon: number("epsilon"),
        mu: number("momentum"),
        centered: op.attr_bool("centered"),
    }
}
