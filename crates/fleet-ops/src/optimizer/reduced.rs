//! `allreduce_{sgd,momentum,adam,adamw}`: sums a bucket of gradients over ranks. Each part of the
//! sum updates its parameters as soon as it arrives, while it is in the cache. `GradOut` is working
//! memory, whose content is unspecified afterwards. All other outputs are bitwise equal to those of
//! `c_allreduce_sum` followed by the fused update.
//!
//! The update reads parameter and state from memory, but not the gradient. This saves a third of
//! the reads of SGD with momentum, and a quarter of those of Adam. Sums are not written back
//! either. The op runs alone in the lane of its ring, so it is worthwhile if a rank has one thread.
//! The executor inserts these ops; strategies do not.
//!
//! If the sum fails midway, some parameters have been updated. The step has then failed, and its
//! ring cannot be used again.

use super::common::{self, Plan, RuleOptions, Slots};
use crate::ReduceOp;
use crate::comm::{self, LABEL, NRANKS, RING_ID, USE_CALC_STREAM};
use crate::prelude::*;
use fleet_base::sync::lock;
use fleet_ir::{AttrSpec, SlotSpec};
use fleet_kernels::optim::Rule;

/// Outputs and attributes in addition to those of the fused update.
pub(super) const OUTPUTS: &[SlotSpec] = &[many("GradOut")];
pub(super) const ATTRS: &[AttrSpec] = &[RING_ID, NRANKS, USE_CALC_STREAM, LABEL];

/// Traits of a collective. The op is elementwise, so filters may be packed.
pub(super) const TRAITS: OpTraits = OpTraits {
    elementwise: true,
    traffic: |c| Some(Traffic::all_reduce(c.input_bytes("Grad"), c.ranks())),
    spread: Spread::Mean,
    ..comm::TRAITS
};

pub(super) fn infer(i: &mut InferCtx<'_>, slots: &Slots) -> Result<()> {
    comm::nranks(i)?;
    common::infer(i, slots)
}

pub(super) fn cpu(
    p: &PrepareCtx<'_>,
    slots: &Slots,
    rule: Rule,
    options: RuleOptions,
) -> Result<Kernel> {
    let ring = p.services.ring_of(p.op)?;
    let label = comm::label(p.op);
    let plan = Plan::new(p, slots, rule, options)?;
    let sums =
        p.op.spec
            .output_index("GradOut")
            .ok_or_else(|| Error::internal("missing output GradOut").at(p.op.name()))?;
    Ok(Kernel::new(move |k| {
        plan.copy_unless_shared(k);
        comm::copy_unless_shared(k.inputs[common::GRAD], k.outputs[sums]);
        if plan.skips_update(k) {
            return ring.all_reduce(&label, k.outputs[sums], ReduceOp::Sum);
        }
        let step = plan.step(k);
        let mut segments = lock(&plan.segments);
        segments.rebind(|segment, it| plan.bind(k, plan.dense[segment], it));
        let segments = &*segments;
        // SAFETY: parts of gradients are aligned and consist of whole floats. The plan owns the
        // parameters and their state during this call, each a separate variable.
        let update = |part, start, sum: &[u8]| unsafe {
            let (before, sum, after) = sum.align_to::<f32>();
            assert!(before.is_empty() && after.is_empty(), "stretch of a sum cuts a float");
            segments.update_part(plan.rule, step, part, start / size_of::<f32>(), sum);
        };
        ring.all_reduce_then(&label, k.outputs[sums], ReduceOp::Sum, &mut |part, start, sum| {
            k.compute(|| update(part, start, sum));
        })?;
        plan.multiply_powers(k);
        Ok(())
    }))
}
