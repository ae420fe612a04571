//! Runs NCCL's collectives on host memory. A call is processed in chunks, through staging buffers
//! of fixed size that the device can access. While NCCL works on one chunk, the host fills the
//! buffer of the next.
//!
//! Code with device memory uses [`Communicator`] directly and does not need this file.

use super::communicator::Communicator;
use super::cuda::{Cuda, DevicePointer, StagingBuffer, Stream};
use crate::call::{Call, Cursor, Fold, Piece, Pieces, Work, fold_bytes};
use crate::mesh::agree::Claim;
use crate::mesh::{NativeCollectives, Step, narrow, widen};
use fleet_base::{Error, ReduceOp, Result};
use fleet_net::{Abort, Limits, Mesh, Time};
use fleet_tensor::DType;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// Size of a staging buffer, the data of one chunk. Chosen so that the latency of NCCL and of the
/// bus should be a small part of a chunk; not measured.
const BUFFER_BYTES: usize = 4 << 20;
/// Number of chunks in flight: one on the device, one on the host.
const LANES: usize = 2;
/// Alignment of the parts of a buffer.
const ALIGN_BYTES: usize = 64;
/// Time that a finished rank waits for the others to finish: NCCL reads from peers' memory.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(5);
/// Time that a device may continue after NCCL was aborted.
const ABORT_TIMEOUT: Duration = Duration::from_secs(5);

/// The NCCL collectives of one group.
pub(super) struct Collectives {
    version: String,
    group: String,
    mesh: Arc<dyn Mesh>,
    abort: Abort,
    /// Declared before `lanes`, so that it is dropped first.
    communicator: Communicator,
    lanes: Vec<Lane>,
}

struct Lane {
    buffer: StagingBuffer,
    stream: Stream,
}

impl Collectives {
    pub fn new(
        version: &str,
        group: &str,
        mesh: Arc<dyn Mesh>,
        abort: Abort,
        cuda: &Arc<Cuda>,
        communicator: Communicator,
    ) -> Result<Collectives> {
        let (version, group) = (version.to_string(), group.to_string());
        // Allocate now and not in the first call: it may wait for running calls of other groups.
        let lane = || {
            Ok(Lane { buffer: StagingBuffer::new(cuda, BUFFER_BYTES)?, stream: Stream::new(cuda)? })
        };
        let lanes = (0..LANES).map(|_| lane()).collect::<Result<_>>()?;
        Ok(Collectives { version, group, mesh, abort, communicator, lanes })
    }

    /// Runs all chunks. A chunk waits for the previous chunk of its lane.
    fn run_chunks(&mut self, work: &mut dyn Chunks, limits: &Limits) -> Result<()> {
        let count = work.count();
        self.communicator.enter()?;
        for chunk in 0..count + LANES {
            let lane = &mut self.lanes[chunk % LANES];
            if let Some(before) = chunk.checked_sub(LANES)
                && before < count
            {
                self.communicator.finish(&lane.stream, limits)?;
                work.read(before, lane.buffer.host());
            }
            if chunk >= count {
                continue;
            }
            let up = work.fill(chunk, lane.buffer.host());
            if !up.is_empty() {
                lane.buffer.copy_to_device(up, &lane.stream)?;
            }
            let (buffer, communicator) = (lane.buffer.device, &mut self.communicator);
            work.call(chunk, Device { buffer, communicator, stream: &lane.stream })?;
            self.communicator.wait_enqueued(limits)?;
            let down = work.result_range(chunk);
            if !down.is_empty() {
                lane.buffer.copy_to_host(down, &lane.stream)?;
            }
        }
        Ok(())
    }

