//! Requests and answers over frames: the data plane of services such as the parameter server.
//!
//! A connection is a pipeline. The client may have several requests in flight, and the server
//! answers them in order, on one thread per connection. Payloads are not copied in user space. A
//! request is written from the client's slices, and the service gets it in the buffer into which it
//! was read. An answer is built in the frame to be sent, and the client keeps the buffer into which
//! it was read. The server reads a request after it has sent the answer to the previous one. A
//! client that does not read its answers therefore blocks itself and costs the server no memory.
//!
//! Cost: a small request is one system call and one wake-up on each side, about 15 us each way on
//! loopback. A large one is two copies by the kernel, at a few GB/s each.
//!
//! ```
//! use fleet_base::Result;
//! use fleet_net::calls::{CallClient, CallOptions, CallServer, Conversation};
//! use fleet_net::{Limits, Log, Token};
//! use std::time::Duration;
//!
//! struct Sum;
//! impl Conversation for Sum {
//!     fn call(&mut self, _method: u8, request: &[u8], answer: &mut Vec<u8>) -> Result<()> {
//!         answer.push(request.iter().sum());
//!         Ok(())
//!     }
//! }
//!
//! let token = Token::generate()?;
//! let options = CallOptions::default();
//! let open = |_hello: &[u8], _peer| Ok(Box::new(Sum) as Box<dyn Conversation>);
//! let server = CallServer::bind("127.0.0.1:0", &token, options, Log::stderr(), open)?;
//! let limits = Limits::within(Duration::from_secs(60));
//! let mut client = CallClient::connect(server.address(), &token, b"", options, &limits)?;
//! let first = client.send(1, &[&[1, 2], &[3]], &limits)?;
//! let second = client.send(1, &[&[10]], &limits)?;
//! assert_eq!(client.receive(&limits)?, (first, Ok(vec![6])));
//! assert_eq!(client.receive(&limits)?, (second, Ok(vec![10])));
//! # Ok::<(), fleet_base::Error>(())
//! ```

use crate::frame::{FrameHeader, FrameReader};
use crate::handshake::{HELLO_BYTES_MAX, Hello, Purpose, connect_and_handshake};
use crate::listener::{Acceptor, Listener};
use crate::socket::{self, poll, retry};
use crate::stream::Stream;
use crate::wire::{Reader, Writer, put_error, take_error};
use crate::{Abort, Deadline, Limits, Log, Time, Token};
use fleet_base::sync::lock;
use fleet_base::{Error, ErrorCode, Result};
use rustix::event::{PollFd, PollFlags};
use std::collections::{HashMap, VecDeque};
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

/// Settings that both ends of a connection must share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallOptions {
    /// Maximum size of a request or an answer in bytes.
    pub frame_bytes_max: usize,
    /// Connections that send a CRC-32 with every frame.
    pub checksum: Checksum,
    /// Maximum number of requests of a client in flight. Measurements show no gain above 4: further
    /// requests only queue.
    pub in_flight_max: usize,
    /// Maximum number of connections of a server. Each has a thread.
    pub connections_max: usize,
    /// Limit of the time that a server waits for a client to read an answer.
    pub answer_timeout: Duration,
}

impl Default for CallOptions {
    fn default() -> CallOptions {
        CallOptions {
            frame_bytes_max: 256 << 20,
            checksum: Checksum::BetweenMachines,
            in_flight_max: 16,
            connections_max: 4096,
            answer_timeout: Duration::from_secs(60),
        }
    }
}

/// Choice of connections that send a CRC-32 with every frame.
///
/// The checksum of TCP has only 16 bits, and it misses a change that a broken network card or
/// switch makes before computing it. Connections under TLS need no CRC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checksum {
    /// No connection.
    Never,
    /// Connections whose two ends have different addresses.
    BetweenMachines,
    /// Every connection without TLS.
    Always,
}

impl Checksum {
    fn applies_to(self, stream: &Stream) -> bool {
        match self {
            Checksum::Never => false,
            Checksum::BetweenMachines => stream.is_between_machines(),
            Checksum::Always => true,
        }
    }
}

