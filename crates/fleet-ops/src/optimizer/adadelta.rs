//! Adadelta: `a = rho a + (1 - rho) g^2; dx = -sqrt((d + epsilon) / (a + epsilon)) * g;
//! d = rho d + (1 - rho) dx^2; w += lr * dx`. `a` is AvgSquaredGrad, `d` is AvgSquaredUpdate.

use super::common::{self, Slots, Update};
use super::forms::{self, optimizer};
use crate::prelude::*;
use crate::rules::number;
use fleet_ir::{Arity, AttrSpec, Op};
use fleet_kernels::optim::Rule;

const ATTRS: &[AttrSpec] = &[attr("rho", Float(0.95)), attr("epsilon", Float(1e-6))];

const SLOTS: Slots = Slots::full(&[
    ("AvgSquaredGrad", "AvgSquaredGradOut"),
    ("AvgSquaredUpdate", "AvgSquaredUpdateOut"),
]);

optimizer! {
    DEF { name: "adadelta" }
}

fn update(op: &Op) -> Update {
    Rule::Adadelta { rho: number(op, "rho"), epsilon: number(op, "epsilon") }.into()
}
