//! The role maker that takes everything from its caller ("UserDefinedRoleMaker" in the documents).

use crate::cloud::no_duplicates;
use crate::env::check_rank;
use crate::{Endpoint, Gloo, Mode, Role, Topology};
use fleet_base::{Error, Result};

/// A description of a process and its job, given by the program instead of the environment.
///
/// ```
/// use fleet_topology::{Role, UserDefinedRoleMaker};
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
/// # Ok::<(), fleet_base::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct UserDefinedRoleMaker {
    pub is_collective: bool,
    pub current_id: usize,
    pub role: Role,
    /// Number of workers. By default the number of worker endpoints, or 1 without any.
    pub worker_num: Option<usize>,
    pub worker_endpoints: Vec<Endpoint>,
    pub server_endpoints: Vec<Endpoint>,
    pub gloo: Gloo,
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
        }
    }
}

impl UserDefinedRoleMaker {
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
        Ok(Topology {
            role: self.role,
            rank: self.current_id,
            distributed: worker_num > 1 || !self.server_endpoints.is_empty(),
            endpoint,
            worker_num,
            workers: self.worker_endpoints,
            servers: self.server_endpoints,
            gloo: self.gloo,
            ..Topology::single_worker(mode)
        })
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
