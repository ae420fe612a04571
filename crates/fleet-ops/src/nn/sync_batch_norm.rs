//! `sync_batch_norm`: batch normalisation whose mean and variance are those of all ranks of a ring.
//!
//! Each rank measures its part, ranks exchange (rows, mean, variance), and every one merges them in
//! order of ranks, in f64: all hold the same bits. Ranks may have unequally many rows. In the backward
//! pass the sums over dY and over dY times the normalised X are summed over ranks for `X@GRAD`;
//! `Scale@GRAD` and `Bias@GRAD` stay this rank's own, to be summed with all other gradients.
//!
//! The ring is used in the middle of a computation, by the compute lane, and should serve nothing else.

use super::batch_norm::{
    ATTRS as PLAIN, backward, cost, cost_grad, forward, infer, infer_grad, rule,
};
use super::half::any_float;
use crate::Ring;
use crate::comm::{LABEL, NRANKS, RING_ID};
use crate::prelude::*;
use fleet_ir::AttrSpec;
use fleet_kernels::batch_norm::Act;
use std::sync::Arc;

const ATTRS: &[AttrSpec] =
    &[PLAIN[0], PLAIN[1], PLAIN[2], PLAIN[3], PLAIN[4], RING_ID, NRANKS, LABEL];

pub static DEF: OpDef = OpDef {
    spec: OpSpec {
        name: "sync_batch_norm",
        inputs: &[
            one("X"),
            one("Scale"),
            one("Bias"),
            one("Mean"),
            one("Variance"),
            optional("Stats"),
        ],
        outputs: &[
            one("Y"),
            one("MeanOut"),
            one("VarianceOut"),
            one("SavedMean"),
            one("SavedVariance"),
        ],
        attrs: ATTRS,
    },
    infer: |i| {
        crate::comm::nranks(i)?;
        infer(i)
    },
    grad: Grad::Rule(|g| rule(g, &GRAD)),
    cpu: |p| any_float(p, |p| forward(p, Act::None, Sync::of(p)?)),
    traits: OpTraits {
        inplace: &[("Y", "X")],
        effect: true,
        cost,
        ..OpTraits::amp(AmpClass::Gray)
    },
};

pub static GRAD: OpDef = OpDef {
    spec: OpSpec {
        name: "sync_batch_norm_grad",
        inputs: &[
            one("X"),
            one("Scale"),
            one("Bias"),
            one("SavedMean"),
            one("SavedVariance"),
            one("Y@GRAD"),
            optional("Addend"),
        ],
        outputs: &[optional("X@GRAD"), optional("Scale@GRAD"), optional("Bias@GRAD")],
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
        effect: true,
        cost: cost_grad,
        ..OpTraits::amp(AmpClass::Gray)
    },
};

/// A ring that statistics are merged over.
pub(super) struct Sync {
    ring: Arc<dyn Ring>,
    label: String,
}

const FLOAT: usize = size_of::<f32>();

impl Sync {
    /// None where the running statistics are used: nothing is measured then.
    fn of(p: &PrepareCtx<'_>) -> Result<Option<Sync>> {
        if p.op.attr_bool("is_test") || p.op.attr_bool("use_global_stats") {
            return Ok(None);
        }
        let ring = p.services.ring_of(p.op)?;
        Ok((ring.size() > 1).then(|| Sync { ring, label: crate::comm::label(p.op) }))
    }

    /// Floats of scratch for an exchange of `channels` channels.
    pub fn scratch_len(&self, channels: usize) -> usize {
        (self.ring.size() + 1) * record_len(channels)
    }

    /// Gathers (rows, `a`, `b`) of every rank into scratch and gives all records.
    fn gather<'s>(
        &self,
        rows: usize,
        a: &[f32],
        b: &[f32],
        scratch: &'s mut [f32],
    ) -> Result<&'s [f32]> {
        let record = record_len(a.len());
        let (mine, all) = scratch[..self.scratch_len(a.len())].split_at_mut(record);
        // Two floats hold a count exactly up to 2^48.
        mine[0] = (rows >> 24) as f32;
        mine[1] = (rows & 0xFF_FFFF) as f32;
        mine[2..2 + a.len()].copy_from_slice(a);
        mine[2 + a.len()..].copy_from_slice(b);
        self.ring.all_gather(&self.label, bytes(mine), bytes_mut(all))?;
        Ok(all)
    }

    /// Replaces this rank's mean and variance by those of all ranks.
    pub fn merge(
        &self,
        rows: usize,
        mean: &mut [f32],
        variance: &mut [f32],
        scratch: &mut [f32],
    ) -> Result<()> {
        let c = mean.len();
        let all = self.gather(rows, mean, variance, scratch)?;
        let records = || all.chunks_exact(record_len(c));
        let total: f64 = records().map(count).sum();
        for channel in 0..c {
            let at = |record: &[f32], array: usize| f64::from(record[2 + array * c + channel]);
            let whole = records().map(|r| count(r) * at(r, 0)).sum::<f64>() / total.max(1.0);
            let spread = |r: &[f32]| count(r) * (at(r, 1) + (at(r, 0) - whole).powi(2));
            mean[channel] = whole as f32;
            variance[channel] = (records().map(spread).sum::<f64>() / total.max(1.0)) as f32;
        }
        Ok(())
    }

    /// Replaces two arrays by their sums over ranks; the rows of all ranks.
    pub fn sum(
        &self,
        rows: usize,
        a: &mut [f32],
        b: &mut [f32],
        scratch: &mut [f32],
    ) -> Result<usize> {
        let c = a.len();
        let all = self.gather(rows, a, b, scratch)?;
        let records = || all.chunks_exact(record_len(c));
        for channel in 0..c {
            let sum = |array: usize| -> f64 {
                records().map(|record| f64::from(record[2 + array * c + channel])).sum()
            };
            a[channel] = sum(0) as f32;
            b[channel] = sum(1) as f32;
        }
        Ok(records().map(count).sum::<f64>() as usize)
    }
}

fn record_len(channels: usize) -> usize {
    2 + 2 * channels
}

fn count(record: &[f32]) -> f64 {
    f64::from(record[0]) * f64::from(1 << 24) + f64::from(record[1])
}

fn bytes(floats: &[f32]) -> &[u8] {
    // SAFETY: the same memory, whose every byte is initialised.
    unsafe { std::slice::from_raw_parts(floats.as_ptr().cast(), floats.len() * FLOAT) }
}

fn bytes_mut(floats: &mut [f32]) -> &mut [u8] {
    // SAFETY: as above; every bit pattern is a float.
    unsafe { std::slice::from_raw_parts_mut(floats.as_mut_ptr().cast(), floats.len() * FLOAT) }
}
