//! The listener of a server: a thread that accepts connections, authenticates them as members of
//! the job, and hands them over.
//!
//! A connection that does not authenticate gets [`HANDSHAKE_SPAN`] and a few hundred bytes of
//! memory. Then it is dropped and logged with its address. Such connections hold at most
//! [`PENDING_MAX`] sockets, and at most 1/16 of the descriptors that the process may open. The last
//! descriptors are reserved for files: see `descriptors.rs`.

use crate::descriptors::Descriptors;
use crate::handshake::{
    CODE_BYTES, HEADER_BYTES, HELLO_BYTES_MAX, Header, Hello, REFUSAL, TLS_REFUSAL, answer,
    check_header, new_header, verify_client,
};
use crate::socket::{Waker, poll, tune};
use crate::stream::Stream;
use crate::{Deadline, Log, Time, Token, socket};
use fleet_base::{Error, Result};
use rustix::event::{PollFd, PollFlags};
use std::collections::VecDeque;
use std::io::{ErrorKind as Io, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Limit of a handshake, which takes two round trips. Members of the job never need longer.
pub const HANDSHAKE_SPAN: Duration = Duration::from_secs(5);
/// Maximum number of connections in a handshake. Beyond it, the oldest is dropped. Processes with a
/// low limit on open files allow fewer.
pub const PENDING_MAX: usize = 512;
/// Maximum number of connections accepted in a row, so that running handshakes get their turn.
const ACCEPTS_MAX: usize = 64;

/// The owner of a listener, which takes authenticated connections.
pub(crate) trait Acceptor: Send + Sync + 'static {
    /// Returns the body of the answer, or the reason to reject the connection.
    fn admit(&self, hello: &Hello, peer: SocketAddr) -> Result<Vec<u8>>;

    /// Takes over the connection after a successful `admit`. The stream is non-blocking.
    fn accept(self: Arc<Self>, stream: Stream, hello: Hello, peer: SocketAddr);
}

/// Handle of the listener's thread, which ends when this is dropped.
pub(crate) struct Listener {
    address: SocketAddr,
    stop: Arc<(AtomicBool, Waker)>,
    thread: Option<JoinHandle<()>>,
}

impl Listener {
    pub(crate) fn start(
        listener: TcpListener,
        token: Token,
        log: Log,
        acceptor: Arc<dyn Acceptor>,
    ) -> Result<Listener> {
        let cannot = |error: std::io::Error| Error::unavailable(format!("cannot listen: {error}"));
        let address = listener.local_addr().map_err(cannot)?;
        listener.set_nonblocking(true).map_err(cannot)?;
        let stop = Arc::new((AtomicBool::new(false), Waker::new()?));
        let shared = stop.clone();
        let descriptors = Descriptors::raise();
        let accept_loop =
            AcceptLoop { listener, token, log, acceptor, descriptors, pending: VecDeque::new() };
        let thread = std::thread::Builder::new()
            .name("fleet-listener".to_string())
            .spawn(move || accept_loop.run(&shared.0, &shared.1))
            .map_err(|error| Error::exhausted(format!("cannot start a thread: {error}")))?;
        Ok(Listener { address, stop, thread: Some(thread) })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.stop.0.store(true, Ordering::SeqCst);
        self.stop.1.wake();
        if let Some(thread) = self.thread.take() {
            // The thread does not panic; if it did, there would be nothing to clean up.
            let _ = thread.join();
        }
    }
}

struct AcceptLoop {
    listener: TcpListener,
    token: Token,
    log: Log,
    acceptor: Arc<dyn Acceptor>,
    descriptors: Descriptors,
    pending: VecDeque<PendingConnection>,
}

/// A connection in its handshake.
struct PendingConnection {
    stream: Stream,
    peer: SocketAddr,
    deadline: Deadline,
    /// Whether the TLS handshake is complete; true at once without TLS.
    tls_done: bool,
    /// Bytes received but not processed yet.
    received: Vec<u8>,
    headers: Option<(Header, Header)>,
}

