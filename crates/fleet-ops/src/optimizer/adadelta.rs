//! Adadelta: `a = rho a + (1 - rho) g^2; dx = -sqrt((d + epsilon) / (a + epsilon)) * g;
//! d = rho d + (1 - rho) dx^2; w += lr * dx`. `a` is AvgSquaredGrad, `d` is AvgSquaredUpdate.

use super::common::{COEFF, LR_SCALE, METHOD, RuleOptions, Slots, TRAITS, cpu, infer};
use crate::prelude::*;
use fleet_ir::{AttrSpec, Op};
use fleet_kernels::optim::Rule;

const ATTRS: &[AttrSpec] =
    &[attr("rho", Float(0.95)), attr("epsilon", Float(1e-6)), METHOD, COEFF, LR_SCALE];

const SLOTS: Slots = Slots {
    full: &[("AvgSquaredGrad", "AvgSquaredGradOut"), ("AvgSquaredUpdate", "AvgSquaredUpdateOut")],
    single: &[],
    sparse: false,
};

pub static DEF: OpDef = OpDef {
    spec: OpSpec {
        name: "adadelta",
        inputs: &[
            one("Param"),
            one("Grad"),
            one("LearningRate"),
            optional("GradScale"),
            one("AvgSquaredGrad"),
            one("AvgSquaredUpdate"),
        ],
        outputs: &[one("ParamOut"), one("AvgSquaredGradOut"), one("AvgSquaredUpdateOut")],
        attrs: ATTRS,
    },
    infer: |i| infer(i, &SLOTS),
    grad: Grad::None,
    cpu: |p| cpu(p, &SLOTS, rule(p.op), RuleOptions::default()),
    traits: TRAITS,
};

fn rule(op: &Op) -> Rule {
    let number = |name: &str| op.attr_float(name) as f32;
    Rule::Adadelta { rho: number("rho"), epsilon: number("epsilon") }
}
