//! The groups of processes that communicate through `fleet.util`.

use fleet_base::{Error, Result};
use fleet_topology::{GlooMembers, Role, Topology, names};

/// A group of processes of a job (`comm_world` in the documents).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CommWorld {
    /// All workers.
    #[default]
    Worker,
    /// All parameter servers.
    Server,
    /// All workers, by rank, then all servers.
    All,
}

impl CommWorld {
    /// The name in keys of the job's store.
    pub(crate) fn name(self) -> &'static str {
        match self {
            CommWorld::Worker => "worker",
            CommWorld::Server => "server",
            CommWorld::All => "all",
        }
    }

    /// Returns the number of members.
    pub(crate) fn size(self, topology: &Topology) -> usize {
        match self {
            CommWorld::Worker => topology.worker_num(),
            CommWorld::Server => topology.server_num(),
            CommWorld::All => topology.worker_num() + topology.server_num(),
        }
    }

    /// Returns the rank of this process among the members.
    pub(crate) fn rank(self, topology: &Topology) -> Result<usize> {
        match (self, topology.role()) {
            (CommWorld::Worker | CommWorld::All, Role::Worker)
            | (CommWorld::Server, Role::Server) => Ok(topology.rank()),
            (CommWorld::All, Role::Server) => Ok(topology.worker_num() + topology.rank()),
            (CommWorld::Worker, other) => {
                Err(Error::invalid("only workers have a group").got(other))
            }
            (CommWorld::Server, other) => {
                Err(Error::invalid("only servers belong to the group of servers").got(other))
            }
            (CommWorld::All, other) => {
                Err(Error::invalid("only workers and servers have a group").got(other))
            }
        }
    }

    /// Refuses groups with servers unless the job is configured for them: a server that does not
    /// join would let all others wait.
    pub(crate) fn check(self, topology: &Topology) -> Result<()> {
        if self == CommWorld::Worker || topology.gloo().members == GlooMembers::All {
            return Ok(());
        }
        Err(Error::invalid("the servers of this job belong to no group")
            .expected(format!("{}=2: workers and servers", names::PADDLE_WITH_GLOO))
            .help("start the job with fleetrun --with_gloo 2"))
    }
}
