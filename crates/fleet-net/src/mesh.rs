//! Ordered, reliable bytes between the members of a group.
//!
//! There is one primitive. A call of [`Mesh::transfer`] names everything that this rank sends and
//! receives in one step of an algorithm; all of it goes on at once, in both directions, so a step
//! in which everybody sends before anybody receives cannot lock up however long the messages are.
//!
//! ```
//! use fleet_net::{Abort, Fabric, Transfer, memory};
//! use std::time::Duration;
//! std::thread::scope(|scope| {
//!     for fabric in memory::fabrics(2) {
//!         scope.spawn(move || -> fleet_base::Result<()> {
//!             let mesh = fabric.open("world", &[0, 1])?;
//!             let (own, mut theirs) = ([mesh.rank() as u8; 4], [9; 4]);
//!             let peer = 1 - mesh.rank();
//!             mesh.transfer(
//!                 &mut [
//!                     Transfer::Send { to: peer, data: &own },
//!                     Transfer::Recv { from: peer, into: &mut theirs },
//!                 ],
//!                 &mesh.limits(Duration::from_secs(60), &Abort::new()),
//!             )?;
//!             assert_eq!(theirs, [peer as u8; 4]);
//!             Ok(())
//!         });
//!     }
//! });
//! ```

use crate::{Abort, Deadline, Limits, Time};
use fleet_base::{Error, Result};
use std::sync::Arc;
use std::time::Duration;

/// One message, named by one of its ends. Ranks are indices into the mesh.
pub enum Transfer<'a> {
    Send {
        to: usize,
        data: &'a [u8],
    },
    /// Fills `into`; the peer must send exactly as many bytes.
    Recv {
        from: usize,
        into: &'a mut [u8],
    },
    /// Hands `bytes` bytes to `sink` while they arrive: `sink(offset, piece)`. Pieces are at most
    /// [`FOLD_BYTES_MAX`] long and still in the cache, start aligned to `unit` and hold whole
    /// units; each byte comes once; pieces may come in any order of offsets.
    Fold {
        from: usize,
        bytes: usize,
        unit: usize,
        sink: &'a mut (dyn FnMut(usize, &[u8]) + 'a),
    },
}

/// The longest piece that a fold sees: half of a small second-level cache.
pub const FOLD_BYTES_MAX: usize = 256 << 10;

/// The largest unit of a fold; elements of tensors are not larger.
pub const FOLD_UNIT_MAX: usize = 16;

/// The members of one group and the bytes between them.
///
/// **Order.** Messages from one rank to another arrive in the order in which they were sent, those
/// of one call in the order of the list.
///
/// **Matching.** The n-th message sent from a to b meets the n-th that b receives from a. Their
/// sizes must agree; where a transport can tell that they do not, both are named.
///
/// **Completion.** A send is complete when its bytes have left `data`. That may be before the peer
/// asks for them, or only then: algorithms must not count on either.
///
/// **Errors.** The deadline passed, the token fired (its reason is the error), or a peer is gone
/// (`Unavailable`, with its rank, host and process). Where an error leaves a stream in the middle
/// of a message the mesh is broken, and says so from then on.
///
/// **Threads.** Calls on one mesh follow each other; open one mesh for each communicator that must
/// go on beside others.
pub trait Mesh: Send + Sync {
    /// This process in the group.
    fn rank(&self) -> usize;

    fn size(&self) -> usize;

