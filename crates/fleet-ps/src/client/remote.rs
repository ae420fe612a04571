//! Servers in other processes.
//!
//! Each server has a pool of connections, which threads take for one request each. So requests of
//! several threads are in flight at once, and one that waits at a barrier does not delay others. A
//! call first sends to all servers and then reads the answers. A failed request is sent again on
//! another connection until the deadline; servers run it once (`server/sessions.rs`).

use super::connections::{Connector, ServerConnections};
use super::heartbeats::Heartbeats;
use super::{Client, Transport};
use crate::message::{ACKNOWLEDGEMENT_BYTES, Body};
use crate::request::{Message, Method};
use crate::server::{Caller, OPERATOR, WORKER_TIMEOUT};
use crate::{JobTables, job_text};
use fleet_base::sync::lock;
use fleet_base::{Error, ErrorKind, Result};
use fleet_net::calls::{CallClient, CallOptions};
use fleet_net::{Abort, Deadline, Limits, Log, Time, Token};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// A worker whose servers are in other processes; see [`TableServer`](crate::TableServer) for an
/// example.
pub type RemoteServers = Client<Remote>;

/// Options of a worker's connections to its servers.
#[derive(Clone, Debug)]
pub struct RemoteOptions {
    /// Limits of requests: their size, checksums and the number in flight.
    pub calls: CallOptions,
    /// How long one request is retried, including waits for a server that restarts
    /// (`FLAGS_rpc_deadline`).
    pub deadline: Duration,
    /// Silence after which another worker of a synchronous job is an error. This worker sends
    /// fifteen heartbeats in that time; zero disables them.
    pub silent_after: Duration,
    /// Limit on the connections to one server, and so on the requests in flight to it.
    pub connections_max: usize,
    /// Log in which the client reports its waits.
    pub log: Log,
    /// Ends every wait.
    pub abort: Abort,
    /// Called while a server cannot be reached.
    pub is_over: Option<IsOver>,
}

/// Tells whether the job is over: its servers have finished and will not return.
#[derive(Clone)]
pub struct IsOver(Arc<dyn Fn() -> bool + Send + Sync>);

impl IsOver {
    /// Wraps a function that answers the question. Retries call it between attempts.
    pub fn new(is_over: impl Fn() -> bool + Send + Sync + 'static) -> IsOver {
        IsOver(Arc::new(is_over))
    }
}

impl std::fmt::Debug for IsOver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("IsOver")
    }
}

impl Default for RemoteOptions {
    fn default() -> RemoteOptions {
        RemoteOptions {
            calls: CallOptions::default(),
            deadline: super::DEADLINE_DEFAULT,
            silent_after: WORKER_TIMEOUT,
            connections_max: 16,
            log: Log::stderr(),
            abort: Abort::new(),
            is_over: None,
        }
    }
}

/// Connections to servers in other processes.
pub struct Remote {
    servers: Arc<Vec<ServerConnections>>,
    connector: Arc<Connector>,
    options: RemoteOptions,
    heartbeats: Option<Heartbeats>,
    /// Memory of used answers, for later long ones.
    spare: Mutex<Vec<Vec<u8>>>,
}

/// Time limit for a first attempt to connect, during which the other servers wait.
const CONNECT_FIRST: Duration = Duration::from_millis(200);
/// Time limit for a later attempt, before the address is resolved again.
const CONNECT_AGAIN: Duration = Duration::from_secs(1);
/// Pause between attempts of a request, doubled from the minimum to the maximum.
const PAUSE_MIN: Duration = Duration::from_millis(2);
const PAUSE_MAX: Duration = Duration::from_millis(500);
/// Interval between checks whether the job is over, while a server cannot be reached.
const OVER_CHECK_INTERVAL: Duration = Duration::from_millis(500);
/// Heartbeats within the silence after which a worker is lost. So several may get lost, and a
/// restarted server soon knows the live workers.
const HEARTBEATS_PER_TIMEOUT: u32 = 15;
/// Time limit for a save, a load or a shrink: tables may be large and disks slow.
const LONG_SPAN: Duration = Duration::from_secs(6 * 3600);
/// Limit on the used answers whose memory is kept: those of two tables.
const SPARE_MAX: usize = 4;
/// Time limit for reaching a server that is to stop: it may have stopped already.
const STOP_SPAN: Duration = Duration::from_secs(3);

impl Client<Remote> {
    /// Connects worker `worker` to the servers at `addresses`, in the job's order. Waits for
    /// servers that do not listen yet.
    pub fn connect(
        job: &JobTables,
        worker: usize,
        addresses: &[SocketAddr],
        token: &Token,
        options: RemoteOptions,
    ) -> Result<RemoteServers> {
        let addresses = addresses.to_vec();
        if addresses.len() != job.server_count {
            return Err(Error::invalid("wrong number of server addresses")
                .expected(format!("{} addresses", job.server_count))
                .got(addresses.len()));
        }
        let resolve = move |server: usize| {
            addresses.get(server).copied().ok_or_else(|| Error::internal("unknown server"))
        };
        Self::connect_with(job, worker, resolve, token, options)
    }

