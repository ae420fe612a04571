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
        let plan = match call.signature.op {
            Some(op) => self.reduction(call, op),
            None => self.moves(call),
        };
        Some(self.execute(plan?, step.limits).map(|()| average(call, step)))
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

    /// One request for each piece of memory; `None` if a piece is too long for MPI.
    fn of_pieces(
        data: Pieces<'a>,
        unit: usize,
        start: impl Fn(Piece, c_int) -> Result<Request> + 'a,
    ) -> Option<Plan<'a>> {
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
}

impl Collectives {
    /// Starts all requests and waits for them.
    fn execute(&self, mut plan: Plan<'_>, limits: &Limits) -> Result<()> {
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

    // SAFETY of both functions below: memory and counts are those of a checked call, borrowed until
    // the requests are done. If they are abandoned, MPI is not called again in this process.

    fn reduction<'a, 'c: 'a>(&'a self, call: &Call<'c>, op: ReduceOp) -> Option<Plan<'a>> {
        let (library, comm, in_place) = (&*self.0.library, self.0.comm, self.in_place());
        let (f, unit) = (&library.f, call.signature.dtype.size());
        let (dtype, op) = (self.dtype(call.signature.dtype)?, self.op(op));
        let root = call.signature.root as c_int;
        match call.work {
            Work::AllReduce { data, .. } => Plan::of_pieces(data, unit, move |piece, count| {
                let into = piece.start.cast();
                // SAFETY: as stated above.
                library.request(|to| unsafe {
                    (f.all_reduce)(in_place, into, count, dtype, op, comm, to)
                })
            }),
            Work::Reduce { data, .. } => {
                let is_root = fleet_net::Mesh::rank(&*self.0) == root as usize;
                Plan::of_pieces(data, unit, move |piece, count| {
                    let (from, into) = match is_root {
                        true => (in_place, piece.start.cast()),
                        false => (source(piece), std::ptr::null_mut()),
                    };
                    // SAFETY: as stated above.
                    library.request(|to| unsafe {
                        (f.reduce)(from, into, count, dtype, op, root, comm, to)
                    })
                })
            }
            Work::ReduceScatter { input, output } if !overlap(&input, &output) => {
                let count = count(output.bytes / unit)?;
                let (from, into) = (source(input), target(output));
                Some(Plan::of(move || {
                    // SAFETY: as stated above.
                    library.request(|to| unsafe {
                        (f.reduce_scatter)(from, into, count, dtype, op, comm, to)
                    })
                }))
            }
            _ => None,
        }
    }

    fn moves<'a, 'c: 'a>(&'a self, call: &Call<'c>) -> Option<Plan<'a>> {
        let (library, comm, root) = (&*self.0.library, self.0.comm, call.signature.root as c_int);
        let (f, byte) = (&library.f, library.handles.byte);
        match &call.work {
            Work::Broadcast { data } => Plan::of_pieces(*data, 1, move |piece, bytes| {
                let data = piece.start.cast();
                // SAFETY: as stated above.
                library.request(|to| unsafe { (f.broadcast)(data, bytes, byte, root, comm, to) })
            }),
            Work::AllGather { input, output, counts } => {
                let (counts, starts) = (ints(counts)?, starts(counts)?);
                let (from, count) = match input {
                    Some(input) => (source(*input), input.bytes as c_int),
                    None => (self.in_place(), 0),
                };
                let into = target(*output);
                Some(Plan::of(move || {
                    let (counts, starts) = (counts.as_ptr(), starts.as_ptr());
                    // SAFETY: as stated above.
                    library.request(|to| unsafe {
                        (f.all_gather)(from, count, byte, into, counts, starts, byte, comm, to)
                    })
                }))
            }
            Work::AllToAll { input, output, sends, receives } => {
                let (out, out_at) = (ints(sends)?, starts(sends)?);
                let (inn, in_at) = (ints(receives)?, starts(receives)?);
                let (from, into) = (source(*input), target(*output));
                Some(Plan::of(move || {
                    let (out, out_at) = (out.as_ptr(), out_at.as_ptr());
                    let (inn, in_at) = (inn.as_ptr(), in_at.as_ptr());
                    // SAFETY: as stated above.
                    library.request(|to| unsafe {
                        (f.all_to_all)(from, out, out_at, byte, into, inn, in_at, byte, comm, to)
                    })
                }))
            }
            Work::Scatter { input, output } => {
                let block = count(output.bytes)?;
                let (from, into) = (input.map_or(std::ptr::null(), source), target(*output));
                Some(Plan::of(move || {
                    // SAFETY: as stated above.
                    library.request(|to| unsafe {
                        (f.scatter)(from, block, byte, into, block, byte, root, comm, to)
                    })
                }))
            }
            Work::Gather { input, output } => {
                let block = count(input.bytes)?;
                let (from, into) = (source(*input), output.map_or(std::ptr::null_mut(), target));
                Some(Plan::of(move || {
                    // SAFETY: as stated above.
                    library.request(|to| unsafe {
                        (f.gather)(from, block, byte, into, block, byte, root, comm, to)
                    })
                }))
            }
            _ => None,
        }
    }
}

/// Divides sums on the ranks that have a result, if the operation is an average. MPI has only sums.
fn average(call: &Call<'_>, step: &Step<'_>) {
    let (dtype, size) = (call.signature.dtype, step.size());
    let Some(op) = call.signature.op else { return };
    match call.work {
        Work::AllReduce { data, .. } => finish(data, 0..data.bytes, dtype, op, size),
        Work::Reduce { data, .. } if step.rank() == call.signature.root as usize => {
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
