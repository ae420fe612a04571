//! Options of a group.

use crate::mesh::choose::Algorithm;
use std::time::Duration;

/// Options of a group; equal on all its ranks.
#[derive(Clone, Debug)]
pub struct GroupOptions {
    /// Timeout of a collective.
    pub timeout: Duration,
    /// Timeout for all ranks to open the group.
    pub timeout_open: Duration,
    /// Time after which a stopped peer is an error.
    pub silence: Duration,
    /// Time after which ranks that wait for each other in different groups are an error, if their
    /// processes are idle. Busy processes get five times as long. Zero disables the check.
    pub deadlock_timeout: Duration,
    /// Whether training steps make the calls of the group: see
    /// [`World::makes_step`](crate::World::makes_step).
    pub in_steps: bool,
    /// Whether ranks of a host share memory.
    pub shared_memory: bool,
    /// Time that a wait polls before it sleeps. It sleeps sooner if other threads need its core.
    pub spin_time: Option<Duration>,
    /// Size of a chunk in shared memory, in bytes.
    pub slot_bytes: Option<usize>,
    /// Size limit in bytes of an all-reduce that takes one step in shared memory.
    pub small_bytes_max: Option<usize>,
    /// Algorithm of an all-reduce across hosts, for experiments.
    pub algorithm: Algorithm,
    /// Whether an all-reduce sums within hosts first.
    pub hierarchy: Hierarchy,
    /// Whether to use the collectives of a library that provides the mesh (MPI, NCCL).
    pub native: bool,
}

/// Whether an all-reduce uses two levels (`use_hierarchical_allreduce`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Hierarchy {
    /// If there are several hosts, and several ranks of the group share one.
    #[default]
    Auto,
    /// One level in any case.
    Never,
    /// Always, with this number of consecutive ranks in a lower group
    /// (`hierarchical_allreduce_inter_nranks`).
    Ranks(usize),
}

impl Default for GroupOptions {
    fn default() -> Self {
        GroupOptions {
            // As in other systems: longer than an evaluation or a checkpoint of one rank.
            timeout: Duration::from_secs(30 * 60),
            timeout_open: Duration::from_secs(10 * 60),
            silence: Duration::from_secs(30),
            deadlock_timeout: Duration::from_secs(60),
            in_steps: false,
            shared_memory: true,
            spin_time: None,
            slot_bytes: None,
            small_bytes_max: None,
            algorithm: Algorithm::Auto,
            hierarchy: Hierarchy::Auto,
            native: true,
        }
    }
}
