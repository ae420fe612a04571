//! A group of `fleet-comm` as the ring that ops communicate over.

use fleet_base::{Error, ReduceOp, Result};
use fleet_comm::{Bytes, Fused, Group};
use fleet_ops::Ring;
use fleet_tensor::DType;

/// Adapter from a group of `fleet-comm` to the ops' [`Ring`](fleet_ops::Ring).
pub struct GroupRing(pub Group);

impl Ring for GroupRing {
    fn rank(&self) -> usize {
        self.0.rank()
    }

    fn size(&self) -> usize {
        self.0.size()
    }

    fn all_reduce(
        &self,
        label: &str,
        dtype: DType,
        parts: &mut [&mut [u8]],
        op: ReduceOp,
    ) -> Result<()> {
        self.0.all_reduce(label, Bytes(dtype, parts), op)
    }

    fn all_reduce_then(
        &self,
        label: &str,
        dtype: DType,
        parts: &mut [&mut [u8]],
        op: ReduceOp,
        done: &mut dyn FnMut(usize, usize, &[u8]),
    ) -> Result<()> {
        self.0.all_reduce_then(label, Bytes(dtype, parts), op, done)
    }

    fn reduce(
        &self,
        label: &str,
        dtype: DType,
        parts: &mut [&mut [u8]],
        op: ReduceOp,
        root: usize,
    ) -> Result<()> {
        self.0.reduce(label, Bytes(dtype, parts), op, root)
    }

    fn reduce_then(
        &self,
        label: &str,
        dtype: DType,
        parts: &mut [&mut [u8]],
        op: ReduceOp,
        root: usize,
        done: &mut dyn FnMut(usize, usize, &[u8]),
    ) -> Result<()> {
        self.0.reduce_then(label, Bytes(dtype, parts), op, root, done)
    }

    fn broadcast(&self, label: &str, parts: &mut [&mut [u8]], root: usize) -> Result<()> {
        self.0.broadcast(label, Fused(parts), root)
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
        self.0.reduce_scatter(label, Bytes(dtype, all), mine, op)
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
