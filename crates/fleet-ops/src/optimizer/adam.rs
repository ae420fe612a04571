//! Adam: `m = b1 m + (1 - b1) g; v = b2 v + (1 - b2) g^2`, then
//! `w -= lr_t * m / (sqrt(v) + epsilon * sqrt(1 - b2^t))` with
//! `lr_t = lr * sqrt(1 - b2^t) / (1 - b1^t)`. Beta1Pow and Beta2Pow start at the betas and are
//! multiplied by them after each update.
//!
//! With sparse rows, `lazy_mode` updates only the rows in use. Without it, the other rows have
//! gradient 0 and their moments decay, which takes a pass over the whole table. If SkipUpdate (a
//! bool) is true, nothing changes. `fused_adam` is the same op for many parameters.

use super::common::{COEFF, LR_SCALE, METHOD, RuleOptions, Slots, TRAITS, cpu, infer};
use super::reduced::{self, joined};
use crate::prelude::*;
use fleet_ir::{AttrSpec, Op, SlotSpec};
use fleet_kernels::optim::Rule;

const ATTRS: &[AttrSpec] = &[
    attr("beta1", Float(0.9)),
    attr("beta2", Float(0.999)),
    attr("epsilon", Float(1e-8)),
    attr("lazy_mode", Bool(false)),
    METHOD,
    COEFF,
    LR_SCALE,
];

const SLOTS: Slots = Slots {
    full: &[("Moment1", "Moment1Out"), ("Moment2", "Moment2Out")],
    single: &[("Beta1Pow", "Beta1PowOut"), ("Beta2Pow", "Beta2PowOut")],
    sparse: true,
};

pub(super) const FUSED_INPUTS: &[SlotSpec] = &[
    many("Param"),
    many("Grad"),
    one("LearningRate"),
    optional("GradScale"),
    many("Moment1"),
    many("Moment2"),
    many("Beta1Pow"),
    many("Beta2Pow"),
    optional("SkipUpdate"),
];
pub(super) const FUSED_OUTPUTS: &[SlotSpec] = &[
    many("ParamOut"),
    many("Moment1Out"),
    many("Moment2Out"),
    many("Beta1PowOut"),
    many("Beta2PowOut"),
];

pub static DEF: OpDef = OpDef {
    spec: OpSpec {
        name: "adam",
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
            RuleOptions { moves_all_rows: !p.op.attr_bool("lazy_mode"), ..RuleOptions::default() },
        )
    },
    traits: TRAITS,
};

pub static FUSED: OpDef = OpDef {
    spec: OpSpec { name: "fused_adam", inputs: FUSED_INPUTS, outputs: FUSED_OUTPUTS, attrs: ATTRS },
    infer: |i| infer(i, &SLOTS),
    grad: Grad::None,
    cpu: |p| {
        cpu(
            p,
            &SLOTS,
            rule(p.op),
            RuleOptions { moves_all_rows: !p.op.attr_bool("lazy_mode"), ..RuleOptions::default() },
        )
    },
    traits: TRAITS,
};

/// Sum over ranks and update in one op: see `reduced.rs`.
pub static REDUCED: OpDef = OpDef {
    spec: OpSpec {
        name: "allreduce_adam",
        inputs: FUSED_INPUTS,
        outputs: &joined::<_, { FUSED_OUTPUTS.len() + reduced::OUTPUTS.len() }>(
            FUSED_OUTPUTS,
            reduced::OUTPUTS,
        ),
        attrs: &joined::<_, { ATTRS.len() + reduced::ATTRS.len() }>(ATTRS, reduced::ATTRS),
    },
    infer: |i| reduced::infer(i, &SLOTS),
    grad: Grad::None,
    cpu: |p| {
        reduced::cpu(
            p,
            &SLOTS,
            rule(p.op),
            RuleOptions { moves_all_rows: !p.op.attr_bool("lazy_mode"), ..RuleOptions::default() },
        )
    },
    traits: reduced::TRAITS,
};

fn rule(op: &Op) -> Rule {
    let number = |name: &str| op.attr_float(name) as f32;
    Rule::Adam { beta1: number("beta1"), beta2: number("beta2"), epsilon: number("epsilon") }
}
