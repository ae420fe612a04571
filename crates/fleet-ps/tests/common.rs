//! Servers of a job whose numbers are exact.

#[path = "job.rs"]
mod job;

use fleet_net::calls::CallOptions;
use fleet_net::{Log, Token};
use fleet_ps::{
    Initializer, JobTables, NonFinite, PullMode, RemoteOptions, RemoteServers, Rule, ServerTables,
    SparseConfig, TableAccess, TableConfig, TableServer, rule::Sgd,
};
pub use job::{DENSE, GEO, SPARSE, STEPS, job, sparse};
use std::net::SocketAddr;
use std::time::Duration;

/// Servers of a job, on ports chosen by the system.
pub struct Fleet {
    pub job: JobTables,
    pub token: Token,
    pub servers: Vec<TableServer>,
}

impl Fleet {
    pub fn start(job: &JobTables) -> Fleet {
        let token = Token::generate().unwrap();
        let bind = |tables| {
            let options = CallOptions::default();
            TableServer::bind("127.0.0.1:0", tables, &token, options, Log::silent()).unwrap()
        };
        let servers = ServerTables::all(job).unwrap().into_iter().map(bind).collect();
        Fleet { job: job.clone(), token, servers }
    }

    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.servers.iter().map(TableServer::address).collect()
    }

    pub fn worker(&self, worker: usize) -> RemoteServers {
        let (addresses, options) = (self.addresses(), options());
        RemoteServers::connect(&self.job, worker, &addresses, &self.token, options).unwrap()
    }
}

/// Long enough for any machine; no test waits this long.
pub fn options() -> RemoteOptions {
    RemoteOptions {
        log: Log::silent(),
        deadline: Duration::from_secs(120),
        // No heartbeats: tests count connections.
        silent_after: Duration::ZERO,
        ..RemoteOptions::default()
    }
}

pub fn pull(worker: &RemoteServers, ids: &[u64]) -> Vec<f32> {
    let mut rows = vec![f32::NAN; ids.len() * 2];
    worker.pull_sparse(SPARSE, ids.into(), &mut rows, PullMode::Train).unwrap();
    rows
}

pub fn dense(worker: &RemoteServers) -> Vec<f32> {
    let mut values = vec![f32::NAN; 5];
    worker.pull_dense(DENSE, &mut values).unwrap();
    values
}
