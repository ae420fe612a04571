//! `sync_batch_norm`: batch normalization with mean and variance over all ranks of a ring.
//!
//! Each rank measures its part. (rows, sum, sum of squares) are then summed over ranks in f64, so
//! all ranks hold identical values. The bytes that a rank sends do not grow with the number of
//! ranks, and ranks may have different numbers of rows. In the backward pass, the sums over dY and
//! over dY times the normalized X are summed over ranks for `X@GRAD`. `Scale@GRAD` and `Bias@GRAD`
//! remain this rank's own and are summed with all other gradients.
//!
//! The compute lane uses the ring in the middle of a computation. The ring should serve no other
//! purpose.

use super::batch_norm::{
    ATTRS as PLAIN, GRAD_IMAGES, GRAD_INPUTS, GRAD_OUTPUTS, IMAGES, INPUTS, OUTPUTS, WIDE,
    backward, cost_grad, forward, infer, infer_grad, traits,
};
use super::half::any_float;
use crate::comm::{LABEL, NRANKS, RING_ID};
use crate::prelude::*;
use crate::{ReduceOp, Ring};
use fleet_ir::AttrSpec;
use fleet_kernels::batch_norm::Act;
use std::sync::Arc;

const ATTRS: &[AttrSpec] =
    &[PLAIN[0], PLAIN[1], PLAIN[2], PLAIN[3], PLAIN[4], RING_ID, NRANKS, LABEL];

pub static DEF: OpDef = OpDef {
    spec: OpSpec { name: "sync_batch_norm", inputs: INPUTS, outputs: OUTPUTS, attrs: ATTRS },
    infer: |i| {
        crate::comm::nranks(i)?;
        infer(i)
    },
    grad: Grad::Op(&GRAD),
    cpu: |p| any_float(p, |p| forward(p, Act::None, Sync::of(p)?)),
    traits: OpTraits {
        wide: WIDE,
        effect: true,
        traffic,
        common: &["MeanOut", "VarianceOut", "SavedMean", "SavedVariance"],
        ..traits(IMAGES, AmpClass::Gray)
    },
};

pub static GRAD: OpDef = OpDef {
    spec: OpSpec {
        name: "sync_batch_norm_grad",
        inputs: GRAD_INPUTS,
        outputs: GRAD_OUTPUTS,
        attrs: ATTRS,
    },
    infer: |i| {
        crate::comm::nranks(i)?;
        infer_grad(i)
    },
    grad: Grad::None,
    cpu: |p| any_float(p, |p| backward(p, Act::None, Sync::of(p)?)),
    traits: OpTraits {
        inplace: &[("X@GRAD", "Y@GRAD"), ("X@GRAD", "X")],
        images: Some(GRAD_IMAGES),
        effect: true,
        traffic,
        cost: cost_grad,
        ..OpTraits::amp(AmpClass::Gray)
    },
};

/// Sums of the batch statistics over ranks: two doubles per channel, and a count.
fn traffic(c: &CostCtx<'_>) -> Option<Traffic> {
    let measures = !c.op.attr_bool("is_test") && !c.op.attr_bool("use_global_stats");
    let scale = c.input("Scale").filter(|_| measures)?;
    let bytes = 8.0 * (1.0 + 2.0 * scale.numel() as f64);
    Some(Traffic::all_reduce(bytes, c.ranks()))
}

/// A ring over which statistics are merged.
pub(super) struct Sync {
    ring: Arc<dyn Ring>,
    label: String,
}

impl Sync {
    /// Returns `None` if the running statistics are used, because nothing is measured then.
    fn of(p: &PrepareCtx<'_>) -> Result<Option<Sync>> {
        if p.op.attr_bool("is_test") || p.op.attr_bool("use_global_stats") {
            return Ok(None);
        }
        let ring = p.services.ring_of(p.op)?;
        Ok((ring.size() > 1).then(|| Sync { ring, label: crate::comm::label(p.op) }))
    }

    /// Floats of scratch for an exchange of `channels` channels.
    pub fn scratch_len(&self, channels: usize) -> usize {
        // f64 values, and one float for alignment.
        2 * sums_len(channels) + 1
    }

    /// Sums the number of rows and two numbers per channel over ranks. `of` returns the two numbers
    /// of this rank.
    fn sum_over_ranks<'s>(
        &self,
        rows: usize,
        channels: usize,
        of: impl Fn(usize) -> [f64; 2],
        scratch: &'s mut [f32],
    ) -> Result<(f64, &'s [f64])> {
        let skipped = usize::from(!scratch.as_ptr().cast::<f64>().is_aligned());
        let sums: &mut [f64] = view_as_mut(&mut scratch[skipped..][..2 * sums_len(channels)]);
        sums[0] = rows as f64;
        for (channel, to) in sums[1..].chunks_exact_mut(2).enumerate() {
            to.copy_from_slice(&of(channel));
        }
        let parts = &mut [view_as_mut(sums)];
        self.ring.all_reduce(&self.label, DType::F64, parts, ReduceOp::Sum)?;
        Ok((sums[0], &sums[1..]))
    }

    /// Replaces this rank's mean and variance by those over all ranks.
    pub fn merge(
        &self,
        rows: usize,
        mean: &mut [f32],
        variance: &mut [f32],
        scratch: &mut [f32],
    ) -> Result<()> {
        let mine = |channel: usize| {
            let (mean, variance) = (f64::from(mean[channel]), f64::from(variance[channel]));
            [mean, variance + mean * mean].map(|of_a_row| rows as f64 * of_a_row)
        };
        let (total, sums) = self.sum_over_ranks(rows, mean.len(), mine, scratch)?;
        for (channel, of_all) in sums.chunks_exact(2).enumerate() {
            let [whole, squares] = [of_all[0], of_all[1]].map(|sum| sum / total.max(1.0));
            mean[channel] = whole as f32;
            variance[channel] = (squares - whole * whole).max(0.0) as f32;
        }
        Ok(())
    }

    /// Replaces two arrays by their sums over ranks. Returns the number of rows of all ranks.
    pub fn sum(
        &self,
        rows: usize,
        a: &mut [f32],
        b: &mut [f32],
        scratch: &mut [f32],
    ) -> Result<usize> {
        let mine = |channel: usize| [f64::from(a[channel]), f64::from(b[channel])];
        let (total, sums) = self.sum_over_ranks(rows, a.len(), mine, scratch)?;
        for (channel, of_all) in sums.chunks_exact(2).enumerate() {
            (a[channel], b[channel]) = (of_all[0] as f32, of_all[1] as f32);
        }
        Ok(total as usize)
    }
}

/// Number of values summed in an exchange: the number of rows, and two per channel.
fn sums_len(channels: usize) -> usize {
    1 + 2 * channels
}
