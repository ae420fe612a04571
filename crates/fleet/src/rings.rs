//! A group of `fleet-comm` as the ring that ops communicate over.

use fleet_base::{Error, Result};
use fleet_comm::Group;
use fleet_ops::{Arg, ReduceOp, Ring};
use fleet_tensor::DType;

/// Adapter from a group to the ops' `Ring`.
pub(crate) struct GroupRing(pub Group);

/// Number of buffers of one operation up to which their list needs no allocation.
const PARTS_INLINE: usize = 64;

/// Calls `call` with the memory of all parts and their data type.
fn with_parts(
    parts: &[Arg],
    call: impl FnOnce(DType, &mut [&mut [u8]]) -> Result<()>,
) -> Result<()> {
    // All ranks have the same program, so the list is empty on every rank.
    let Some(first) = parts.first() else { return Ok(()) };
    if let Some(other) = parts.iter().find(|part| part.dtype != first.dtype) {
        return Err(Error::invalid("buffers of one collective have different types")
            .expected(first.dtype)
            .got(other.dtype));
    }
    if parts.len() <= PARTS_INLINE {
        let mut slots: [&mut [u8]; PARTS_INLINE] =
            std::array::from_fn(|_| -> &mut [u8] { &mut [] });
        for (slot, part) in slots.iter_mut().zip(parts) {
            *slot = part.bytes_mut();
        }
        call(first.dtype, &mut slots[..parts.len()])
    } else {
        let mut slots: Vec<&mut [u8]> = parts.iter().map(Arg::bytes_mut).collect();
        call(first.dtype, &mut slots)
    }
}

impl Ring for GroupRing {
    fn rank(&self) -> usize {
        self.0.rank()
    }

    fn size(&self) -> usize {
        self.0.size()
    }

    fn all_reduce(&self, label: &str, parts: &[Arg], op: ReduceOp) -> Result<()> {
        with_parts(parts, |dtype, parts| self.0.all_reduce_bytes(label, dtype, parts, op))
    }

    fn all_reduce_then(
        &self,
        label: &str,
        parts: &[Arg],
        op: ReduceOp,
        done: &mut dyn FnMut(usize, usize, &[u8]),
    ) -> Result<()> {
        with_parts(parts, |dtype, parts| {
            self.0.all_reduce_bytes_then(label, dtype, parts, op, done)
        })
    }

    fn reduce(&self, label: &str, parts: &[Arg], op: ReduceOp, root: usize) -> Result<()> {
        with_parts(parts, |dtype, parts| self.0.reduce_bytes(label, dtype, parts, op, root))
    }

    fn broadcast(&self, label: &str, parts: &[Arg], root: usize) -> Result<()> {
        with_parts(parts, |_, parts| self.0.broadcast_fused(label, parts, root))
    }

    fn all_gather(&self, label: &str, mine: &[u8], all: &mut [u8]) -> Result<()> {
        self.0.all_gather(label, mine, all)
    }

    fn reduce_scatter(
        &self,
        label: &str,
        dtype: DType,
        all: &[u8],
        mine: &mut [u8],
        op: ReduceOp,
    ) -> Result<()> {
        self.0.reduce_scatter_bytes(label, dtype, all, mine, op)
    }

    fn all_to_all(&self, label: &str, from: &[u8], to: &mut [u8]) -> Result<()> {
        self.0.all_to_all(label, from, to)
    }

    fn send(&self, label: &str, to: usize, bytes: &[u8]) -> Result<()> {
        self.0.send(label, bytes, to)
    }

    fn recv(&self, label: &str, from: usize, bytes: &mut [u8]) -> Result<()> {
        self.0.recv(label, bytes, from)
    }

    fn barrier(&self, label: &str) -> Result<()> {
        self.0.barrier(label)
    }

    fn abort(&self, error: &Error) {
        let own = self.0.ranks()[self.0.rank()];
        let told = Error::unavailable(format!("rank {} failed: {error}", self.0.rank()));
        // If another rank caused the failure of this step, that rank remains the culprit.
        self.0.abort(told.caused_by(error.culprit().unwrap_or(own)));
    }
}
