//! Moves all messages of one call over their sockets concurrently.
//!
//! Every stream has a queue of parts to write and one of parts to read. A part has a header of 16
//! bytes (length of the whole message, its number, a CRC-32 or 0) and a range of the message. The
//! loop lets every stream write and read in turn. If none can make progress, it polls for a short
//! time, then sleeps until one can or the token fires.

use crate::memory::Scratch;
use crate::mesh::{FOLD_BYTES_MAX, FOLD_UNIT_MAX};
use crate::socket::{self, poll};
use crate::stream::Stream as Connection;
use crate::{Limits, Time, Transfer};
use fleet_base::{Error, Result};
use rustix::event::{PollFd, PollFlags};
use std::collections::VecDeque;
use std::io::{ErrorKind as Io, IoSlice, IoSliceMut, Read, Write};
use std::ops::Range;
use std::time::Duration;

const HEADER_BYTES: usize = 16;
/// Minimum size of messages that are split over all streams. Below it, a second system call costs
/// more than it gains.
const STRIPE_BYTES_MIN: usize = 512 << 10;
/// Alignment of the parts of a message: whole units, whole cache lines.
const STRIPE_ALIGN: usize = 64;
const _: () = assert!(STRIPE_ALIGN.is_multiple_of(FOLD_UNIT_MAX));
/// Slices in one system call: eight messages with their headers.
const SLICES_MAX: usize = 16;

pub(super) struct Engine {
    pub(super) checksum: bool,
    pub(super) spin_time: Duration,
    pub(super) turn_bytes: usize,
}

/// The connections to one rank.
pub(super) struct Peer {
    streams: Vec<Stream>,
    /// Number of messages so far, in each direction.
    sent: u32,
    received: u32,
}

struct Stream {
    socket: Connection,
    writes: VecDeque<Part>,
    reads: VecDeque<Part>,
    /// Bytes of a fold that wait for the rest of their unit. `held` is their number.
    scratch: Scratch,
    held: usize,
    crc: crc32fast::Hasher,
    /// Whether the last write found the socket full.
    full: bool,
}

struct Part {
    op: usize,
    range: Range<usize>,
    /// Number of the message among those of its direction.
    number: u32,
    /// Header to write, or the part of it read so far.
    header: [u8; HEADER_BYTES],
    header_done: usize,
    done: usize,
}

pub(super) enum Failure {
    /// The token fired, or the machine ran out of a resource.
    Limits(Error),
    /// The deadline passed. For each pending transfer: peer, whether it sends, bytes done, bytes.
    Timeout(Vec<(usize, bool, usize, usize)>),
    /// The connection with this rank failed.
    Peer(usize, Error),
}

impl Peer {
    pub(super) fn new(sockets: Vec<Connection>) -> Peer {
        let stream = |socket| Stream {
            socket,
            writes: VecDeque::new(),
            reads: VecDeque::new(),
            scratch: Scratch::new(),
            held: 0,
            crc: crc32fast::Hasher::new(),
            full: false,
        };
        Peer { streams: sockets.into_iter().map(stream).collect(), sent: 0, received: 0 }
    }

    /// Whether the peer has closed a connection, even if unread data remains.
    pub(super) fn is_closed(&self) -> bool {
        #[cfg(target_os = "linux")]
        let closed = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
        #[cfg(not(target_os = "linux"))]
        let closed = PollFlags::HUP | PollFlags::ERR;
        let watch = |stream| PollFd::new(stream, closed);
        let mut fds: Vec<_> = self.streams.iter().map(|stream| watch(&stream.socket)).collect();
        // If the poll fails, the next transfer detects the closed connection.
        poll(&mut fds, Some(Duration::ZERO)).is_ok_and(|ready| ready)
    }
}