/// The server's side of one client's connection.
pub trait Conversation: Send {
    /// Answers a request. `answer` is empty and keeps its capacity between calls. An error is sent
    /// to the client, and the connection stays open.
    fn call(&mut self, method: u8, request: &[u8], answer: &mut Vec<u8>) -> Result<()>;
}

/// Creates a [`Conversation`] for each client, from the client's hello and address.
pub trait Service:
    Fn(&[u8], SocketAddr) -> Result<Box<dyn Conversation>> + Send + Sync + 'static
{
}

impl<F> Service for F where
    F: Fn(&[u8], SocketAddr) -> Result<Box<dyn Conversation>> + Send + Sync + 'static
{
}

// Kinds of answer frames.
const OK: u8 = 0;
const FAILED: u8 = 1;

/// A server that runs until it is dropped, which ends every connection.
pub struct CallServer {
    listener: Option<Listener>,
    address: SocketAddr,
    state: Arc<ServerState>,
}

struct ServerState {
    options: CallOptions,
    log: Log,
    service: Box<dyn Service>,
    stop: Abort,
    threads: Mutex<Threads>,
}

#[derive(Default)]
struct Threads {
    next: u64,
    running: HashMap<u64, JoinHandle<()>>,
    ended: Vec<JoinHandle<()>>,
}

impl CallServer {
    /// Listens on an address and answers the requests of clients with this token.
    pub fn bind(
        address: impl ToSocketAddrs + std::fmt::Debug,
        token: &Token,
        options: CallOptions,
        log: Log,
        service: impl Service,
    ) -> Result<CallServer> {
        let listener = TcpListener::bind(&address).map_err(|error| {
            Error::unavailable(format!("cannot listen on {address:?}: {error}"))
                .help("use port 0 to let the system choose a free port")
        })?;
        let state = Arc::new(ServerState {
            options,
            log: log.clone(),
            service: Box::new(service),
            stop: Abort::new(),
            threads: Mutex::default(),
        });
        let listener = Listener::start(listener, token.clone(), log, state.clone())?;
        Ok(CallServer { address: listener.address(), listener: Some(listener), state })
    }

    /// Address on which the server listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Number of connected clients.
    pub fn connections(&self) -> usize {
        self.state.lock().running.len()
    }
}

impl Drop for CallServer {
    fn drop(&mut self) {
        drop(self.listener.take());
        self.state.stop.fire(Error::unavailable("the server is shutting down"));
        let threads = std::mem::take(&mut *self.state.lock());
        for thread in threads.running.into_values().chain(threads.ended) {
            // If the service panicked, the panic message has already been printed.
            let _ = thread.join();
        }
    }
}

impl ServerState {
    fn lock(&self) -> MutexGuard<'_, Threads> {
        // The lists are consistent after every statement, even if a thread panicked.
        lock(&self.threads)
    }

    /// Answers one request after another until the client disconnects.
    fn serve(&self, stream: &Stream, mut conversation: Box<dyn Conversation>) -> Result<()> {
        let mut reader = FrameReader::new(self.options.frame_bytes_max);
        let mut answer = Vec::new();
        let checksum = self.options.checksum.applies_to(stream);
        let idle = Limits::new(Deadline::never(), &self.stop);
        loop {
            let Some(header) = reader.next(stream)? else {
                socket::wait(stream, PollFlags::IN, &idle)?;
                continue;
            };
            answer.clear();
            let result = conversation.call(header.kind, reader.payload(), &mut answer);
            let result = result.and_then(|()| check_length(&answer, &self.options));
            let kind = match result {
                Ok(()) => OK,
                Err(error) => {
                    answer = put_error(Writer::new(), &error).0;
                    FAILED
                }
            };
            let head = FrameHeader::of(kind, header.id, &[&answer], checksum);
            let limits = Limits::new(Deadline::within(self.options.answer_timeout), &self.stop);
            socket::write_parts(stream, &[&head.encode(), &answer], &limits)?;
        }
    }
}

