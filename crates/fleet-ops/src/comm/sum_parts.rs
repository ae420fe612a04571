//! `mp_allreduce_sum`: Out is the sum of the X of all ranks, which is whole on every rank. X has
//! each rank's summand, as of a layer that is divided by rows. The gradient of each summand is that
//! of the sum.
//!
//! Unlike `c_allreduce_sum`, it connects ranks that share layers, and other ranks have other sums.

use super::{ATTRS, TRAITS, infer_like_inputs, label, with_parts};
use crate::ReduceOp;
use crate::prelude::*;

/// The op `mp_allreduce_sum`.
pub static DEF: OpDef = OpDef {
    spec: OpSpec {
        name: "mp_allreduce_sum",
        inputs: &[one("X")],
        outputs: &[one("Out")],
        attrs: ATTRS,
    },
    infer: |i| {
        if i.input("X")?.dtype == DType::Bool {
            return Err(i.error("X", "has the wrong element type").expected("numbers"));
        }
        infer_like_inputs(i)
    },
    grad: Grad::Rule(|g| {
        let (x, dy) = (g.x("X")?, g.dy("Out")?);
        if g.wants("X") {
            g.alias_grad(x, dy);
        }
        Ok(())
    }),
    cpu: |p| {
        let ring = p.services.ring_of(p.op)?;
        let label = label(p.op);
        Ok(Kernel::new(move |k| {
            with_parts(k, &*ring, (0, 0), |dtype, parts| {
                k.communicate(|| ring.all_reduce(&label, dtype, parts, ReduceOp::Sum))
            })
        }))
    },
    traits: OpTraits {
        elementwise: true,
        traffic: |c| Some(Traffic::all_reduce(c.input_bytes("X"), c.ranks())),
        amp: AmpClass::Gray,
        divide: |d| Err(d.unsupported("adds whole tensors")),
        ..TRAITS
    },
};

/// Emits the sum of a gradient over the ring of the forward op.
pub(super) fn emit_like(g: &mut GradCtx<'_, '_>, x: VarId, out: VarId) -> Result<()> {
    let (ring, ranks) = (g.op.attr_int("ring_id"), g.op.attr_int("nranks"));
    let (in_compute, label) = (g.op.attr_bool("use_calc_stream"), g.op.attr_str("label"));
    let label = label.to_string();
    let call = g.op(&DEF).input("X", x).output("Out", out).attr("ring_id", ring);
    let call = call.attr("nranks", ranks).attr("use_calc_stream", in_compute);
    call.attr("label", label).done().map(drop)
}
