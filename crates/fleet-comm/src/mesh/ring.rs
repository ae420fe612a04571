//! All-reduce around a ring: every rank hands a slice to the next and folds one from the last, n-1
//! times, after which each slice is complete on one rank; n-1 more steps hand the results around.
//! Every link carries the same and no rank talks to more than two.

use super::{Folding, Move, Step, finish};
use crate::call::{Pieces, ReduceOp, part};
use fleet_base::Result;
use fleet_tensor::DType;

impl Step<'_> {
    pub(super) fn ring(&self, data: Pieces<'_>, dtype: DType, op: ReduceOp) -> Result<()> {
        let (rank, size) = (self.rank(), self.size());
        let unit = dtype.size();
        let slice = |index: usize| {
            let (from, to) = part(data.bytes / unit, size, index % size, 1);
            from * unit..to * unit
        };
        let (next, last) = ((rank + 1) % size, (rank + size - 1) % size);
        for step in 0..size - 1 {
            // The partial result that comes was begun by an earlier rank of the ring.
            let how = Folding { dtype, op: op.partial(), comes_first: true };
            self.go(&[
                Move::Send { to: next, data, at: slice(rank + size - step) },
                Move::Fold { from: last, data, at: slice(rank + 2 * size - step - 1), how },
            ])?;
        }
        finish(data, slice(rank + 1), dtype, op, size);
        for step in 0..size - 1 {
            self.go(&[
                Move::Send { to: next, data, at: slice(rank + 1 + size - step) },
                Move::Recv { from: last, data, at: slice(rank + size - step) },
            ])?;
        }
        Ok(())
    }
}
