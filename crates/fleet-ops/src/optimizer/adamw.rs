//! Adam with decoupled weight decay: `w *= 1 - lr * coeff` (with `with_decay`), then the step of
//! adam. `fused_adamw` is the same op for many parameters.

use super::adam::{INPUTS, OUTPUTS};
use super::common::{self, COEFF, LR_SCALE, METHOD, RuleOptions, Slots};
use super::forms::{self, forms};
use super::reduced;
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

forms! {
    DEF { name: "adamw" }
    FUSED { name: "fused_adamw" }
    REDUCED { name: "allreduce_adamw" }
}

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
