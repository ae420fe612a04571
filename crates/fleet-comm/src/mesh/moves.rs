//! Collectives over a mesh other than the all-reduce. Data goes directly from its owner to the
//! ranks that need it, in one step per call, except where a tree saves messages.

use super::agree::Claim;
use super::{Move, Step, finish};
use crate::call::{Fold, Piece, Pieces, SIGNATURE_BYTES, Signature, block_range, fold_bytes, part};
use crate::shm::check_pair;
use fleet_base::{Error, ReduceOp, Result};
use fleet_net::Transfer;
use fleet_tensor::DType;

/// Up to this size a tree with all data is faster than slices.
const TREE_BYTES_MAX: usize = 64 << 10;

impl Step<'_> {
    fn others(&self) -> impl Iterator<Item = usize> {
        let rank = self.rank();
        (0..self.size()).filter(move |peer| *peer != rank)
    }

    /// Only the root's data may change, so all ranks work on a copy.
    pub(super) fn reduce(
        &self,
        data: Pieces<'_>,
        dtype: DType,
        op: ReduceOp,
        root: usize,
    ) -> Result<()> {
        let (rank, size) = (self.rank(), self.size());
        if data.bytes > TREE_BYTES_MAX {
            return self.reduce_slices(data, dtype, op, root);
        }
        let mut copy = vec![0u64; data.bytes.div_ceil(8)];
        let list = [Piece { bytes: data.bytes, ..Piece::of(&mut copy) }];
        // SAFETY: the copy is as long as the data.
        unsafe { data.read(&mut Default::default(), 0, data.bytes, list[0].start) };
        super::with_f32(Pieces::new(&list), dtype, |wide, dtype| {
            self.tree_up(wide, dtype, op, root)?;
            if rank == root {
                finish(wide, 0..wide.bytes, dtype, op, size);
            }
            Ok(())
        })?;
        if rank == root {
            // SAFETY: as above.
            unsafe { data.write(&mut Default::default(), 0, data.bytes, list[0].start) };
        }
        Ok(())
    }

    fn reduce_slices(
        &self,
        data: Pieces<'_>,
        dtype: DType,
        op: ReduceOp,
        root: usize,
    ) -> Result<()> {
        let (rank, size, unit) = (self.rank(), self.size(), dtype.size());
        let slice = |index: usize| {
            let (from, to) = part(data.bytes / unit, size, index, 1);
            from * unit..to * unit
        };
        let own = slice(rank);
        let mut folded = vec![0u64; own.len().div_ceil(8)];
        let buffer = Piece::of(&mut folded).start;
        let list = data.split_like(own.start, own.len(), buffer);
        let folded = Pieces::new(&list);
        // SAFETY: the buffer is as long as the slice.
        unsafe { data.read(&mut Default::default(), own.start, own.len(), buffer) };
        self.fold_apart(data, slice, dtype, op, folded)?;
        if rank != root {
            return self.run_moves(&[Move::Send { to: root, data: folded, at: 0..own.len() }]);
        }
        // SAFETY: as above.
        unsafe { data.write(&mut Default::default(), own.start, own.len(), buffer) };
        let moves: Vec<Move<'_>> =
            self.others().map(|from| Move::Recv { from, data, at: slice(from) }).collect();
        self.run_moves(&moves)
    }

    /// Like [`Step::fold_slices`] without changing the data. `folded` holds this rank's operand.
    fn fold_apart(
        &self,
        data: Pieces<'_>,
        slice: impl Fn(usize) -> std::ops::Range<usize>,
        dtype: DType,
        op: ReduceOp,
        folded: Pieces<'_>,
    ) -> Result<()> {
        let (rank, size) = (self.rank(), self.size());
        let len = slice(rank).len();
        let stride = len.div_ceil(8) * 8;
        let mut memory = vec![0u64; size * stride / 8];
        let buffer = Piece::of(&mut memory).start;
        let buffers: Vec<Vec<Piece>> = (0..size)
            .map(|peer| data.split_like(slice(rank).start, len, buffer.wrapping_add(peer * stride)))
            .collect();
        let mut moves = Vec::with_capacity(2 * size);
        for peer in self.others() {
            moves.push(Move::Send { to: peer, data, at: slice(peer) });
            moves.push(Move::Recv { from: peer, data: Pieces::new(&buffers[peer]), at: 0..len });
        }
        self.run_moves(&moves)?;
        folded.visit(&mut Default::default(), 0, len, |piece, offset, bytes| {
            let operands: Vec<*const u8> = (0..size)
                .map(|peer| match peer == rank {
                    true => piece.cast_const(),
                    false => buffer.wrapping_add(peer * stride + offset).cast_const(),
                })
                .collect();
            // SAFETY: slices of equal length; the output is this rank's operand.
            unsafe { fold_bytes(dtype, op.fold(size), &operands, piece, None, bytes) };
        });
        Ok(())
    }

    pub(super) fn reduce_scatter(
        &self,
        input: Piece,
        output: Piece,
        dtype: DType,
        op: ReduceOp,
    ) -> Result<()> {
        let (rank, block) = (self.rank(), output.bytes);
        let (from, to) = ([input], [output]);
        input.nth(block, rank).copy_to(output);
        self.fold_apart(
            Pieces::new(&from),
            |peer| peer * block..(peer + 1) * block,
            dtype,
            op,
            Pieces::new(&to),
        )
    }

    pub(super) fn broadcast(&self, data: Pieces<'_>, root: usize, unit: usize) -> Result<()> {
        let (rank, size) = (self.rank(), self.size());
        if data.bytes <= TREE_BYTES_MAX || size == 2 {
            return self.tree_down(data, root);
        }
        // The root sends a slice to each rank, then every rank sends its slice to all others.
        let slice = |index: usize| {
            let (from, to) = part(data.bytes / unit, size, index, 1);
            from * unit..to * unit
        };
        let mut moves = Vec::new();
        if rank == root {
            moves.extend(self.others().map(|to| Move::Send { to, data, at: slice(to) }));
        } else {
            moves.push(Move::Recv { from: root, data, at: slice(rank) });
        }
        self.run_moves(&moves)?;
        let mut moves = Vec::new();
        for peer in self.others() {
            if peer != root {
                moves.push(Move::Send { to: peer, data, at: slice(rank) });
            }
            if rank != root {
                moves.push(Move::Recv { from: peer, data, at: slice(peer) });
            }
        }
        self.run_moves(&moves)
    }

    pub(super) fn all_gather(
        &self,
        input: Option<Piece>,
        output: Piece,
        counts: &[usize],
    ) -> Result<()> {
        let rank = self.rank();
        let at = |rank: usize| block_range(counts, rank);
        if let Some(input) = input {
            input.copy_to(output.block(counts, rank));
        }
        let list = [output];
        let data = Pieces::new(&list);
        let mut moves = Vec::with_capacity(2 * self.size());
        for peer in self.others() {
            moves.push(Move::Send { to: peer, data, at: at(rank) });
            moves.push(Move::Recv { from: peer, data, at: at(peer) });
        }
        self.run_moves(&moves)
    }

    pub(super) fn scatter(&self, input: Option<Piece>, output: Piece, root: usize) -> Result<()> {
        let block = output.bytes;
        let to = [output];
        let Some(input) = input else {
            return self.run_moves(&[Move::Recv {
                from: root,
                data: Pieces::new(&to),
                at: 0..block,
            }]);
        };
        input.nth(block, root).copy_to(output);
        let from = [input];
        let data = Pieces::new(&from);
        let send = |to: usize| Move::Send { to, data, at: to * block..(to + 1) * block };
        self.run_moves(&self.others().map(send).collect::<Vec<_>>())
    }

    pub(super) fn gather(&self, input: Piece, output: Option<Piece>, root: usize) -> Result<()> {
        let block = input.bytes;
        let Some(output) = output else {
            let from = [input];
            return self.run_moves(&[Move::Send {
                to: root,
                data: Pieces::new(&from),
                at: 0..block,
            }]);
        };
        input.copy_to(output.nth(block, root));
        let to = [output];
        let data = Pieces::new(&to);
        let recv = |from: usize| Move::Recv { from, data, at: from * block..(from + 1) * block };
        self.run_moves(&self.others().map(recv).collect::<Vec<_>>())
    }

    pub(super) fn all_to_all(
        &self,
        input: Piece,
        output: Piece,
        sends: &[usize],
        receives: &[usize],
    ) -> Result<()> {
        let rank = self.rank();
        input.block(sends, rank).copy_to(output.block(receives, rank));
        let (from, to) = ([input], [output]);
        let mut moves = Vec::with_capacity(2 * self.size());
        for peer in self.others() {
            moves.push(Move::Send {
                to: peer,
                data: Pieces::new(&from),
                at: block_range(sends, peer),
            });
            moves.push(Move::Recv {
                from: peer,
                data: Pieces::new(&to),
                at: block_range(receives, peer),
            });
        }
        self.run_moves(&moves)
    }

    /// Checks that every rank sends as much as its peers expect. All ranks get the same error.
    pub(super) fn check_counts(&self, sends: &[usize], receives: &[usize]) -> Result<()> {
        let size = self.size();
        let mut sent_counts: Vec<u64> = sends.iter().map(|count| *count as u64).collect();
        let mut received_counts = vec![0u64; size];
        let (out, into) = ([Piece::of(&mut sent_counts)], [Piece::of(&mut received_counts)]);
        let at = |peer: usize| peer * 8..(peer + 1) * 8;
        let mut moves = Vec::with_capacity(2 * size);
        for peer in self.others() {
            moves.push(Move::Send { to: peer, data: Pieces::new(&out), at: at(peer) });
            moves.push(Move::Recv { from: peer, data: Pieces::new(&into), at: at(peer) });
        }
        self.run_moves(&moves)?;
        let rank = self.rank();
        received_counts[rank] = sends[rank] as u64;
        let wrong = (0..size).find(|peer| received_counts[*peer] != receives[*peer] as u64);
        let claim = wrong.map_or(Claim::ok(), |peer| {
            Claim::error(&Error::invalid(format!(
                "rank {peer} sends {} bytes to rank {rank}, which expects {}",
                received_counts[peer], receives[peer]
            )))
        });
        self.agree(&claim)
    }

    /// Sends the signature first, so that the receiver can compare it with its own.
    pub(super) fn send(&self, to: usize, data: Piece, own: &Signature) -> Result<()> {
        // SAFETY: the caller's memory.
        let bytes = unsafe { std::slice::from_raw_parts(data.start, data.bytes) };
        self.mesh.transfer(
            &mut [Transfer::Send { to, data: &own.encode() }, Transfer::Send { to, data: bytes }],
            self.limits,
        )
    }

    pub(super) fn recv(&self, from: usize, into: Piece, own: &Signature) -> Result<()> {
        let mut theirs = [0; SIGNATURE_BYTES];
        let mut ops = [Transfer::Recv { from, into: &mut theirs }];
        self.mesh.transfer(&mut ops, self.limits)?;
        let theirs = Signature::decode(&theirs)
            .ok_or_else(|| Error::internal(format!("rank {from} sent an invalid signature")))?;
        let (me, peer) = (self.mesh.member(self.rank()), self.mesh.member(from));
        check_pair(own, &theirs, &me, &peer)?;
        // SAFETY: the caller's memory.
        let bytes = unsafe { std::slice::from_raw_parts_mut(into.start, into.bytes) };
        self.mesh.transfer(&mut [Transfer::Recv { from, into: bytes }], self.limits)
    }
}
