//! Adagrad: `h += g^2; w -= lr * g / (sqrt(h) + epsilon)`.

use super::common::{self, Slots, Update};
use super::forms::{self, optimizer};
use crate::prelude::*;
use crate::rules::number;
use fleet_ir::{Arity, AttrSpec, Op};
use fleet_kernels::optim::Rule;

const ATTRS: &[AttrSpec] = &[attr("epsilon", Float(1e-6))];

const SLOTS: Slots = Slots { sparse: true, ..Slots::full(&[("Moment", "MomentOut")]) };

optimizer! {
    DEF { name: "adagrad" }
}

fn update(op: &Op) -> Update {
    Rule::Adagrad { epsilon: number(op, "epsilon") }.into()
}
