//! The ranks of a job, and the rings over which they communicate.

use fleet_base::{Error, Result};

/// The position of a process among the ranks of its job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ranks {
    /// Rank of this process, from 0.
    pub rank: usize,
    /// Number of ranks of the job.
    pub count: usize,
    /// Ranks on one machine.
    pub per_node: usize,
}

impl Ranks {
    /// Rank `rank` of `count`, all on one machine.
    pub fn new(rank: usize, count: usize) -> Ranks {
        Ranks { rank, count, per_node: count }
    }

    /// Sets the number of ranks on one machine.
    pub fn per_node(mut self, per_node: usize) -> Ranks {
        self.per_node = per_node;
        self
    }

    /// Returns the number of machines.
    pub fn nodes(&self) -> usize {
        self.count.div_ceil(self.per_node.max(1))
    }

    /// Fails unless the rank is below the number of ranks, and machines have at least one.
    pub fn check(&self) -> Result<()> {
        if self.count == 0 || self.rank >= self.count || self.per_node == 0 {
            return Err(Error::invalid("invalid rank or size of a machine")
                .expected("0 <= rank < ranks, and at least one rank per machine")
                .got(format!(
                    "rank {} of {}, {} per machine",
                    self.rank, self.count, self.per_node
                )));
        }
        Ok(())
    }
}

/// A ring over which the rewritten program communicates: `nranks` ranks of the job, starting at
/// `first`, each `stride` apart. The runtime that executes the program creates it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RingSpec {
    /// The `ring_id` of the ops that use it.
    pub id: i64,
    /// Name of the ring in messages.
    pub label: String,
    /// The first member, as a rank of the job.
    pub first: usize,
    /// Distance between members, in ranks of the job.
    pub stride: usize,
    /// Number of members.
    pub nranks: usize,
    /// Rank of this process within the ring.
    pub rank: usize,
}

impl RingSpec {
    /// Returns the members, as ranks of the job.
    pub fn members(&self) -> impl Iterator<Item = usize> + use<> {
        let (first, stride) = (self.first, self.stride);
        (0..self.nranks).map(move |index| first + index * stride)
    }
}
