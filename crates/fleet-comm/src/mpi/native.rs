//! The library's own collectives instead of Fleet's. Vendors tune them for their networks, and
//! switches may do the additions. All ranks have already agreed on the call.
//!
//! Calls that MPI does not support (half floats, element counts above the range of `int`,
//! overlapping memory) use Fleet's algorithms over MPI's messages.

use super::library::{Handle, Request};
use super::mesh::MpiMesh;
use crate::call::{Call, Piece, Pieces, Work};
use crate::mesh::{NativeCollectives, Step, finish};
use fleet_base::{ReduceOp, Result};
use fleet_net::Limits;
use fleet_tensor::DType;
use std::ffi::{c_int, c_void};
use std::sync::Arc;

pub(super) struct Collectives(pub Arc<MpiMesh>);

impl NativeCollectives for Collectives {
    fn name(&self) -> String {
        self.0.library.version.clone()
    }

    fn run(&mut self, step: &Step<'_>, call: &Call<'_>) -> Option<Result<()>> {
        self.call(step, call)
    }
}

impl Collectives {
    fn call(&self, step: &Step<'_>, call: &Call<'_>) -> Option<Result<()>> {
        let reduction = match call.signature.op {
            None => None,
            Some(op) => Some((self.dtype(call.signature.dtype)?, self.op(op), op)),
        };
        let root = call.signature.root as usize;
        let own = match (&call.work, reduction) {
            (Work::AllReduce { data, .. }, Some((dtype, op, _))) => self.pieces(
                *data,
                move |piece, count| self.all_reduce(piece, count, dtype, op),
                call,
            )?,
            (Work::Reduce { data }, Some((dtype, op, _))) => self.pieces(
                *data,
                move |piece, count| self.reduce(piece, count, dtype, op, root),
                call,
            )?,
            (Work::ReduceScatter { input, output }, Some((dtype, op, _))) => {
                if overlap(input, output) {
                    return None;
                }
                let count = count(output.bytes / call.signature.dtype.size())?;
                Plan::of(move || self.reduce_scatter(*input, *output, count, dtype, op))
            }
            (Work::Broadcast { data }, _) => {
                self.pieces(*data, move |piece, bytes| self.broadcast(piece, bytes, root), call)?
            }
            (Work::AllGather { input, output, counts }, _) => {
                let (counts, starts) = (ints(counts)?, starts(counts)?);
                Plan::of(move || self.all_gather(*input, *output, &counts, &starts))
            }
            (Work::AllToAll { input, output, sends, receives }, _) => {
                let tables = (ints(sends)?, starts(sends)?, ints(receives)?, starts(receives)?);
                if let Err(error) = step.check_counts(sends, receives) {
                    return Some(Err(error));
                }
                Plan::of(move || self.all_to_all(*input, *output, &tables))
            }
            (Work::Scatter { input, output }, _) => {
                let block = count(output.bytes)?;
                Plan::of(move || self.scatter(*input, *output, block, root))
            }
            (Work::Gather { input, output }, _) => {
                let block = count(input.bytes)?;
                Plan::of(move || self.gather(*input, *output, block, root))
            }
            _ => return None,
        };
        Some(self.go(own, step.limits).map(|()| average(call, step)))
    }
}

/// Requests to start, in order. The closure may own tables that MPI reads until all are done.
struct Plan<'a>(Box<Start<'a>>);

type Start<'a> = dyn FnMut(&mut Vec<Request>) -> Result<()> + 'a;

impl<'a> Plan<'a> {
    fn of(one: impl Fn() -> Result<Request> + 'a) -> Plan<'a> {
        Plan(Box::new(move |requests| {
            requests.push(one()?);
            Ok(())
        }))
    }
}

impl Collectives {
    /// Starts all requests and waits for them.
    fn go(&self, mut plan: Plan<'_>, limits: &Limits) -> Result<()> {
        let library = &self.0.library;
        let guard = library.enter()?;
        let mut requests = Vec::new();
        let result = (plan.0)(&mut requests).and_then(|()| library.finish(&mut requests, limits));
        if let Err(error) = &result {
            library.abandon(guard, error);
            // MPI may still read the tables of counts.
            std::mem::forget(plan);
        }
        result
    }

