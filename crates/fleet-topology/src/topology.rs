//! The typed description of a job, seen from one of its processes.

use crate::{Endpoint, Gloo, Secret, names};
use fleet_base::{Error, Result};
use std::fmt;
use std::time::Duration;

/// How the processes of a job cooperate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Workers exchange gradients among themselves.
    Collective,
    /// Servers hold the parameters; without servers, a process trains alone.
    ParameterServer,
}

/// The role of a process. The numbers are the documented ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// A process that trains.
    Worker = 1,
    /// A process that holds parameters.
    Server = 2,
    /// A worker with another kind of device.
    HeterWorker = 3,
    /// A process that coordinates federated training.
    Coordinator = 5,
}

impl Role {
    /// The name of the role in `TRAINING_ROLE`.
    pub fn env_name(self) -> &'static str {
        match self {
            Role::Worker => "TRAINER",
            Role::Server => "PSERVER",
            Role::HeterWorker => "HETER_TRAINER",
            Role::Coordinator => "COORDINATOR",
        }
    }

    /// Returns the role of a value of `TRAINING_ROLE`.
    pub fn from_env_name(name: &str) -> Option<Role> {
        let all = [Role::Worker, Role::Server, Role::HeterWorker, Role::Coordinator];
        all.into_iter().find(|role| role.env_name() == name)
    }
}

/// Prints a short name for messages: `worker`, `server`, `heter`, `coordinator`.
impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Role::Worker => "worker",
            Role::Server => "server",
            Role::HeterWorker => "heter",
            Role::Coordinator => "coordinator",
        })
    }
}

/// A host and the ranks on it, all of the role of this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// Name or address of the host.
    pub name: String,
    /// The ranks on it, in ascending order.
    pub ranks: Vec<usize>,
}

/// The position of a process on its host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Local {
    /// Rank among the processes of this role on the host, from 0.
    pub rank: usize,
    /// Devices of this process, chosen by the launcher; empty on a CPU.
    pub devices: Vec<String>,
    /// Devices of all workers, by rank.
    pub world_devices: Vec<String>,
}

/// A stage in a pipeline of device kinds (heterogeneous parameter server).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeterStage {
    /// Number of the stage. Stage 1 belongs to the workers.
    pub id: usize,
    /// Number of stages.
    pub count: usize,
    /// Number of processes in each stage.
    pub trainers: Vec<usize>,
    /// Kind of device of the stage.
    pub device: String,
    /// Endpoints of all heterogeneous workers.
    pub all: Vec<Endpoint>,
    /// Endpoints of the next stage.
    pub next: Vec<Endpoint>,
    /// Endpoints of the previous stage.
    pub previous: Vec<Endpoint>,
}

/// Job settings that `fleetrun` passes to each process in addition to its role and rank.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Job {
    /// Name of the job, which separates jobs that share a store.
    pub id: Option<String>,
    /// Endpoint of the job's key-value store (rendezvous).
    pub store: Option<Endpoint>,
    /// The secret that processes of the job share.
    pub token: Option<Secret>,
    /// Whether the job needs no secret: any process of this machine may join it. All endpoints of
    /// such a job are loopback addresses. A job with a secret is not open.
    pub open: bool,
    /// Number of restarts after a failure or a change of members.
    pub restarts: u32,
    /// Whether ranks of one machine may use shared memory; `None` if not configured.
    pub shared_memory: Option<bool>,
    /// Number of processes that `mpirun` started, including this one.
    pub mpi_ranks: Option<usize>,
    /// The MPI library or its folder; `None` if not configured.
    pub mpi_library: Option<String>,
    /// Whether collectives use NCCL, with one GPU for each worker.
    pub nccl: bool,
    /// The NCCL library or its folder; `None` if not configured.
    pub nccl_library: Option<String>,
    /// The file in which a process reports to its launcher.
    pub report: Option<String>,
    /// Time without a sign of life after which a process is lost; `None` if not configured.
    pub silence: Option<Duration>,
}

