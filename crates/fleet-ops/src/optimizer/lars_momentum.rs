//! LARS: momentum with a rate scaled by the norms of the layer. With `p = |w|`, `q = |g|` and
//! `wd = lars_weight_decay`: `local = lr * lars_coeff * p / (q + wd * p + epsilon)` if `wd`, `p`
//! and `q` are all positive, else `lr`; `v = mu * v + local * (g + wd * w); w -= v`.

use super::common::{self, Slots, Update};
use super::forms::{self, optimizer};
use super::parts;
use crate::prelude::*;
use crate::rules::number;
use fleet_ir::{Arity, AttrSpec, Op};
use fleet_kernels::optim::Rule;

const ATTRS: &[AttrSpec] = &[
    attr("mu", Float(0.9)),
    attr("lars_coeff", Float(0.001)),
    attr("lars_weight_decay", Float(0.0005)),
    attr("epsilon", Float(0.0)),
];

const SLOTS: Slots = Slots::full(&[("Velocity", "VelocityOut")]);

optimizer! {
    DEF { name: "lars_momentum", norms }
    PARTS { name: "c_lars_momentum" }
}

fn update(op: &Op) -> Update {
    let (mu, coeff, epsilon) = (number(op, "mu"), number(op, "lars_coeff"), number(op, "epsilon"));
    let weight_decay = op.attr_float("lars_weight_decay");
    Update { weight_decay, ..Rule::Lars { mu, coeff, epsilon }.into() }
}
