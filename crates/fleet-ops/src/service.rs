//! Connections of a program to other processes, for the ops that communicate.
//!
//! Ops do not use sockets. The creator of an executor passes [`Services`]: one [`Ring`] for each
//! `ring_id` that the program names, and the [`Tables`] of the job's servers. A kernel looks up its
//! ring once, when it is planned. A program written for one rank needs no service: a missing ring
//! of one rank is replaced by a local one.

use crate::Tables;
use fleet_base::{Error, ReduceOp, Result};
use fleet_ir::Op;
use fleet_tensor::DType;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// A communication group, seen from one of its ranks.
///
/// Every call blocks until this rank's part is done. All ranks of a ring must make the same calls
/// in the same order. For this, ops of one ring run in one lane, in program order. `label` names
/// the call in errors and is equal on all ranks. Memory is passed in parts, as bytes of one element
/// type, so that a bucket of gradients is one call without a copy.
pub trait Ring: Send + Sync {
    /// Rank of this process in the ring, from 0.
    fn rank(&self) -> usize;
    /// Number of ranks in the ring.
    fn size(&self) -> usize;
    /// Replaces every part by its reduction over all ranks.
    fn all_reduce(
        &self,
        label: &str,
        dtype: DType,
        parts: &mut [&mut [u8]],
        op: ReduceOp,
    ) -> Result<()>;
    /// Like [`Ring::all_reduce`], and calls `done(part, start, values)` for every final stretch of
    /// every part, in any order. `start` is in bytes. Where the ring supports it, the call happens
    /// while the stretch is still in the cache. The content of the parts afterwards is unspecified.
    fn all_reduce_then(
        &self,
        label: &str,
        dtype: DType,
        parts: &mut [&mut [u8]],
        op: ReduceOp,
        done: &mut dyn FnMut(usize, usize, &[u8]),
    ) -> Result<()> {
        self.all_reduce(label, dtype, parts, op)?;
        parts.iter().enumerate().for_each(|(index, part)| done(index, 0, part));
        Ok(())
    }
    /// Reduces every part to rank `root`. The content on other ranks afterwards is unspecified.
    fn reduce(
        &self,
        label: &str,
        dtype: DType,
        parts: &mut [&mut [u8]],
        op: ReduceOp,
        root: usize,
    ) -> Result<()>;
    /// Like [`Ring::reduce`], and calls `done` on rank `root` as [`Ring::all_reduce_then`] does.
    fn reduce_then(
        &self,
        label: &str,
        dtype: DType,
        parts: &mut [&mut [u8]],
        op: ReduceOp,
        root: usize,
        done: &mut dyn FnMut(usize, usize, &[u8]),
    ) -> Result<()> {
        self.reduce(label, dtype, parts, op, root)?;
        if self.rank() == root {
            parts.iter().enumerate().for_each(|(index, part)| done(index, 0, part));
        }
        Ok(())
    }
    /// Replaces every part by the content on rank `root`.
    fn broadcast(&self, label: &str, parts: &mut [&mut [u8]], root: usize) -> Result<()>;
    /// Fills `all` with `mine` of every rank, in the order of ranks. All ranks pass the same
    /// length.
    fn all_gather(&self, label: &str, mine: &[u8], all: &mut [u8]) -> Result<()>;
    /// Reduces `all` over the ranks and stores this rank's piece in `mine`. Pieces have equal size.
    fn reduce_scatter(
        &self,
        label: &str,
        dtype: DType,
        all: &[u8],
        mine: &mut [u8],
        op: ReduceOp,
    ) -> Result<()>;
    /// Sends piece `i` of `from` to rank `i`, and receives piece `i` of `to` from it. Pieces have
    /// equal size.
    fn all_to_all(&self, label: &str, from: &[u8], to: &mut [u8]) -> Result<()>;
    /// Sends bytes to a rank, which must call [`Ring::recv`] for as many.
    fn send(&self, label: &str, to: usize, bytes: &[u8]) -> Result<()>;
    /// Receives bytes from a rank, which must call [`Ring::send`] with as many.
    fn recv(&self, label: &str, from: usize, bytes: &mut [u8]) -> Result<()>;
    /// Returns when all ranks have called it.
    fn barrier(&self, label: &str) -> Result<()>;
    /// Reports that this rank has failed and will make no further call. Every waiting rank, local
    /// or remote, gets the error at once.
    fn abort(&self, error: &Error);
}

/// Storage for values that left the arena. Slots are numbered, and each holds the last value
/// written.
///
/// A single lane writes and reads, in program order.
pub trait Spill: Send + Sync {
    /// Replaces the bytes of a slot.
    fn write(&self, slot: u64, bytes: &[u8]) -> Result<()>;
    /// Reads a whole slot, which must hold exactly as many bytes.
    fn read(&self, slot: u64, bytes: &mut [u8]) -> Result<()>;
}

/// Services that a program may use besides memory.
#[derive(Clone, Default)]
pub struct Services {
    rings: BTreeMap<i64, Arc<dyn Ring>>,
    pub(crate) tables: Option<Arc<dyn Tables>>,
    spill: Option<Arc<dyn Spill>>,
}

