//! The way out of a program: what ops that talk to other processes are given.
//!
//! Ops know no sockets. Whoever makes an executor hands it [`Services`]: one [`Ring`] for each
//! `ring_id` that the program names, and the [`Tables`] of the job's servers. A kernel looks its
//! ring up once, when it is planned. A ring of one rank needs nobody: where a program was written
//! for one rank, no service has to be given.

use crate::{Arg, Tables};
use fleet_base::{Error, Result};
use fleet_ir::Op;
use fleet_tensor::DType;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// How numbers of several ranks become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReduceOp {
    Sum,
    Max,
    Min,
    Prod,
    /// The sum divided by the number of ranks.
    Avg,
}

/// Ranks that talk to each other, seen from one of them.
///
/// Every call blocks until this rank's part is done. All ranks of a ring make the same calls in the
/// same order: ops of one ring run in one lane, in program order. `label` names the call for
/// errors, and is equal on all ranks. Memory comes as [`Arg`]s, so that a bucket of gradients is
/// one call without a copy; an implementation reads their `dtype` and `bytes_mut()`.
pub trait Ring: Send + Sync {
    /// This rank's place, from 0.
    fn rank(&self) -> usize;
    fn size(&self) -> usize;
    /// Every part becomes the reduction of that part over all ranks.
    fn all_reduce(&self, label: &str, parts: &[Arg], op: ReduceOp) -> Result<()>;
    /// As [`Ring::all_reduce`]; `done(part, start, values)` is told of every stretch of every part,
    /// in bytes and in any order, once it is final: while it is in the cache, where the ring can
    /// tell. What the parts hold afterwards is unspecified.
    fn all_reduce_then(
        &self,
        label: &str,
        parts: &[Arg],
        op: ReduceOp,
        done: &mut dyn FnMut(usize, usize, &[u8]),
    ) -> Result<()> {
        self.all_reduce(label, parts, op)?;
        parts.iter().enumerate().for_each(|(index, part)| done(index, 0, part.bytes()));
        Ok(())
    }
    /// As [`Ring::all_reduce`] at `root`; what other ranks hold afterwards is unspecified.
    fn reduce(&self, label: &str, parts: &[Arg], op: ReduceOp, root: usize) -> Result<()>;
    /// Every part becomes what `root` holds.
    fn broadcast(&self, label: &str, parts: &[Arg], root: usize) -> Result<()>;
    /// `all` becomes the `mine` of every rank, in order of ranks. All are equally long.
    fn all_gather(&self, label: &str, mine: &[u8], all: &mut [u8]) -> Result<()>;
    /// `mine` becomes this rank's piece of the reduction of `all`, which is cut evenly.
    fn reduce_scatter(
        &self,
        label: &str,
        dtype: DType,
        all: &[u8],
        mine: &mut [u8],
        op: ReduceOp,
    ) -> Result<()>;
    /// Piece `i` of `from` goes to rank `i`; piece `i` of `to` comes from it. Cut evenly.
    fn all_to_all(&self, label: &str, from: &[u8], to: &mut [u8]) -> Result<()>;
    fn send(&self, label: &str, to: usize, bytes: &[u8]) -> Result<()>;
    fn recv(&self, label: &str, from: usize, bytes: &mut [u8]) -> Result<()>;
    fn barrier(&self, label: &str) -> Result<()>;
    /// This rank has failed and will make no further call: whoever waits, here or elsewhere, is to
    /// be told at once.
    fn abort(&self, error: &Error);
}

/// Where values wait that have left the arena: numbered slots, each holding what was written last.
///
/// One lane writes and reads, in the order of the program.
pub trait Spill: Send + Sync {
    fn write(&self, slot: u64, bytes: &[u8]) -> Result<()>;
    /// Reads a whole slot, which holds as many bytes.
    fn read(&self, slot: u64, bytes: &mut [u8]) -> Result<()>;
}

/// What a program may use besides memory.
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
    /// Nothing: enough for programs of one rank.
    pub const fn none() -> Services {
        Services { rings: BTreeMap::new(), tables: None, spill: None }
    }

    /// Adds the ring that ops name by `ring_id`.
    pub fn with_ring(mut self, ring_id: i64, ring: Arc<dyn Ring>) -> Services {
        self.rings.insert(ring_id, ring);
        self
    }

    /// Gives the program the tables of its job's parameter servers.
    pub fn with_tables(mut self, tables: Arc<dyn Tables>) -> Services {
        self.tables = Some(tables);
        self
    }

    /// Gives the program a store for values that leave the arena; executors bring their own.
    pub fn with_spill(mut self, spill: Arc<dyn Spill>) -> Services {
        self.spill = Some(spill);
        self
    }

    pub(crate) fn spill_of(&self, op: &Op) -> Result<Arc<dyn Spill>> {
        self.spill.clone().ok_or_else(|| {
            Error::invalid(format!("{} needs a store, which was not given", op.name()))
                .help("executors bring one; others are given it by Services::with_spill")
        })
    }

    pub fn rings(&self) -> impl Iterator<Item = (i64, &Arc<dyn Ring>)> {
        self.rings.iter().map(|(id, ring)| (*id, ring))
    }

    /// The ring of an op, by its attributes `ring_id` and `nranks`.
    pub fn ring_of(&self, op: &Op) -> Result<Arc<dyn Ring>> {
        let (id, nranks) = (op.attr_int("ring_id"), op.attr_usize("nranks"));
        match self.rings.get(&id) {
            Some(ring) if ring.size() == nranks => Ok(Arc::clone(ring)),
            Some(ring) => Err(Error::invalid(format!(
                "ring {id} has another size than the program was written for"
            ))
            .expected(format!("{nranks} ranks"))
            .got(ring.size())
            .help("rewrite the program for the ranks that there are")),
            None if nranks == 1 => Ok(Arc::new(Solo)),
            None => Err(Error::invalid(format!("{} needs ring {id}, which was not given", op.name()))
                .expected(format!("a ring of {nranks} ranks"))
                .help("start the job with fleetrun and call fleet.init, or give the executor its rings (Executor::services)")),
        }
    }

    /// Tells every ring that this rank has failed.
    pub fn abort(&self, error: &Error) {
        self.rings.values().for_each(|ring| ring.abort(error));
    }
}

/// A ring of one rank: nothing to do.
struct Solo;

impl Solo {
    fn check(&self, peer: usize) -> Result<()> {
        match peer {
            0 => Ok(()),
            _ => Err(Error::invalid("a ring of one rank has no such peer").expected(0).got(peer)),
        }
    }
}

impl Ring for Solo {
    fn rank(&self) -> usize {
        0
    }

    fn size(&self) -> usize {
        1
    }

    fn all_reduce(&self, _: &str, _: &[Arg], _: ReduceOp) -> Result<()> {
        Ok(())
    }

    fn reduce(&self, _: &str, _: &[Arg], _: ReduceOp, root: usize) -> Result<()> {
        self.check(root)
    }

    fn broadcast(&self, _: &str, _: &[Arg], root: usize) -> Result<()> {
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
        Err(Error::invalid(format!("{label}: a ring of one rank has nobody to send to")))
    }

    fn recv(&self, label: &str, _: usize, _: &mut [u8]) -> Result<()> {
        Err(Error::invalid(format!("{label}: a ring of one rank has nobody to receive from")))
    }

    fn barrier(&self, _: &str) -> Result<()> {
        Ok(())
    }

    fn abort(&self, _: &Error) {}
}
