//! Meshes over MPI's point-to-point messages.
//!
//! A message is sent in pieces of at most [`PIECE_BYTES`]. Up to [`PIECES_IN_FLIGHT`] of them are
//! in flight at a time, in the order of the list. MPI keeps the order of messages with the same
//! sender, receiver and communicator, and each mesh has its own communicator. An empty message is
//! one empty piece, so that both ends count the same messages.

use super::library::{Handle, Library, Progress, Request};
use fleet_base::sync::lock;
use fleet_base::{Error, Result};
use fleet_net::mesh::{FOLD_BYTES_MAX, check_members, check_transfers, timeout_error};
use fleet_net::{Abort, Fabric, Limits, Member, Mesh, Store, Transfer};
use std::collections::VecDeque;
use std::ffi::c_int;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Large enough for MPI's protocol for large messages, small enough that folds and transfers
/// overlap.
const PIECE_BYTES: usize = 1 << 20;
/// Maximum number of pieces in flight to each peer, in each direction.
const PIECES_IN_FLIGHT: usize = 4;
/// Tag of all messages: only their order matters.
const TAG: c_int = 0;
/// Number of tags that the standard guarantees.
const TAGS: u64 = 32_767;

/// A fabric of all ranks of an MPI job.
pub(super) struct MpiFabric {
    pub library: Arc<Library>,
    pub members: Vec<Member>,
    pub store: Arc<dyn Store>,
    pub abort: Abort,
    /// Timeout for the other ranks when a mesh is opened.
    pub timeout_open: Duration,
}

impl MpiFabric {
    pub fn open_mesh(&self, name: &str, members: &[usize]) -> Result<Arc<MpiMesh>> {
        let rank = check_members(self.rank(), self.size(), members)?;
        let limits = Limits::new(fleet_net::Deadline::within(self.timeout_open), &self.abort);
        // MPI itself would wait for a missing rank without a deadline.
        let (prefix, ranks) = (format!("mpi/open/{name}/"), members.iter().copied());
        self.store.exchange(&prefix, (members[rank], b""), ranks, &limits)?;
        let comm = self.library.communicator(members, tag_of(name))?;
        Ok(Arc::new(MpiMesh {
            library: self.library.clone(),
            comm,
            rank,
            members: members.iter().map(|member| self.members[*member].clone()).collect(),
            state: Mutex::default(),
        }))
    }
}

/// A tag that distinguishes groups which are created concurrently. If two names have the same tag,
/// their groups are created one after the other.
fn tag_of(name: &str) -> c_int {
    let mix = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
    (name.as_bytes().iter().fold(0xcbf2_9ce4_8422_2325, mix) % TAGS) as c_int
}

impl Fabric for MpiFabric {
    fn rank(&self) -> usize {
        self.library.rank
    }

    fn size(&self) -> usize {
        self.library.size
    }

    fn open(&self, name: &str, members: &[usize]) -> Result<Arc<dyn Mesh>> {
        self.open_mesh(name, members).map(|mesh| mesh as Arc<dyn Mesh>)
    }

    fn member(&self, rank: usize) -> Member {
        self.members[rank].clone()
    }
}

pub(super) struct MpiMesh {
    pub library: Arc<Library>,
    pub comm: Handle,
    rank: usize,
    members: Vec<Member>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    broken: Option<Error>,
    /// Buffers for folds, kept between calls.
    buffers: Vec<Vec<u128>>,
}

/// The pieces to or from one peer, in order.
struct Queue {
    peer: usize,
    waiting: VecDeque<Piece>,
    in_flight: VecDeque<(Piece, Request)>,
}

struct Piece {
    op: usize,
    range: Range<usize>,
    /// Buffer that receives a piece of a fold; `u128` is aligned for any element.
    buffer: Vec<u128>,
}

impl Mesh for MpiMesh {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.members.len()
    }

    fn member(&self, rank: usize) -> Member {
        self.members[rank].clone()
    }

    fn transfer(&self, ops: &mut [Transfer<'_>], limits: &Limits) -> Result<()> {
        check_transfers(self.rank, self.size(), ops)?;
        let mut state = lock(&self.state);
        if let Some(error) = &state.broken {
            return Err(error.clone());
        }
        limits.abort.check()?;
        let guard = self.library.enter()?;
        let mut queues = queues(ops);
        let result = self.run(&mut queues, ops, &mut state.buffers, limits);
        if let Err(error) = &result {
            state.broken = Some(error.clone().at("an earlier transfer, which broke the mesh"));
            self.library.abandon(guard, error);
            // MPI may still write to the buffers of these pieces.
            std::mem::forget(queues);
        }
        result
    }
}