impl fmt::Debug for Services {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = self.rings.iter().map(|(id, ring)| (id, (ring.rank(), ring.size())));
        f.debug_map().entries(shown).finish()
    }
}

impl Services {
    /// No services; sufficient for programs of one rank.
    pub const fn none() -> Services {
        Services { rings: BTreeMap::new(), tables: None, spill: None }
    }

    /// Adds the ring for ops with this `ring_id`.
    pub fn with_ring(mut self, ring_id: i64, ring: Arc<dyn Ring>) -> Services {
        self.rings.insert(ring_id, ring);
        self
    }

    /// Sets the tables of the job's parameter servers.
    pub fn with_tables(mut self, tables: Arc<dyn Tables>) -> Services {
        self.tables = Some(tables);
        self
    }

    /// Sets the storage for values that leave the arena. Executors provide their own.
    pub fn with_spill(mut self, spill: Arc<dyn Spill>) -> Services {
        self.spill = Some(spill);
        self
    }

    pub(crate) fn spill_of(&self, op: &Op) -> Result<Arc<dyn Spill>> {
        self.spill.clone().ok_or_else(|| {
            Error::invalid(format!("missing offload store for {}", op.name()))
                .help("use an executor, which provides one, or Services::with_spill")
        })
    }

    /// Iterates over the rings with their ids, in ascending order.
    pub fn rings(&self) -> impl Iterator<Item = (i64, &Arc<dyn Ring>)> {
        self.rings.iter().map(|(id, ring)| (*id, ring))
    }

    /// Returns the ring of an op, by its attributes `ring_id` and `nranks`.
    pub fn ring_of(&self, op: &Op) -> Result<Arc<dyn Ring>> {
        let (id, nranks) = (op.attr_int("ring_id"), op.attr_usize("nranks"));
        match self.rings.get(&id) {
            Some(ring) if ring.size() == nranks => Ok(Arc::clone(ring)),
            Some(ring) => {
                Err(Error::invalid(format!("ring {id} has the wrong size for this program"))
                    .expected(format!("{nranks} ranks"))
                    .got(ring.size())
                    .help("rewrite the program for the current number of ranks"))
            }
            None if nranks == 1 => Ok(Arc::new(SingleRank)),
            None => Err(Error::invalid(format!("missing ring {id} for {}", op.name()))
                .expected(format!("a ring of {nranks} ranks"))
                .help(
                    "start the job with fleetrun and call fleet.init, or pass the rings to \
                     Executor::services",
                )),
        }
    }

    /// Reports to every ring that this rank has failed.
    pub fn abort(&self, error: &Error) {
        self.rings.values().for_each(|ring| ring.abort(error));
    }

    /// Returns the tables for an op.
    pub fn tables_of(&self, op: &Op) -> Result<Arc<dyn Tables>> {
        self.tables.clone().ok_or_else(|| {
            Error::invalid(format!("no parameter servers for {}", op.name()))
                .expected("the tables of a job")
                .help(
                    "start the job with fleetrun --server_num, and call init_worker before the \
                     first step",
                )
        })
    }
}

/// A ring of one rank, whose calls do nothing.
struct SingleRank;

impl SingleRank {
    fn check(&self, peer: usize) -> Result<()> {
        match peer {
            0 => Ok(()),
            _ => Err(Error::invalid("no such peer in a ring of one rank").expected(0).got(peer)),
        }
    }
}

impl Ring for SingleRank {
    fn rank(&self) -> usize {
        0
    }

    fn size(&self) -> usize {
        1
    }

    fn all_reduce(&self, _: &str, _: DType, _: &mut [&mut [u8]], _: ReduceOp) -> Result<()> {
        Ok(())
    }

    fn reduce(
        &self,
        _: &str,
        _: DType,
        _: &mut [&mut [u8]],
        _: ReduceOp,
        root: usize,
    ) -> Result<()> {
        self.check(root)
    }

    fn broadcast(&self, _: &str, _: &mut [&mut [u8]], root: usize) -> Result<()> {
        self.check(root)
    }

    fn all_gather(&self, _: &str, mine: &[u8], all: &mut [u8]) -> Result<()> {
        all.copy_from_slice(mine);
        Ok(())
    }

    fn reduce_scatter(
        &self,
        _: &str,
        _: DType,
        all: &[u8],
        mine: &mut [u8],
        _: ReduceOp,
    ) -> Result<()> {
        mine.copy_from_slice(all);
        Ok(())
    }

    fn all_to_all(&self, _: &str, from: &[u8], to: &mut [u8]) -> Result<()> {
        to.copy_from_slice(from);
        Ok(())
    }

    fn send(&self, label: &str, _: usize, _: &[u8]) -> Result<()> {
        Err(Error::invalid(format!("{label}: no peer to send to in a ring of one rank")))
    }

    fn recv(&self, label: &str, _: usize, _: &mut [u8]) -> Result<()> {
        Err(Error::invalid(format!("{label}: no peer to receive from in a ring of one rank")))
    }

    fn barrier(&self, _: &str) -> Result<()> {
        Ok(())
    }

    fn abort(&self, _: &Error) {}
}
