//! Reductions of much data: cut into chunks, each chunk into one slice a rank. A rank writes the others'
//! slices of a chunk to its slot, folds its own slice from all slots (its own part straight from the
//! user's memory), and the results go back the same way. Chunks overlap: while a chunk's results are
//! read the next one is folded and the one after that is written.
//!
//! The stream of steps is in(0), in(1), out(0), in(2), out(1), ..., out(last).

use super::engine::Run;
use crate::call::{Cursor, Pieces, ReduceOp, fold_bytes, part};
use fleet_base::Result;
use fleet_tensor::DType;

/// Slices begin on cache lines of the slot.
const GRAIN_BYTES: usize = 64;

impl Run<'_> {
    /// Into every rank's data, or into that of `root` alone.
    pub(super) fn large_reduce(
        &mut self,
        data: Pieces<'_>,
        dtype: DType,
        op: ReduceOp,
        root: Option<usize>,
    ) -> Result<()> {
        let chunk_bytes = self.engine.segment.layout.slot_bytes;
        let chunks = data.bytes.div_ceil(chunk_bytes).max(1);
        let first = self.take(2 * chunks);
        let mut plan = Large {
            data,
            dtype,
            op,
            root,
            chunk_bytes,
            chunks,
            first,
            fill: Cursor::default(),
            fold: Cursor::default(),
            drain: Cursor::default(),
        };
        for turn in 0..chunks + 2 {
            if turn < chunks {
                plan.fill(self, turn)?;
            }
            if (1..=chunks).contains(&turn) {
                plan.fold(self, turn - 1)?;
            }
            if turn >= 2 {
                plan.drain(self, turn - 2)?;
            }
        }
        Ok(())
    }
}

struct Large<'a> {
    data: Pieces<'a>,
    dtype: DType,
    op: ReduceOp,
    root: Option<usize>,
    chunk_bytes: usize,
    chunks: usize,
    first: u32,
    fill: Cursor,
    fold: Cursor,
    drain: Cursor,
}

impl Large<'_> {
    fn step_in(&self, chunk: usize) -> u32 {
        self.first.wrapping_add((2 * chunk).saturating_sub(1) as u32)
    }

    fn step_out(&self, chunk: usize) -> u32 {
        let last = chunk + 1 == self.chunks;
        self.first.wrapping_add((2 * chunk + if last { 1 } else { 2 }) as u32)
    }

    /// Where a chunk is in the data: start and length in bytes.
    fn chunk(&self, chunk: usize) -> (usize, usize) {
        let start = chunk * self.chunk_bytes;
        (start, self.chunk_bytes.min(self.data.bytes - start))
    }

    fn writes_out(&self, rank: usize) -> bool {
        self.root.is_none_or(|root| root == rank)
    }

    /// Writes everything but the own slice to the slot.
    fn fill(&mut self, run: &mut Run<'_>, chunk: usize) -> Result<()> {
        let step = self.step_in(chunk);
        let slot = run.free_slot(step)?;
        let (start, bytes) = self.chunk(chunk);
        let (from, to) = part(bytes, run.engine.size, run.engine.rank, GRAIN_BYTES);
        // SAFETY: the slot is free and as long as a chunk.
        unsafe {
            self.data.read(&mut self.fill, start, from, slot);
            self.data.read(&mut self.fill, start + to, bytes - to, slot.add(to));
        }
        run.publish(step);
        Ok(())
    }

    /// Folds the own slice into the data and the slot of the way out.
    fn fold(&mut self, run: &mut Run<'_>, chunk: usize) -> Result<()> {
        let (step_in, step_out) = (self.step_in(chunk), self.step_out(chunk));
        let out = run.free_slot(step_out)?;
        run.all_slots(step_in)?;
        let (start, bytes) = self.chunk(chunk);
        let rank = run.engine.rank;
        let (from, to) = part(bytes, run.engine.size, rank, GRAIN_BYTES);
        let keeps = self.writes_out(rank);
        let gives = self.root != Some(rank);
        let (dtype, op) = (self.dtype, self.op.fold(run.engine.size));
        let slots = &mut run.engine.pointers;
        let mut walked = 0;
        self.data.each(&mut self.fold, start + from, to - from, |piece, offset, len| {
            for slot in slots.iter_mut() {
                *slot = slot.wrapping_add(offset + from - walked);
            }
            walked = offset + from;
            slots[rank] = piece;
            // SAFETY: inside the slot of the way out, as long as a chunk.
            let given = unsafe { out.add(walked) };
            let (to, copy) = match (keeps, gives) {
                (true, true) => (piece, Some(given)),
                (true, false) => (piece, None),
                (false, _) => (given, None),
            };
            // SAFETY: the slots of the step are published and not consumed, the own slot of the way
            // out is free, and the piece is the caller's; the output is an input or apart.
            unsafe { fold_bytes(dtype, op, slots, to, copy, len) };
        });
        run.publish(step_out);
        run.consume(step_in);
        Ok(())
    }

    /// Reads the others' results.
    fn drain(&mut self, run: &mut Run<'_>, chunk: usize) -> Result<()> {
        let step = self.step_out(chunk);
        let (start, bytes) = self.chunk(chunk);
        if self.writes_out(run.engine.rank) {
            for peer in 0..run.engine.size {
                if peer == run.engine.rank {
                    continue;
                }
                let slot = run.slot_of(peer, step)?;
                let (from, to) = part(bytes, run.engine.size, peer, GRAIN_BYTES);
                // SAFETY: the slot is published and not consumed.
                unsafe {
                    self.data.write(&mut self.drain, start + from, to - from, slot.add(from));
                }
            }
        }
        run.consume(step);
        Ok(())
    }
}
