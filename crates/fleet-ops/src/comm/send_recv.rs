//! `send_v2` and `recv_v2`: send one tensor from one rank of a ring to another. The receiver
//! declares its shape and type.

use super::{LABEL, NRANKS, RING_ID, TRAITS, USE_CALC_STREAM, rank_attr};
use crate::prelude::*;
use crate::rules::check_row_major;

pub static SEND: OpDef = OpDef {
    spec: OpSpec {
        name: "send_v2",
        inputs: &[one("X")],
        outputs: &[],
        attrs: &[RING_ID, NRANKS, USE_CALC_STREAM, LABEL, required("peer", AttrKind::Int)],
    },
    infer: |i| rank_attr(i, "peer"),
    grad: Grad::None,
    cpu: |p| {
        check_row_major(p)?;
        let ring = p.services.ring_of(p.op)?;
        let (label, peer) = (pair_label(p.op), p.op.attr_usize("peer"));
        Ok(Kernel::new(move |k| ring.send(&label, peer, k.arg(0).bytes())))
    },
    traits: OpTraits {
        traffic: |c| Some(Traffic { calls: 1, messages: 1.0, bytes: c.input_bytes("X") }),
        ..TRAITS
    },
};

pub static RECV: OpDef = OpDef {
    spec: OpSpec {
        name: "recv_v2",
        inputs: &[],
        outputs: &[one("Out")],
        attrs: &[
            RING_ID,
            NRANKS,
            USE_CALC_STREAM,
            LABEL,
            required("peer", AttrKind::Int),
            required("out_shape", AttrKind::Ints),
            required("dtype", AttrKind::DType),
        ],
    },
    infer: |i| {
        rank_attr(i, "peer")?;
        let shape = Shape::new(i.op.attr_ints("out_shape"))?;
        i.set("Out", i.op.attr_dtype("dtype"), shape);
        Ok(())
    },
    grad: Grad::None,
    cpu: |p| {
        check_row_major(p)?;
        let ring = p.services.ring_of(p.op)?;
        let (label, peer) = (pair_label(p.op), p.op.attr_usize("peer"));
        Ok(Kernel::new(move |k| ring.recv(&label, peer, k.out(0).into_bytes())))
    },
    traits: TRAITS,
};

/// Returns the label shared by `send_v2` and `recv_v2`, because a ring compares the labels of a
/// pair.
fn pair_label(op: &fleet_ir::Op) -> String {
    let ring = op.attr_int("ring_id");
    match op.attr_str("label") {
        "" => format!("send_v2 and recv_v2 on ring {ring}"),
        label => format!("send_v2 and recv_v2 '{label}' on ring {ring}"),
    }
}