    /// Connects an operator, which does not count as a worker. It may only make requests about
    /// whole tables: statistics, saves, loads, shrinking.
    pub fn operator(
        job: &JobTables,
        addresses: &[SocketAddr],
        token: &Token,
        options: RemoteOptions,
    ) -> Result<RemoteServers> {
        let options = RemoteOptions { silent_after: Duration::ZERO, ..options };
        Self::connect(job, OPERATOR, addresses, token, options)
    }

    /// Like [`RemoteServers::connect`](Client::connect), if a restarted server may be at another
    /// address: `resolve` is called before every connection.
    pub fn connect_with(
        job: &JobTables,
        worker: usize,
        resolve: impl Fn(usize) -> Result<SocketAddr> + Send + Sync + 'static,
        token: &Token,
        options: RemoteOptions,
    ) -> Result<RemoteServers> {
        let connector = Arc::new(Connector {
            caller: Caller { worker, client: fleet_net::random_number()? },
            job: job_text::text(job),
            resolve: Box::new(resolve),
            token: token.clone(),
            options: options.calls,
        });
        let (every, silent_after) =
            (options.silent_after / HEARTBEATS_PER_TIMEOUT, options.silent_after);
        let servers: Arc<Vec<ServerConnections>> =
            Arc::new((0..job.server_count).map(|_| ServerConnections::default()).collect());
        let log = options.log.clone();
        let (spare, heartbeats) = (Mutex::default(), None);
        let remote = Remote {
            servers: servers.clone(),
            connector: connector.clone(),
            options,
            heartbeats,
            spare,
        };
        let mut client = Client::over(job, worker, remote)?;
        if !silent_after.is_zero() {
            client.silent_after = silent_after;
        }
        let limits = client.transport.limits();
        for server in 0..job.server_count {
            client.placed(|| client.transport.retry(server, &limits, None, |_| Ok(())))?;
        }
        if !every.is_zero() {
            let counts = (client.steps.clone(), client.complete.clone());
            client.transport.heartbeats =
                Some(Heartbeats::start(connector, servers, log, every, counts)?);
        }
        Ok(client)
    }
}

impl Transport for Remote {
    fn exchange(&self, requests: &[Message<'_>]) -> Vec<Result<Vec<u8>>> {
        let mut limits = self.limits();
        let stops = requests.first().is_some_and(|request| request.method == Method::Stop);
        if stops {
            limits = limits.at_most(STOP_SPAN);
        } else if requests.iter().any(|request| request.method.takes_long()) {
            limits.deadline = Deadline::within(LONG_SPAN);
        }
        let sent: Vec<Result<CallClient>> = requests
            .iter()
            .map(|request| {
                let mut connection = self.take(request.server, &limits, CONNECT_FIRST)?;
                let sent = send(&mut connection, request, &limits);
                self.keep_connection(request.server, sent, connection)
                    .map(|((), connection)| connection)
            })
            .collect();
        let first: Vec<Result<Result<Vec<u8>>>> = requests
            .iter()
            .zip(sent)
            .map(|(request, sent)| {
                let mut connection = sent?;
                if request.method.answers_at_length()
                    && let Some(memory) = self.spare().pop()
                {
                    connection.lend(memory);
                }
                let answer = connection.receive(&limits).map(|(_, answer)| answer);
                let (answer, connection) =
                    self.keep_connection(request.server, answer, connection)?;
                self.servers[request.server].give_back(connection);
                Ok(self.acknowledged(request, answer))
            })
            .collect();
        let outcome = |(request, first): (&Message<'_>, Result<Result<Vec<u8>>>)| {
            let error = match first {
                Ok(answer) => return answer,
                Err(error) => error,
            };
            let answer = self.retry(request.server, &limits, Some(error), |connection| {
                send(connection, request, &limits)?;
                connection.receive(&limits).map(|(_, answer)| answer)
            });
            let answer = answer.map(|answer| self.acknowledged(request, answer));
            match answer {
                // A server that cannot be reached does not serve.
                Err(error) if stops && error.kind() == ErrorKind::Unavailable => Ok(Vec::new()),
                answer => answer?,
            }
        };
        requests.iter().zip(first).map(outcome).collect()
    }

    fn recycle(&self, answers: Vec<Vec<u8>>) {
        let mut spare = self.spare();
        let room = SPARE_MAX.saturating_sub(spare.len());
        spare.extend(answers.into_iter().take(room));
    }

    fn log_line(&self, line: &str) {
        self.options.log.line(format!("{} {line}", self.connector.caller));
    }

    fn check(&self) -> Result<()> {
        self.options.abort.check()
    }
}

impl Remote {
    fn spare(&self) -> MutexGuard<'_, Vec<Vec<u8>>> {
        lock(&self.spare)
    }