fn check_length(bytes: &[u8], options: &CallOptions) -> Result<()> {
    match bytes.len() <= options.frame_bytes_max {
        true => Ok(()),
        false => Err(Error::exhausted("answer too long")
            .expected(format!("up to {} bytes", options.frame_bytes_max))
            .got(bytes.len())),
    }
}

/// Admission of connections that the listener has authenticated.
impl Acceptor for ServerState {
    fn admit(&self, hello: &Hello, _peer: SocketAddr) -> Result<Vec<u8>> {
        if hello.purpose != Purpose::Calls {
            return Err(Error::invalid("wrong kind of connection to a service")
                .expected("a client of the service")
                .got(format!("{:?}", hello.purpose)));
        }
        let limit = self.options.connections_max;
        match self.lock().running.len() < limit {
            true => Ok(Vec::new()),
            false => Err(Error::unavailable(format!(
                "the service has reached its limit of {limit} connections"
            ))),
        }
    }

    fn accept(self: Arc<Self>, stream: Stream, hello: Hello, peer: SocketAddr) {
        let mut threads = self.lock();
        // Joins threads that have ended, so that their number stays small.
        for thread in threads.ended.drain(..) {
            let _ = thread.join();
        }
        let id = threads.next;
        threads.next += 1;
        let state = self.clone();
        let thread = std::thread::Builder::new().name("fleet-call".to_string()).spawn(move || {
            let result = (state.service)(&hello.body, peer)
                .and_then(|conversation| state.serve(&stream, conversation));
            if let Err(error) = result
                && error.code() != Some(ErrorCode::ConnectionClosed)
                && !state.stop.is_fired()
            {
                state.log.line(format!("the connection with {peer} failed: {error}"));
            }
            let mut threads = state.lock();
            if let Some(own) = threads.running.remove(&id) {
                threads.ended.push(own);
            }
        });
        match thread {
            Ok(thread) => drop(threads.running.insert(id, thread)),
            Err(error) => self.log.line(format!("cannot start a thread for {peer}: {error}")),
        }
    }
}

/// A connection to a service. It cannot be used after an error of the connection: connect again,
/// and retry those requests that may run twice.
pub struct CallClient {
    stream: Stream,
    reader: FrameReader,
    options: CallOptions,
    checksum: bool,
    next: u64,
    /// Ids of requests in flight, oldest first.
    open: VecDeque<u64>,
    /// Answers received while a request was being written.
    early: VecDeque<(u64, Result<Vec<u8>>)>,
    broken: Option<Error>,
}

impl CallClient {
    /// Connects; until the deadline, it retries while the server is not listening yet. The service
    /// gets `hello` (up to 4 KB).
    pub fn connect(
        address: SocketAddr,
        token: &Token,
        hello: &[u8],
        options: CallOptions,
        limits: &Limits,
    ) -> Result<CallClient> {
        const BODY_BYTES_MAX: usize = HELLO_BYTES_MAX - 16;
        if hello.len() > BODY_BYTES_MAX {
            return Err(Error::invalid("the hello of the client is too long")
                .expected(format!("up to {BODY_BYTES_MAX} bytes"))
                .got(hello.len()));
        }
        let hello = Hello { purpose: Purpose::Calls, body: hello.to_vec() };
        let (stream, _) =
            retry(limits, |limits| connect_and_handshake(address, token, &hello, limits))?;
        Ok(CallClient {
            checksum: options.checksum.applies_to(&stream),
            stream,
            reader: FrameReader::new(options.frame_bytes_max),
            options,
            next: 0,
            open: VecDeque::new(),
            early: VecDeque::new(),
            broken: None,
        })
    }

    /// Number of requests in flight, including those whose answers are buffered here.
    pub fn in_flight(&self) -> usize {
        self.open.len() + self.early.len()
    }

