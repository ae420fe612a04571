//! `c_broadcast`: copies each `X` of rank `root` to `Out` on every rank.

use super::{
    LABEL, NRANKS, RING_ID, TRAITS, USE_CALC_STREAM, infer_like_inputs, label, rank_attr,
    with_parts,
};
use crate::prelude::*;

/// The op `c_broadcast`.
pub static DEF: OpDef = OpDef {
    spec: OpSpec {
        name: "c_broadcast",
        inputs: &[many("X")],
        outputs: &[many("Out")],
        attrs: &[RING_ID, NRANKS, USE_CALC_STREAM, LABEL, attr("root", Int(0))],
    },
    infer: |i| {
        rank_attr(i, "root")?;
        infer_like_inputs(i)
    },
    grad: Grad::None,
    cpu: |p| {
        let ring = p.services.ring_of(p.op)?;
        let (label, root) = (label(p.op), p.op.attr_usize("root"));
        Ok(Kernel::new(move |k| {
            with_parts(k, &*ring, (0, 0), |_, parts| ring.broadcast(&label, parts, root))
        }))
    },
    traits: OpTraits {
        elementwise: true,
        traffic: |c| Some(Traffic::shares(c.input_bytes("X"), c.ranks())),
        common: &["Out"],
        ..TRAITS
    },
};
