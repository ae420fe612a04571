//! `c_lamb`, `c_lars_momentum`: the updates of a parameter of which each rank of a ring has a part.
//! The norms are those of the whole parameter: ranks add the squared norms of their parts between
//! the two passes of the update. Padding of a part must be zero. A step that is skipped makes no
//! call, so all ranks must skip it.

use super::common::{self, Plan, Slots, Update};
use crate::ReduceOp;
use crate::comm::{self, LABEL, NRANKS, RING_ID};
use crate::prelude::*;
use fleet_ir::AttrSpec;

/// Attributes in addition to those of the whole update.
pub(super) const ATTRS: &[AttrSpec] = &[RING_ID, NRANKS, LABEL];

/// Bytes of two squared norms.
const NORMS_BYTES: f64 = 2.0 * size_of::<f64>() as f64;

pub(super) const TRAITS: OpTraits = OpTraits {
    effect: true,
    norms: true,
    traffic: |c| Some(Traffic::all_reduce(NORMS_BYTES, c.ranks())),
    ..common::TRAITS
};

pub(super) fn infer(i: &mut InferCtx<'_>, slots: &Slots) -> Result<()> {
    comm::nranks(i)?;
    common::infer(i, slots)
}

pub(super) fn cpu(p: &PrepareCtx<'_>, slots: &Slots, update: Update) -> Result<Kernel> {
    let ring = p.services.ring_of(p.op)?;
    let label = comm::label(p.op);
    let plan = Plan::new(p, slots, update)?;
    let words = plan.scratch_words();
    Ok(Kernel::new(move |k| {
        plan.run_part(k, |norms| {
            let bytes = &mut [view_as_mut(norms)];
            k.communicate(|| ring.all_reduce(&label, DType::F64, bytes, ReduceOp::Sum))
        })
    })
    .scratch::<u64>(words))
}
