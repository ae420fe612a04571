//! Statistics of batches, merged over the ranks of a ring.

use crate::prelude::*;
use crate::{ReduceOp, Ring};
use std::sync::Arc;

/// A ring over which statistics are merged.
pub(super) struct RankSums {
    ring: Arc<dyn Ring>,
    label: String,
}

impl RankSums {
    /// Returns `None` if the running statistics are used, because nothing is measured then.
    pub fn of(p: &PrepareCtx<'_>) -> Result<Option<RankSums>> {
        if p.op.attr_bool("is_test") || p.op.attr_bool("use_global_stats") {
            return Ok(None);
        }
        let ring = p.services.ring_of(p.op)?;
        Ok((ring.size() > 1).then(|| RankSums { ring, label: crate::comm::label(p.op) }))
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
