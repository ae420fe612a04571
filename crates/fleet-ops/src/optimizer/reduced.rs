//! `allreduce_{sgd,momentum,adam,adamw}`: a bucket of gradients is summed over ranks, and every
//! part of it updates its parameters as soon as it has arrived, while it is in the cache. `GradOut`
//! is memory to work in, unspecified afterwards; everything else is what `c_allreduce_sum` and the
//! fused update behind it give, to the bit.
//!
//! What it saves: the update reads parameter and state out of memory, but not the gradient, which
//! is a third of what SGD with momentum reads and a quarter of what Adam does; and sums are not
//! written back. It works in the lane of its ring, by itself: worth while where a rank has one
//! thread. The executor puts these ops in; strategies do not.
//!
//! When the sum fails in the middle, some parameters have been updated. The step has failed then,
//! and its ring is over.

use super::common::{self, Extra, Plan, Slots};
use crate::ReduceOp;
use crate::comm::{self, LABEL, NRANKS, RING_ID, USE_CALC_STREAM};
use crate::prelude::*;
use fleet_ir::{AttrSpec, SlotSpec};
use fleet_kernels::optim::Rule;
use std::sync::PoisonError;

/// What such an op has beside the slots and attributes of the fused update.
pub(super) const OUTPUTS: &[SlotSpec] = &[many("GradOut")];
pub(super) const ATTRS: &[AttrSpec] = &[RING_ID, NRANKS, USE_CALC_STREAM, LABEL];

/// Two lists as one: `N` is the sum of their lengths.
pub(super) const fn joined<T: Copy, const N: usize>(first: &[T], second: &[T]) -> [T; N] {
    assert!(first.len() + second.len() == N);
    let mut all = [first[0]; N];
    let mut at = 0;
    while at < N {
        all[at] = if at < first.len() { first[at] } else { second[at - first.len()] };
        at += 1;
    }
    all
}

/// Those of a collective; elements stay apart, so that filters may be packed.
pub(super) const TRAITS: OpTraits = OpTraits { elementwise: true, ..comm::TRAITS };

pub(super) fn infer(i: &mut InferCtx<'_>, slots: &Slots) -> Result<()> {
    comm::nranks(i)?;
    common::infer(i, slots)
}

pub(super) fn cpu(p: &PrepareCtx<'_>, slots: &Slots, rule: Rule, extra: Extra) -> Result<Kernel> {
    let ring = p.services.ring_of(p.op)?;
    let label = comm::label(p.op);
    let plan = Plan::new(p, slots, rule, extra)?;
    let sums = p.op.spec.output_index("GradOut").ok_or_else(|| {
        Error::internal("an update of sums without a place for them").at(p.op.name())
    })?;
    Ok(Kernel::new(move |k| {
        plan.take_over(k);
        comm::take_over(k.inputs[common::GRAD], k.outputs[sums]);
        if plan.skips(k) {
            return ring.all_reduce(&label, k.outputs[sums], ReduceOp::Sum);
        }
        let step = plan.step(k);
        let mut segments = plan.segments.lock().unwrap_or_else(PoisonError::into_inner);
        segments.rebind(|segment, it| plan.bind(k, plan.dense[segment], it));
        let segments = &*segments;
        // SAFETY: parts of gradients are aligned whole floats. The plan owns the parameters and
        // their state for the time of this call, each a variable of its own.
        let update = |part, start, sum: &[u8]| unsafe {
            let (before, sum, behind) = sum.align_to::<f32>();
            assert!(before.is_empty() && behind.is_empty(), "a part of a float");
            segments.update_part(plan.rule, step, part, start / size_of::<f32>(), sum);
        };
        ring.all_reduce_then(&label, k.outputs[sums], ReduceOp::Sum, &mut |part, start, sum| {
            k.computing(|| update(part, start, sum));
        })?;
        plan.multiply_powers(k);
        Ok(())
    }))
}
