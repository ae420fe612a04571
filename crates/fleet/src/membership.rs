//! Rendezvous and failure detection of a rank: the store and the heartbeats, or MPI.

use fleet_base::{Error, Result};
use fleet_comm::World;
use fleet_net::{Hook, Membership, host};
use fleet_topology::{Mode, Topology};

/// Detects lost ranks, and ends with the job.
pub(crate) enum JobMembership {
    Store {
        membership: Membership,
        /// Reports to the launcher that another rank has failed.
        _reports: Hook,
    },
    /// `None` once MPI has ended.
    Mpi(Box<std::sync::Mutex<Option<fleet_comm::Mpi>>>),
}

impl JobMembership {
    /// Reports to the other ranks how this rank ends.
    pub(crate) fn report_end(&self, rank: usize, how: &str) {
        match self {
            JobMembership::Store { membership, .. } => {
                membership.report_end(&host::own_member(rank), how);
            }
            JobMembership::Mpi(job) => {
                if let Some(job) = &*mpi::lock(job) {
                    job.report_end(how);
                }
            }
        }
    }

    /// Ends MPI once all ranks have finished. Heartbeats end when their last user is dropped.
    pub(crate) fn end(&self) -> Result<()> {
        match self {
            JobMembership::Store { .. } => Ok(()),
            JobMembership::Mpi(job) => {
                mpi::lock(job).take().map_or(Ok(()), fleet_comm::Mpi::finish)
            }
        }
    }

    /// Returns whether the link to the other ranks has ended.
    pub(crate) fn has_ended(&self) -> bool {
        match self {
            JobMembership::Store { .. } => false,
            JobMembership::Mpi(job) => mpi::lock(job).is_none(),
        }
    }
}

/// Returns whether `mpirun` started this process as one of several, and the environment gives no
/// rank.
pub(crate) fn started_by_mpi(topology: &Topology) -> bool {
    let ranks = topology.job().mpi_ranks.unwrap_or(1);
    ranks > 1 && topology.mode() == Mode::Collective && topology.is_non_distributed()
}

pub(crate) use mpi::start as start_mpi;

mod mpi {
    use super::*;
    pub(super) use fleet_base::sync::lock;
    use fleet_comm::{Mpi, MpiOptions};
    use std::sync::Mutex;

    /// Starts MPI, which gives the rank and the number of ranks.
    pub(crate) fn start(topology: Topology) -> Result<(Topology, World, JobMembership)> {
        let library = topology.job().mpi_library.as_ref().map(Into::into);
        let job = Mpi::start(&MpiOptions { library, ..MpiOptions::default() })?;
        let expected = topology.job().mpi_ranks.unwrap_or(1);
        if job.size() != expected {
            return Err(Error::invalid("mpirun and the MPI library do not match")
                .expected(format!("{expected} ranks, as started by mpirun"))
                .got(format!("{} in {}", job.size(), job.version()))
                .help("set FLEET_MPI_LIBRARY to the library of that mpirun"));
        }
        let hosts = (0..job.size()).map(|rank| job.member(rank).host.clone()).collect();
        let topology = topology.counted(job.rank(), hosts)?;
        let world = job.world().clone();
        Ok((topology, world, JobMembership::Mpi(Box::new(Mutex::new(Some(job))))))
    }
}