    /// Takes the acknowledgement off a server's answer, and remembers it.
    fn acknowledged(&self, request: &Message<'_>, answer: Result<Vec<u8>>) -> Result<Vec<u8>> {
        let mut answer = answer?;
        if request.method.changes() {
            let at = answer.len().checked_sub(ACKNOWLEDGEMENT_BYTES).ok_or_else(|| {
                Error::internal("answer without an acknowledgement").got(answer.len())
            })?;
            let mut body = Body(&answer[at..]);
            self.servers[request.server].acknowledge([body.u64()?, body.u64()?]);
            answer.truncate(at);
        }
        Ok(answer)
    }

    fn limits(&self) -> Limits {
        Limits::new(Deadline::within(self.options.deadline), &self.options.abort)
    }

    /// Tries one connection after another until the deadline; `error` is that of the first attempt.
    fn retry<R>(
        &self,
        server: usize,
        limits: &Limits,
        mut error: Option<Error>,
        run: impl Fn(&mut CallClient) -> Result<R>,
    ) -> Result<R> {
        let mut pause = PAUSE_MIN;
        let mut checked = Time::now();
        loop {
            if let Some(error) = error.take() {
                limits.abort.check()?;
                let left = limits.deadline.remaining(Time::now());
                if error.kind() != ErrorKind::Unavailable {
                    return Err(error.at(self.name(server)));
                }
                if left.is_some_and(|left| left <= pause) {
                    let span = self.options.deadline;
                    return Err(error.at(format!("{}, retried for {span:?}", self.name(server))));
                }
                self.log_down(server, &error);
                // A restarting server is usually reached before this check.
                if Time::now().since(checked) >= OVER_CHECK_INTERVAL {
                    checked = Time::now();
                    if self.options.is_over.as_ref().is_some_and(|it| (it.0)()) {
                        return Err(job_over().at(self.name(server)));
                    }
                }
                limits.abort.sleep(pause)?;
                pause = (pause * 2).min(PAUSE_MAX);
            }
            let tried = self.take(server, limits, CONNECT_AGAIN).and_then(|mut connection| {
                let result = run(&mut connection);
                let (result, connection) = self.keep_connection(server, result, connection)?;
                self.servers[server].give_back(connection);
                Ok(result)
            });
            match tried {
                Ok(result) => return Ok(result),
                Err(failed) => error = Some(failed),
            }
        }
    }

    /// Takes a connection for exclusive use.
    fn take(&self, server: usize, limits: &Limits, span: Duration) -> Result<CallClient> {
        let connections = &self.servers[server];
        match connections.take(self.options.connections_max.max(1), limits, PAUSE_MAX)? {
            Some(connection) => Ok(connection),
            None => self.connect(server, limits, span).inspect_err(|_| connections.forget()),
        }
    }

    /// Connects to a server, which must still have the tables of the first connection.
    fn connect(&self, server: usize, limits: &Limits, span: Duration) -> Result<CallClient> {
        let connections = &self.servers[server];
        let (connection, life, address) =
            self.connector.connect((server, connections), limits, span)?;
        if !connections.is_same_life(life) {
            return Err(Error::invalid("server restarted and lost its tables").help(
                "restart the job from a save; servers that keep their tables on disk resume \
                 (Rust: init_durable_server, Python: init_server(durable=FOLDER), built-in jobs: \
                 --durable FOLDER)",
            ));
        }
        connections.mark_up(&self.options.log, &self.connector, server, address);
        Ok(connection)
    }

    /// Keeps the connection of a request that succeeded, and closes that of one that failed.
    fn keep_connection<R>(
        &self,
        server: usize,
        result: Result<R>,
        connection: CallClient,
    ) -> Result<(R, CallClient)> {
        match result {
            Ok(result) => Ok((result, connection)),
            Err(error) => {
                // Idle connections were opened with this one and most likely broke with it.
                self.servers[server].forget_all();
                Err(error)
            }
        }
    }

    /// Logs once that the worker waits for a server.
    fn log_down(&self, server: usize, error: &Error) {
        if self.servers[server].mark_down(Time::now()) {
            self.log_line(&format!("waits for {}: {error}", self.name(server)));
        }
    }

    fn name(&self, server: usize) -> String {
        self.connector.name(server)
    }
}

/// Returns the error of a worker that returns too late.
fn job_over() -> Error {
    Error::invalid("the job has ended: its servers finished without this worker").help(
        "check whether this process was stopped or its host was unreachable: the other workers \
         continued without it",
    )
}

fn send(connection: &mut CallClient, request: &Message<'_>, limits: &Limits) -> Result<()> {
    connection.send(request.method as u8, &request.parts(), limits).map(drop)
}
