//! `sum_then_{sgd,momentum,adam,adamw}`: sums a bucket of gradients over ranks. Each part of the
//! sum updates its parameters as soon as it arrives, while it is in the cache. `GradOut` is working
//! memory, whose content is unspecified afterwards. All other outputs are bitwise equal to those of
//! `c_allreduce_sum` followed by the fused update. With `root_id`, only this rank updates: the
//! other ranks of the ring call `c_reduce_sum`.
//!
//! The update reads parameter and state from memory, but not the gradient. This saves a third of
//! the reads of SGD with momentum, and a quarter of those of Adam. Sums are not written back
//! either. The op runs alone in the lane of its ring, so it is worthwhile if a rank has one thread.
//! The executor inserts these ops; strategies do not.
//!
//! If the sum fails midway, some parameters have been updated. The step has then failed, and its
//! ring cannot be used again.

use super::common::{self, Plan, Slots, Update};
use crate::ReduceOp;
use crate::comm::{self, reduce::REDUCE_SUM};
use crate::prelude::*;
use fleet_base::sync::lock;
use fleet_ir::{AttrSpec, Op, SlotSpec};

/// Outputs and attributes in addition to those of the fused update.
pub(super) const OUTPUTS: &[SlotSpec] = &[many("GradOut")];
pub(super) const ATTRS: &[AttrSpec] = &{
    let [ring, ranks, stream, label] = *comm::ATTRS else { panic!("attributes of a collective") };
    [ring, ranks, stream, label, attr("root_id", Int(ALL_RANKS))]
};

/// As the root: all ranks get the sum.
const ALL_RANKS: i64 = -1;

/// Traits of a collective. The op is elementwise, so filters may be packed.
pub(super) const TRAITS: OpTraits = OpTraits {
    elementwise: true,
    traffic: |c| {
        let (bytes, ranks) = (c.input_bytes("Grad"), c.ranks());
        Some(match root(c.op) {
            None => Traffic::all_reduce(bytes, ranks),
            Some(_) => Traffic::shares(bytes, ranks),
        })
    },
    spread: Spread::Mean,
    ..comm::TRAITS
};

pub(super) fn infer(i: &mut InferCtx<'_>, slots: &Slots) -> Result<()> {
    match root(i.op) {
        None => comm::nranks(i).map(drop)?,
        Some(_) => comm::rank_attr(i, "root_id")?,
    }
    common::infer(i, slots)
}

/// Returns the rank that gets the sum, if it is only one.
fn root(op: &Op) -> Option<i64> {
    Some(op.attr_int("root_id")).filter(|root| *root != ALL_RANKS)
}

pub(super) fn cpu(p: &PrepareCtx<'_>, slots: &Slots, update: Update) -> Result<Kernel> {
    let ring = p.services.ring_of(p.op)?;
    // The name of the call is the same on all ranks.
    let root = root(p.op).map(|root| root as usize);
    let label = match root {
        None => comm::label(p.op),
        Some(_) => comm::label_as(REDUCE_SUM.spec.name, p.op),
    };
    let plan = Plan::new(p, slots, update)?;
    let sums =
        p.op.spec
            .output_index("GradOut")
            .ok_or_else(|| Error::internal("missing output GradOut").at(p.op.name()))?;
    Ok(Kernel::new(move |k| {
        comm::with_parts(k, &*ring, (common::GRAD, sums), |dtype, parts| {
            if plan.skips_update(k) {
                plan.copy(k);
                return match root {
                    None => ring.all_reduce(&label, dtype, parts, ReduceOp::Sum),
                    Some(root) => ring.reduce(&label, dtype, parts, ReduceOp::Sum, root),
                };
            }
            let (step, mut segments) = (plan.step(k), lock(&plan.segments));
            let mut segments = segments.bind(|segment| plan.tensors(k, plan.dense[segment]));
            let mut update = |part, start, sum: &[u8]| {
                let start = start / size_of::<f32>();
                segments.update_part(plan.rule, step, part, start, view_as(sum));
            };
            let mut done = |part, start, sum: &[u8]| k.compute(|| update(part, start, sum));
            match root {
                None => ring.all_reduce_then(&label, dtype, parts, ReduceOp::Sum, &mut done),
                Some(root) => {
                    ring.reduce_then(&label, dtype, parts, ReduceOp::Sum, root, &mut done)
                }
            }
        })
    }))
}