    /// Sends a request whose payload is the concatenation of `parts`; returns its id.
    pub fn send(&mut self, method: u8, parts: &[&[u8]], limits: &Limits) -> Result<u64> {
        self.check()?;
        if self.in_flight() >= self.options.in_flight_max {
            return Err(Error::exhausted("too many requests in flight")
                .expected(format!("up to {}", self.options.in_flight_max))
                .help("receive an answer first"));
        }
        let bytes: usize = parts.iter().map(|part| part.len()).sum();
        if bytes > self.options.frame_bytes_max {
            return Err(Error::exhausted("request too long")
                .expected(format!("up to {} bytes", self.options.frame_bytes_max))
                .got(bytes));
        }
        let id = self.next;
        self.next += 1;
        let header = FrameHeader::of(method, id, parts, self.checksum).encode();
        let mut all: Vec<&[u8]> = Vec::with_capacity(parts.len() + 1);
        all.push(&header);
        all.extend(parts);
        let result = self.write(&all, limits);
        self.record_failure(result)?;
        self.open.push_back(id);
        Ok(id)
    }

    /// Reuses the memory of a consumed answer, of this connection or another, for the next answer.
    pub fn lend(&mut self, memory: Vec<u8>) {
        self.reader.reuse(memory);
    }

    /// Receives the answer to the oldest request in flight. The inner error is the service's.
    pub fn receive(&mut self, limits: &Limits) -> Result<(u64, Result<Vec<u8>>)> {
        self.check()?;
        if let Some(answer) = self.early.pop_front() {
            return Ok(answer);
        }
        if self.open.is_empty() {
            return Err(Error::invalid("no request in flight"));
        }
        loop {
            let answer = self.take();
            if let Some(answer) = self.record_failure(answer)? {
                return Ok(answer);
            }
            let waited = socket::wait(&self.stream, PollFlags::IN, limits);
            self.record_failure(waited)?;
        }
    }

    /// Sends one request and receives its answer.
    pub fn call(&mut self, method: u8, parts: &[&[u8]], limits: &Limits) -> Result<Vec<u8>> {
        if self.in_flight() > 0 {
            return Err(Error::invalid("requests are in flight: receive their answers first"));
        }
        self.send(method, parts, limits)?;
        self.receive(limits)?.1
    }

    /// Writes all of `parts`. It receives answers whenever the socket is full, because the server
    /// may be blocked until the client reads.
    fn write(&mut self, parts: &[&[u8]], limits: &Limits) -> Result<()> {
        let mut cursor = socket::Cursor::default();
        while !cursor.write(&self.stream, parts)? {
            limits.abort.check()?;
            let left = limits.deadline.remaining(Time::now());
            if left.is_some_and(|left| left.is_zero()) {
                return Err(Error::unavailable("the deadline passed while sending a request"));
            }
            let wake = limits.abort.wake_fd()?;
            let mut fds = [
                PollFd::new(&self.stream, PollFlags::IN | PollFlags::OUT),
                PollFd::new(&wake, PollFlags::IN),
            ];
            poll(&mut fds, left)?;
            while let Some(answer) = self.take()? {
                self.early.push_back(answer);
            }
        }
        Ok(())
    }

    /// Reads an answer, if a complete one has arrived.
    fn take(&mut self) -> Result<Option<(u64, Result<Vec<u8>>)>> {
        let Some((header, payload)) = self.reader.read(&self.stream)? else { return Ok(None) };
        if self.open.pop_front() != Some(header.id) {
            return Err(
                Error::unavailable("answer to a request that is not in flight").got(header.id)
            );
        }
        let answer = match header.kind {
            OK => Ok(payload),
            _ => Err(take_error(&mut Reader::new(&payload))?),
        };
        Ok(Some((header.id, answer)))
    }

    fn check(&self) -> Result<()> {
        self.broken.clone().map_or(Ok(()), Err)
    }

    /// Records an error after which the connection cannot be used.
    fn record_failure<T>(&mut self, result: Result<T>) -> Result<T> {
        if let Err(error) = &result {
            self.broken = Some(error.clone());
        }
        result
    }
}
