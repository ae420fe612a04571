//! `w -= lr * g`. `fused_sgd` is the same op for many parameters.

use super::common::{self, Slots, Update};
use super::forms::{self, optimizer};
use super::reduced;
use crate::prelude::*;
use fleet_ir::{Arity, AttrSpec, Op};
use fleet_kernels::optim::Rule;

const ATTRS: &[AttrSpec] = &[];

const SLOTS: Slots = Slots { sparse: true, ..Slots::full(&[]) };

optimizer! {
    DEF { name: "sgd" }
    FUSED { name: "fused_sgd" }
    REDUCED { name: "sum_then_sgd" }
}

fn update(_: &Op) -> Update {
    Rule::Sgd.into()
}
