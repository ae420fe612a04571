//! Collectives of NCCL for memory of the host: a call goes through rooms of fixed size that the
//! device knows, in turns. While one turn is with NCCL, the host fills the room of the next.
//!
//! Who has memory of the device calls [`Communicator`] itself, and needs nothing of this file.

use super::communicator::Communicator;
use super::cuda::{Cuda, DevicePointer, Room, Stream};
use crate::call::{Call, Cursor, Piece, Pieces, ReduceOp, Work, fold_bytes};
use crate::mesh::agree::Claim;
use crate::mesh::{Native, Step, narrow, widen};
use fleet_base::{Error, Result};
use fleet_net::{Abort, Limits, Mesh, Time};
use fleet_tensor::DType;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// Of one turn. Long enough that the latency of NCCL and of the bus is a small part of it; not
/// measured.
const ROOM_BYTES: usize = 4 << 20;
/// Turns under way: one with the device, one with the host.
const LANES: usize = 2;
/// Parts of rooms begin at multiples of this.
const ALIGN_BYTES: usize = 64;
/// How long a rank that is done waits for the others to be done: NCCL reads out of the memory of
/// peers.
const FAREWELL_SPAN: Duration = Duration::from_secs(5);
/// How long a device may go on after NCCL was told to give up.
const QUIET_SPAN: Duration = Duration::from_secs(5);

/// The calls of one group.
pub(super) struct Collectives {
    version: String,
    group: String,
    mesh: Arc<dyn Mesh>,
    abort: Abort,
    /// Before the lanes: it ends first.
    communicator: Communicator,
    lanes: Vec<Lane>,
}

