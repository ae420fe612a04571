//! Control of servers over gRPC, besides the frames that training uses: statistics, saves, loads,
//! shrinking, health and reflection (`proto/control.proto`). It serves operators, probes and any
//! tool that speaks gRPC.
//!
//! It adds nothing to the functions of frames: a call for all servers is one of
//! [`Servers`](crate::Servers), which server 0 makes as an operator. HTTP/2 runs on one thread, and
//! calls run on a few threads of their own.

mod accept;
mod client;
pub mod message;
mod schema;
mod service;
mod slots;
mod tls;

pub use client::ControlClient;
pub use tls::{ClientTls, ServerTls};

use crate::ServerTables;
use accept::{Acceptor, Authenticator};
use fleet_base::{Error, Result};
use fleet_net::{Abort, Log, Token, Verifier};
use service::{Control, ControlService, Served};
use std::fmt::Debug;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::oneshot;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Server;
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

/// Serves control over gRPC. It listens from the start, so that probes see a server that recovers,
/// and answers calls once it has tables. Ends when it is dropped.
///
/// ```
/// use fleet_net::{Log, Token, calls::CallOptions};
/// use fleet_ps::control::{ControlClient, ControlServer};
/// use fleet_ps::{JobTables, ServerTables, SparseConfig, TableConfig, TableServer};
/// let token = Token::generate()?;
/// let control = ControlServer::bind("127.0.0.1:0", &token, Log::stderr())?;
///
/// let tables = vec![TableConfig::Sparse(SparseConfig::plain(0, 8))];
/// let job = JobTables { server_count: 1, worker_count: 1, sync: false, tables };
/// let tables = ServerTables::all(&job)?.remove(0);
/// let options = CallOptions::default();
/// let server = TableServer::bind("127.0.0.1:0", tables.clone(), &token, options, Log::stderr())?;
/// control.serve(tables, &[server.address()])?;
///
/// let mut operator = ControlClient::connect(&control.address().to_string(), &token)?;
/// assert_eq!(operator.statistics()?.tables[0].rows, 0);
/// # Ok::<(), fleet_base::Error>(())
/// ```
pub struct ControlServer {
    address: SocketAddr,
    service: Arc<ControlService>,
    health: HealthReporter,
    handle: Handle,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// Limit on calls that run at the same time; further calls wait.
const CALLS_MAX: usize = 16;
/// Limit on the streams of one connection.
const STREAMS_MAX: u32 = 32;
const HEADER_BYTES_MAX: u32 = 16 << 10;
/// Time after which a peer that does not answer is gone.
const KEEPALIVE: Duration = Duration::from_secs(20);
/// Lifetime of a connection, after which its client is asked to reconnect. So no connection holds
/// its place forever.
const CONNECTION_SPAN_MAX: Duration = Duration::from_secs(3600);

impl ControlServer {
    /// Listens on an address. Calls fail until [`ControlServer::serve`] passes the tables.
    pub fn bind(
        address: impl ToSocketAddrs + Debug,
        token: &Token,
        log: Log,
    ) -> Result<ControlServer> {
        if token.is_over_tls() {
            return Err(Error::invalid(
                "control over gRPC has no certificate, but the job's token requires TLS",
            )
            .expected("FLEET_GRPC_CERT and FLEET_GRPC_KEY, PEM files, or a token without `tls:`")
            .help(
                "set both variables: the job's own TLS has keys without certificates, which gRPC \
                 tools do not support",
            ));
        }
        ControlServer::open(address, token, None, log)
    }

    /// Like [`ControlServer::bind`], over TLS.
    pub fn bind_under(
        address: impl ToSocketAddrs + Debug,
        token: &Token,
        tls: ServerTls,
        log: Log,
    ) -> Result<ControlServer> {
        ControlServer::open(address, token, Some(tls), log)
    }

