//! All-reduce around a ring. In n-1 steps, every rank sends a slice to the next rank and folds one
//! from the previous. After that each slice is complete on one rank, and n-1 more steps pass the
//! results around. All links carry the same amount, and a rank communicates with two others only.

use super::{Folding, Move, Step, finish};
use crate::call::{Fold, Pieces, part};
use fleet_base::{ReduceOp, Result};
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
            // The received partial result was started by an earlier rank of the ring.
            let how = Folding { dtype, op: op.partial(), is_first: true };
            self.run_moves(&[
                Move::Send { to: next, data, at: slice(rank + size - step) },
                Move::Fold { from: last, data, at: slice(rank + 2 * size - step - 1), how },
            ])?;
        }
        finish(data, slice(rank + 1), dtype, op, size);
        for step in 0..size - 1 {
            self.run_moves(&[
                Move::Send { to: next, data, at: slice(rank + 1 + size - step) },
                Move::Recv { from: last, data, at: slice(rank + size - step) },
            ])?;
        }
        Ok(())
    }
}
