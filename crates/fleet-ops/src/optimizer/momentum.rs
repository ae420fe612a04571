//! `v = mu * v + g; w -= lr * v`, or with `use_nesterov` `w -= lr * (g + mu * v)`. `fused_momentum`
//! is the same op for many parameters.

use super::common::{self, Slots, Update};
use super::forms::{self, optimizer};
use super::reduced;
use crate::prelude::*;
use crate::rules::number;
use fleet_ir::{Arity, AttrSpec, Op};
use fleet_kernels::optim::Rule;

const ATTRS: &[AttrSpec] = &[attr("mu", Float(0.9)), attr("use_nesterov", Bool(false))];

const SLOTS: Slots = Slots { sparse: true, ..Slots::full(&[("Velocity", "VelocityOut")]) };

optimizer! {
    DEF { name: "momentum" }
    FUSED { name: "fused_momentum" }
    REDUCED { name: "sum_then_momentum" }
}

fn update(op: &Op) -> Update {
    Rule::Momentum { mu: number(op, "mu"), nesterov: op.attr_bool("use_nesterov") }.into()
}
