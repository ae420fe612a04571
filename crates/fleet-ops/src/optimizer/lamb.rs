//! LAMB: `r = m^ / (sqrt(v^) + epsilon) + weight_decay * w` with the bias-corrected moments of
//! adam; `w -= lr * trust * r`. `trust` is `|w| / |r|` if both norms are positive and either
//! `weight_decay` is positive or `always_adapt` is set; else it is 1.

use super::adam::{self, numbers};
use super::common::{self, Slots, Update};
use super::forms::{self, optimizer};
use super::parts;
use crate::prelude::*;
use fleet_ir::{Arity, AttrSpec, Op};
use fleet_kernels::optim::Rule;

const ATTRS: &[AttrSpec] = &[
    attr("beta1", Float(0.9)),
    attr("beta2", Float(0.999)),
    attr("epsilon", Float(1e-6)),
    attr("weight_decay", Float(0.01)),
    attr("always_adapt", Bool(false)),
];

const SLOTS: Slots = Slots { sparse: false, ..adam::SLOTS };

optimizer! {
    DEF { name: "lamb", norms }
    PARTS { name: "c_lamb" }
}

fn update(op: &Op) -> Update {
    let (beta1, beta2, epsilon) = numbers(op);
    let always_adapt = op.attr_bool("always_adapt");
    let rule = Rule::Lamb { beta1, beta2, epsilon, always_adapt };
    Update { weight_decay: op.attr_float("weight_decay"), ..rule.into() }
}
