//! `c_identity`: `Out = X`, where X is whole on every rank and each rank computes on it for its
//! part of a layer. The gradient of X is the sum of the gradients that the ranks have.

use super::{ATTRS, TRAITS, sum_parts};
use crate::Lane;
use crate::prelude::*;
use crate::tensor::assign::copied;

/// The op `c_identity`.
pub static DEF: OpDef = OpDef {
    spec: OpSpec { name: "c_identity", inputs: &[one("X")], outputs: &[one("Out")], attrs: ATTRS },
    infer: super::infer_like_inputs,
    grad: Grad::Rule(|g| {
        let dy = g.dy("Out")?;
        if let Some(dx) = g.dx("X")? {
            sum_parts::emit_like(g, dy, dx)?;
        }
        Ok(())
    }),
    cpu: |_| Ok(copied(0)),
    traits: OpTraits {
        view: Some(("Out", "X")),
        effect: false,
        lane: Lane::Compute,
        amp: AmpClass::Gray,
        cost: |_| Cost::default(),
        ..TRAITS
    },
};
