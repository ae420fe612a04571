//! `c_allreduce_{sum,max,min,prod,avg}` and `c_reduce_sum`: each `Out` is the reduction over all
//! ranks of the `X` at the same index. A bucket of gradients is one op with many variables, each
//! reduced in place, and one call to the ring. Gradients are not copied into one buffer.
//! `c_reduce_sum` gives the sum only to `root`; on other ranks `Out` is unspecified.

use super::{
    ATTRS, LABEL, NRANKS, RING_ID, TRAITS, USE_CALC_STREAM, infer_like_inputs, label, rank_attr,
    with_parts,
};
use crate::ReduceOp;
use crate::prelude::*;

/// The op `c_allreduce_sum`.
pub static ALL_SUM: OpDef = all_reduce("c_allreduce_sum", AmpClass::Gray);
/// The op `c_allreduce_max`.
pub static ALL_MAX: OpDef = all_reduce("c_allreduce_max", AmpClass::Unlisted);
/// The op `c_allreduce_min`.
pub static ALL_MIN: OpDef = all_reduce("c_allreduce_min", AmpClass::Unlisted);
/// The op `c_allreduce_prod`.
pub static ALL_PROD: OpDef = all_reduce("c_allreduce_prod", AmpClass::Unlisted);
/// The op `c_allreduce_avg`.
pub static ALL_AVG: OpDef = all_reduce("c_allreduce_avg", AmpClass::Unlisted);

const fn all_reduce(name: &'static str, amp: AmpClass) -> OpDef {
    OpDef {
        spec: OpSpec {
            name,
            inputs: const { &[many("X")] },
            outputs: const { &[many("Out")] },
            attrs: ATTRS,
        },
        infer,
        grad: Grad::None,
        cpu,
        traits: OpTraits {
            elementwise: true,
            traffic: |c| Some(Traffic::all_reduce(c.input_bytes("X"), c.ranks())),
            common: const { &["Out"] },
            amp,
            ..TRAITS
        },
    }
}

fn infer(i: &mut InferCtx<'_>) -> Result<()> {
    if let Some(meta) = i.inputs("X").iter().find(|meta| meta.dtype == DType::Bool) {
        let error = i.error("X", "has the wrong element type");
        return Err(error.expected("numbers").got(meta.dtype));
    }
    infer_like_inputs(i)
}

fn cpu(p: &PrepareCtx<'_>) -> Result<Kernel> {
    let ring = p.services.ring_of(p.op)?;
    let label = label(p.op);
    let reduce = match p.op.name() {
        "c_allreduce_max" => ReduceOp::Max,
        "c_allreduce_min" => ReduceOp::Min,
        "c_allreduce_prod" => ReduceOp::Prod,
        "c_allreduce_avg" => ReduceOp::Avg,
        _ => ReduceOp::Sum,
    };
    Ok(Kernel::new(move |k| {
        with_parts(k, &*ring, (0, 0), |dtype, parts| ring.all_reduce(&label, dtype, parts, reduce))
    }))
}

/// The op `c_reduce_sum`.
pub static REDUCE_SUM: OpDef = OpDef {
    spec: OpSpec {
        name: "c_reduce_sum",
        inputs: &[many("X")],
        outputs: &[many("Out")],
        attrs: &[RING_ID, NRANKS, USE_CALC_STREAM, LABEL, attr("root_id", Int(0))],
    },
    infer: |i| {
        rank_attr(i, "root_id")?;
        infer(i)
    },
    grad: Grad::None,
    cpu: |p| {
        let ring = p.services.ring_of(p.op)?;
        let (label, root) = (label(p.op), p.op.attr_usize("root_id"));
        Ok(Kernel::new(move |k| {
            with_parts(k, &*ring, (0, 0), |dtype, parts| {
                ring.reduce(&label, dtype, parts, ReduceOp::Sum, root)
            })
        }))
    },
    traits: OpTraits {
        elementwise: true,
        traffic: |c| Some(Traffic::shares(c.input_bytes("X"), c.ranks())),
        owned: &["Out"],
        frees_early: true,
        ..TRAITS
    },
};
