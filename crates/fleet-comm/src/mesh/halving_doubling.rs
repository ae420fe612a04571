//! All-reduce by halving and doubling: in round k of the way in, ranks exchange halves of what they
//! still have with the rank whose number differs in bit k, and fold what comes into the half they
//! keep; the way out is the same backwards. What is sent and what is folded do not overlap, so
//! there is no copy.

use super::{Folding, Move, Step, finish};
use crate::call::{Pieces, ReduceOp, part};
use fleet_base::Result;
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
            // Slices `first..first + count` are still ours.
            let (mut first, mut count) = (0, core);
            while count > 1 {
                let half = count / 2;
                let peer = rank ^ half;
                let (keep, give) = match rank & half == 0 {
                    true => (first, first + half),
                    false => (first + half, first),
                };
                let how = Folding { dtype, op: op.partial(), comes_first: peer < rank };
                self.go(&[
                    Move::Send { to: peer, data, at: slice(give, half) },
                    Move::Fold { from: peer, data, at: slice(keep, half), how },
                ])?;
                (first, count) = (keep, half);
            }
            finish(data, slice(rank, 1), dtype, op, size);
            while count < core {
                let peer = rank ^ count;
                let theirs = first ^ count;
                self.go(&[
                    Move::Send { to: peer, data, at: slice(first, count) },
                    Move::Recv { from: peer, data, at: slice(theirs, count) },
                ])?;
                (first, count) = (first.min(theirs), 2 * count);
            }
            Ok(())
        })
    }
}
