//! The role maker that takes everything from its caller ("UserDefinedRoleMaker" in the documents).

use crate::cloud::{self, no_duplicates, rank_on_host};
use crate::env::check_rank;
use crate::{Endpoint, Env, Gloo, Job, Local, Mode, Role, Secret, Topology};
use fleet_base::{Error, Result};

/// A description of a process and its job, given by the program instead of the environment.
///
/// ```
/// use fleet_topology::{Role, Secret, UserDefinedRoleMaker};
/// let server = UserDefinedRoleMaker {
///     current_id: 1,
///     role: Role::Server,
///     worker_num: Some(2),
///     server_endpoints: vec!["10.0.0.1:4001".parse()?, "10.0.0.2:4001".parse()?],
///     ..UserDefinedRoleMaker::default()
/// }
/// .topology()?;
/// assert!(server.is_server());
/// assert_eq!((server.server_index(), server.server_num(), server.worker_num()), (1, 2, 2));
///
/// // Several processes share a secret, and meet at the store or at worker 0.
/// let rank = UserDefinedRoleMaker {
///     is_collective: true,
///     current_id: 1,
///     worker_endpoints: vec!["10.0.0.1:6170".parse()?, "10.0.0.2:6170".parse()?],
///     ..UserDefinedRoleMaker::default()
/// };
/// let rank = rank.token(Secret::new("0123456789abcdef")?).store("10.0.0.1:7000".parse()?);
/// assert_eq!(rank.topology()?.job().store.as_ref().unwrap().port, 7000);
/// # Ok::<(), fleet_base::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct UserDefinedRoleMaker {
    /// Whether workers exchange gradients among themselves, without servers.
    pub is_collective: bool,
    /// Rank of this process in its role, from 0.
    pub current_id: usize,
    /// Role of this process.
    pub role: Role,
    /// Number of workers. By default the number of worker endpoints, or 1 without any.
    pub worker_num: Option<usize>,
    /// Endpoints of the workers, by rank.
    pub worker_endpoints: Vec<Endpoint>,
    /// Endpoints of the servers, by rank.
    pub server_endpoints: Vec<Endpoint>,
    /// The barrier and all-reduce service beside training.
    pub gloo: Gloo,
    /// Secret, store and further settings of the job.
    pub job: Job,
}

impl Default for UserDefinedRoleMaker {
    fn default() -> Self {
        UserDefinedRoleMaker {
            is_collective: false,
            current_id: 0,
            role: Role::Worker,
            worker_num: None,
            worker_endpoints: Vec::new(),
            server_endpoints: Vec::new(),
            gloo: Gloo::default(),
            job: Job::default(),
        }
    }
}

impl UserDefinedRoleMaker {
    /// Sets the secret, the same in every process of the job.
    pub fn token(mut self, token: Secret) -> Self {
        self.job.token = Some(token);
        self
    }

    /// Sets the endpoint of the job's key-value store. By default worker 0 hosts it at its own
    /// endpoint.
    pub fn store(mut self, store: Endpoint) -> Self {
        self.job.store = Some(store);
        self
    }

    /// Lets any process of this machine join, without a secret. All endpoints must be loopback
    /// addresses.
    ///
    /// ```
    /// use fleet_topology::{Endpoint, UserDefinedRoleMaker};
    /// let job = |host: &str| UserDefinedRoleMaker {
    ///     server_endpoints: vec![Endpoint::new(host, 4001)],
    ///     ..UserDefinedRoleMaker::default()
    /// };
    /// assert!(job("127.0.0.1").open().topology()?.job().open);
    /// assert!(job("10.0.0.1").open().topology().is_err());
    /// # Ok::<(), fleet_base::Error>(())
    /// ```
    pub fn open(mut self) -> Self {
        self.job.open = true;
        self
    }

    /// As [`UserDefinedRoleMaker::topology`], with the settings of the job that the description
    /// leaves open from `env`, such as `FLEET_TOKEN`.
    pub fn topology_in(self, env: &Env) -> Result<Topology> {
        let (own, other) = (self.job, cloud::job(env)?);
        let job = Job {
            id: own.id.or(other.id),
            store: own.store.or(other.store),
            token: own.token.or(other.token),
            open: own.open || other.open,
            restarts: own.restarts.max(other.restarts),
            shared_memory: own.shared_memory.or(other.shared_memory),
            // The description has the ranks, so MPI does not assign them.
            mpi_ranks: own.mpi_ranks,
            mpi_library: own.mpi_library.or(other.mpi_library),
            nccl: own.nccl || other.nccl,
            nccl_library: own.nccl_library.or(other.nccl_library),
            report: own.report.or(other.report),
            silence: own.silence.or(other.silence),
        };
        let mut made = UserDefinedRoleMaker { job, ..self }.topology()?;
        made.local.devices = cloud::local(env, &[], 0)?.devices;
        Ok(made)
    }

    /// Checks the description and builds the topology.
    pub fn topology(self) -> Result<Topology> {
        let mode = if self.is_collective { Mode::Collective } else { Mode::ParameterServer };
        no_duplicates(&self.worker_endpoints, "worker_endpoints")?;
        no_duplicates(&self.server_endpoints, "server_endpoints")?;
        let listed = self.worker_endpoints.len();
        let worker_num = self.worker_num.unwrap_or(listed.max(1));
        if worker_num == 0 || (listed > 0 && listed != worker_num) {
            return Err(Error::invalid("worker_num conflicts with worker_endpoints")
                .expected(listed.max(1))
                .got(worker_num));
        }
        if self.is_collective && (self.role != Role::Worker || !self.server_endpoints.is_empty()) {
            return Err(Error::invalid("a collective job has workers only").got(self.role));
        }
        let endpoint = match self.role {
            Role::Worker => {
                check_rank(self.current_id, worker_num)?;
                self.worker_endpoints.get(self.current_id).cloned()
            }
            Role::Server => Some(self.own_server()?),
            other => {
                return Err(Error::unsupported(format!(
                    "role {other} is not supported by UserDefinedRoleMaker"
                ))
                .help("set the roles of a heterogeneous job in the environment"));
            }
        };
        let rank = match self.role {
            Role::Worker => rank_on_host(&self.worker_endpoints, self.current_id),
            _ => 0,
        };
        let made = Topology {
            role: self.role,
            rank: self.current_id,
            distributed: worker_num > 1 || !self.server_endpoints.is_empty(),
            endpoint,
            worker_num,
            workers: self.worker_endpoints,
            servers: self.server_endpoints,
            gloo: self.gloo,
            job: self.job,
            local: Local { rank, ..Local::default() },
            ..Topology::single_worker(mode)
        };
        made.opened()
    }

    fn own_server(&self) -> Result<Endpoint> {
        self.server_endpoints.get(self.current_id).cloned().ok_or_else(|| {
            Error::invalid("current_id is not the rank of a server")
                .expected(format!(
                    "below {}, the number of server_endpoints",
                    self.server_endpoints.len()
                ))
                .got(self.current_id)
        })
    }
}
