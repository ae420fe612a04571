//! Adam: `m = b1 m + (1 - b1) g; v = b2 v + (1 - b2) g^2`, then
//! `w -= lr_t * m / (sqrt(v) + epsilon * sqrt(1 - b2^t))` with
//! `lr_t = lr * sqrt(1 - b2^t) / (1 - b1^t)`. Beta1Pow and Beta2Pow start at the betas and are
//! multiplied by them after each update.
//!
//! With sparse rows, `lazy_mode` updates only the rows in use. Without it, the other rows have
//! gradient 0 and their moments decay, which takes a pass over the whole table. `fused_adam` is the
//! same op for many parameters.

use super::common::{self, Slots, Update};
use super::forms::{self, optimizer};
use super::reduced;
use crate::prelude::*;
use crate::rules::number;
use fleet_ir::{Arity, AttrSpec, Op};
use fleet_kernels::optim::Rule;

const ATTRS: &[AttrSpec] = &[
    attr("beta1", Float(0.9)),
    attr("beta2", Float(0.999)),
    attr("epsilon", Float(1e-8)),
    attr("lazy_mode", Bool(false)),
];

pub(super) const SLOTS: Slots = Slots {
    full: &[("Moment1", "Moment1Out"), ("Moment2", "Moment2Out")],
    single: &[("Beta1Pow", "Beta1PowOut"), ("Beta2Pow", "Beta2PowOut")],
    optional: 0,
    sparse: true,
};

optimizer! {
    DEF { name: "adam" }
    FUSED { name: "fused_adam" }
    REDUCED { name: "sum_then_adam" }
}

fn update(op: &Op) -> Update {
    let (beta1, beta2, epsilon) = numbers(op);
    let moves_all_rows = !op.attr_bool("lazy_mode");
    Update { moves_all_rows, ..Rule::Adam { beta1, beta2, epsilon }.into() }
}

/// Returns `beta1`, `beta2` and `epsilon`.
pub(super) fn numbers(op: &Op) -> (f32, f32, f32) {
    (number(op, "beta1"), number(op, "beta2"), number(op, "epsilon"))
}