impl Job {
    /// The name of this attempt of the job, under which its processes rendezvous. Processes of an
    /// earlier attempt use another name and cannot join.
    ///
    /// ```
    /// let job = fleet_topology::Job { id: Some("ctr".into()), restarts: 2, ..Default::default() };
    /// assert_eq!(job.attempt(), "ctr/2");
    /// ```
    pub fn attempt(&self) -> String {
        format!("{}/{}", self.id.as_deref().unwrap_or("job"), self.restarts)
    }
}

/// The role, rank and peers of a process in its job. Role makers build it. It is valid by
/// construction: the rank is below the number of workers, the own endpoint is in the list, and
/// counts and lists agree.
///
/// ```
/// use fleet_topology::{Env, Role, Topology};
/// let alone = Topology::parameter_server(&Env::new())?;
/// assert!(alone.is_worker() && alone.is_first_worker() && alone.is_non_distributed());
/// assert_eq!((alone.worker_num(), alone.server_num()), (1, 0));
/// # Ok::<(), fleet_base::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    pub(crate) mode: Mode,
    pub(crate) role: Role,
    pub(crate) rank: usize,
    pub(crate) distributed: bool,
    pub(crate) endpoint: Option<Endpoint>,
    pub(crate) worker_num: usize,
    pub(crate) workers: Vec<Endpoint>,
    pub(crate) servers: Vec<Endpoint>,
    pub(crate) coordinators: Vec<Endpoint>,
    pub(crate) local: Local,
    pub(crate) heter: Option<HeterStage>,
    pub(crate) gloo: Gloo,
    pub(crate) job: Job,
    /// Hosts of the workers by rank, if their endpoints are not known.
    pub(crate) worker_hosts: Vec<String>,
}

impl Topology {
    /// Returns the same job as a collective one, with ranks assigned by an external launcher (MPI).
    /// Such workers have no endpoints; `hosts` lists their hosts by rank.
    ///
    /// ```
    /// use fleet_topology::{Env, Topology};
    /// let started = Topology::collective(&Env::new())?;
    /// let made = started.counted(2, ["a", "b", "a"].map(String::from).to_vec())?;
    /// assert_eq!((made.worker_index(), made.worker_num(), made.node_num()), (2, 3, 2));
    /// assert_eq!((made.local().rank, &made.hosts()[0].ranks[..]), (1, &[0, 2][..]));
    /// # Ok::<(), fleet_base::Error>(())
    /// ```
    pub fn counted(self, rank: usize, hosts: Vec<String>) -> Result<Topology> {
        crate::env::check_rank(rank, hosts.len())?;
        let before = hosts[..rank].iter().filter(|host| **host == hosts[rank]).count();
        Ok(Topology {
            rank,
            distributed: hosts.len() > 1,
            worker_num: hosts.len(),
            local: Local { rank: before, ..self.local },
            gloo: self.gloo,
            job: self.job,
            worker_hosts: hosts,
            ..Topology::single_worker(Mode::Collective)
        })
    }

    /// Gives an open job its public token, after a check that only this machine reaches it.
    pub(crate) fn opened(mut self) -> Result<Topology> {
        self.job.open &= self.job.token.is_none();
        if !self.job.open {
            return Ok(self);
        }
        let stages = self.heter.iter().flat_map(|stage| &stage.all);
        let lists = self.workers.iter().chain(&self.servers).chain(&self.coordinators);
        let own = self.endpoint.iter().chain(&self.job.store).chain(self.gloo.http());
        if let Some(remote) = lists.chain(stages).chain(own).find(|it| !it.is_loopback()) {
            return Err(Error::invalid("an open job has loopback addresses only")
                .expected("127.0.0.1, ::1 or localhost for every process and the store")
                .got(remote)
                .at(names::FLEET_OPEN)
                .help(
                    "for other addresses set FLEET_TOKEN to one secret in every process: openssl \
                     rand -hex 32",
                ));
        }
        self.job.token = Some(Secret::open());
        Ok(self)
    }

