//! The backend for ranks that communicate over a mesh.
//!
//! Every collective begins with a round of [`agree`]: log2(n) exchanges of a few hundred bytes,
//! after which every rank knows that all are in the same call, or which two are not. No rank can
//! receive an unexpected message after that. An exchange takes about 30 us over TCP, a small part
//! of all but the smallest calls, which should be fused.
//!
//! Each algorithm has a file. Algorithms are lists of [`Move`]s and know nothing of types.

pub(crate) mod agree;
pub(crate) mod choose;
mod direct;
mod halving_doubling;
mod hierarchical;
mod moves;
mod recursive_doubling;
mod ring;
mod tree;

pub(crate) use hierarchical::Hierarchical;

use crate::backend::{Backend, Bounds};
use crate::call::{Call, Fold, Kind, Piece, Pieces, Work, fold_bytes};
use agree::Claim;
use choose::Algorithm;
use fleet_base::{Error, ReduceOp, Result};
use fleet_kernels::fold::FoldOp;
use fleet_net::{Limits, Mesh, Transfer};
use fleet_tensor::DType;
use std::cell::Cell;
use std::ops::Range;
use std::sync::Arc;

/// Runs all calls over one mesh.
pub(crate) struct OverMesh {
    name: String,
    /// Name of the transport, for messages.
    transport: String,
    /// Closed after an error, which notifies peers in the middle of an algorithm.
    mesh: Option<Arc<dyn Mesh>>,
    algorithm: Algorithm,
    /// `None` once the mesh is closed.
    native: Option<Box<dyn NativeCollectives>>,
}

impl OverMesh {
    pub fn new(
        name: &str,
        mesh: Arc<dyn Mesh>,
        algorithm: Algorithm,
        native: Option<Box<dyn NativeCollectives>>,
    ) -> OverMesh {
        let transport = native.as_ref().map_or_else(|| "mesh".to_string(), |native| native.name());
        OverMesh { name: name.to_string(), transport, mesh: Some(mesh), algorithm, native }
    }
}

/// Collectives of the library that provides the mesh.
pub(crate) trait NativeCollectives: Send {
    /// Name of the library, for messages.
    fn name(&self) -> String;

    /// Runs a call after all ranks have agreed on it. Returns `None`, on all ranks alike, if the
    /// library does not support it.
    fn run(&mut self, step: &Step<'_>, call: &Call<'_>) -> Option<Result<()>>;

    /// Ends the group on this rank without a failure.
    fn leave(&mut self) {}
}

/// Opens meshes of a library that has collectives.
pub(crate) trait MeshLibrary: Send + Sync {
    fn open(&self, name: &str, members: &[usize], limits: &Limits) -> Result<LibraryMesh>;

    /// Whether ranks of one host also use the library instead of shared memory.
    fn replaces_shared_memory(&self) -> bool;
}

pub(crate) type LibraryMesh = (Arc<dyn Mesh>, Box<dyn NativeCollectives>);

impl Backend for OverMesh {
    fn name(&self) -> String {
        self.transport.clone()
    }

    fn run(&mut self, call: &mut Call<'_>, bounds: &Bounds) -> Result<()> {
        let Some(mesh) = &self.mesh else {
            return Err(Error::unavailable(format!("the mesh of group '{}' is closed", self.name)));
        };
        let limits = mesh.limits(bounds.timeout, &bounds.abort);
        let step = Step::new(&**mesh, &limits, &self.name);
        let result = step.run(call, self.algorithm, self.native.as_deref_mut()).map_err(|error| {
            error.at(format!(
                "{} in group '{}', rank {} of {}{}",
                call.signature,
                self.name,
                mesh.rank(),
                mesh.size(),
                step.joined_ranks(call.signature.kind)
            ))
        });
        if result.is_err() {
            (self.mesh, self.native) = (None, None);
        }
        result
    }

    fn reject_call(&mut self, error: &Error, bounds: &Bounds) {
        if let Some(mesh) = self.mesh.take() {
            let limits = mesh.limits(bounds.timeout, &bounds.abort);
            let step = Step::new(&*mesh, &limits, &self.name);
            // The peers get the claim as their error. This rank already knows the error, so the
            // result is ignored.
            let _ = step.agree(&Claim::error(error));
            self.native = None;
        }
    }
}

impl Drop for OverMesh {
    fn drop(&mut self) {
        if let Some(native) = &mut self.native {
            native.leave();
        }
    }
}

/// One running call.
pub(crate) struct Step<'a> {
    pub mesh: &'a dyn Mesh,
    pub limits: &'a Limits,
    pub group: &'a str,
    /// Number of ranks known to be in the call: this one and its predecessors around the ring.
    joined: Cell<usize>,
}

/// A part of one step of an algorithm. Offsets are bytes of `data`.
pub(crate) enum Move<'a> {
    Send {
        to: usize,
        data: Pieces<'a>,
        at: Range<usize>,
    },
    Recv {
        from: usize,
        data: Pieces<'a>,
        at: Range<usize>,
    },
    /// Folds the received bytes into the data. Operands are in rank order, so both sides of an
    /// exchange compute the same bits.
    Fold {
        from: usize,
        data: Pieces<'a>,
        at: Range<usize>,
        how: Folding,
    },
}

