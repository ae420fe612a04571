//! RMSProp: `ms = decay ms + (1 - decay) g^2; mom = momentum mom + lr g / sqrt(ms + epsilon);
//! w -= mom`. `centered` keeps `mg = decay mg + (1 - decay) g` in MeanGrad and divides by
//! `sqrt(ms - mg^2 + epsilon)` instead.

use super::common::{self, Slots, Update};
use super::forms::{self, optimizer};
use crate::prelude::*;
use crate::rules::number;
use fleet_ir::{Arity, AttrSpec, Op};
use fleet_kernels::optim::Rule;

const ATTRS: &[AttrSpec] = &[
    attr("decay", Float(0.95)),
    attr("epsilon", Float(1e-6)),
    attr("momentum", Float(0.0)),
    attr("centered", Bool(false)),
];

const SLOTS: Slots = Slots {
    optional: 1,
    ..Slots::full(&[
        ("MeanSquare", "MeanSquareOut"),
        ("Moment", "MomentOut"),
        ("MeanGrad", "MeanGradOut"),
    ])
};

optimizer! {
    DEF { name: "rmsprop" }
}

fn update(op: &Op) -> Update {
    let (rho, epsilon, mu) = (number(op, "decay"), number(op, "epsilon"), number(op, "momentum"));
    Rule::RmsProp { rho, epsilon, mu, centered: op.attr_bool("centered") }.into()
}