    /// How the processes of the job cooperate.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// The role of this process.
    pub fn role(&self) -> Role {
        self.role
    }

    /// Whether this process trains.
    pub fn is_worker(&self) -> bool {
        self.role == Role::Worker
    }

    /// Whether this process is a parameter server.
    pub fn is_server(&self) -> bool {
        self.role == Role::Server
    }

    /// Whether this process is a heterogeneous worker.
    pub fn is_heter_worker(&self) -> bool {
        self.role == Role::HeterWorker
    }

    /// Whether this process is a coordinator.
    pub fn is_coordinator(&self) -> bool {
        self.role == Role::Coordinator
    }

    /// Whether this process is worker 0.
    pub fn is_first_worker(&self) -> bool {
        self.is_worker() && self.rank == 0
    }

    /// Whether no launcher started this process, so that it is worker 0 of 1.
    pub fn is_non_distributed(&self) -> bool {
        !self.distributed
    }

    /// The rank within the role. Heterogeneous workers are numbered after the workers.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// [`rank`](Self::rank) under the documents' name.
    pub fn worker_index(&self) -> usize {
        self.rank
    }

    /// [`rank`](Self::rank) under the documents' name.
    pub fn server_index(&self) -> usize {
        self.rank
    }

    /// Number of workers.
    pub fn worker_num(&self) -> usize {
        self.worker_num
    }

    /// Number of servers; 0 if the process trains alone.
    pub fn server_num(&self) -> usize {
        self.servers.len()
    }

    /// Endpoints of the workers by rank; empty in parameter-server mode if not listed.
    pub fn worker_endpoints(&self) -> &[Endpoint] {
        &self.workers
    }

    /// Endpoints of the servers, by rank.
    pub fn server_endpoints(&self) -> &[Endpoint] {
        &self.servers
    }

    /// Endpoints of the coordinators, by rank.
    pub fn coordinator_endpoints(&self) -> &[Endpoint] {
        &self.coordinators
    }

    /// The endpoint of this process; `None` for a coordinator.
    pub fn endpoint(&self) -> Option<&Endpoint> {
        self.endpoint.as_ref()
    }

    /// The position of this process on its host.
    pub fn local(&self) -> &Local {
        &self.local
    }

    /// The stage of this process; `None` without heterogeneous workers.
    pub fn heter(&self) -> Option<&HeterStage> {
        self.heter.as_ref()
    }

    /// Settings of the barrier and all-reduce service beside training.
    pub fn gloo(&self) -> &Gloo {
        &self.gloo
    }

    /// Job settings that the launcher passed.
    pub fn job(&self) -> &Job {
        &self.job
    }

    /// Number of machines that run workers.
    pub fn node_num(&self) -> usize {
        self.hosts().len()
    }

    /// The workers grouped by host: hosts in order of their first rank, ranks ascending. If the
    /// hosts are unknown, returns one nameless host with every rank.
    pub fn hosts(&self) -> Vec<Host> {
        let listed = self.workers.iter().map(|endpoint| &endpoint.host);
        let names: Vec<&String> = listed.chain(&self.worker_hosts).collect();
        if names.is_empty() {
            return vec![Host { name: String::new(), ranks: (0..self.worker_num).collect() }];
        }
        let mut place = std::collections::HashMap::new();
        let mut hosts: Vec<Host> = Vec::new();
        for (rank, name) in names.into_iter().enumerate() {
            let at = *place.entry(name).or_insert(hosts.len());
            if at == hosts.len() {
                hosts.push(Host { name: name.clone(), ranks: Vec::new() });
            }
            hosts[at].ranks.push(rank);
        }
        hosts
    }
}
