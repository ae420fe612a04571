//! `send_v2` and `recv_v2`: send one tensor from one rank of a ring to another. The receiver
//! declares its shape and type. A dimension of `-k` in its shape stands for k times the rows of a
//! micro-batch: those of `Rows`, divided by `micro_batches`.

use super::{LABEL, NRANKS, RING_ID, TRAITS, USE_CALC_STREAM, rank_attr};
use crate::prelude::*;
use crate::rules::check_row_major;
use crate::tensor::micro_batch_slice::micro_rows;

/// The op `send_v2`.
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
        frees_early: true,
        ..TRAITS
    },
};

/// The op `recv_v2`.
pub static RECV: OpDef = OpDef {
    spec: OpSpec {
        name: "recv_v2",
        inputs: &[optional("Rows")],
        outputs: &[one("Out")],
        attrs: &[
            RING_ID,
            NRANKS,
            USE_CALC_STREAM,
            LABEL,
            required("peer", AttrKind::Int),
            required("out_shape", AttrKind::Ints),
            required("dtype", AttrKind::DType),
            attr("micro_batches", Int(1)),
        ],
    },
    infer: |i| {
        rank_attr(i, "peer")?;
        let shape = received_shape(i)?;
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
    traits: OpTraits { shape_only: &["Rows"], ..TRAITS },
};

/// Returns the declared shape, with the multiples of rows replaced by numbers if the rows are
/// known.
fn received_shape(i: &InferCtx<'_>) -> Result<Shape> {
    let mut dims = i.op.attr_ints("out_shape").to_vec();
    let Some(rows_of) = i.inputs("Rows").first() else { return Shape::new(&dims) };
    let total = rows_of.shape.first().copied().unwrap_or(1);
    let rows = micro_rows(total, i.op.attr_int("micro_batches"))?;
    for dim in dims.iter_mut().filter(|dim| **dim < 0) {
        *dim = if rows < 0 { -1 } else { dim.saturating_neg().saturating_mul(rows) };
    }
    Shape::new(&dims)
}

/// Returns the label shared by `send_v2` and `recv_v2`, because a ring compares the labels of a
/// pair.
fn pair_label(op: &fleet_ir::Op) -> String {
    let ring = op.attr_int("ring_id");
    match op.attr_str("label") {
        "" => format!("send_v2 and recv_v2 on ring {ring}"),
        label => format!("send_v2 and recv_v2 '{label}' on ring {ring}"),
    }
}