struct Lane {
    room: Room,
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
        // Now and not with the first call: taking memory may wait for what other groups have under
        // way.
        let lane = || Ok(Lane { room: Room::new(cuda, ROOM_BYTES)?, stream: Stream::new(cuda)? });
        let lanes = (0..LANES).map(|_| lane()).collect::<Result<_>>()?;
        Ok(Collectives { version, group, mesh, abort, communicator, lanes })
    }

    /// Takes all turns, each lane's behind its last one.
    fn go(&mut self, work: &mut dyn Turns, limits: &Limits) -> Result<()> {
        let count = work.count();
        self.communicator.enter()?;
        for turn in 0..count + LANES {
            let lane = &mut self.lanes[turn % LANES];
            if let Some(before) = turn.checked_sub(LANES)
                && before < count
            {
                self.communicator.finish(&lane.stream, limits)?;
                work.take(before, lane.room.host());
            }
            if turn >= count {
                continue;
            }
            let up = work.give(turn, lane.room.host());
            if !up.is_empty() {
                lane.room.up(up, &lane.stream)?;
            }
            work.call(turn, lane.room.device, &mut self.communicator, &lane.stream)?;
            self.communicator.settle(limits)?;
            let down = work.back(turn);
            if !down.is_empty() {
                lane.room.down(down, &lane.stream)?;
            }
        }
        Ok(())
    }

    /// The group is over: nothing may be under way when its rooms are given back.
    fn give_up(&mut self) {
        self.communicator.abort();
        let begin = Time::now();
        while !self.lanes.iter().all(|lane| lane.stream.is_idle().unwrap_or(true)) {
            if Time::now().since(begin) > QUIET_SPAN {
                // The device may still write there.
                return std::mem::forget(std::mem::take(&mut self.lanes));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Native for Collectives {
    fn name(&self) -> String {
        self.version.clone()
    }

    fn run(&mut self, step: &Step<'_>, call: &Call<'_>) -> Option<Result<()>> {
        if let Work::AllToAll { sends, receives, .. } = &call.work
            && let Err(error) = step.check_counts(sends, receives)
        {
            return Some(Err(error));
        }
        let result = self.go(&mut *turns(step, call)?, step.limits);
        if result.is_err() {
            self.give_up();
        }
        Some(result)
    }

    fn leave(&mut self) {
        // In good order everybody comes here; who is in a call instead hears that this rank has
        // left.
        let limits = self.mesh.limits(FAREWELL_SPAN, &self.abort);
        let left = Claim::refusal(&Error::unavailable("this rank has left the group"));
        let _ = Step::new(&*self.mesh, &limits, &self.group).agree(&left);
    }
}

/// The turns of a call; none, on all ranks alike, where NCCL has no word for it.
fn turns<'a>(step: &Step<'_>, call: &Call<'a>) -> Option<Box<dyn Turns + 'a>> {
    let (rank, size) = (step.rank(), step.size());
    let root = call.signature.root as usize;
    let bytes = Form { dtype: DType::U8, op: None, ranks: size };
    let form = Form { dtype: call.signature.dtype, op: call.signature.op, ranks: size };
    let exchange = |out, sends, into| Exchange::new(size, out, sends, into);
    let others = || (0..size).filter(move |peer| *peer != rank);
    Some(match &call.work {
        Work::AllReduce { data, .. } => Box::new(Elements::new(form, *data, Way::AllReduce)),
        Work::Reduce { data } => {
            let way = Way::Reduce { root, is_root: rank == root };
            Box::new(Elements::new(form, *data, way))
        }
        Work::Broadcast { data } => {
            let way = Way::Broadcast { root, is_root: rank == root };
            Box::new(Elements::new(bytes, *data, way))
        }
        Work::ReduceScatter { input, output } => {
            Box::new(ReduceScatter(Blocks::new(form, rank, *input, *output)?))
        }
        Work::AllGather { input, output, counts } => {
            let own = block(*output, counts, rank);
            if let Some(input) = input {
                copy(*input, own);
            }
            match counts.iter().all(|count| *count == counts[0]) {
                true => Box::new(AllGather(Blocks::new(bytes, rank, own, *output)?)),
                false => {
                    let sends = others().map(|peer| (peer, 0)).collect();
                    let into = others().map(|peer| (peer, block(*output, counts, peer)));
                    Box::new(exchange(vec![own], sends, into.collect())?)
                }
            }
        }
        Work::Scatter { input: Some(input), output } => {
            let counts = vec![output.bytes; size];
            copy(block(*input, &counts, root), *output);
            let out = others().map(|peer| block(*input, &counts, peer)).collect();
            let sends = others().enumerate().map(|(index, peer)| (peer, index)).collect();
            Box::new(exchange(out, sends, vec![])?)
        }
        Work::Scatter { input: None, output } => {
            Box::new(exchange(vec![], vec![], vec![(root, *output)])?)
        }
        Work::Gather { input, output: Some(output) } => {
            let counts = vec![input.bytes; size];
            copy(*input, block(*output, &counts, root));
            let into = others().map(|peer| (peer, block(*output, &counts, peer))).collect();
            Box::new(exchange(vec![], vec![], into)?)
        }
        Work::Gather { input, output: None } => {
            Box::new(exchange(vec![*input], vec![(root, 0)], vec![])?)
        }
        Work::AllToAll { input, output, sends, receives } => {
            copy(block(*input, sends, rank), block(*output, receives, rank));
            let out = others().map(|peer| block(*input, sends, peer)).collect();
            let to = others().enumerate().map(|(index, peer)| (peer, index)).collect();
            let into = others().map(|peer| (peer, block(*output, receives, peer))).collect();
            Box::new(exchange(out, to, into)?)
        }
        // All ranks are known to be here. Messages may be sent before they are asked for, which
        // NCCL's may not: those go over the mesh.
        Work::Barrier | Work::Send { .. } | Work::Recv { .. } => return None,
    })
}

/// What a call does in its turns.
trait Turns {
    fn count(&self) -> usize;

    /// Fills the room; what of it goes to the device.
    fn give(&mut self, turn: usize, room: &mut [u8]) -> Range<usize>;

    /// The call of NCCL on the device's side of the room.
    fn call(
        &self,
        turn: usize,
        room: DevicePointer,
        communicator: &mut Communicator,
        stream: &Stream,
    ) -> Result<()>;

    /// What of the room comes back.
    fn back(&self, turn: usize) -> Range<usize>;

    /// Takes the results out.
    fn take(&mut self, turn: usize, room: &mut [u8]);
}

/// How elements are in a room: as they are, but half floats that are added up or multiplied are f32
/// there, and rounded once at the end, as everywhere.
#[derive(Clone, Copy)]
struct Form {
    dtype: DType,
    op: Option<ReduceOp>,
    ranks: usize,
}

impl Form {
    fn is_wide(&self) -> bool {
        let adds = !matches!(self.op, None | Some(ReduceOp::Max | ReduceOp::Min));
        adds && matches!(self.dtype, DType::F16 | DType::BF16)
    }

    /// In the room.
    fn dtype_there(&self) -> DType {
        if self.is_wide() { DType::F32 } else { self.dtype }
    }

    fn reduction(&self) -> Result<(DType, ReduceOp)> {
        let op = self.op.ok_or_else(|| Error::internal("a reduction without an operation"))?;
        Ok((self.dtype_there(), op))
    }

    /// Elements that a part of a room holds.
    fn fit(&self, bytes: usize) -> usize {
        bytes / ALIGN_BYTES * ALIGN_BYTES / self.dtype_there().size()
    }

    /// # Safety
    /// `from` holds whole aligned elements, `bytes` of them; `to` begins where an element may.
    unsafe fn stage(&self, from: *const u8, bytes: usize, to: &mut [u8]) {
        if self.is_wide() {
            let to = as_f32(to, bytes / self.dtype.size());
            // SAFETY: promised by the caller.
            return unsafe { widen(self.dtype, from, to) };
        }
        // SAFETY: promised by the caller; the room is apart from all memory of users.
        unsafe { fleet_kernels::copy::copy(from, to[..bytes].as_mut_ptr(), bytes) };
    }

    /// # Safety
    /// As for the way there.
    unsafe fn unstage(&self, from: &mut [u8], to: *mut u8, bytes: usize) {
        if self.is_wide() {
            let from = as_f32(from, bytes / self.dtype.size());
            // SAFETY: promised by the caller.
            return unsafe { narrow(self.dtype, from, to) };
        }
        // SAFETY: promised by the caller.
        unsafe { fleet_kernels::copy::copy(from[..bytes].as_ptr(), to, bytes) };
    }

    /// Where an average is asked for: divides sums.
    fn finish(&self, sums: &mut [u8]) {
        let (Some(op @ ReduceOp::Avg), start) = (self.op, sums.as_mut_ptr()) else { return };
        // SAFETY: whole aligned elements of a room, over themselves.
        unsafe {
            let fold = op.fold(self.ranks);
            let sources = [start.cast_const()];
            fold_bytes(self.dtype_there(), fold, &sources, start, None, sums.len());
        }
    }
}

fn as_f32(room: &mut [u8], count: usize) -> &mut [f32] {
    // SAFETY: any bytes are floats; parts of rooms begin where they may.
    let (before, floats, _) = unsafe { room.align_to_mut::<f32>() };
    assert!(before.is_empty());
    &mut floats[..count]
}

/// Calls in which every element is by itself.
struct Elements<'a> {
    form: Form,
    data: Pieces<'a>,
    way: Way,
    /// Elements of a turn.
    fit: usize,
    given: Cursor,
    taken: Cursor,
}

#[derive(Clone, Copy)]
enum Way {
    AllReduce,
    Reduce { root: usize, is_root: bool },
    Broadcast { root: usize, is_root: bool },
}

impl<'a> Elements<'a> {
    fn new(form: Form, data: Pieces<'a>, way: Way) -> Elements<'a> {
        let fit = form.fit(ROOM_BYTES);
        Elements { form, data, way, fit, given: Cursor::default(), taken: Cursor::default() }
    }

    /// (start in the data, bytes there, bytes in the room)
    fn part(&self, turn: usize) -> (usize, usize, usize) {
        let unit = self.form.dtype.size();
        let start = turn * self.fit * unit;
        let bytes = (self.fit * unit).min(self.data.bytes - start);
        (start, bytes, bytes / unit * self.form.dtype_there().size())
    }

    fn scale(&self) -> usize {
        self.form.dtype_there().size() / self.form.dtype.size()
    }
}

impl Turns for Elements<'_> {
    fn count(&self) -> usize {
        self.data.bytes.div_ceil(self.fit * self.form.dtype.size())
    }

    fn give(&mut self, turn: usize, room: &mut [u8]) -> Range<usize> {
        if matches!(self.way, Way::Broadcast { is_root: false, .. }) {
            return 0..0;
        }
        let (start, bytes, there) = self.part(turn);
        let (form, scale) = (self.form, self.scale());
        self.data.each(&mut self.given, start, bytes, |piece, offset, len| {
            // SAFETY: pieces hold whole aligned elements.
            unsafe { form.stage(piece, len, &mut room[offset * scale..]) };
        });
        0..there
    }

    fn call(
        &self,
        turn: usize,
        room: DevicePointer,
        communicator: &mut Communicator,
        stream: &Stream,
    ) -> Result<()> {
        let (_, bytes, _) = self.part(turn);
        let count = bytes / self.form.dtype.size();
        match self.way {
            Way::AllReduce => communicator.all_reduce(room, count, self.form.reduction()?, stream),
            Way::Reduce { root, .. } => {
                communicator.reduce(room, count, self.form.reduction()?, root, stream)
            }
            Way::Broadcast { root, .. } => communicator.broadcast(room, bytes, root, stream),
        }
    }

    fn back(&self, turn: usize) -> Range<usize> {
        match self.way {
            Way::Reduce { is_root: false, .. } | Way::Broadcast { is_root: true, .. } => 0..0,
            _ => 0..self.part(turn).2,
        }
    }

    fn take(&mut self, turn: usize, room: &mut [u8]) {
        let back = self.back(turn);
        if back.is_empty() {
            return;
        }
        self.form.finish(&mut room[back]);
        let (start, bytes, _) = self.part(turn);
        let (form, scale) = (self.form, self.scale());
        self.data.each(&mut self.taken, start, bytes, |piece, offset, len| {
            // SAFETY: as above.
            unsafe { form.unstage(&mut room[offset * scale..], piece, len) };
        });
    }
}

/// A block of each rank on one side, the own block on the other; a turn moves as much of every
/// block.
struct Blocks {
    form: Form,
    rank: usize,
    input: Piece,
    output: Piece,
    /// Bytes in memory.
    block: usize,
    /// Elements of a block in a turn.
    fit: usize,
}

impl Blocks {
    /// None where so many blocks do not fit into a room.
    fn new(form: Form, rank: usize, input: Piece, output: Piece) -> Option<Blocks> {
        let block = input.bytes.min(output.bytes);
        let fit = form.fit(ROOM_BYTES / form.ranks);
        (fit > 0).then_some(Blocks { form, rank, input, output, block, fit })
    }

    fn count(&self) -> usize {
        self.block.div_ceil(self.fit * self.form.dtype.size())
    }

    /// (start in a block, bytes of it there, bytes in the room)
    fn part(&self, turn: usize) -> (usize, usize, usize) {
        let unit = self.form.dtype.size();
        let start = turn * self.fit * unit;
        let bytes = (self.fit * unit).min(self.block - start);
        (start, bytes, bytes / unit * self.form.dtype_there().size())
    }

    /// Where the blocks of a turn are: in a room, of all ranks and of this one.
    fn rooms(&self, turn: usize) -> (Range<usize>, Range<usize>) {
        let there = self.part(turn).2;
        (0..self.form.ranks * there, self.rank * there..(self.rank + 1) * there)
    }
}

struct ReduceScatter(Blocks);

impl Turns for ReduceScatter {
    fn count(&self) -> usize {
        self.0.count()
    }

    fn give(&mut self, turn: usize, room: &mut [u8]) -> Range<usize> {
        let (start, bytes, there) = self.0.part(turn);
        for rank in 0..self.0.form.ranks {
            let from = self.0.input.start.wrapping_add(rank * self.0.block + start);
            // SAFETY: inside the block of the rank.
            unsafe { self.0.form.stage(from, bytes, &mut room[rank * there..]) };
        }
        self.0.rooms(turn).0
    }

    fn call(
        &self,
        turn: usize,
        room: DevicePointer,
        communicator: &mut Communicator,
        stream: &Stream,
    ) -> Result<()> {
        let count = self.0.part(turn).1 / self.0.form.dtype.size();
        communicator.reduce_scatter(room, count, self.0.form.reduction()?, stream)
    }

    fn back(&self, turn: usize) -> Range<usize> {
        self.0.rooms(turn).1
    }

    fn take(&mut self, turn: usize, room: &mut [u8]) {
        let (start, bytes, _) = self.0.part(turn);
        let own = &mut room[self.0.rooms(turn).1];
        self.0.form.finish(own);
        // SAFETY: inside the output. Where that is the own block of the input, this part of it was
        // read.
        unsafe { self.0.form.unstage(own, self.0.output.start.wrapping_add(start), bytes) };
    }
}

struct AllGather(Blocks);

impl Turns for AllGather {
    fn count(&self) -> usize {
        self.0.count()
    }

    fn give(&mut self, turn: usize, room: &mut [u8]) -> Range<usize> {
        let (start, bytes, _) = self.0.part(turn);
        let own = self.0.rooms(turn).1;
        let from = self.0.input.start.wrapping_add(start);
        // SAFETY: inside the own block.
        unsafe { self.0.form.stage(from, bytes, &mut room[own.clone()]) };
        own
    }

    fn call(
        &self,
        turn: usize,
        room: DevicePointer,
        communicator: &mut Communicator,
        stream: &Stream,
    ) -> Result<()> {
        communicator.all_gather(room, self.0.part(turn).1, stream)
    }

    fn back(&self, turn: usize) -> Range<usize> {
        self.0.rooms(turn).0
    }

    fn take(&mut self, turn: usize, room: &mut [u8]) {
        let (start, bytes, _) = self.0.part(turn);
        for rank in (0..self.0.form.ranks).filter(|rank| *rank != self.0.rank) {
            let to = self.0.output.start.wrapping_add(rank * self.0.block + start);
            // SAFETY: inside the block of the rank.
            unsafe { self.0.form.unstage(&mut room[rank * bytes..], to, bytes) };
        }
    }
}

/// Messages between pairs. Both ends of one cut it alike, whatever else they have: into parts of
/// which a room holds one to and one from every rank.
struct Exchange {
    /// What is sent, once, to however many.
    out: Vec<Piece>,
    /// (peer, index in `out`)
    sends: Vec<(usize, usize)>,
    into: Vec<(usize, Piece)>,
    /// Bytes of a part.
    fit: usize,
}

impl Exchange {
    /// None where so many parts do not fit into a room.
    fn new(
        size: usize,
        out: Vec<Piece>,
        sends: Vec<(usize, usize)>,
        into: Vec<(usize, Piece)>,
    ) -> Option<Exchange> {
        let fit = ROOM_BYTES / (2 * size) / ALIGN_BYTES * ALIGN_BYTES;
        (fit > 0).then_some(Exchange { out, sends, into, fit })
    }

    /// Bytes of a message in a turn.
    fn part(&self, turn: usize, piece: Piece) -> usize {
        piece.bytes.saturating_sub(turn * self.fit).min(self.fit)
    }

    /// The end of the last of some parts that are something in a turn.
    fn end(&self, turn: usize, pieces: impl Iterator<Item = Piece>) -> usize {
        let ends = pieces.enumerate().map(|(index, piece)| match self.part(turn, piece) {
            0 => 0,
            bytes => index * self.fit + bytes,
        });
        ends.max().unwrap_or(0)
    }

    /// Where what comes is in a room.
    fn start_of_into(&self) -> usize {
        self.out.len() * self.fit
    }
}

impl Turns for Exchange {
    fn count(&self) -> usize {
        let all = self.out.iter().chain(self.into.iter().map(|(_, piece)| piece));
        all.map(|piece| piece.bytes.div_ceil(self.fit)).max().unwrap_or(0)
    }

    fn give(&mut self, turn: usize, room: &mut [u8]) -> Range<usize> {
        for (index, piece) in self.out.iter().enumerate() {
            let bytes = self.part(turn, *piece);
            let from = piece.start.wrapping_add(turn * self.fit);
            let to = &mut room[index * self.fit..][..bytes];
            // SAFETY: inside the piece, where it goes on that far.
            unsafe { fleet_kernels::copy::copy(from, to.as_mut_ptr(), bytes) };
        }
        0..self.end(turn, self.out.iter().copied())
    }

    fn call(
        &self,
        turn: usize,
        room: DevicePointer,
        communicator: &mut Communicator,
        stream: &Stream,
    ) -> Result<()> {
        let send = |(peer, index): &(usize, usize)| {
            (*peer, room.offset(index * self.fit), self.part(turn, self.out[*index]))
        };
        let receive = |(index, (peer, piece)): (usize, &(usize, Piece))| {
            let at = self.start_of_into() + index * self.fit;
            (*peer, room.offset(at), self.part(turn, *piece))
        };
        let is_some = |message: &(usize, DevicePointer, usize)| message.2 > 0;
        let sends: Vec<_> = self.sends.iter().map(send).filter(is_some).collect();
        let receives: Vec<_> = self.into.iter().enumerate().map(receive).filter(is_some).collect();
        communicator.exchange(&sends, &receives, stream)
    }

    fn back(&self, turn: usize) -> Range<usize> {
        let start = self.start_of_into();
        start..start + self.end(turn, self.into.iter().map(|(_, piece)| *piece))
    }

    fn take(&mut self, turn: usize, room: &mut [u8]) {
        let start = self.start_of_into();
        for (index, (_, piece)) in self.into.iter().enumerate() {
            let bytes = self.part(turn, *piece);
            let from = &room[start + index * self.fit..][..bytes];
            let to = piece.start.wrapping_add(turn * self.fit);
            // SAFETY: inside the piece, where it goes on that far.
            unsafe { fleet_kernels::copy::copy(from.as_ptr(), to, bytes) };
        }
    }
}

/// The block of a rank, where blocks of these sizes follow each other.
fn block(all: Piece, counts: &[usize], rank: usize) -> Piece {
    let start = counts[..rank].iter().sum::<usize>();
    Piece { start: all.start.wrapping_add(start), bytes: counts[rank] }
}

/// What stays on this rank.
fn copy(from: Piece, to: Piece) {
    // SAFETY: blocks of the caller's memory, as long as each other; they may be the same.
    unsafe { std::ptr::copy(from.start, to.start, to.bytes.min(from.bytes)) };
}