impl MpiMesh {
    fn run(
        &self,
        queues: &mut [Queue],
        ops: &mut [Transfer<'_>],
        buffers: &mut Vec<Vec<u128>>,
        limits: &Limits,
    ) -> Result<()> {
        let mut done = vec![0usize; ops.len()];
        // Written by the step closure, read by the error closure.
        let waiting = std::cell::RefCell::new(Vec::new());
        let timeout = || timeout_error(&waiting.borrow());
        self.library.wait(limits, timeout, || {
            let (mut moved, mut open) = (false, false);
            for queue in queues.iter_mut() {
                moved |= self.poll_queue(queue, ops, buffers, &mut done)?;
                open |= !queue.waiting.is_empty() || !queue.in_flight.is_empty();
            }
            Ok(match (open, moved) {
                (false, _) => Progress::Done,
                (true, true) => Progress::Progressed,
                (true, false) => {
                    let open = (0..ops.len()).filter(|op| {
                        let of = |piece: &Piece| piece.op == *op;
                        queues.iter().any(|queue| {
                            queue.waiting.iter().any(of)
                                || queue.in_flight.iter().any(|(piece, _)| of(piece))
                        })
                    });
                    if limits.deadline.is_past(fleet_net::Time::now()) {
                        *waiting.borrow_mut() = open
                            .map(|op| {
                                let what = &ops[op];
                                let peer = self.member(what.peer());
                                (peer, what.is_send(), done[op], what.bytes())
                            })
                            .collect();
                    }
                    Progress::Nothing
                }
            })
        })
    }

    /// Starts the next pieces and completes finished ones; true if there were any.
    fn poll_queue(
        &self,
        queue: &mut Queue,
        ops: &mut [Transfer<'_>],
        buffers: &mut Vec<Vec<u128>>,
        done: &mut [usize],
    ) -> Result<bool> {
        let mut moved = false;
        while queue.in_flight.len() < PIECES_IN_FLIGHT
            && let Some(mut piece) = queue.waiting.pop_front()
        {
            let request = self.start(queue.peer, &mut piece, ops, buffers)?;
            queue.in_flight.push_back((piece, request));
            moved = true;
        }
        while let Some((_, request)) = queue.in_flight.front_mut() {
            if !self.library.test(request)? {
                break;
            }
            let Some((piece, request)) = queue.in_flight.pop_front() else { break };
            self.complete(piece, &request, ops, buffers, done)?;
            moved = true;
        }
        Ok(moved)
    }

    fn start(
        &self,
        peer: usize,
        piece: &mut Piece,
        ops: &mut [Transfer<'_>],
        buffers: &mut Vec<Vec<u128>>,
    ) -> Result<Request> {
        let (f, byte, comm) = (&self.library.f, self.library.handles.byte, self.comm);
        let (bytes, peer) = (piece.range.len() as c_int, peer as c_int);
        let into = match &mut ops[piece.op] {
            Transfer::Send { data, .. } => {
                let from = data[piece.range.clone()].as_ptr().cast();
                // SAFETY: the caller's memory, borrowed until the request is done. If the request
                // is abandoned, MPI is not called again.
                return self
                    .library
                    .request(|to| unsafe { (f.isend)(from, bytes, byte, peer, TAG, comm, to) });
            }
            Transfer::Recv { into, .. } => into[piece.range.clone()].as_mut_ptr(),
            Transfer::Fold { .. } => {
                piece.buffer = buffers.pop().unwrap_or_else(|| vec![0; PIECE_BYTES / 16]);
                piece.buffer.as_mut_ptr().cast()
            }
        };
        // SAFETY: as above; a buffer is as long as the longest piece.
        self.library
            .request(|to| unsafe { (f.irecv)(into.cast(), bytes, byte, peer, TAG, comm, to) })
    }

    fn complete(
        &self,
        piece: Piece,
        request: &Request,
        ops: &mut [Transfer<'_>],
        buffers: &mut Vec<Vec<u128>>,
        done: &mut [usize],
    ) -> Result<()> {
        let op = &mut ops[piece.op];
        if !op.is_send() {
            let (got, expected) = (self.library.bytes(request)?, piece.range.len());
            if got != expected {
                return Err(Error::invalid(
                    "message size mismatch: the two ranks transfer different messages",
                )
                .expected(format!("{expected} bytes"))
                .got(format!("{got} bytes"))
                .at(self.member(op.peer())));
            }
        }
        done[piece.op] += piece.range.len();
        if let Transfer::Fold { sink, .. } = op {
            // SAFETY: any initialised integers may be read as bytes.
            let bytes = unsafe {
                std::slice::from_raw_parts(piece.buffer.as_ptr().cast::<u8>(), piece.range.len())
            };
            for (index, part) in bytes.chunks(FOLD_BYTES_MAX).enumerate() {
                sink(piece.range.start + index * FOLD_BYTES_MAX, part);
            }
            buffers.push(piece.buffer);
        }
        Ok(())
    }
}

/// The pieces of all messages, by peer and direction.
fn queues(ops: &[Transfer<'_>]) -> Vec<Queue> {
    let mut queues: Vec<(bool, Queue)> = Vec::new();
    for (index, op) in ops.iter().enumerate() {
        let (peer, sends, bytes) = (op.peer(), op.is_send(), op.bytes());
        let known =
            queues.iter().position(|(is_send, queue)| *is_send == sends && queue.peer == peer);
        let at = known.unwrap_or_else(|| {
            let queue = Queue { peer, waiting: VecDeque::new(), in_flight: VecDeque::new() };
            queues.push((sends, queue));
            queues.len() - 1
        });
        let pieces = bytes.div_ceil(PIECE_BYTES).max(1);
        queues[at].1.waiting.extend((0..pieces).map(|piece| {
            let range = piece * PIECE_BYTES..((piece + 1) * PIECE_BYTES).min(bytes);
            Piece { op: index, range, buffer: Vec::new() }
        }));
    }
    queues.into_iter().map(|(_, queue)| queue).collect()
}