impl AcceptLoop {
    fn run(mut self, stop: &AtomicBool, waker: &Waker) {
        // After a failed accept (too many open files) the listener stays readable, so pause.
        let mut pause: Option<Deadline> = None;
        while !stop.load(Ordering::SeqCst) {
            let now = Time::now();
            pause = pause.filter(|pause| !pause.is_past(now));
            let first =
                self.pending.iter().map(|connection| connection.deadline).chain(pause).min();
            let listen = if pause.is_some() { PollFlags::empty() } else { PollFlags::IN };
            let mut fds =
                vec![PollFd::new(waker, PollFlags::IN), PollFd::new(&self.listener, listen)];
            fds.extend(
                self.pending
                    .iter()
                    .map(|connection| PollFd::new(&connection.stream, PollFlags::IN)),
            );
            if let Err(error) = poll(&mut fds, first.and_then(|first| first.remaining(now))) {
                self.log.line(format!("cannot poll connections: {error}"));
                std::thread::sleep(ACCEPT_PAUSE);
            }
            let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
            drop(fds);
            waker.clear();
            self.advance_all(&ready[2..]);
            if ready[1] && pause.is_none() && !self.accept() {
                pause = Some(Deadline::within(ACCEPT_PAUSE));
            }
        }
    }

    /// Advances every handshake that has input, and drops those past their deadline.
    fn advance_all(&mut self, ready: &[bool]) {
        let now = Time::now();
        let connections = std::mem::take(&mut self.pending);
        for (mut connection, ready) in connections.into_iter().zip(ready) {
            let step = match ready {
                true => self.advance(&mut connection),
                false => Ok(None),
            };
            match step {
                Ok(Some(hello)) => {
                    self.acceptor.clone().accept(connection.stream, hello, connection.peer);
                }
                Ok(None) if connection.deadline.is_past(now) => self.drop_logged(
                    &connection,
                    &Error::invalid(format!("no handshake within {} s", HANDSHAKE_SPAN.as_secs())),
                ),
                Ok(None) => self.pending.push_back(connection),
                Err(error) => self.drop_logged(&connection, &error),
            }
        }
    }

    /// Accepts some of the pending connections; false if accepting failed.
    fn accept(&mut self) -> bool {
        for _ in 0..ACCEPTS_MAX {
            match self.listener.accept() {
                Ok((stream, peer)) => self.start_handshake(stream, peer),
                Err(error) => match error.kind() {
                    Io::WouldBlock => return true,
                    Io::Interrupted | Io::ConnectionAborted => {}
                    _ => {
                        // Accepting needs a descriptor, so the oldest connection gives up its own.
                        self.drop_oldest("out of file descriptors");
                        self.log.line(format!("cannot accept connections for now: {error}"));
                        return false;
                    }
                },
            }
        }
        true
    }

    /// Starts the handshake of a connection.
    fn start_handshake(&mut self, stream: TcpStream, peer: SocketAddr) {
        if tune(&stream).is_err() {
            return;
        }
        if self.pending.len() >= self.descriptors.share(PENDING_MAX) {
            self.drop_oldest("too many unauthenticated connections");
        }
        if self.descriptors.is_reserved(&stream) && !self.drop_oldest(DESCRIPTORS_RESERVED) {
            let help = "raise the limit on open files (ulimit -n)";
            self.log
                .line(format!("refused a connection from {peer}: {DESCRIPTORS_RESERVED}; {help}"));
            return;
        }
        let stream = match self.token.wrap_server(stream) {
            Ok(stream) => stream,
            Err(error) => {
                self.log.line(format!("cannot accept a connection from {peer}: {error}"));
                return;
            }
        };
        let deadline = Deadline::within(HANDSHAKE_SPAN);
        let (received, tls_done) = (Vec::new(), false);
        self.pending.push_back(PendingConnection {
            stream,
            peer,
            deadline,
            tls_done,
            received,
            headers: None,
        });
    }

    /// Drops the oldest connection in a handshake; false if there is none.
    fn drop_oldest(&mut self, why: &str) -> bool {
        let Some(oldest) = self.pending.pop_front() else { return false };
        self.drop_logged(&oldest, &Error::exhausted(why));
        true
    }

    fn drop_logged(&self, connection: &PendingConnection, error: &Error) {
        self.log.line(format!("dropped a connection from {}: {error}", connection.peer));
    }

    /// Reads the available bytes. Returns the hello once the connection is admitted.
    fn advance(&self, connection: &mut PendingConnection) -> Result<Option<Hello>> {
        if !connection.tls_done {
            self.tls_handshake(connection)?;
        }
        if !connection.tls_done {
            return Ok(None);
        }
        let mut bytes = [0; 1024];
        loop {
            // Never read beyond the handshake: later bytes belong to the next owner of the stream.
            let wanted = connection.wanted()?;
            if wanted == 0 {
                return self.finish(connection).map(Some);
            }
            let count = wanted.min(bytes.len());
            match (&connection.stream).read(&mut bytes[..count]) {
                Ok(0) => {
                    return Err(Error::invalid(
                        "the peer closed the connection during the handshake",
                    ));
                }
                Ok(count) => connection.received.extend(&bytes[..count]),
                Err(error) if error.kind() == Io::WouldBlock => return Ok(None),
                Err(error) if error.kind() == Io::Interrupted => {}
                Err(error) => return Err(socket::lost(&error)),
            }
            if connection.headers.is_none() {
                self.process_header(connection)?;
            }
        }
    }

