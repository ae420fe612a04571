//! All-reduce by halving and doubling. In each round of the first phase, a rank works with the rank
//! that differs in one bit. It sends half of its remaining range, and folds the received half into
//! the half that it keeps. The second phase runs the same exchanges backwards. The sent and the
//! folded range do not overlap, so nothing is copied.

use super::{Folding, Move, Step, finish};
use crate::call::{Fold, Pieces, part};
use fleet_base::{ReduceOp, Result};
use fleet_tensor::DType;

impl Step<'_> {
    pub(super) fn halving_doubling(
        &self,
        data: Pieces<'_>,
        dtype: DType,
        op: ReduceOp,
    ) -> Result<()> {
        let (rank, size) = (self.rank(), self.size());
        let unit = dtype.size();
        self.with_core(data, dtype, op, |core| {
            let slice = |first: usize, count: usize| {
                let (from, _) = part(data.bytes / unit, core, first, 1);
                let (_, to) = part(data.bytes / unit, core, first + count - 1, 1);
                from * unit..to * unit
            };
            // This rank still holds slices `first..first + count`.
            let (mut first, mut count) = (0, core);
            while count > 1 {
                let half = count / 2;
                let peer = rank ^ half;
                let (keep, give) = match rank & half == 0 {
                    true => (first, first + half),
                    false => (first + half, first),
                };
                let how = Folding { dtype, op: op.partial(), is_first: peer < rank };
                self.run_moves(&[
                    Move::Send { to: peer, data, at: slice(give, half) },
                    Move::Fold { from: peer, data, at: slice(keep, half), how },
                ])?;
                (first, count) = (keep, half);
            }
            finish(data, slice(rank, 1), dtype, op, size);
            while count < core {
                let peer = rank ^ count;
                let theirs = first ^ count;
                self.run_moves(&[
                    Move::Send { to: peer, data, at: slice(first, count) },
                    Move::Recv { from: peer, data, at: slice(theirs, count) },
                ])?;
                (first, count) = (first.min(theirs), 2 * count);
            }
            Ok(())
        })
    }
}
