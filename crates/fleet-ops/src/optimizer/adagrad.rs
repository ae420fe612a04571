//! Adagrad: `h += g^2; w -= lr * g / (sqrt(h) + epsilon)`.

use super::common::{COEFF, LR_SCALE, METHOD, RuleOptions, Slots, TRAITS, cpu, infer};
use crate::prelude::*;
use fleet_ir::{AttrSpec, Op};
use fleet_kernels::optim::Rule;

const ATTRS: &[AttrSpec] = &[attr("epsilon", Float(1e-6)), METHOD, COEFF, LR_SCALE];

const SLOTS: Slots = Slots { full: &[("Moment", "MomentOut")], single: &[], sparse: true };

pub static DEF: OpDef = OpDef {
    spec: OpSpec {
        name: "adagrad",
        inputs: &[
            one("Param"),
            one("Grad"),
            one("LearningRate"),
            optional("GradScale"),
            one("Moment"),
        ],
        outputs: &[one("ParamOut"), one("MomentOut")],
        attrs: ATTRS,
    },
    infer: |i| infer(i, &SLOTS),
    grad: Grad::None,
    cpu: |p| cpu(p, &SLOTS, rule(p.op), RuleOptions::default()),
    traits: TRAITS,
};

fn rule(op: &Op) -> Rule {
    Rule::Adagrad { epsilon: op.attr_float("epsilon") as f32 }
}
