//! Collectives that move data, with at most a fold at the end. A rank writes the data for others
//! chunk by chunk, one chunk ahead of the reads.

use super::engine::Run;
use crate::call::{Cursor, Done, Fold, Piece, Pieces, fold_bytes};
use fleet_base::{Error, ReduceOp, Result};
use fleet_kernels::copy::copy;
use fleet_tensor::DType;

impl Run<'_> {
    /// Runs `chunks` steps. `write(chunk, slot)` fills this rank's slot, `read(run, chunk, step)`
    /// reads the slots of others.
    fn stream(
        &mut self,
        chunks: usize,
        writes: bool,
        mut write: impl FnMut(usize, *mut u8),
        mut read: impl FnMut(&mut Self, usize, u32) -> Result<()>,
    ) -> Result<()> {
        let chunks = chunks.max(1);
        let first = self.take(chunks);
        for turn in 0..=chunks {
            if turn < chunks {
                let step = first.wrapping_add(turn as u32);
                if writes {
                    let slot = self.free_slot(step)?;
                    write(turn, slot);
                }
                self.publish(step);
            }
            if turn > 0 {
                let step = first.wrapping_add(turn as u32 - 1);
                read(self, turn - 1, step)?;
                self.consume(step);
            }
        }
        Ok(())
    }

    fn slot_bytes(&self) -> usize {
        self.engine.segment.layout.slot_bytes
    }

    /// Size of one rank's part of a slot that has a part for every rank.
    fn part_bytes(&self) -> usize {
        self.slot_bytes() / self.engine.size / 64 * 64
    }

    pub(super) fn broadcast(&mut self, data: Pieces<'_>, root: usize) -> Result<()> {
        let (slot_bytes, is_root) = (self.slot_bytes(), self.engine.rank == root);
        let span = |chunk: usize| {
            let start = chunk * slot_bytes;
            (start, slot_bytes.min(data.bytes - start))
        };
        let (mut fill, mut drain) = (Cursor::default(), Cursor::default());
        self.stream(
            data.bytes.div_ceil(slot_bytes),
            is_root,
            |chunk, slot| {
                let (start, bytes) = span(chunk);
                // SAFETY: the slot is free and as long as a chunk.
                unsafe { data.read(&mut fill, start, bytes, slot) };
            },
            |run, chunk, step| {
                if !is_root {
                    let slot = run.slot_of(root, step)?;
                    let (start, bytes) = span(chunk);
                    // SAFETY: the slot is published.
                    unsafe { data.write(&mut drain, start, bytes, slot) };
                }
                Ok(())
            },
        )
    }

    /// Reduces the data of two ranks at `root`: the other rank writes all of it, and the root folds
    /// it. With `done` the data does not change: `done` gets each chunk from this rank's slot.
    pub(super) fn reduce_of_two<'a>(
        &mut self,
        data: Pieces<'a>,
        dtype: DType,
        op: ReduceOp,
        root: usize,
        mut done: Option<Done<'a>>,
    ) -> Result<()> {
        let (slot_bytes, rank) = (self.slot_bytes(), self.engine.rank);
        let fold = op.fold(self.engine.size);
        let span = |chunk: usize| {
            let start = chunk * slot_bytes;
            (start, slot_bytes.min(data.bytes - start))
        };
        let (mut fill, mut drain) = (Cursor::default(), Cursor::default());
        self.stream(
            data.bytes.div_ceil(slot_bytes),
            rank != root,
            |chunk, slot| {
                let (start, bytes) = span(chunk);
                // SAFETY: the slot is free and as long as a chunk.
                unsafe { data.read(&mut fill, start, bytes, slot) };
            },
            |run, chunk, step| {
                if rank != root {
                    return Ok(());
                }
                run.all_slots(step)?;
                let (start, bytes) = span(chunk);
                let (own, theirs) =
                    (run.engine.pointers[rank].cast_mut(), run.engine.pointers[1 - rank]);
                data.visit(&mut drain, start, bytes, |piece, offset, len| {
                    let mut operands = [theirs.wrapping_add(offset); 2];
                    operands[rank] = piece;
                    let to = if done.is_some() { own.wrapping_add(offset) } else { piece };
                    // SAFETY: the other rank's slot is published and not consumed. It has consumed
                    // what this rank's slot had before. The piece is the caller's.
                    unsafe { fold_bytes(dtype, fold, &operands, to, None, len) };
                });
                if let Some(done) = &mut done {
                    // SAFETY: just written, and no other rank reads it.
                    done(start, unsafe { std::slice::from_raw_parts(own, bytes) });
                }
                Ok(())
            },
        )
    }

    pub(super) fn all_gather(
        &mut self,
        input: Option<Piece>,
        output: Piece,
        counts: &[usize],
    ) -> Result<()> {
        let (slot_bytes, rank) = (self.slot_bytes(), self.engine.rank);
        let start_of = |rank: usize| counts[..rank].iter().sum::<usize>();
        // SAFETY: this rank's block is inside the output.
        let own_out = unsafe { output.start.add(start_of(rank)) };
        let own = input.map_or(own_out, |input| input.start);
        let span = |rank: usize, chunk: usize| {
            let start = (chunk * slot_bytes).min(counts[rank]);
            (start, slot_bytes.min(counts[rank] - start))
        };
        let longest = counts.iter().copied().max().unwrap_or(0);
        self.stream(
            longest.div_ceil(slot_bytes),
            true,
            |chunk, slot| {
                let (start, bytes) = span(rank, chunk);
                // SAFETY: the slot is free and as long as a chunk; blocks are the caller's.
                unsafe {
                    copy(own.add(start), slot, bytes);
                    if own != own_out {
                        copy(own.add(start), own_out.add(start), bytes);
                    }
                }
            },
            |run, chunk, step| {
                let mut block = output.start;
                for peer in 0..run.engine.size {
                    let slot = run.slot_of(peer, step)?;
                    let (start, bytes) = span(peer, chunk);
                    // SAFETY: the slot is published; blocks are consecutive in the output.
                    unsafe {
                        if peer != rank {
                            copy(slot, block.add(start), bytes);
                        }
                        block = block.add(counts[peer]);
                    }
                }
                Ok(())
            },
        )
    }

    pub(super) fn reduce_scatter(
        &mut self,
        input: Piece,
        output: Piece,
        dtype: DType,
        op: ReduceOp,
    ) -> Result<()> {
        let (part_bytes, rank, size) = (self.part_bytes(), self.engine.rank, self.engine.size);
        let block = output.bytes;
        let span = |chunk: usize| {
            let start = (chunk * part_bytes).min(block);
            (start, part_bytes.min(block - start))
        };
        let fold = op.fold(size);
        self.stream(
            block.div_ceil(part_bytes),
            true,
            |chunk, slot| {
                let (start, bytes) = span(chunk);
                for peer in (0..size).filter(|peer| *peer != rank) {
                    // SAFETY: blocks of the input, parts of the free slot.
                    unsafe {
                        let from = input.start.add(peer * block + start);
                        copy(from, slot.add(peer * part_bytes), bytes);
                    }
                }
            },
            |run, chunk, step| {
                run.all_slots(step)?;
                let (start, bytes) = span(chunk);
                // SAFETY: this rank's parts of published slots, its block of the input, the output.
                unsafe {
                    for slot in &mut run.engine.pointers {
                        *slot = slot.add(rank * part_bytes);
                    }
                    run.engine.pointers[rank] = input.start.add(rank * block + start);
                    let out = output.start.add(start);
                    fold_bytes(dtype, fold, &run.engine.pointers, out, None, bytes);
                }
                Ok(())
            },
        )
    }

    pub(super) fn scatter(
        &mut self,
        input: Option<Piece>,
        output: Piece,
        root: usize,
    ) -> Result<()> {
        let (part_bytes, rank, size) = (self.part_bytes(), self.engine.rank, self.engine.size);
        let block = output.bytes;
        let span = |chunk: usize| {
            let start = (chunk * part_bytes).min(block);
            (start, part_bytes.min(block - start))
        };
        let source = input.map(|input| input.start);
        self.stream(
            block.div_ceil(part_bytes),
            rank == root,
            |chunk, slot| {
                let (Some(source), (start, bytes)) = (source, span(chunk)) else { return };
                for peer in 0..size {
                    // SAFETY: blocks of the input, parts of the free slot or the output.
                    unsafe {
                        let from = source.add(peer * block + start);
                        let to = if peer == root {
                            output.start.add(start)
                        } else {
                            slot.add(peer * part_bytes)
                        };
                        std::ptr::copy(from, to, bytes);
                    }
                }
            },
            |run, chunk, step| {
                if rank != root {
                    let slot = run.slot_of(root, step)?;
                    let (start, bytes) = span(chunk);
                    // SAFETY: this rank's part of a published slot.
                    unsafe {
                        let from = slot.add(rank * part_bytes);
                        copy(from, output.start.add(start), bytes);
                    }
                }
                Ok(())
            },
        )
    }

    pub(super) fn gather(
        &mut self,
        input: Piece,
        output: Option<Piece>,
        root: usize,
    ) -> Result<()> {
        let (slot_bytes, rank) = (self.slot_bytes(), self.engine.rank);
        let block = input.bytes;
        let span = |chunk: usize| {
            let start = (chunk * slot_bytes).min(block);
            (start, slot_bytes.min(block - start))
        };
        self.stream(
            block.div_ceil(slot_bytes),
            rank != root,
            |chunk, slot| {
                let (start, bytes) = span(chunk);
                // SAFETY: the free slot is as long as a chunk.
                unsafe { copy(input.start.add(start), slot, bytes) };
            },
            |run, chunk, step| {
                let Some(output) = output.filter(|_| rank == root) else { return Ok(()) };
                let (start, bytes) = span(chunk);
                for peer in 0..run.engine.size {
                    let slot = run.slot_of(peer, step)?;
                    // SAFETY: the input or a published slot, and a block of the output.
                    unsafe {
                        let from =
                            if peer == root { input.start.add(start) } else { slot.cast_mut() };
                        std::ptr::copy(from, output.start.add(peer * block + start), bytes);
                    }
                }
                Ok(())
            },
        )
    }

    /// Exchanges the counts first, to find the number of steps and to check that they agree.
    pub(super) fn all_to_all(
        &mut self,
        input: Piece,
        output: Piece,
        sends: &[usize],
        receives: &[usize],
    ) -> Result<()> {
        let longest = self.exchange_counts(sends, receives)?;
        let (part_bytes, rank) = (self.part_bytes(), self.engine.rank);
        let span = |count: usize, chunk: usize| {
            let start = (chunk * part_bytes).min(count);
            (start, part_bytes.min(count - start))
        };
        self.stream(
            longest.div_ceil(part_bytes),
            true,
            |chunk, slot| {
                let (mut from, mut place) = (input.start, 0);
                for peer in 0..sends.len() {
                    let (start, bytes) = span(sends[peer], chunk);
                    // SAFETY: blocks of the input, parts of the free slot.
                    unsafe {
                        if peer != rank {
                            let to = slot.add(peer * part_bytes);
                            copy(from.add(start), to, bytes);
                        } else if chunk == 0 {
                            let skip: usize = receives[..rank].iter().sum();
                            let to = output.start.add(skip);
                            copy(from, to, sends[rank]);
                        }
                        place += sends[peer];
                        from = input.start.add(place);
                    }
                }
            },
            |run, chunk, step| {
                let mut place = 0;
                for peer in 0..run.engine.size {
                    let slot = run.slot_of(peer, step)?;
                    if peer != rank {
                        let (start, bytes) = span(receives[peer], chunk);
                        // SAFETY: this rank's part of a published slot, a block of the output.
                        unsafe {
                            let from = slot.add(rank * part_bytes);
                            let to = output.start.add(place + start);
                            copy(from, to, bytes);
                        }
                    }
                    place += receives[peer];
                }
                Ok(())
            },
        )
    }

    /// Exchanges the counts of all ranks. Checks this rank's, and returns the largest of all.
    fn exchange_counts(&mut self, sends: &[usize], receives: &[usize]) -> Result<usize> {
        let (rank, size) = (self.engine.rank, self.engine.size);
        let (mut longest, mut wrong) = (0, None);
        self.stream(
            1,
            true,
            |_, slot| {
                for (peer, count) in sends.iter().enumerate() {
                    // SAFETY: a slot holds far more than one count for each rank.
                    unsafe { slot.cast::<u64>().add(peer).write(*count as u64) };
                }
            },
            |run, _, step| {
                for peer in 0..size {
                    let slot = run.slot_of(peer, step)?.cast::<u64>();
                    for to in 0..size {
                        // SAFETY: the peer wrote it before it published the step.
                        let count = unsafe { slot.add(to).read() } as usize;
                        longest = longest.max(count);
                        if to == rank && count != receives[peer] {
                            wrong = Some((peer, count));
                        }
                    }
                }
                Ok(())
            },
        )?;
        match wrong {
            None => Ok(longest),
            Some((peer, count)) => Err(Error::invalid(format!(
                "counts of all_to_all differ: rank {peer} sends {count} bytes to rank {rank}"
            ))
            .expected(format!("{} bytes, by the receiver's counts", receives[peer]))),
        }
    }
}