    /// Ends the group after an error. No device work may be running when the buffers are freed.
    fn abort_calls(&mut self) {
        self.communicator.abort();
        let begin = Time::now();
        while !self.lanes.iter().all(|lane| lane.stream.is_idle().unwrap_or(true)) {
            if Time::now().since(begin) > ABORT_TIMEOUT {
                // The device may still write to the buffers.
                return std::mem::forget(std::mem::take(&mut self.lanes));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl NativeCollectives for Collectives {
    fn name(&self) -> String {
        self.version.clone()
    }

    fn run(&mut self, step: &Step<'_>, call: &Call<'_>) -> Option<Result<()>> {
        let result = self.run_chunks(&mut *chunks(step, call)?, step.limits);
        if result.is_err() {
            self.abort_calls();
        }
        Some(result)
    }

    fn leave(&mut self) {
        // In an orderly shutdown every rank gets here. A rank that is in a call instead gets the
        // error that this rank has left.
        let limits = self.mesh.limits(LEAVE_TIMEOUT, &self.abort);
        let left = Claim::error(&Error::unavailable("this rank has left the group"));
        let _ = Step::new(&*self.mesh, &limits, &self.group).agree(&left);
    }
}

/// The chunks of a call; `None`, on all ranks alike, if NCCL does not support it.
fn chunks<'a>(step: &Step<'_>, call: &Call<'a>) -> Option<Box<dyn Chunks + 'a>> {
    let (rank, size) = (step.rank(), step.size());
    let root = call.signature.root as usize;
    let bytes = ElementForm { dtype: DType::U8, op: None, ranks: size };
    let form = ElementForm { dtype: call.signature.dtype, op: call.signature.op, ranks: size };
    let exchange = |out, sends, into| Exchange::new(size, out, sends, into);
    let others = || (0..size).filter(move |peer| *peer != rank);
    Some(match &call.work {
        Work::AllReduce { data, .. } => Box::new(Elements::new(form, *data, ElementOp::AllReduce)),
        Work::Reduce { data, .. } => {
            let op = ElementOp::Reduce { root, is_root: rank == root };
            Box::new(Elements::new(form, *data, op))
        }
        Work::Broadcast { data } => {
            let op = ElementOp::Broadcast { root, is_root: rank == root };
            Box::new(Elements::new(bytes, *data, op))
        }
        Work::ReduceScatter { input, output } => {
            Box::new(ReduceScatter(Blocks::new(form, rank, *input, *output)?))
        }
        Work::AllGather { input, output, counts } => {
            let own = output.block(counts, rank);
            if let Some(input) = input {
                input.copy_to(own);
            }
            match counts.iter().all(|count| *count == counts[0]) {
                true => Box::new(AllGather(Blocks::new(bytes, rank, own, *output)?)),
                false => {
                    let sends = others().map(|peer| (peer, 0)).collect();
                    let into = others().map(|peer| (peer, output.block(counts, peer)));
                    Box::new(exchange(vec![own], sends, into.collect())?)
                }
            }
        }
        Work::Scatter { input: Some(input), output } => {
            input.nth(output.bytes, root).copy_to(*output);
            let out = others().map(|peer| input.nth(output.bytes, peer)).collect();
            let sends = others().enumerate().map(|(index, peer)| (peer, index)).collect();
            Box::new(exchange(out, sends, vec![])?)
        }
        Work::Scatter { input: None, output } => {
            Box::new(exchange(vec![], vec![], vec![(root, *output)])?)
        }
        Work::Gather { input, output: Some(output) } => {
            input.copy_to(output.nth(input.bytes, root));
            let into = others().map(|peer| (peer, output.nth(input.bytes, peer))).collect();
            Box::new(exchange(vec![], vec![], into)?)
        }
        Work::Gather { input, output: None } => {
            Box::new(exchange(vec![*input], vec![(root, 0)], vec![])?)
        }
        Work::AllToAll { input, output, sends, receives } => {
            input.block(sends, rank).copy_to(output.block(receives, rank));
            let out = others().map(|peer| input.block(sends, peer)).collect();
            let to = others().enumerate().map(|(index, peer)| (peer, index)).collect();
            let into = others().map(|peer| (peer, output.block(receives, peer))).collect();
            Box::new(exchange(out, to, into)?)
        }
        // A barrier needs no data, because all ranks have agreed on the call. Messages use the
        // mesh: a send may complete before its receive starts, which NCCL does not support.
        Work::Barrier | Work::Send { .. } | Work::Recv { .. } => return None,
    })
}

/// The work of a call in each of its chunks.
trait Chunks {
    fn count(&self) -> usize;

    /// Fills the buffer. Returns the range to copy to the device.
    fn fill(&mut self, chunk: usize, buffer: &mut [u8]) -> Range<usize>;

    /// Calls NCCL on the device side of the buffer.
    fn call(&self, chunk: usize, device: Device<'_>) -> Result<()>;

    /// The range of the buffer to copy back.
    fn result_range(&self, chunk: usize) -> Range<usize>;

    /// Takes the results out of the buffer.
    fn read(&mut self, chunk: usize, buffer: &mut [u8]);
}

/// Resources of a call of NCCL: the device side of the buffer, and a queue for the call.
struct Device<'a> {
    buffer: DevicePointer,
    communicator: &'a mut Communicator,
    stream: &'a Stream,
}

/// How elements are stored in a buffer: unchanged, except for sums and products of half floats.
/// Those are stored as f32 and rounded once at the end, as in all backends.
#[derive(Clone, Copy)]
struct ElementForm {
    dtype: DType,
    op: Option<ReduceOp>,
    ranks: usize,
}

impl ElementForm {
    fn is_wide(&self) -> bool {
        let adds = !matches!(self.op, None | Some(ReduceOp::Max | ReduceOp::Min));
        adds && matches!(self.dtype, DType::F16 | DType::BF16)
    }

    /// The type in the buffer.
    fn buffer_dtype(&self) -> DType {
        if self.is_wide() { DType::F32 } else { self.dtype }
    }

    fn reduction(&self) -> Result<(DType, ReduceOp)> {
        let op = self.op.ok_or_else(|| Error::internal("a reduction without an operation"))?;
        Ok((self.buffer_dtype(), op))
    }

    /// Number of elements that fit into `bytes` of a buffer.
    fn fit(&self, bytes: usize) -> usize {
        bytes / ALIGN_BYTES * ALIGN_BYTES / self.buffer_dtype().size()
    }

    /// Part `chunk` of `bytes` bytes of data, in parts of `fit` elements: (start in the data, bytes
    /// of data, bytes in the buffer).
    fn part(&self, chunk: usize, fit: usize, bytes: usize) -> (usize, usize, usize) {
        let unit = self.dtype.size();
        let start = chunk * fit * unit;
        let bytes = (fit * unit).min(bytes - start);
        (start, bytes, bytes / unit * self.buffer_dtype().size())
    }

    /// # Safety
    /// `from` holds `bytes` bytes of whole aligned elements. `to` is aligned for an element.
    unsafe fn stage(&self, from: *const u8, bytes: usize, to: &mut [u8]) {
        if self.is_wide() {
            let to = as_f32(to, bytes / self.dtype.size());
            // SAFETY: guaranteed by the caller.
            return unsafe { widen(self.dtype, from, to) };
        }
        // SAFETY: guaranteed by the caller; the buffer never overlaps user memory.
        unsafe { fleet_kernels::copy::copy(from, to[..bytes].as_mut_ptr(), bytes) };
    }

    /// # Safety
    /// As for [`ElementForm::stage`].
    unsafe fn unstage(&self, from: &mut [u8], to: *mut u8, bytes: usize) {
        if self.is_wide() {
            let from = as_f32(from, bytes / self.dtype.size());
            // SAFETY: guaranteed by the caller.
            return unsafe { narrow(self.dtype, from, to) };
        }
        // SAFETY: guaranteed by the caller.
        unsafe { fleet_kernels::copy::copy(from[..bytes].as_ptr(), to, bytes) };
    }

    /// Divides sums by the number of ranks if the operation is an average.
    fn finish(&self, sums: &mut [u8]) {
        let (Some(op @ ReduceOp::Avg), start) = (self.op, sums.as_mut_ptr()) else { return };
        // SAFETY: whole aligned elements of a buffer, folded in place.
        unsafe {
            let fold = op.fold(self.ranks);
            let sources = [start.cast_const()];
            fold_bytes(self.buffer_dtype(), fold, &sources, start, None, sums.len());
        }
    }
}

fn as_f32(buffer: &mut [u8], count: usize) -> &mut [f32] {
    // SAFETY: any bytes are valid floats, and parts of buffers are aligned for them.
    let (before, floats, _) = unsafe { buffer.align_to_mut::<f32>() };
    assert!(before.is_empty());
    &mut floats[..count]
}

/// Calls that treat every element independently.
struct Elements<'a> {
    form: ElementForm,
    data: Pieces<'a>,
    op: ElementOp,
    /// Number of elements per chunk.
    fit: usize,
    fill_cursor: Cursor,
    read_cursor: Cursor,
}

#[derive(Clone, Copy)]
enum ElementOp {
    AllReduce,
    Reduce { root: usize, is_root: bool },
    Broadcast { root: usize, is_root: bool },
}

impl<'a> Elements<'a> {
    fn new(form: ElementForm, data: Pieces<'a>, op: ElementOp) -> Elements<'a> {
        let fit = form.fit(BUFFER_BYTES);
        Elements {
            form,
            data,
            op,
            fit,
            fill_cursor: Cursor::default(),
            read_cursor: Cursor::default(),
        }
    }

    fn part(&self, chunk: usize) -> (usize, usize, usize) {
        self.form.part(chunk, self.fit, self.data.bytes)
    }

    fn scale(&self) -> usize {
        self.form.buffer_dtype().size() / self.form.dtype.size()
    }
}

impl Chunks for Elements<'_> {
    fn count(&self) -> usize {
        self.data.bytes.div_ceil(self.fit * self.form.dtype.size())
    }

    fn fill(&mut self, chunk: usize, buffer: &mut [u8]) -> Range<usize> {
        if matches!(self.op, ElementOp::Broadcast { is_root: false, .. }) {
            return 0..0;
        }
        let (start, bytes, buffer_bytes) = self.part(chunk);
        let (form, scale) = (self.form, self.scale());
        self.data.visit(&mut self.fill_cursor, start, bytes, |piece, offset, len| {
            // SAFETY: pieces hold whole aligned elements.
            unsafe { form.stage(piece, len, &mut buffer[offset * scale..]) };
        });
        0..buffer_bytes
    }

    fn call(&self, chunk: usize, device: Device<'_>) -> Result<()> {
        let Device { buffer, communicator, stream } = device;
        let (_, bytes, _) = self.part(chunk);
        let count = bytes / self.form.dtype.size();
        match self.op {
            ElementOp::AllReduce => {
                communicator.all_reduce(buffer, count, self.form.reduction()?, stream)
            }
            ElementOp::Reduce { root, .. } => {
                communicator.reduce(buffer, count, self.form.reduction()?, root, stream)
            }
            ElementOp::Broadcast { root, .. } => {
                communicator.broadcast(buffer, bytes, root, stream)
            }
        }
    }

    fn result_range(&self, chunk: usize) -> Range<usize> {
        match self.op {
            ElementOp::Reduce { is_root: false, .. }
            | ElementOp::Broadcast { is_root: true, .. } => 0..0,
            _ => 0..self.part(chunk).2,
        }
    }

    fn read(&mut self, chunk: usize, buffer: &mut [u8]) {
        let result = self.result_range(chunk);
        if result.is_empty() {
            return;
        }
        self.form.finish(&mut buffer[result]);
        let (start, bytes, _) = self.part(chunk);
        let (form, scale) = (self.form, self.scale());
        self.data.visit(&mut self.read_cursor, start, bytes, |piece, offset, len| {
            // SAFETY: as above.
            unsafe { form.unstage(&mut buffer[offset * scale..], piece, len) };
        });
    }
}

/// Calls with one block per rank on one side and this rank's block on the other. A chunk moves an
/// equal part of every block.
struct Blocks {
    form: ElementForm,
    rank: usize,
    input: Piece,
    output: Piece,
    /// Bytes of a block in user memory.
    block: usize,
    /// Elements of each block per chunk.
    fit: usize,
}

impl Blocks {
    /// `None` if the blocks of so many ranks do not fit into a buffer.
    fn new(form: ElementForm, rank: usize, input: Piece, output: Piece) -> Option<Blocks> {
        let block = input.bytes.min(output.bytes);
        let fit = form.fit(BUFFER_BYTES / form.ranks);
        (fit > 0).then_some(Blocks { form, rank, input, output, block, fit })
    }

    fn count(&self) -> usize {
        self.block.div_ceil(self.fit * self.form.dtype.size())
    }

    fn part(&self, chunk: usize) -> (usize, usize, usize) {
        self.form.part(chunk, self.fit, self.block)
    }

    /// Ranges of a chunk's data in the buffer: of all ranks, and of this one.
    fn ranges(&self, chunk: usize) -> (Range<usize>, Range<usize>) {
        let buffer_bytes = self.part(chunk).2;
        (
            0..self.form.ranks * buffer_bytes,
            self.rank * buffer_bytes..(self.rank + 1) * buffer_bytes,
        )
    }
}

struct ReduceScatter(Blocks);

impl Chunks for ReduceScatter {
    fn count(&self) -> usize {
        self.0.count()
    }

    fn fill(&mut self, chunk: usize, buffer: &mut [u8]) -> Range<usize> {
        let (start, bytes, buffer_bytes) = self.0.part(chunk);
        for rank in 0..self.0.form.ranks {
            let from = self.0.input.start.wrapping_add(rank * self.0.block + start);
            // SAFETY: inside the block of the rank.
            unsafe { self.0.form.stage(from, bytes, &mut buffer[rank * buffer_bytes..]) };
        }
        self.0.ranges(chunk).0
    }

    fn call(&self, chunk: usize, device: Device<'_>) -> Result<()> {
        let Device { buffer, communicator, stream } = device;
        let count = self.0.part(chunk).1 / self.0.form.dtype.size();
        communicator.reduce_scatter(buffer, count, self.0.form.reduction()?, stream)
    }

    fn result_range(&self, chunk: usize) -> Range<usize> {
        self.0.ranges(chunk).1
    }

    fn read(&mut self, chunk: usize, buffer: &mut [u8]) {
        let (start, bytes, _) = self.0.part(chunk);
        let own = &mut buffer[self.0.ranges(chunk).1];
        self.0.form.finish(own);
        // SAFETY: inside the output. If the output is this rank's block of the input, that part has
        // already been read.
        unsafe { self.0.form.unstage(own, self.0.output.start.wrapping_add(start), bytes) };
    }
}

struct AllGather(Blocks);

impl Chunks for AllGather {
    fn count(&self) -> usize {
        self.0.count()
    }

    fn fill(&mut self, chunk: usize, buffer: &mut [u8]) -> Range<usize> {
        let (start, bytes, _) = self.0.part(chunk);
        let own = self.0.ranges(chunk).1;
        let from = self.0.input.start.wrapping_add(start);
        // SAFETY: inside this rank's block.
        unsafe { self.0.form.stage(from, bytes, &mut buffer[own.clone()]) };
        own
    }

    fn call(&self, chunk: usize, device: Device<'_>) -> Result<()> {
        let Device { buffer, communicator, stream } = device;
        communicator.all_gather(buffer, self.0.part(chunk).1, stream)
    }

    fn result_range(&self, chunk: usize) -> Range<usize> {
        self.0.ranges(chunk).0
    }

    fn read(&mut self, chunk: usize, buffer: &mut [u8]) {
        let (start, bytes, _) = self.0.part(chunk);
        for rank in (0..self.0.form.ranks).filter(|rank| *rank != self.0.rank) {
            let to = self.0.output.start.wrapping_add(rank * self.0.block + start);
            // SAFETY: inside the block of the rank.
            unsafe { self.0.form.unstage(&mut buffer[rank * bytes..], to, bytes) };
        }
    }
}

/// Messages between pairs. Both ends split a message into parts of the same size, whatever other
/// messages they have. A buffer holds one part to and one part from every rank.
struct Exchange {
    /// Data to send. Several messages may share one entry.
    out: Vec<Piece>,
    /// (peer, index in `out`)
    sends: Vec<(usize, usize)>,
    into: Vec<(usize, Piece)>,
    /// Bytes of a part.
    fit: usize,
}

impl Exchange {
    /// `None` if so many parts do not fit into a buffer.
    fn new(
        size: usize,
        out: Vec<Piece>,
        sends: Vec<(usize, usize)>,
        into: Vec<(usize, Piece)>,
    ) -> Option<Exchange> {
        let fit = BUFFER_BYTES / (2 * size) / ALIGN_BYTES * ALIGN_BYTES;
        (fit > 0).then_some(Exchange { out, sends, into, fit })
    }

    /// Bytes of a message in a chunk.
    fn part(&self, chunk: usize, piece: Piece) -> usize {
        piece.bytes.saturating_sub(chunk * self.fit).min(self.fit)
    }

    /// The end of the last part that is not empty in a chunk.
    fn end(&self, chunk: usize, pieces: impl Iterator<Item = Piece>) -> usize {
        let ends = pieces.enumerate().map(|(index, piece)| match self.part(chunk, piece) {
            0 => 0,
            bytes => index * self.fit + bytes,
        });
        ends.max().unwrap_or(0)
    }

    /// Offset of received data in a buffer.
    fn start_of_into(&self) -> usize {
        self.out.len() * self.fit
    }
}

impl Chunks for Exchange {
    fn count(&self) -> usize {
        let all = self.out.iter().chain(self.into.iter().map(|(_, piece)| piece));
        all.map(|piece| piece.bytes.div_ceil(self.fit)).max().unwrap_or(0)
    }

    fn fill(&mut self, chunk: usize, buffer: &mut [u8]) -> Range<usize> {
        for (index, piece) in self.out.iter().enumerate() {
            let bytes = self.part(chunk, *piece);
            let from = piece.start.wrapping_add(chunk * self.fit);
            let to = &mut buffer[index * self.fit..][..bytes];
            // SAFETY: inside the piece; `bytes` is 0 beyond its end.
            unsafe { fleet_kernels::copy::copy(from, to.as_mut_ptr(), bytes) };
        }
        0..self.end(chunk, self.out.iter().copied())
    }

    fn call(&self, chunk: usize, device: Device<'_>) -> Result<()> {
        let Device { buffer, communicator, stream } = device;
        let send = |(peer, index): &(usize, usize)| {
            (*peer, buffer.offset(index * self.fit), self.part(chunk, self.out[*index]))
        };
        let receive = |(index, (peer, piece)): (usize, &(usize, Piece))| {
            let at = self.start_of_into() + index * self.fit;
            (*peer, buffer.offset(at), self.part(chunk, *piece))
        };
        let is_some = |message: &(usize, DevicePointer, usize)| message.2 > 0;
        let sends: Vec<_> = self.sends.iter().map(send).filter(is_some).collect();
        let receives: Vec<_> = self.into.iter().enumerate().map(receive).filter(is_some).collect();
        communicator.exchange(&sends, &receives, stream)
    }

    fn result_range(&self, chunk: usize) -> Range<usize> {
        let start = self.start_of_into();
        start..start + self.end(chunk, self.into.iter().map(|(_, piece)| *piece))
    }

    fn read(&mut self, chunk: usize, buffer: &mut [u8]) {
        let start = self.start_of_into();
        for (index, (_, piece)) in self.into.iter().enumerate() {
            let bytes = self.part(chunk, *piece);
            let from = &buffer[start + index * self.fit..][..bytes];
            let to = piece.start.wrapping_add(chunk * self.fit);
            // SAFETY: inside the piece; `bytes` is 0 beyond its end.
            unsafe { fleet_kernels::copy::copy(from.as_ptr(), to, bytes) };
        }
    }
}
