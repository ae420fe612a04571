//! All-reduce in two steps: every rank sends each peer its slice, folds its own slice in rank
//! order, and sends the result to all. The order is that of shared memory, so the results are
//! bitwise equal to those. No partial sums are sent, so half floats need no conversion.
//!
//! Large data is processed in rounds of [`ROUND_BYTES`], which bounds the receive buffer.

use super::{Folding, Move, Step, finish};
use crate::call::{Fold, Piece, Pieces, fold_bytes, part};
use fleet_base::{ReduceOp, Result};
use fleet_tensor::DType;
use std::ops::Range;

/// Bytes of data per round; a rank needs as much additional memory. Large enough that latency does
/// not dominate a round.
const ROUND_BYTES: usize = 16 << 20;

impl Step<'_> {
    pub(super) fn direct(&self, data: Pieces<'_>, dtype: DType, op: ReduceOp) -> Result<()> {
        let (rank, size) = (self.rank(), self.size());
        let unit = dtype.size();
        let mut start = 0;
        while start < data.bytes {
            let bytes = (data.bytes - start).min(ROUND_BYTES);
            let slice = |index: usize| {
                let (from, to) = part(bytes / unit, size, index, 1);
                start + from * unit..start + to * unit
            };
            self.fold_slices(data, slice, dtype, op, data, slice(rank).start)?;
            let mut moves = Vec::with_capacity(2 * size);
            for peer in (0..size).filter(|peer| *peer != rank) {
                moves.push(Move::Send { to: peer, data, at: slice(rank) });
                moves.push(Move::Recv { from: peer, data, at: slice(peer) });
            }
            self.run_moves(&moves)?;
            start += bytes;
        }
        Ok(())
    }

    /// Sends `slice(peer)` of `data` to each peer, and folds all ranks' versions of this rank's
    /// slice into `into` at `at`. `into` may be this rank's slice of `data`.
    pub(super) fn fold_slices(
        &self,
        data: Pieces<'_>,
        slice: impl Fn(usize) -> Range<usize>,
        dtype: DType,
        op: ReduceOp,
        into: Pieces<'_>,
        at: usize,
    ) -> Result<()> {
        let (rank, size) = (self.rank(), self.size());
        let own = slice(rank);
        let len = own.len();
        // Two operands are folded while they arrive.
        let in_place = size == 2 && !is_half(dtype);
        let mut memory = vec![0u64; if in_place { 0 } else { (size - 1) * len.div_ceil(8) }];
        let stride = len.div_ceil(8) * 8;
        let buffer = Piece::of(&mut memory).start;
        let buffers: Vec<Vec<Piece>> = (0..if in_place { 0 } else { size - 1 })
            .map(|index| data.split_like(own.start, len, buffer.wrapping_add(index * stride)))
            .collect();
        let mut moves = Vec::with_capacity(2 * size);
        for peer in (0..size).filter(|peer| *peer != rank) {
            moves.push(Move::Send { to: peer, data, at: slice(peer) });
            let index = if peer < rank { peer } else { peer - 1 };
            moves.push(match in_place {
                true => Move::Fold {
                    from: peer,
                    data,
                    at: own.clone(),
                    how: Folding { dtype, op: op.partial(), is_first: peer < rank },
                },
                false => Move::Recv { from: peer, data: Pieces::new(&buffers[index]), at: 0..len },
            });
        }
        self.run_moves(&moves)?;
        let mut target = Default::default();
        let mut source = Default::default();
        if in_place {
            finish(data, own.clone(), dtype, op, size);
            return Ok(());
        }
        // The data and the target have the same pieces, or the target is a single piece.
        data.visit(&mut source, own.start, len, |piece, offset, bytes| {
            let operands: Vec<*const u8> = (0..size)
                .map(|peer| match peer.cmp(&rank) {
                    std::cmp::Ordering::Equal => piece.cast_const(),
                    order => {
                        let index = if order.is_lt() { peer } else { peer - 1 };
                        buffer.wrapping_add(index * stride + offset).cast_const()
                    }
                })
                .collect();
            into.visit(&mut target, at + offset, bytes, |out, inside, part| {
                let moved: Vec<*const u8> =
                    operands.iter().map(|operand| operand.wrapping_add(inside)).collect();
                // SAFETY: slices of equal length in whole elements; the output is this rank's
                // operand or does not overlap any operand.
                unsafe { fold_bytes(dtype, op.fold(size), &moved, out, None, part) };
            });
        });
        Ok(())
    }
}

fn is_half(dtype: DType) -> bool {
    matches!(dtype, DType::F16 | DType::BF16)
}