    /// One request for each piece of memory; `None` if a piece is too long for MPI.
    fn pieces<'a>(
        &self,
        data: Pieces<'a>,
        start: impl Fn(Piece, c_int) -> Result<Request> + 'a,
        call: &Call<'_>,
    ) -> Option<Plan<'a>> {
        let unit = match call.signature.op {
            Some(_) => call.signature.dtype.size(),
            None => 1,
        };
        let mut list = Vec::new();
        let mut fits = true;
        data.visit(&mut Default::default(), 0, data.bytes, |start, _, bytes| {
            match count(bytes / unit) {
                Some(elements) => list.push((Piece { start, bytes }, elements)),
                None => fits = false,
            }
        });
        fits.then(|| {
            Plan(Box::new(move |requests| {
                for (piece, elements) in &list {
                    requests.push(start(*piece, *elements)?);
                }
                Ok(())
            }))
        })
    }

    fn dtype(&self, dtype: DType) -> Option<Handle> {
        let names = &self.0.library.handles;
        Some(match dtype {
            DType::F32 => names.f32,
            DType::F64 => names.f64,
            DType::I32 => names.i32,
            DType::I64 => names.i64,
            DType::U8 => names.u8,
            _ => return None,
        })
    }

    fn op(&self, op: ReduceOp) -> Handle {
        let names = &self.0.library.handles;
        match op {
            ReduceOp::Sum | ReduceOp::Avg => names.sum,
            ReduceOp::Prod => names.prod,
            ReduceOp::Min => names.min,
            ReduceOp::Max => names.max,
        }
    }

    fn in_place(&self) -> *const c_void {
        self.0.library.handles.in_place as *const c_void
    }

    // SAFETY of all functions below: memory and counts are those of a checked call, borrowed until
    // the requests are done. If they are abandoned, MPI is not called again in this process.

    fn all_reduce(&self, data: Piece, count: c_int, dtype: Handle, op: Handle) -> Result<Request> {
        let (library, comm) = (&self.0.library, self.0.comm);
        // SAFETY: as stated above these functions.
        library.request(|to| unsafe {
            (library.f.all_reduce)(self.in_place(), data.start.cast(), count, dtype, op, comm, to)
        })
    }

    fn reduce(
        &self,
        data: Piece,
        count: c_int,
        dtype: Handle,
        op: Handle,
        root: usize,
    ) -> Result<Request> {
        let (library, comm) = (&self.0.library, self.0.comm);
        let (from, into) = match self.is(root) {
            true => (self.in_place(), data.start.cast()),
            false => (source(data), std::ptr::null_mut()),
        };
        // SAFETY: as stated above these functions.
        library.request(|to| unsafe {
            (library.f.reduce)(from, into, count, dtype, op, root as c_int, comm, to)
        })
    }

    fn reduce_scatter(
        &self,
        input: Piece,
        output: Piece,
        count: c_int,
        dtype: Handle,
        op: Handle,
    ) -> Result<Request> {
        let (library, comm) = (&self.0.library, self.0.comm);
        let (from, into) = (source(input), target(output));
        // SAFETY: as stated above these functions.
        library.request(|to| unsafe {
            (library.f.reduce_scatter)(from, into, count, dtype, op, comm, to)
        })
    }

    fn broadcast(&self, data: Piece, bytes: c_int, root: usize) -> Result<Request> {
        let (library, comm) = (&self.0.library, self.0.comm);
        let byte = library.handles.byte;
        // SAFETY: as stated above these functions.
        library.request(|to| unsafe {
            (library.f.broadcast)(data.start.cast(), bytes, byte, root as c_int, comm, to)
        })
    }

    fn all_gather(
        &self,
        input: Option<Piece>,
        output: Piece,
        counts: &[c_int],
        starts: &[c_int],
    ) -> Result<Request> {
        let (library, comm) = (&self.0.library, self.0.comm);
        let byte = library.handles.byte;
        let (from, count) = match input {
            Some(input) => (source(input), input.bytes as c_int),
            None => (self.in_place(), 0),
        };
        let (counts, starts) = (counts.as_ptr(), starts.as_ptr());
        // SAFETY: as stated above these functions.
        library.request(|to| unsafe {
            let into = target(output);
            (library.f.all_gather)(from, count, byte, into, counts, starts, byte, comm, to)
        })
    }

    fn all_to_all(
        &self,
        input: Piece,
        output: Piece,
        tables: &(Vec<c_int>, Vec<c_int>, Vec<c_int>, Vec<c_int>),
    ) -> Result<Request> {
        let (library, comm) = (&self.0.library, self.0.comm);
        let byte = library.handles.byte;
        let (sends, send_starts) = (tables.0.as_ptr(), tables.1.as_ptr());
        let (receives, receive_starts) = (tables.2.as_ptr(), tables.3.as_ptr());
        let (from, into) = (source(input), target(output));
        // SAFETY: as stated above these functions.
        library.request(|to| unsafe {
            (library.f.all_to_all)(
                from,
                sends,
                send_starts,
                byte,
                into,
                receives,
                receive_starts,
                byte,
                comm,
                to,
            )
        })
    }

    fn scatter(
        &self,
        input: Option<Piece>,
        output: Piece,
        block: c_int,
        root: usize,
    ) -> Result<Request> {
        let (library, comm) = (&self.0.library, self.0.comm);
        let byte = library.handles.byte;
        let from = input.map_or(std::ptr::null(), source);
        let into = target(output);
        let root = root as c_int;
        // SAFETY: as stated above these functions.
        library.request(|to| unsafe {
            (library.f.scatter)(from, block, byte, into, block, byte, root, comm, to)
        })
    }

    fn gather(
        &self,
        input: Piece,
        output: Option<Piece>,
        block: c_int,
        root: usize,
    ) -> Result<Request> {
        let (library, comm) = (&self.0.library, self.0.comm);
        let byte = library.handles.byte;
        let from = source(input);
        let into = output.map_or(std::ptr::null_mut(), target);
        let root = root as c_int;
        // SAFETY: as stated above these functions.
        library.request(|to| unsafe {
            (library.f.gather)(from, block, byte, into, block, byte, root, comm, to)
        })
    }

    fn is(&self, rank: usize) -> bool {
        fleet_net::Mesh::rank(&*self.0) == rank
    }
}