    fn open(
        address: impl ToSocketAddrs + Debug,
        token: &Token,
        tls: Option<ServerTls>,
        log: Log,
    ) -> Result<ControlServer> {
        let (listener, own) = listen(address)?;
        let runtime = Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(CALLS_MAX)
            .thread_name("fleet-control")
            .build()
            .map_err(failed)?;
        let service = Arc::new(ControlService {
            served: OnceLock::new(),
            token: token.clone(),
            log: log.clone(),
            abort: Abort::new(),
            work: Mutex::new(()),
        });
        let authenticator = Authenticator::new(Verifier::new(token)?, log.clone());
        let (health, health_service) = tonic_health::server::health_reporter();
        runtime.block_on(set_health(&health, ServingStatus::NotServing));
        let described = prost_types::FileDescriptorSet { file: vec![schema::file()?] };
        let reflection = tonic_reflection::server::Builder::configure()
            .register_file_descriptor_set(described)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
            .build_v1()
            .map_err(|error| Error::internal(format!("reflection: {error}")))?;
        let server = match tls {
            Some(tls) => tls.apply(Server::builder())?,
            None => Server::builder(),
        };
        let router = server
            .max_concurrent_streams(STREAMS_MAX)
            .http2_max_header_list_size(HEADER_BYTES_MAX)
            .http2_keepalive_interval(Some(KEEPALIVE))
            .http2_keepalive_timeout(Some(KEEPALIVE))
            .max_connection_age(CONNECTION_SPAN_MAX)
            .add_service(health_service)
            .add_service(InterceptedService::new(reflection, authenticator.clone()))
            .add_service(InterceptedService::new(Control(service.clone()), authenticator));
        let acceptor = {
            let _inside = runtime.enter();
            Acceptor::new(tokio::net::TcpListener::from_std(listener).map_err(failed)?, log)
        };
        let (stop, stopped) = oneshot::channel();
        let handle = runtime.handle().clone();
        let serving = async move {
            tokio::select! {
                _ = router.serve_with_incoming(acceptor) => {}
                _ = stopped => {}
            }
        };
        let thread = Some(start(runtime, serving)?);
        Ok(ControlServer { address: own, service, health, handle, stop: Some(stop), thread })
    }

    /// Returns the address that the server listens on, with the port that the system chose for port
    /// 0.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Starts to answer calls about these tables. `addresses` are those where all servers of the
    /// job accept frames.
    pub fn serve(&self, tables: Arc<ServerTables>, addresses: &[SocketAddr]) -> Result<()> {
        let served = Served { tables, addresses: addresses.to_vec() };
        if self.service.served.set(served).is_err() {
            return Err(Error::invalid("control server already has tables"));
        }
        self.handle.block_on(set_health(&self.health, ServingStatus::Serving));
        Ok(())
    }
}

impl Drop for ControlServer {
    fn drop(&mut self) {
        self.service.abort.fire(Error::unavailable("server is closing"));
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
        if let Some(thread) = self.thread.take() {
            // A panic has been printed.
            let _ = thread.join();
        }
    }
}

fn listen(address: impl ToSocketAddrs + Debug) -> Result<(TcpListener, SocketAddr)> {
    let listener = TcpListener::bind(&address).map_err(|error| {
        Error::unavailable(format!("cannot listen on {address:?} for gRPC: {error}"))
            .help("use port 0 to let the system choose a free port")
    })?;
    listener.set_nonblocking(true).map_err(failed)?;
    let own = listener.local_addr().map_err(failed)?;
    Ok((listener, own))
}

fn failed(error: std::io::Error) -> Error {
    Error::unavailable(format!("gRPC: {error}"))
}

/// Sets the status of the server as a whole, and of the service.
async fn set_health(health: &HealthReporter, status: ServingStatus) {
    for service in ["", message::SERVICE] {
        health.set_service_status(service, status).await;
    }
}

fn start(
    runtime: Runtime,
    serving: impl Future<Output = ()> + Send + 'static,
) -> Result<JoinHandle<()>> {
    std::thread::Builder::new()
        .name("fleet-grpc".to_string())
        .spawn(move || {
            runtime.block_on(serving);
            // Calls that wait for a disk end by themselves.
            runtime.shutdown_background();
        })
        .map_err(|error| Error::exhausted(format!("cannot start a thread for gRPC: {error}")))
}