#[derive(Clone, Copy)]
pub(crate) struct Folding {
    pub dtype: DType,
    pub op: FoldOp,
    /// Whether the received bytes are the first operand.
    pub is_first: bool,
}

impl<'a> Step<'a> {
    pub fn new(mesh: &'a dyn Mesh, limits: &'a Limits, group: &'a str) -> Step<'a> {
        Step { mesh, limits, group, joined: Cell::new(1) }
    }

    /// Lists the ranks that had joined, for errors; empty for calls between two ranks.
    fn joined_ranks(&self, kind: Kind) -> String {
        let (rank, size, joined) = (self.rank(), self.size(), self.joined.get());
        if matches!(kind, Kind::Send | Kind::Recv) {
            return String::new();
        }
        if joined == size {
            return " (all ranks joined)".to_string();
        }
        let known = |other: &usize| (rank + size - other) % size < joined;
        let list = |is_in: bool| {
            let ranks = (0..size).filter(|other| known(other) == is_in);
            ranks.map(|rank| rank.to_string()).collect::<Vec<_>>().join(" ")
        };
        format!(" (joined: {}; missing: {})", list(true), list(false))
    }

    pub fn rank(&self) -> usize {
        self.mesh.rank()
    }

    pub fn size(&self) -> usize {
        self.mesh.size()
    }

    fn run(
        &self,
        call: &mut Call<'_>,
        algorithm: Algorithm,
        native: Option<&mut (dyn NativeCollectives + 'static)>,
    ) -> Result<()> {
        let kind = call.signature.kind;
        if !matches!(kind, Kind::Send | Kind::Recv) {
            self.agree(&Claim::call(&call.signature))?;
        }
        if let Work::AllToAll { sends, receives, .. } = &call.work {
            self.check_counts(sends, receives)?;
        }
        if let Some(native) = native
            && let Some(result) = native.run(self, call)
        {
            return result;
        }
        let dtype = call.signature.dtype;
        let root = call.signature.root as usize;
        let op =
            || call.signature.op.ok_or_else(|| Error::internal("a reduction without an operation"));
        match &call.work {
            Work::AllReduce { data, .. } => self.all_reduce(*data, dtype, op()?, algorithm),
            Work::Reduce { data, .. } => self.reduce(*data, dtype, op()?, root),
            Work::ReduceScatter { input, output } => {
                self.reduce_scatter(*input, *output, dtype, op()?)
            }
            Work::AllGather { input, output, counts } => self.all_gather(*input, *output, counts),
            Work::Broadcast { data } => self.broadcast(*data, root, dtype.size()),
            Work::Scatter { input, output } => self.scatter(*input, *output, root),
            Work::Gather { input, output } => self.gather(*input, *output, root),
            Work::AllToAll { input, output, sends, receives } => {
                self.all_to_all(*input, *output, sends, receives)
            }
            Work::Barrier => Ok(()),
            Work::Send { to, data } => self.send(*to, *data, &call.signature),
            Work::Recv { from, into } => self.recv(*from, *into, &call.signature),
        }
    }

    fn all_reduce(
        &self,
        data: Pieces<'_>,
        dtype: DType,
        op: ReduceOp,
        algorithm: Algorithm,
    ) -> Result<()> {
        let algorithm = algorithm.chosen(data.bytes, self.size(), dtype);
        if algorithm == Algorithm::Direct {
            return self.direct(data, dtype, op);
        }
        // Partial sums are sent here, so half floats are sent as f32 and rounded once at the end.
        with_f32(data, dtype, |data, dtype| match algorithm {
            Algorithm::RecursiveDoubling => self.recursive_doubling(data, dtype, op),
            Algorithm::HalvingDoubling => self.halving_doubling(data, dtype, op),
            Algorithm::Tree => self.tree(data, dtype, op),
            Algorithm::Ring | Algorithm::Auto | Algorithm::Direct => self.ring(data, dtype, op),
        })
    }

    /// Runs one step: all moves concurrently. Sent and written ranges must not overlap.
    pub fn run_moves(&self, moves: &[Move<'_>]) -> Result<()> {
        let mut parts: Vec<(&Move<'_>, *mut u8, usize)> = Vec::new();
        for part in moves {
            let (Move::Send { data, at, .. }
            | Move::Recv { data, at, .. }
            | Move::Fold { data, at, .. }) = part;
            let mut cursor = Default::default();
            data.visit(&mut cursor, at.start, at.len(), |start, _, len| {
                parts.push((part, start, len))
            });
        }
        let mut sinks: Vec<Sink> =
            parts.iter().map(|(part, start, _)| Sink::new(part, *start)).collect();
        let mut folds: Vec<_> =
            sinks.iter_mut().map(|sink| |at: usize, piece: &[u8]| sink.fold(at, piece)).collect();
        let mut ops: Vec<Transfer<'_>> = Vec::with_capacity(parts.len());
        for ((part, start, len), sink) in parts.iter().zip(&mut folds) {
            // SAFETY: ranges of the pieces, which belong to the caller; a written range overlaps no
            // other range of the step.
            ops.push(unsafe {
                match part {
                    Move::Send { to, .. } => {
                        Transfer::Send { to: *to, data: std::slice::from_raw_parts(*start, *len) }
                    }
                    Move::Recv { from, .. } => Transfer::Recv {
                        from: *from,
                        into: std::slice::from_raw_parts_mut(*start, *len),
                    },
                    Move::Fold { from, how, .. } => {
                        Transfer::Fold { from: *from, bytes: *len, unit: how.dtype.size(), sink }
                    }
                }
            });
        }
        if ops.is_empty() {
            return self.limits.abort.check();
        }
        self.mesh.transfer(&mut ops, self.limits)
    }
}

/// The destination of a fold.
struct Sink {
    start: *mut u8,
    how: Option<Folding>,
}

impl Sink {
    fn new(part: &Move<'_>, start: *mut u8) -> Sink {
        let how = match part {
            Move::Fold { how, .. } => Some(*how),
            _ => None,
        };
        Sink { start, how }
    }

    fn fold(&mut self, at: usize, piece: &[u8]) {
        let Some(how) = self.how else { return };
        // SAFETY: the mesh passes pieces of the requested range, aligned and in whole elements.
        unsafe {
            let own = self.start.add(at);
            let operands = match how.is_first {
                true => [piece.as_ptr(), own.cast_const()],
                false => [own.cast_const(), piece.as_ptr()],
            };
            fold_bytes(how.dtype, how.op, &operands, own, None, piece.len());
        }
    }
}

/// Runs `work` on the data. Half floats are converted to f32 before and rounded once afterwards.
pub(crate) fn with_f32(
    data: Pieces<'_>,
    dtype: DType,
    work: impl FnOnce(Pieces<'_>, DType) -> Result<()>,
) -> Result<()> {
    if !matches!(dtype, DType::F16 | DType::BF16) {
        return work(data, dtype);
    }
    let mut wide = vec![0f32; data.bytes / 2];
    let mut cursor = Default::default();
    data.visit(&mut cursor, 0, data.bytes, |piece, offset, len| {
        // SAFETY: pieces hold whole aligned elements of the type.
        unsafe { widen(dtype, piece, &mut wide[offset / 2..(offset + len) / 2]) };
    });
    let list = [Piece::of(&mut wide)];
    work(Pieces::new(&list), DType::F32)?;
    let mut cursor = Default::default();
    data.visit(&mut cursor, 0, data.bytes, |piece, offset, len| {
        // SAFETY: as above.
        unsafe { narrow(dtype, &wide[offset / 2..(offset + len) / 2], piece) };
    });
    Ok(())
}

/// Converts half floats to f32.
///
/// # Safety
/// `from` holds as many aligned elements of `dtype`, f16 or bf16.
pub(crate) unsafe fn widen(dtype: DType, from: *const u8, to: &mut [f32]) {
    let pool = fleet_kernels::pool::Pool::new(1);
    // SAFETY: promised by the caller.
    unsafe {
        match dtype {
            DType::F16 => {
                let from = std::slice::from_raw_parts(from.cast::<fleet_tensor::f16>(), to.len());
                fleet_kernels::cast::cast(&pool, from, to);
            }
            _ => {
                let from = std::slice::from_raw_parts(from.cast::<fleet_tensor::bf16>(), to.len());
                fleet_kernels::cast::cast(&pool, from, to);
            }
        }
    }
}

/// Converts f32 to half floats, rounded.
///
/// # Safety
/// `to` has room for as many aligned elements of `dtype`, f16 or bf16.
pub(crate) unsafe fn narrow(dtype: DType, from: &[f32], to: *mut u8) {
    let pool = fleet_kernels::pool::Pool::new(1);
    // SAFETY: promised by the caller.
    unsafe {
        match dtype {
            DType::F16 => {
                let to = std::slice::from_raw_parts_mut(to.cast::<fleet_tensor::f16>(), from.len());
                fleet_kernels::cast::cast(&pool, from, to);
            }
            _ => {
                let to =
                    std::slice::from_raw_parts_mut(to.cast::<fleet_tensor::bf16>(), from.len());
                fleet_kernels::cast::cast(&pool, from, to);
            }
        }
    }
}

/// Divides a range by the number of ranks if the operation is an average.
pub(crate) fn finish(data: Pieces<'_>, at: Range<usize>, dtype: DType, op: ReduceOp, ranks: usize) {
    if op != ReduceOp::Avg {
        return;
    }
    let mut cursor = Default::default();
    data.visit(&mut cursor, at.start, at.len(), |piece, _, len| {
        // SAFETY: a piece of the caller's memory, folded in place.
        unsafe { fold_bytes(dtype, op.fold(ranks), &[piece.cast_const()], piece, None, len) };
    });
}
