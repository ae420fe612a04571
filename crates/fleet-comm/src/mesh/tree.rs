//! Reduction and broadcast along a binomial tree: log2(n) messages in sequence, each with all data.
//! For small data and collectives with a root.

use super::{Folding, Move, Step, finish};
use crate::call::{Fold, Pieces};
use fleet_base::{ReduceOp, Result};
use fleet_tensor::DType;

impl Step<'_> {
    /// All-reduce: reduces to rank 0 and broadcasts the result.
    pub(super) fn tree(&self, data: Pieces<'_>, dtype: DType, op: ReduceOp) -> Result<()> {
        self.tree_up(data, dtype, op, 0)?;
        if self.rank() == 0 {
            finish(data, 0..data.bytes, dtype, op, self.size());
        }
        self.tree_down(data, 0)
    }

    /// Reduces into the data of `root`. Other ranks' data becomes the reduction of their subtree.
    pub(super) fn tree_up(
        &self,
        data: Pieces<'_>,
        dtype: DType,
        op: ReduceOp,
        root: usize,
    ) -> Result<()> {
        let size = self.size();
        let position = (self.rank() + size - root) % size;
        let real = |position: usize| (position + root) % size;
        let mut bit = 1;
        while bit < size {
            if position & bit != 0 {
                return self.run_moves(&[Move::Send {
                    to: real(position - bit),
                    data,
                    at: 0..data.bytes,
                }]);
            }
            if position + bit < size {
                let how = Folding { dtype, op: op.partial(), is_first: false };
                self.run_moves(&[Move::Fold {
                    from: real(position + bit),
                    data,
                    at: 0..data.bytes,
                    how,
                }])?;
            }
            bit *= 2;
        }
        Ok(())
    }

    pub(super) fn tree_down(&self, data: Pieces<'_>, root: usize) -> Result<()> {
        let size = self.size();
        let position = (self.rank() + size - root) % size;
        let real = |position: usize| (position + root) % size;
        // The lowest set bit of the place determines its position in the tree.
        let mut bit = match position {
            0 => size.next_power_of_two(),
            _ => 1 << position.trailing_zeros(),
        };
        if position != 0 {
            self.run_moves(&[Move::Recv { from: real(position - bit), data, at: 0..data.bytes }])?;
        }
        while bit > 1 {
            bit /= 2;
            if position + bit < size {
                self.run_moves(&[Move::Send {
                    to: real(position + bit),
                    data,
                    at: 0..data.bytes,
                }])?;
            }
        }
        Ok(())
    }
}