    /// Advances the TLS handshake, if the job uses TLS. Notifies a peer that does not use it.
    fn tls_handshake(&self, connection: &mut PendingConnection) -> Result<()> {
        let mut first = [0];
        if self.token.is_over_tls()
            && connection.stream.socket().peek(&mut first).is_ok_and(|count| count == 1)
            && first[0] == crate::handshake::MAGIC[0]
        {
            // Drain the received bytes: closing a socket with unread input sends a reset.
            let mut drained = [0; HEADER_BYTES];
            let _ = connection.stream.socket().read(&mut drained);
            let _ = connection.stream.socket().write(&crate::handshake::TLS_REQUIRED);
            return Err(Error::invalid("the peer does not use TLS, which the job token requires"));
        }
        connection.tls_done = connection
            .stream
            .tls_handshake()
            .map_err(|error| crate::handshake::tls_error(&error))?;
        Ok(())
    }

    /// Checks the part of the header received so far, and answers it when it is complete.
    fn process_header(&self, connection: &mut PendingConnection) -> Result<()> {
        let checked = check_header(&connection.received);
        let own = new_header()?;
        let now = socket::with_deadline(Deadline::within(Duration::ZERO));
        if let Err(error) = checked {
            if connection.received.first() == Some(&crate::handshake::TLS_FIRST_BYTE) {
                let _ = socket::write_parts(&connection.stream, &[&TLS_REFUSAL], &now);
            }
            if connection.received.len() >= 10
                && connection.received.starts_with(&crate::handshake::MAGIC)
            {
                // A Fleet process of another version: send the header so that it can report this.
                let _ = socket::write_parts(&connection.stream, &[&own], &now);
            }
            return Err(error);
        }
        if let Some(header) = connection.received.first_chunk::<HEADER_BYTES>() {
            connection.headers = Some((*header, own));
            connection.received.clear();
            socket::write_parts(&connection.stream, &[&own], &now)?;
        }
        Ok(())
    }

    fn finish(&self, connection: &PendingConnection) -> Result<Hello> {
        let Some((client, server)) = &connection.headers else {
            return Err(Error::internal("handshake finished without a header"));
        };
        let (code, hello_bytes) =
            (&connection.received[..CODE_BYTES], &connection.received[CODE_BYTES + 4..]);
        let binding = connection.stream.binding()?;
        if !verify_client(&self.token, [client, server], hello_bytes, &binding, code) {
            let now = socket::with_deadline(Deadline::within(Duration::ZERO));
            // Reveals nothing to an attacker, but lets a misconfigured process report its mistake.
            let _ = socket::write_parts(&connection.stream, &[&REFUSAL], &now);
            return Err(Error::invalid("the peer does not know the job token")
                .help("the peer may belong to another job, or may be an attacker"));
        }
        let hello = Hello::decode(hello_bytes);
        let result = hello
            .as_ref()
            .map_err(Error::clone)
            .and_then(|hello| self.acceptor.admit(hello, connection.peer));
        let message = answer(&self.token, [client, server], hello_bytes, &binding, &result);
        let now = socket::with_deadline(Deadline::within(Duration::ZERO));
        socket::write_parts(&connection.stream, &[&message], &now)?;
        result?;
        hello
    }
}

const DESCRIPTORS_RESERVED: &str = "the remaining file descriptors are reserved for files";
/// Pause after a failed accept.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

impl PendingConnection {
    /// Number of bytes that the current part of the handshake still needs.
    fn wanted(&self) -> Result<usize> {
        if self.headers.is_none() {
            return Ok(HEADER_BYTES - self.received.len());
        }
        let fixed = CODE_BYTES + 4;
        let Some(length) = self.received.get(CODE_BYTES..fixed) else {
            return Ok(fixed - self.received.len());
        };
        let length = u32::from_le_bytes([length[0], length[1], length[2], length[3]]) as usize;
        if length > HELLO_BYTES_MAX {
            return Err(Error::invalid("hello is too long")
                .expected(format!("up to {HELLO_BYTES_MAX} bytes"))
                .got(length));
        }
        Ok(fixed + length - self.received.len())
    }
}