    /// Moves everything in `ops`, whatever their order, until all is done or an error ends it.
    fn transfer(&self, ops: &mut [Transfer<'_>], limits: &Limits) -> Result<()>;

    /// Who a member is, for messages and for choosing algorithms.
    fn member(&self, rank: usize) -> Member;

    /// A rank whose end of the mesh is closed, where the transport can tell without moving
    /// anything: for who waits beside the mesh. A rank closes its end when it fails, and when it is
    /// done.
    fn ended(&self) -> Option<usize> {
        None
    }

    /// The clock that deadlines of this mesh are on.
    fn now(&self) -> Time {
        Time::now()
    }

    /// Limits that end `span` from now on this mesh's clock.
    fn limits(&self, span: Duration, abort: &Abort) -> Limits {
        Limits::new(Deadline::after(self.now(), span), abort)
    }
}

/// Opens the meshes of one process: one for each communicator.
pub trait Fabric: Send + Sync {
    /// This process in the job.
    fn rank(&self) -> usize;

    fn size(&self) -> usize;

    /// The mesh `name` of `members` (ranks in the job; the position in the list is the rank in the
    /// mesh). Every member opens it with the same name and list, once; a name is used once in a
    /// job.
    fn open(&self, name: &str, members: &[usize]) -> Result<Arc<dyn Mesh>>;

    /// Who holds a rank of the job.
    fn member(&self, rank: usize) -> Member;
}

/// A process of the job, as others know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// In the job.
    pub rank: usize,
    /// The name of its machine, for people.
    pub host: String,
    /// Equal where two processes share memory: boot, and what namespaces of it are seen.
    pub host_id: String,
    pub pid: u32,
}

impl std::fmt::Display for Member {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "rank {} (host {}, pid {})", self.rank, self.host, self.pid)
    }
}

impl Transfer<'_> {
    pub fn peer(&self) -> usize {
        match self {
            Transfer::Send { to, .. } => *to,
            Transfer::Recv { from, .. } | Transfer::Fold { from, .. } => *from,
        }
    }

    pub fn bytes(&self) -> usize {
        match self {
            Transfer::Send { data, .. } => data.len(),
            Transfer::Recv { into, .. } => into.len(),
            Transfer::Fold { bytes, .. } => *bytes,
        }
    }

    pub fn is_send(&self) -> bool {
        matches!(self, Transfer::Send { .. })
    }
}

/// Refuses what no mesh can do; implementations of [`Mesh::transfer`] call it first.
pub fn check_transfers(rank: usize, size: usize, ops: &[Transfer<'_>]) -> Result<()> {
    for (index, op) in ops.iter().enumerate() {
        let at = || format!("transfer {index} of {} on rank {rank}", ops.len());
        if op.peer() >= size {
            return Err(Error::invalid("transfer with a rank that is not in the mesh")
                .expected(format!("a rank below {size}"))
                .got(op.peer())
                .at(at()));
        }
        if op.peer() == rank {
            return Err(Error::invalid("transfer of a rank with itself").at(at()));
        }
        if let Transfer::Fold { bytes, unit, .. } = op {
            if !unit.is_power_of_two() || *unit > FOLD_UNIT_MAX {
                return Err(Error::invalid("the unit of a fold is no element size")
                    .expected(format!("a power of two up to {FOLD_UNIT_MAX}"))
                    .got(unit)
                    .at(at()));
            }
            if bytes % unit != 0 {
                return Err(Error::invalid("a fold does not hold whole units")
                    .expected(format!("a multiple of {unit} bytes"))
                    .got(bytes)
                    .at(at()));
            }
        }
    }
    Ok(())
}

/// Refuses lists of members that make no mesh; gives the position of `rank` in it.
pub fn check_members(rank: usize, size: usize, members: &[usize]) -> Result<usize> {
    for (index, member) in members.iter().enumerate() {
        if *member >= size {
            return Err(Error::invalid("a member of the mesh is not in the job")
                .expected(format!("a rank below {size}"))
                .got(member));
        }
        if members[..index].contains(member) {
            return Err(Error::invalid(format!("rank {member} is in the mesh twice")));
        }
    }
    members.iter().position(|member| *member == rank).ok_or_else(|| {
        Error::invalid("a rank opens a mesh that it is not in")
            .expected(format!("one of {members:?}"))
            .got(rank)
    })
}

/// The error of a transfer that ran out of time: what it still waited for, by peer.
pub fn timeout_error(waiting: &[(Member, bool, usize, usize)]) -> Error {
    let list: Vec<String> = waiting
        .iter()
        .map(|(member, sends, done, bytes)| match sends {
            true => format!("{member} to take {} of {bytes} bytes", bytes - done),
            false => format!("{} of {bytes} bytes from {member}", bytes - done),
        })
        .collect();
    Error::unavailable(format!("the deadline passed while waiting for {}", list.join(", ")))
}
