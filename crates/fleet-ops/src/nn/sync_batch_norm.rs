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

use super::batch_norm::{self, ATTRS as PLAIN, backward, forward, infer, infer_grad};
use super::rank_sums::RankSums;
use crate::comm::{LABEL, NRANKS, RING_ID};
use crate::prelude::*;
use crate::widen::any_float;
use fleet_ir::AttrSpec;

const ATTRS: &[AttrSpec] =
    &[PLAIN[0], PLAIN[1], PLAIN[2], PLAIN[3], PLAIN[4], RING_ID, NRANKS, LABEL];

/// The op `sync_batch_norm`.
pub static DEF: OpDef = OpDef {
    spec: OpSpec { name: "sync_batch_norm", attrs: ATTRS, ..batch_norm::DEF.spec },
    infer: |i| {
        crate::comm::nranks(i)?;
        infer(i)
    },
    grad: Grad::Op(&GRAD),
    cpu: |p| any_float(p, |p| forward(p, RankSums::of(p)?)),
    traits: OpTraits {
        effect: true,
        traffic,
        common: &["MeanOut", "VarianceOut", "SavedMean", "SavedVariance"],
        ..batch_norm::DEF.traits
    },
};

/// The op `sync_batch_norm_grad`.
pub static GRAD: OpDef = OpDef {
    spec: OpSpec { name: "sync_batch_norm_grad", attrs: ATTRS, ..batch_norm::GRAD.spec },
    infer: |i| {
        crate::comm::nranks(i)?;
        infer_grad(i)
    },
    grad: Grad::None,
    cpu: |p| any_float(p, |p| backward(p, RankSums::of(p)?)),
    traits: OpTraits { effect: true, traffic, ..batch_norm::GRAD.traits },
};

/// Sums of the batch statistics over ranks: two doubles per channel, and a count.
fn traffic(c: &CostCtx<'_>) -> Option<Traffic> {
    let measures = !c.op.attr_bool("is_test") && !c.op.attr_bool("use_global_stats");
    let scale = c.input("Scale").filter(|_| measures)?;
    let bytes = 8.0 * (1.0 + 2.0 * scale.numel() as f64);
    Some(Traffic::all_reduce(bytes, c.ranks()))
}
