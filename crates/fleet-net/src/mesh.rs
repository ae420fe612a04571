//! Ordered, reliable bytes between the members of a group.
//!
//! There is one primitive. A call of [`Mesh::transfer`] lists all messages that this rank sends and
//! receives in one step of an algorithm, and moves all of them concurrently. A step in which every
//! rank sends before it receives therefore cannot deadlock, however long the messages are.
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

/// One message, seen from one of its ends. Ranks are indices into the mesh.
pub enum Transfer<'a> {
    /// Sends `data`.
    Send {
        /// The rank that receives.
        to: usize,
        /// The message.
        data: &'a [u8],
    },
    /// Fills `into`; the peer must send exactly as many bytes.
    Recv {
        /// The rank that sends.
        from: usize,
        /// Memory for the message.
        into: &'a mut [u8],
    },
    /// Passes `bytes` bytes to `sink` while they arrive: `sink(offset, piece)`. A piece has at most
    /// [`FOLD_BYTES_MAX`] bytes, so that it is still in the cache. It is aligned to `unit` and
    /// holds whole units. Each byte is passed once; pieces may arrive in any order of offsets.
    Fold {
        /// The rank that sends.
        from: usize,
        /// Length of the message.
        bytes: usize,
        /// Size of an element in bytes.
        unit: usize,
        /// The function that gets the pieces.
        sink: &'a mut (dyn FnMut(usize, &[u8]) + 'a),
    },
}

/// Largest piece that a fold passes on: half of a small second-level cache.
pub const FOLD_BYTES_MAX: usize = 256 << 10;

/// Largest unit of a fold. Elements of tensors are not larger.
pub const FOLD_UNIT_MAX: usize = 16;

/// The members of one group and the bytes between them.
///
/// **Order.** Messages from one rank to another arrive in the order in which they were sent.
/// Messages of one call keep the order of the list.
///
/// **Matching.** The n-th message sent from a to b matches the n-th that b receives from a. Their
/// sizes must agree; a transport that detects a mismatch reports both sizes.
///
/// **Completion.** A send is complete when its bytes have left `data`. This may happen before the
/// peer starts to receive, or only afterwards: algorithms must not rely on either.
///
/// **Errors.** The deadline has passed, the token has fired (its reason is the error), or a peer is
/// dead (`Unavailable`, with its rank, host and process). If an error leaves a stream in the middle
/// of a message, the mesh is broken: all later calls fail.
///
/// **Threads.** Calls on one mesh run one after another. Open one mesh for each communicator that
/// must make progress independently of others.
pub trait Mesh: Send + Sync {
    /// Rank of this process in the mesh.
    fn rank(&self) -> usize;

    /// Number of ranks in the mesh.
    fn size(&self) -> usize;

    /// Runs all of `ops` until they are done or an error occurs. Their order does not matter.
    fn transfer(&self, ops: &mut [Transfer<'_>], limits: &Limits) -> Result<()>;

    /// The process of a rank, for error messages and for the choice of algorithms.
    fn member(&self, rank: usize) -> Member;

    /// A rank that has closed its end of the mesh, if the transport can tell without moving data. A
    /// rank closes its end when it fails and when it is done. For code that waits outside the mesh.
    fn closed_peer(&self) -> Option<usize> {
        None
    }

    /// The clock of this mesh's deadlines.
    fn now(&self) -> Time {
        Time::now()
    }

    /// Limits whose deadline is `span` from now on this mesh's clock.
    fn limits(&self, span: Duration, abort: &Abort) -> Limits {
        Limits::new(Deadline::after(self.now(), span), abort)
    }
}

/// Opens the meshes of one process, one for each communicator.
pub trait Fabric: Send + Sync {
    /// Rank of this process in the job.
    fn rank(&self) -> usize;

    /// Number of ranks in the job.
    fn size(&self) -> usize;

    /// Opens the mesh `name` of `members`. These are ranks in the job; the position in the list is
    /// the rank in the mesh. Every member opens the mesh once, with the same name and list. A name
    /// is used for one mesh only.
    fn open(&self, name: &str, members: &[usize]) -> Result<Arc<dyn Mesh>>;

    /// The process that has a rank of the job.
    fn member(&self, rank: usize) -> Member;
}

/// A process of the job, described for other processes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Rank in the job.
    pub rank: usize,
    /// Name of its machine, for messages.
    pub host: String,
    /// Equal for processes that can share memory: covers the boot and the visible namespaces.
    pub host_id: String,
    /// Process id.
    pub pid: u32,
}

impl std::fmt::Display for Member {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "rank {} (host {}, pid {})", self.rank, self.host, self.pid)
    }
}

impl Transfer<'_> {
    /// The rank at the other end.
    pub fn peer(&self) -> usize {
        match self {
            Transfer::Send { to, .. } => *to,
            Transfer::Recv { from, .. } | Transfer::Fold { from, .. } => *from,
        }
    }

    /// Length of the message.
    pub fn bytes(&self) -> usize {
        match self {
            Transfer::Send { data, .. } => data.len(),
            Transfer::Recv { into, .. } => into.len(),
            Transfer::Fold { bytes, .. } => *bytes,
        }
    }

    /// Whether this rank sends the message.
    pub fn is_send(&self) -> bool {
        matches!(self, Transfer::Send { .. })
    }
}

/// Rejects transfers that no mesh can run. Implementations of [`Mesh::transfer`] call it first.
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
                return Err(Error::invalid("invalid unit of a fold")
                    .expected(format!("a power of two up to {FOLD_UNIT_MAX}"))
                    .got(unit)
                    .at(at()));
            }
            if bytes % unit != 0 {
                return Err(Error::invalid("fold size is not a multiple of its unit")
                    .expected(format!("a multiple of {unit} bytes"))
                    .got(bytes)
                    .at(at()));
            }
        }
    }
    Ok(())
}

/// Rejects invalid lists of members. Returns the position of `rank` in the list.
pub fn check_members(rank: usize, size: usize, members: &[usize]) -> Result<usize> {
    for (index, member) in members.iter().enumerate() {
        if *member >= size {
            return Err(Error::invalid("a member of the mesh is not in the job")
                .expected(format!("a rank below {size}"))
                .got(member));
        }
        if members[..index].contains(member) {
            return Err(Error::invalid(format!("duplicate rank {member} in the mesh")));
        }
    }
    members.iter().position(|member| *member == rank).ok_or_else(|| {
        Error::invalid("this rank is not a member of the mesh")
            .expected(format!("one of {members:?}"))
            .got(rank)
    })
}

/// The error of a transfer that missed its deadline. It lists the pending messages by peer.
pub fn timeout_error(waiting: &[(Member, bool, usize, usize)]) -> Error {
    let list: Vec<String> = waiting
        .iter()
        .map(|(member, sends, done, bytes)| match sends {
            true => format!("{member} to receive {} of {bytes} bytes", bytes - done),
            false => format!("{} of {bytes} bytes from {member}", bytes - done),
        })
        .collect();
    Error::unavailable(format!("the deadline passed while waiting for {}", list.join(", ")))
}
