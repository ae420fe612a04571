//! Adamax: `m = b1 m + (1 - b1) g; u = max(|g|, b2 u + epsilon); w -= lr / (1 - b1^t) * m / u`.
//! Beta1Pow starts at `b1` and is multiplied by it after each update.

use super::adam::numbers;
use super::common::{self, Slots, Update};
use super::forms::{self, optimizer};
use crate::prelude::*;
use fleet_ir::{Arity, AttrSpec, Op};
use fleet_kernels::optim::Rule;

const ATTRS: &[AttrSpec] =
    &[attr("beta1", Float(0.9)), attr("beta2", Float(0.999)), attr("epsilon", Float(1e-8))];

const SLOTS: Slots = Slots {
    single: &[("Beta1Pow", "Beta1PowOut")],
    ..Slots::full(&[("Moment", "MomentOut"), ("InfNorm", "InfNormOut")])
};

optimizer! {
    DEF { name: "adamax" }
}

fn update(op: &Op) -> Update {
    let (beta1, beta2, epsilon) = numbers(op);
    Rule::Adamax { beta1, beta2, epsilon }.into()
}
