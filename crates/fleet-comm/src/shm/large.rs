//! Reductions of large data. The data is split into chunks, and each chunk into one slice per rank.
//! A rank writes the other ranks' slices of a chunk to its slot. It folds its own slice from all
//! slots, with its own operand read directly from user memory. Then the ranks read the results.
//! Chunks overlap: while the results of one chunk are read, the next is folded and the one after
//! that is written.
//!
//! The order of steps is in(0), in(1), out(0), in(2), out(1), ..., out(last).
//!
//! **In place.** The cost of a chunk is the cache lines that move between cores. With few ranks, a
//! rank writes a result over the operand, in the slot of the rank that needs it. The line is
//! already in the cache of the folding core, and moves back to its owner, which reads it and later
//! overwrites it. With two ranks this halves the traffic compared with separate slots for results
//! (measured, two cores of a Xeon, 100 MB: 7.5 instead of 4.4 GB/s). With many ranks it would need
//! one write per rank, whereas a slot that all ranks read is written once.

use super::engine::Run;
use crate::call::{Cursor, Done, Fold, Pieces, fold_bytes, part};
use fleet_base::{ReduceOp, Result};
use fleet_kernels::copy::copy;
use fleet_tensor::DType;

/// Alignment of slices: cache lines of the slot.
const GRAIN_BYTES: usize = 64;
/// Largest number of ranks for results in place: measured with 2 ranks on 2 cores (1.7 times as
/// fast) and 4 on 2 (1.4 times).
const IN_PLACE_RANKS_MAX: usize = 4;