/// Divides sums on the ranks that have a result, if the operation is an average. MPI has only sums.
fn average(call: &Call<'_>, step: &Step<'_>) {
    let (dtype, size) = (call.signature.dtype, step.size());
    let Some(op) = call.signature.op else { return };
    match call.work {
        Work::AllReduce { data, .. } => finish(data, 0..data.bytes, dtype, op, size),
        Work::Reduce { data } if step.rank() == call.signature.root as usize => {
            finish(data, 0..data.bytes, dtype, op, size);
        }
        Work::ReduceScatter { output, .. } => {
            finish(Pieces::new(&[output]), 0..output.bytes, dtype, op, size);
        }
        _ => {}
    }
}

/// Source pointer for MPI. All empty slices may have one address, which MPI rejects.
fn source(piece: Piece) -> *const c_void {
    static NOTHING: [u8; 1] = [0];
    match piece.bytes {
        0 => NOTHING.as_ptr().cast(),
        _ => piece.start.cast_const().cast(),
    }
}

/// Destination pointer for MPI; null for an empty piece.
fn target(piece: Piece) -> *mut c_void {
    match piece.bytes {
        0 => std::ptr::null_mut(),
        _ => piece.start.cast(),
    }
}

fn overlap(a: &Piece, b: &Piece) -> bool {
    let (a_start, b_start) = (a.start as usize, b.start as usize);
    a_start < b_start + b.bytes && b_start < a_start + a.bytes
}

/// Converts a count to MPI's type; `None` if it is too large.
fn count(count: usize) -> Option<c_int> {
    c_int::try_from(count).ok()
}

fn ints(counts: &[usize]) -> Option<Vec<c_int>> {
    counts.iter().map(|bytes| count(*bytes)).collect()
}

fn starts(counts: &[usize]) -> Option<Vec<c_int>> {
    // The end of the last block must be in range, too.
    count(counts.iter().sum())?;
    Some(
        counts
            .iter()
            .scan(0, |start, bytes| {
                let own = *start;
                *start += *bytes as c_int;
                Some(own)
            })
            .collect(),
    )
}
