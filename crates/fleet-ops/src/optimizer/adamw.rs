//! Adam with decoupled weight decay: `w *= 1 - lr * coeff` (with `with_decay`), then the step of
//! adam. `fused_adamw` is the same op for many parameters.

use super::adam::{SLOTS, numbers};
use super::common::{self, Update};
use super::forms::{self, optimizer};
use super::reduced;
use crate::prelude::*;
use fleet_ir::{Arity, AttrSpec, Op};
use fleet_kernels::optim::Rule;

const ATTRS: &[AttrSpec] = &[
    attr("beta1", Float(0.9)),
    attr("beta2", Float(0.999)),
    attr("epsilon", Float(1e-8)),
    attr("lazy_mode", Bool(false)),
    attr("coeff", Float(0.01)),
    attr("with_decay", Bool(true)),
];

optimizer! {
    DEF { name: "adamw" }
    FUSED { name: "fused_adamw" }
    REDUCED { name: "sum_then_adamw" }
}

fn update(op: &Op) -> Update {
    let (beta1, beta2, epsilon) = numbers(op);
    Update {
        rule: Rule::AdamW { beta1, beta2, epsilon },
        weight_decay: if op.attr_bool("with_decay") { op.attr_float("coeff") } else { 0.0 },
        moves_all_rows: !op.attr_bool("lazy_mode"),
    }
}