impl Engine {
    pub(super) fn run(
        &self,
        peers: &mut [Option<Peer>],
        ops: &mut [Transfer<'_>],
        limits: &Limits,
    ) -> Result<(), Failure> {
        let mut active: Vec<usize> = Vec::with_capacity(ops.len());
        for (index, op) in ops.iter().enumerate() {
            if let Some(peer) = &mut peers[op.peer()] {
                self.queue(peer, index, op);
                if !active.contains(&op.peer()) {
                    active.push(op.peer());
                }
            }
        }
        let mut idle_since: Option<Time> = None;
        loop {
            let (mut moved, mut open) = (false, false);
            for &rank in &active {
                let Some(peer) = &mut peers[rank] else { continue };
                for stream in &mut peer.streams {
                    moved |= self.step(stream, ops).map_err(|error| Failure::Peer(rank, error))?;
                    open |= !stream.writes.is_empty() || !stream.reads.is_empty();
                }
            }
            if !open {
                return Ok(());
            }
            if moved {
                idle_since = None;
                continue;
            }
            limits.abort.check().map_err(Failure::Limits)?;
            let now = Time::now();
            if now.since(*idle_since.get_or_insert(now)) < self.spin_time {
                std::thread::yield_now();
                continue;
            }
            self.sleep(peers, &active, ops, limits, now)?;
        }
    }

    /// Splits a message into parts and queues them on their streams.
    fn queue(&self, peer: &mut Peer, op: usize, transfer: &Transfer<'_>) {
        let bytes = transfer.bytes();
        let count = if transfer.is_send() { &mut peer.sent } else { &mut peer.received };
        let number = *count;
        *count = count.wrapping_add(1);
        let streams = if bytes < STRIPE_BYTES_MIN { 1 } else { peer.streams.len() };
        let step = bytes.div_ceil(streams).next_multiple_of(STRIPE_ALIGN);
        for (index, stream) in peer.streams[..streams].iter_mut().enumerate() {
            let range = (index * step).min(bytes)..((index + 1) * step).min(bytes);
            let mut part = Part::new(op, range, number);
            let Transfer::Send { data, .. } = transfer else {
                stream.reads.push_back(part);
                continue;
            };
            let crc = if self.checksum { crc32fast::hash(&data[part.range.clone()]) } else { 0 };
            part.header[..8].copy_from_slice(&(bytes as u64).to_le_bytes());
            part.header[8..12].copy_from_slice(&number.to_le_bytes());
            part.header[12..].copy_from_slice(&crc.to_le_bytes());
            stream.writes.push_back(part);
            stream.full = false;
        }
    }

    /// Does one write and one read; true if bytes moved.
    fn step(&self, stream: &mut Stream, ops: &mut [Transfer<'_>]) -> Result<bool> {
        let mut moved = false;
        if !stream.writes.is_empty() && !stream.full {
            moved |= write(stream, ops, self.turn_bytes)?;
        }
        if !stream.reads.is_empty() {
            moved |= match &ops[stream.reads[0].op] {
                Transfer::Fold { .. } => self.fold(stream, ops)?,
                _ => self.read(stream, ops)?,
            };
        }
        Ok(moved)
    }

    /// Reads into the callers' slices as many messages as have arrived.
    fn read(&self, stream: &mut Stream, ops: &mut [Transfer<'_>]) -> Result<bool> {
        let mut slices: [IoSliceMut<'_>; SLICES_MAX] =
            std::array::from_fn(|_| IoSliceMut::new(&mut []));
        let mut headers = [[0; HEADER_BYTES]; SLICES_MAX / 2];
        let mut used = 0;
        let first = stream.reads[0].op;
        // Messages of one stream keep the order of the list, so the slices after `first` are free.
        let (mut rest, mut base) = (&mut ops[first..], first);
        for (part, header) in stream.reads.iter().zip(&mut headers) {
            let (_, tail) = std::mem::take(&mut rest).split_at_mut(part.op - base);
            let Some((op, tail)) = tail.split_first_mut() else { break };
            (rest, base) = (tail, part.op + 1);
            let Transfer::Recv { into, .. } = op else { break };
            slices[used] = IoSliceMut::new(&mut header[part.header_done..]);
            let range = part.range.start + part.done..part.range.end;
            slices[used + 1] = IoSliceMut::new(&mut into[range]);
            used += 2;
        }
        let Some(mut count) = received((&stream.socket).read_vectored(&mut slices[..used]))? else {
            return Ok(false);
        };
        for fresh in &headers[..used / 2] {
            let Some(part) = stream.reads.front_mut() else { break };
            let head = count.min(HEADER_BYTES - part.header_done);
            part.take_header(&fresh[part.header_done..part.header_done + head], ops)?;
            count -= head;
            let body = count.min(part.range.len() - part.done);
            if self.checksum
                && let Transfer::Recv { into, .. } = &ops[part.op]
            {
                let start = part.range.start + part.done;
                stream.crc.update(&into[start..start + body]);
            }
            part.done += body;
            count -= body;
            if part.header_done == HEADER_BYTES && part.done == part.range.len() {
                self.finish_read(stream)?;
            } else {
                break;
            }
        }
        Ok(true)
    }

    /// Reads into the scratch buffer and passes whole units on.
    fn fold(&self, stream: &mut Stream, ops: &mut [Transfer<'_>]) -> Result<bool> {
        let Some(part) = stream.reads.front_mut() else { return Ok(false) };
        let left = part.range.len() - part.done - stream.held;
        let room = (FOLD_BYTES_MAX - stream.held).min(left);
        let scratch = stream.scratch.aligned();
        let mut fresh = [0; HEADER_BYTES];
        let head_wanted = HEADER_BYTES - part.header_done;
        let mut slices = [
            IoSliceMut::new(&mut fresh[..head_wanted]),
            IoSliceMut::new(&mut scratch[stream.held..stream.held + room]),
        ];
        let count = received((&stream.socket).read_vectored(&mut slices))?;
        let Some(count) = count else { return Ok(false) };
        let head = count.min(head_wanted);
        part.take_header(&fresh[..head], ops)?;
        let body = count - head;
        if self.checksum {
            stream.crc.update(&scratch[stream.held..stream.held + body]);
        }
        stream.held += body;
        if part.header_done < HEADER_BYTES {
            return Ok(true);
        }
        let Transfer::Fold { unit, sink, .. } = &mut ops[part.op] else { return Ok(true) };
        let whole = stream.held / *unit * *unit;
        if whole > 0 {
            sink(part.range.start + part.done, &scratch[..whole]);
            scratch.copy_within(whole..stream.held, 0);
            stream.held -= whole;
            part.done += whole;
        }
        if part.done == part.range.len() {
            self.finish_read(stream)?;
        }
        Ok(true)
    }

    fn finish_read(&self, stream: &mut Stream) -> Result<()> {
        let Some(part) = stream.reads.pop_front() else { return Ok(()) };
        if self.checksum {
            let crc = std::mem::take(&mut stream.crc).finalize();
            if part.header[12..] != crc.to_le_bytes() {
                return Err(Error::unavailable("message is corrupt: checksum mismatch")
                    .help("memory, a network card or a switch may be faulty"));
            }
        }
        Ok(())
    }

    fn sleep(
        &self,
        peers: &mut [Option<Peer>],
        active: &[usize],
        ops: &[Transfer<'_>],
        limits: &Limits,
        now: Time,
    ) -> Result<(), Failure> {
        let left = limits.deadline.remaining(now);
        if left.is_some_and(|left| left.is_zero()) {
            return Err(Failure::Timeout(pending_transfers(peers, active, ops)));
        }
        let wake = limits.abort.wake_fd().map_err(Failure::Limits)?;
        let mut fds = vec![PollFd::new(&wake, PollFlags::IN)];
        for &rank in active {
            for stream in peers[rank].iter().flat_map(|peer| &peer.streams) {
                let mut flags = PollFlags::empty();
                flags.set(PollFlags::IN, !stream.reads.is_empty());
                flags.set(PollFlags::OUT, !stream.writes.is_empty());
                fds.push(PollFd::new(&stream.socket, flags));
            }
        }
        poll(&mut fds, left).map_err(Failure::Limits)?;
        let writable: Vec<bool> = fds[1..]
            .iter()
            .map(|fd| fd.revents().intersects(PollFlags::OUT | PollFlags::ERR | PollFlags::HUP))
            .collect();
        drop(fds);
        let mut writable = writable.into_iter();
        for &rank in active {
            for stream in peers[rank].iter_mut().flat_map(|peer| &mut peer.streams) {
                if writable.next() == Some(true) {
                    stream.full = false;
                }
            }
        }
        Ok(())
    }
}

impl Part {
    fn new(op: usize, range: Range<usize>, number: u32) -> Part {
        Part { op, range, number, header: [0; HEADER_BYTES], header_done: 0, done: 0 }
    }

    /// Stores bytes of the header. When it is complete, compares it with the expected message.
    fn take_header(&mut self, fresh: &[u8], ops: &[Transfer<'_>]) -> Result<()> {
        if fresh.is_empty() {
            return Ok(());
        }
        let end = self.header_done + fresh.len();
        self.header[self.header_done..end].copy_from_slice(fresh);
        self.header_done = end;
        if end < HEADER_BYTES {
            return Ok(());
        }
        let bytes = ops[self.op].bytes();
        let [a, b, c, d, e, f, g, h, i, j, k, l, ..] = self.header;
        let got_bytes = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
        let got_number = u32::from_le_bytes([i, j, k, l]);
        if (got_bytes, got_number) == (bytes as u64, self.number) {
            return Ok(());
        }
        Err(Error::invalid("message size mismatch: the two ranks transfer different messages")
            .expected(format!("message {} of {bytes} bytes", self.number))
            .got(format!("message {got_number} of {got_bytes} bytes"))
            .help("all ranks must call the same collectives in the same order with the same sizes"))
    }
}

/// The number of bytes received; `None` if the read would block. The end of the stream is an error.
fn received(result: std::io::Result<usize>) -> Result<Option<usize>> {
    match result {
        Ok(0) => Err(socket::closed()),
        Ok(count) => Ok(Some(count)),
        Err(error) if matches!(error.kind(), Io::WouldBlock | Io::Interrupted) => Ok(None),
        Err(error) => Err(socket::lost(&error)),
    }
}

/// Writes from the callers' slices as many messages as the socket accepts and a turn allows.
fn write(stream: &mut Stream, ops: &[Transfer<'_>], turn_bytes: usize) -> Result<bool> {
    let mut slices = [IoSlice::new(&[]); SLICES_MAX];
    let (mut used, mut left) = (0, turn_bytes);
    for part in stream.writes.iter().take(SLICES_MAX / 2) {
        let Transfer::Send { data, .. } = &ops[part.op] else { break };
        slices[used] = IoSlice::new(&part.header[part.header_done..]);
        let start = part.range.start + part.done;
        let bytes = (part.range.end - start).min(left);
        slices[used + 1] = IoSlice::new(&data[start..start + bytes]);
        used += 2;
        left -= bytes;
        if left == 0 {
            break;
        }
    }
    let mut count = match (&stream.socket).write_vectored(&slices[..used]) {
        Ok(count) => count,
        Err(error) if error.kind() == Io::Interrupted => return Ok(false),
        Err(error) if error.kind() == Io::WouldBlock => {
            stream.full = true;
            return Ok(false);
        }
        Err(error) => return Err(socket::lost(&error)),
    };
    while let Some(part) = stream.writes.front_mut() {
        let head = count.min(HEADER_BYTES - part.header_done);
        part.header_done += head;
        let body = (count - head).min(part.range.len() - part.done);
        part.done += body;
        count -= head + body;
        if part.header_done < HEADER_BYTES || part.done < part.range.len() {
            break;
        }
        stream.writes.pop_front();
    }
    Ok(true)
}

/// The progress of each incomplete transfer.
fn pending_transfers(
    peers: &[Option<Peer>],
    active: &[usize],
    ops: &[Transfer<'_>],
) -> Vec<(usize, bool, usize, usize)> {
    let mut left = vec![0; ops.len()];
    let mut open = vec![false; ops.len()];
    for stream in active.iter().filter_map(|rank| peers[*rank].as_ref()).flat_map(|p| &p.streams) {
        for part in stream.writes.iter().chain(&stream.reads) {
            left[part.op] += part.range.len() - part.done;
            open[part.op] = true;
        }
    }
    ops.iter()
        .enumerate()
        .filter(|(index, _)| open[*index])
        .map(|(index, op)| (op.peer(), op.is_send(), op.bytes() - left[index], op.bytes()))
        .collect()
}
