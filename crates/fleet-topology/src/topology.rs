//! The typed result: what a process knows of its job.

use crate::{Endpoint, Gloo, Secret};
use fleet_base::Result;
use std::fmt;
use std::time::Duration;

/// How the processes of a job work together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Collective,
    ParameterServer,
}

/// What a process is for. The numbers are those of the documents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    Worker = 1,
    Server = 2,
    HeterWorker = 3,
    Coordinator = 5,
}

impl Role {
    /// As `TRAINING_ROLE` spells it.
    pub fn env_name(self) -> &'static str {
        match self {
            Role::Worker => "TRAINER",
            Role::Server => "PSERVER",
            Role::HeterWorker => "HETER_TRAINER",
            Role::Coordinator => "COORDINATOR",
        }
    }

    pub fn from_env_name(name: &str) -> Option<Role> {
        let all = [Role::Worker, Role::Server, Role::HeterWorker, Role::Coordinator];
        all.into_iter().find(|role| role.env_name() == name)
    }
}

/// For people: `worker`, `server`, `heter`, `coordinator`.
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

/// The processes of the own role on one host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    pub name: String,
    pub ranks: Vec<usize>,
}

/// The place within the own host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Local {
    pub rank: usize,
    /// Devices of this process, as the launcher chose them; empty on a CPU.
    pub devices: Vec<String>,
    /// Devices of all workers, by rank.
    pub world_devices: Vec<String>,
}

/// The place in a pipeline of device kinds (heterogeneous parameter server).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeterStage {
    /// 1 is the workers' stage.
    pub id: usize,
    pub count: usize,
    /// How many processes each stage has.
    pub trainers: Vec<usize>,
    pub device: String,
    pub all: Vec<Endpoint>,
    pub next: Vec<Endpoint>,
    pub previous: Vec<Endpoint>,
}

/// What `fleetrun` hands to each process beside its place.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Job {
    pub id: Option<String>,
    /// The key-value store where the job's processes meet.
    pub store: Option<Endpoint>,
    pub token: Option<Secret>,
    /// How often the job was started again after a failure or a change of members.
    pub restarts: u32,
    /// Whether ranks of one machine may talk through memory, where somebody has said so.
    pub shared_memory: Option<bool>,
    /// How many processes an `mpirun` has started, of which this is one.
    pub mpi_ranks: Option<usize>,
    /// The library of MPI, or its folder, where somebody has said so.
    pub mpi_library: Option<String>,
    /// Whether collectives go over NCCL, on a GPU of each worker.
    pub nccl: bool,
    /// The library of NCCL, or its folder, where somebody has said so.
    pub nccl_library: Option<String>,
    /// The file in which a worker reports to its launcher.
    pub report: Option<String>,
    /// A process without a sign of life for this long is lost, where somebody has said so.
    pub silence: Option<Duration>,
}

impl Job {
    /// The name of this attempt, under which its processes meet: those of an earlier one are
    /// strangers.
    ///
    /// ```
    /// let job = fleet_topology::Job { id: Some("ctr".into()), restarts: 2, ..Default::default() };
    /// assert_eq!(job.attempt(), "ctr/2");
    /// ```
    pub fn attempt(&self) -> String {
        format!("{}/{}", self.id.as_deref().unwrap_or("job"), self.restarts)
    }
}

/// Where a process stands in its job. Made by a role maker; true by construction: the rank is below
/// the count, the own endpoint is in the list, counts and lists agree.
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
    /// Hosts of the workers by rank, where their endpoints are not known.
    pub(crate) placed: Vec<String>,
}

impl Topology {
    /// The same job, collective, when its ranks have been counted by who started them (MPI), which
    /// gives them no endpoints: by rank, the host of each.
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
        crate::cloud::rank_fits(rank, hosts.len())?;
        let before = hosts[..rank].iter().filter(|host| **host == hosts[rank]).count();
        Ok(Topology {
            rank,
            distributed: hosts.len() > 1,
            worker_num: hosts.len(),
            local: Local { rank: before, ..self.local },
            gloo: self.gloo,
            job: self.job,
            placed: hosts,
            ..Topology::alone(Mode::Collective)
        })
    }

    pub fn mode(&self) -> Mode {
        self.mode
    }

    pub fn role(&self) -> Role {
        self.role
    }

    pub fn is_worker(&self) -> bool {
        self.role == Role::Worker
    }

    pub fn is_server(&self) -> bool {
        self.role == Role::Server
    }

    pub fn is_heter_worker(&self) -> bool {
        self.role == Role::HeterWorker
    }

    pub fn is_coordinator(&self) -> bool {
        self.role == Role::Coordinator
    }

    pub fn is_first_worker(&self) -> bool {
        self.is_worker() && self.rank == 0
    }

    /// Nobody launched this process: it is worker 0 of 1.
    pub fn is_non_distributed(&self) -> bool {
        !self.distributed
    }

    /// The number within the own role. Heterogeneous workers count on from the workers.
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

    pub fn worker_num(&self) -> usize {
        self.worker_num
    }

    pub fn server_num(&self) -> usize {
        self.servers.len()
    }

    /// By rank; empty in parameter-server mode when the launcher did not say.
    pub fn worker_endpoints(&self) -> &[Endpoint] {
        &self.workers
    }

    pub fn server_endpoints(&self) -> &[Endpoint] {
        &self.servers
    }

    pub fn coordinator_endpoints(&self) -> &[Endpoint] {
        &self.coordinators
    }

    /// The own one; none for a coordinator.
    pub fn endpoint(&self) -> Option<&Endpoint> {
        self.endpoint.as_ref()
    }

    pub fn local(&self) -> &Local {
        &self.local
    }

    pub fn heter(&self) -> Option<&HeterStage> {
        self.heter.as_ref()
    }

    pub fn gloo(&self) -> &Gloo {
        &self.gloo
    }

    pub fn job(&self) -> &Job {
        &self.job
    }

    /// How many machines the workers are on.
    pub fn node_num(&self) -> usize {
        self.hosts().len()
    }

    /// The workers, grouped by host: hosts in order of their first rank, ranks ascending. One
    /// nameless host with every rank when nobody knows.
    pub fn hosts(&self) -> Vec<Host> {
        let listed = self.workers.iter().map(|endpoint| &endpoint.host);
        let names: Vec<&String> = listed.chain(&self.placed).collect();
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