impl Run<'_> {
    /// Reduces into every rank's data, or only into that of `root`. With `done` the data is
    /// unspecified afterwards: `done` gets each slice of a chunk directly from the slot in which it
    /// was folded. This saves writing all results to memory and reading half of them twice.
    /// If only `root` gets results, it folds its own slice where its data is.
    pub(super) fn large_reduce<'a>(
        &mut self,
        data: Pieces<'a>,
        dtype: DType,
        op: ReduceOp,
        root: Option<usize>,
        done: Option<Done<'a>>,
    ) -> Result<()> {
        let chunk_bytes = self.engine.segment.layout.slot_bytes;
        let chunks = data.bytes.div_ceil(chunk_bytes).max(1);
        let first = self.take(2 * chunks);
        let mut plan = Large {
            data,
            dtype,
            op,
            root,
            done,
            chunk_bytes,
            chunks,
            first,
            in_place: self.engine.size <= IN_PLACE_RANKS_MAX,
            write_cursor: Cursor::default(),
            fold_cursor: Cursor::default(),
            read_cursor: Cursor::default(),
        };
        for turn in 0..chunks + 2 {
            if turn < chunks {
                plan.write_operands(self, turn)?;
            }
            if (1..=chunks).contains(&turn) {
                plan.fold_own(self, turn - 1)?;
            }
            if turn >= 2 {
                plan.read_results(self, turn - 2)?;
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
    done: Option<Done<'a>>,
    chunk_bytes: usize,
    chunks: usize,
    first: u32,
    in_place: bool,
    write_cursor: Cursor,
    fold_cursor: Cursor,
    read_cursor: Cursor,
}

impl Large<'_> {
    fn step_in(&self, chunk: usize) -> u32 {
        self.first.wrapping_add((2 * chunk).saturating_sub(1) as u32)
    }

    fn step_out(&self, chunk: usize) -> u32 {
        let last = chunk + 1 == self.chunks;
        self.first.wrapping_add((2 * chunk + if last { 1 } else { 2 }) as u32)
    }

    /// Range of a chunk in the data: start and length in bytes.
    fn chunk(&self, chunk: usize) -> (usize, usize) {
        let start = chunk * self.chunk_bytes;
        (start, self.chunk_bytes.min(self.data.bytes - start))
    }

    fn writes_out(&self, rank: usize) -> bool {
        self.root.is_none_or(|root| root == rank)
    }

    /// Writes all slices but this rank's own to its slot.
    fn write_operands(&mut self, run: &mut Run<'_>, chunk: usize) -> Result<()> {
        let step = self.step_in(chunk);
        let slot = run.free_slot(step)?;
        let (start, bytes) = self.chunk(chunk);
        let (from, to) = part(bytes, run.engine.size, run.engine.rank, GRAIN_BYTES);
        // SAFETY: the slot is free and as long as a chunk.
        unsafe {
            self.data.read(&mut self.write_cursor, start, from, slot);
            self.data.read(&mut self.write_cursor, start + to, bytes - to, slot.add(to));
        }
        run.publish(step);
        Ok(())
    }

    /// Folds this rank's slice and writes the result for the ranks that need it.
    fn fold_own(&mut self, run: &mut Run<'_>, chunk: usize) -> Result<()> {
        let (step_in, step_out) = (self.step_in(chunk), self.step_out(chunk));
        let out = match self.in_place {
            true => None,
            false => Some(run.free_slot(step_out)?),
        };
        run.all_slots(step_in)?;
        let (start, bytes) = self.chunk(chunk);
        let (rank, size) = (run.engine.rank, run.engine.size);
        let (from, to) = part(bytes, size, rank, GRAIN_BYTES);
        let keeps = self.writes_out(rank) && self.done.is_none();
        let (dtype, op) = (self.dtype, self.op.fold(size));
        // Destinations of the result; without `out`, the places of the other ranks' operands.
        let mut destinations = [std::ptr::null_mut::<u8>(); IN_PLACE_RANKS_MAX];
        let mut count = 0;
        let mut add = |destination: *mut u8| {
            destinations[count] = destination;
            count += 1;
        };
        match out {
            Some(_) if self.root == Some(rank) => {}
            Some(out) => add(out),
            None => (0..size)
                .filter(|peer| *peer != rank && self.writes_out(*peer))
                .for_each(|peer| add(run.engine.pointers[peer].cast_mut())),
        }
        let destinations = &destinations[..count];
        let (slots, done) = (&mut run.engine.pointers, &mut self.done);
        let mut walked = 0;
        self.data.visit(&mut self.fold_cursor, start + from, to - from, |piece, offset, len| {
            for slot in slots.iter_mut() {
                *slot = slot.wrapping_add(offset + from - walked);
            }
            walked = offset + from;
            slots[rank] = piece;
            let mut targets =
                destinations.iter().map(|destination| destination.wrapping_add(walked));
            let to = if keeps { piece } else { targets.next().unwrap_or(piece) };
            // SAFETY: the slots of the step are published and not consumed, the destinations are
            // free or an operand, and the piece is the caller's. An output equals an input or does
            // not overlap any.
            unsafe { fold_bytes(dtype, op, slots, to, targets.next(), len) };
            if let Some(done) = done.as_mut().filter(|_| destinations.is_empty()) {
                // SAFETY: just written.
                done(start + from + offset, unsafe { std::slice::from_raw_parts(to, len) });
            }
            for more in targets {
                // SAFETY: as above; the data just written is in the cache.
                unsafe { copy(to, more, len) };
            }
        });
        run.publish(step_out);
        if let (Some(done), Some(destination)) = (&mut self.done, destinations.first()) {
            // SAFETY: the result was just written there. The slot is written again only after all
            // ranks, including this one, have consumed the step.
            done(start + from, unsafe {
                std::slice::from_raw_parts(destination.add(from), to - from)
            });
        }
        run.consume(step_in);
        Ok(())
    }

    /// Reads the other ranks' results.
    fn read_results(&mut self, run: &mut Run<'_>, chunk: usize) -> Result<()> {
        let (step_in, step_out) = (self.step_in(chunk), self.step_out(chunk));
        let (start, bytes) = self.chunk(chunk);
        let rank = run.engine.rank;
        if self.writes_out(rank) {
            for peer in 0..run.engine.size {
                if peer == rank {
                    continue;
                }
                let theirs = run.slot_of(peer, step_out)?;
                let slot = match self.in_place {
                    true => run.engine.segment.slot(rank, step_in).cast_const(),
                    false => theirs,
                };
                let (from, to) = part(bytes, run.engine.size, peer, GRAIN_BYTES);
                // SAFETY: the peer has published the step, and this rank has not consumed it.
                match &mut self.done {
                    // SAFETY: as above.
                    Some(done) => done(start + from, unsafe {
                        std::slice::from_raw_parts(slot.add(from), to - from)
                    }),
                    // SAFETY: as above.
                    None => unsafe {
                        self.data.write(
                            &mut self.read_cursor,
                            start + from,
                            to - from,
                            slot.add(from),
                        );
                    },
                }
            }
        }
        run.consume(step_out);
        Ok(())
    }
}
