//! Servers in this process: for tests, and for jobs on one machine.

use super::{Client, Transport};
use crate::ServerTables;
use crate::request::Message;
use crate::server::Caller;
use fleet_base::{Error, Result};
use std::sync::Arc;

/// A worker whose servers are in this process. Its requests have the same bytes, and take the same
/// path through the tables, as over a network.
///
/// ```
/// use fleet_ps::{
///     Initializer, JobTables, LocalServers, PullMode, Push, ServerTables, SparseConfig,
///     TableAccess, TableConfig,
/// };
/// let initializer = Initializer::Constant(1.0);
/// let sparse = SparseConfig { initializer, ..SparseConfig::plain(0, 2) };
/// let tables = vec![TableConfig::Sparse(sparse)];
/// let job = JobTables { server_count: 3, worker_count: 1, sync: false, tables };
/// let servers = ServerTables::all(&job)?;
/// let worker = LocalServers::new(&servers, 0)?;
/// worker.push_sparse(0, None, Push::new(&[7, 8, 7], &[1.0, 1.0, 4.0, 4.0, 1.0, 1.0]))?;
/// let mut rows = [0.0; 4];
/// worker.pull_sparse(0, (&[8, 7]).into(), &mut rows, PullMode::Train)?;
/// assert_eq!(rows, [0.8, 0.8, 0.9, 0.9]); // sgd at its default rate of 0.05
/// # Ok::<(), fleet_base::Error>(())
/// ```
pub type LocalServers = Client<Local>;

/// Calls servers in this process.
pub struct Local {
    servers: Vec<Arc<ServerTables>>,
    caller: Caller,
}

impl Client<Local> {
    /// Creates worker `worker` of the job whose servers these are ([`ServerTables::all`]).
    pub fn new(servers: &[Arc<ServerTables>], worker: usize) -> Result<LocalServers> {
        let Some(first) = servers.first() else {
            return Err(Error::invalid("worker has no servers").expected("at least 1").got(0));
        };
        let job = first.job();
        let right = servers.iter().enumerate().all(|(at, s)| s.server() == at && s.job() == job);
        if !right || servers.len() != job.server_count {
            return Err(Error::invalid("invalid list of servers")
                .expected(format!("{} servers of one job, in order", job.server_count))
                .got(format!("{} servers", servers.len())));
        }
        let client = fleet_net::random_number()?;
        let local = Local::new(servers, Caller { worker, client });
        Client::over(job, worker, local)
    }
}

impl Local {
    pub(crate) fn new(servers: &[Arc<ServerTables>], caller: Caller) -> Local {
        Local { servers: servers.to_vec(), caller }
    }

    pub(crate) fn call(&self, request: &Message<'_>) -> Result<Vec<u8>> {
        let mut answer = Vec::new();
        let server = &self.servers[request.server];
        let bytes = request.bytes();
        server.call(self.caller, request.method as u8, &bytes, &mut answer).map(|()| answer)
    }
}

impl Transport for Local {
    fn exchange(&self, requests: &[Message<'_>]) -> Vec<Result<Vec<u8>>> {
        requests.iter().map(|request| self.call(request)).collect()
    }
}
