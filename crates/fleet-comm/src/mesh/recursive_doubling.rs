//! All-reduce by recursive doubling: in round k a rank exchanges all its data with the rank whose
//! number differs in bit k. Both sides of an exchange fold the same two operands in the same order,
//! so the results are bitwise the same on all ranks. For small data.

use super::{Folding, Move, Step, finish};
use crate::call::{Fold, Piece, Pieces, fold_bytes};
use fleet_base::{ReduceOp, Result};
use fleet_tensor::DType;

impl Step<'_> {
    pub(super) fn recursive_doubling(
        &self,
        data: Pieces<'_>,
        dtype: DType,
        op: ReduceOp,
    ) -> Result<()> {
        let (rank, size) = (self.rank(), self.size());
        let mut theirs = vec![0u64; data.bytes.div_ceil(8)];
        let buffer = Piece::of(&mut theirs).start;
        let list = data.split_like(0, data.bytes, buffer);
        let theirs = Pieces::new(&list);
        self.with_core(data, dtype, op, |core| {
            let mut bit = 1;
            while bit < core {
                let peer = rank ^ bit;
                self.run_moves(&[
                    Move::Send { to: peer, data, at: 0..data.bytes },
                    Move::Recv { from: peer, data: theirs, at: 0..data.bytes },
                ])?;
                let mut cursor = Default::default();
                data.visit(&mut cursor, 0, data.bytes, |piece, offset, len| {
                    let own = piece.cast_const();
                    let other = buffer.wrapping_add(offset).cast_const();
                    let operands = if peer < rank { [other, own] } else { [own, other] };
                    // SAFETY: a piece of the data, and as many bytes of the peer's data.
                    unsafe { fold_bytes(dtype, op.partial(), &operands, piece, None, len) };
                });
                bit *= 2;
            }
            finish(data, 0..data.bytes, dtype, op, size);
            Ok(())
        })
    }

    /// Runs `work` on the largest power of two of ranks, which it gets as its argument. Each
    /// further rank first sends its data to one of them and gets the result afterwards.
    pub(super) fn with_core(
        &self,
        data: Pieces<'_>,
        dtype: DType,
        op: ReduceOp,
        work: impl FnOnce(usize) -> Result<()>,
    ) -> Result<()> {
        let (rank, size) = (self.rank(), self.size());
        let core = 1 << size.ilog2();
        let all = 0..data.bytes;
        if rank >= core {
            let to = rank - core;
            self.run_moves(&[Move::Send { to, data, at: all.clone() }])?;
            return self.run_moves(&[Move::Recv { from: to, data, at: all }]);
        }
        let extra = rank + core;
        if extra < size {
            let how = Folding { dtype, op: op.partial(), is_first: false };
            self.run_moves(&[Move::Fold { from: extra, data, at: all.clone(), how }])?;
        }
        work(core)?;
        if extra < size {
            self.run_moves(&[Move::Send { to: extra, data, at: all }])
        } else {
            Ok(())
        }
    }
}
