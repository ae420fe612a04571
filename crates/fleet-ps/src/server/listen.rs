//! A server that listens, with one conversation per connection.

use super::bounds::Bounds;
use super::{Caller, ServerTables};
use crate::message::{Body, put};
use crate::request::Method;
use crate::{Arrival, START_ROUNDS};
use fleet_base::{Error, Result};
use fleet_net::calls::{CallOptions, CallServer, Conversation};
use fleet_net::{Log, Token};
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// Serves the tables of one server until a worker stops it, or it is dropped.
///
/// ```
/// use fleet_net::{Log, Token, calls::CallOptions};
/// use fleet_ps::{JobTables, RemoteOptions, RemoteServers, ServerTables, Barriers, TableServer};
/// let job = JobTables { server_count: 1, worker_count: 1, sync: false, tables: vec![] };
/// let token = Token::generate()?;
/// let tables = ServerTables::all(&job)?.remove(0);
/// let options = CallOptions::default();
/// let server = TableServer::bind("127.0.0.1:0", tables, &token, options, Log::stderr())?;
/// let addresses = [server.address()];
/// let worker = RemoteServers::connect(&job, 0, &addresses, &token, RemoteOptions::default())?;
/// assert!(worker.finish()?, "the last one");
/// worker.stop()?;
/// server.run()?; // until a worker stops it
/// # Ok::<(), fleet_base::Error>(())
/// ```
pub struct TableServer {
    tables: Arc<ServerTables>,
    calls: CallServer,
}

impl TableServer {
    /// Listens on an address and answers requests of workers with the job's token, each connection
    /// on a thread of its own.
    pub fn bind(
        address: impl ToSocketAddrs + std::fmt::Debug,
        tables: Arc<ServerTables>,
        token: &Token,
        options: CallOptions,
        log: Log,
    ) -> Result<TableServer> {
        TableServer::bind_within(address, tables, token, (options, None), log)
    }

    /// Like [`TableServer::bind`]; saves and loads must stay in the folder `save_root`, if there is
    /// one.
    pub fn bind_within(
        address: impl ToSocketAddrs + std::fmt::Debug,
        tables: Arc<ServerTables>,
        token: &Token,
        (options, save_root): (CallOptions, Option<PathBuf>),
        log: Log,
    ) -> Result<TableServer> {
        let bounds = Bounds { answer_bytes_max: options.frame_bytes_max, save_root };
        let served = tables.clone();
        tables.on_listening();
        let open = move |hello: &[u8], _peer: SocketAddr| {
            let caller = read_hello(hello);
            if let Ok(caller) = &caller {
                served.on_connection(caller.worker);
            }
            let (tables, bounds) = (served.clone(), bounds.clone());
            let conversation = TableConversation { tables, bounds, caller, agreed: false };
            Ok(Box::new(conversation) as Box<dyn Conversation>)
        };
        let calls = CallServer::bind(address, token, options, log, open)?;
        Ok(TableServer { tables, calls })
    }

    /// Returns the address that the server listens on, with the port that the system chose for port
    /// 0.
    pub fn address(&self) -> SocketAddr {
        self.calls.address()
    }

    /// Returns the number of open connections.
    pub fn connections(&self) -> usize {
        self.calls.connections()
    }

    /// Returns the tables that the server answers from.
    pub fn tables(&self) -> &Arc<ServerTables> {
        &self.tables
    }

    /// Serves until a worker stops the servers; see [`ServerTables::serve`].
    pub fn run(self) -> Result<()> {
        self.tables.serve()
    }
}

/// Returns the greeting with which a client identifies itself.
pub(crate) fn hello(caller: Caller) -> Vec<u8> {
    let mut bytes = (caller.worker as u64).to_le_bytes().to_vec();
    bytes.extend(caller.client.to_le_bytes());
    bytes
}

fn read_hello(bytes: &[u8]) -> Result<Caller> {
    let mut body = Body(bytes);
    let (worker, client) = (body.u64()?, body.u64()?);
    body.end()?;
    Ok(Caller { worker: usize::try_from(worker).unwrap_or(usize::MAX), client })
}

/// One connection.
struct TableConversation {
    tables: Arc<ServerTables>,
    bounds: Bounds,
    caller: Result<Caller>,
    /// The client has stated that it has the same job.
    agreed: bool,
}

impl Conversation for TableConversation {
    fn call(&mut self, method: u8, request: &[u8], answer: &mut Vec<u8>) -> Result<()> {
        let caller = self.caller.clone()?;
        self.tables.presence.heard_from(caller.worker);
        if !self.agreed && method != Method::Compare as u8 {
            return Err(Error::invalid("request received before the description of the job"));
        }
        self.bounds.check(&self.tables, method, request)?;
        self.tables.call(caller, method, request, answer)?;
        if Method::parse(method)?.changes() {
            put(answer, &self.tables.acknowledgement());
        }
        self.agreed = true;
        Ok(())
    }
}

impl Drop for TableConversation {
    fn drop(&mut self) {
        if let Ok(caller) = &self.caller {
            self.tables.presence.disconnected(caller.worker);
        }
    }
}

impl ServerTables {
    /// Starts accepting workers.
    fn on_listening(&self) {
        self.presence.begin();
        let has_begun = self.barrier.rounds(Arrival::Received) >= START_ROUNDS;
        self.is_restarted.store(has_begun, Relaxed);
    }

    /// Records that a worker has connected.
    fn on_connection(&self, worker: usize) {
        self.presence.connected(worker);
        self.barrier.find(worker);
    }
}
