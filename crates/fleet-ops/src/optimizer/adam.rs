//! Adam: `m = b1 m + (1 - b1) g; v = b2 v + (1 - b2) g^2`, then
//! `w -= lr_t * m / (sqrt(v) + epsilon * sqrt(1 - b2^t))` with
//! `lr_t = lr * sqrt(1 - b2^t) / (1 - b1^t)`. Beta1Pow and Beta2Pow start at the betas and are
//! multiplied by them after each update.
//!
//! With sparse rows, `lazy_mode` updates only the rows in use. Without it, the other rows have
//! gradient 0 and their moments decay, which takes a pass over the whole table. If SkipUpdate (a
//! bool) is true, nothing changes. `fused_adam` is the same op for many parameters.

use super::common::{self, COEFF, LR_SCALE, METHOD, RuleOptions, Slots};
use super::forms::{self, forms};
use super::reduced;
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

pub(super) const INPUTS: &[SlotSpec] = &[
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
pub(super) const OUTPUTS: &[SlotSpec] = &[
    many("ParamOut"),
    many("Moment1Out"),
    many("Moment2Out"),
    many("Beta1PowOut"),
    many("Beta2PowOut"),
];

forms! {
    DEF { name: "adam" }
    FUSED { name: "fused_adam" }
    REDUCED { name: "allreduce_adam" }
}

fn rule(op: &Op) -> Rule {
    let number = |name: &str| op.attr_float(name) as f32;
    Rule::Adam { beta1: number("beta1"), beta2: number("beta2"), epsilon: number("epsilon") }
}

fn options(op: &Op) -> RuleOptions {
    RuleOptions { moves_all_rows: !op.attr_bool("lazy_mode"), ..RuleOptions::default() }
}
