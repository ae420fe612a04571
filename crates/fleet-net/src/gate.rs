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
use crate::socket::{Bell, poll, tune};
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

/// The owner of a gate, which takes authenticated connections.
pub(crate) trait Host: Send + Sync + 'static {
    /// Returns the body of the answer, or the reason to reject the connection.
    fn admit(&self, hello: &Hello, peer: SocketAddr) -> Result<Vec<u8>>;

    /// Takes over the connection after a successful `admit`. The stream is non-blocking.
    fn welcome(self: Arc<Self>, stream: Stream, hello: Hello, peer: SocketAddr);
}

/// Handle of the gate's thread, which ends when this is dropped.
pub(crate) struct Gate {
    address: SocketAddr,
    stop: Arc<(AtomicBool, Bell)>,
    thread: Option<JoinHandle<()>>,
}

impl Gate {
    pub(crate) fn start(
        listener: TcpListener,
        token: Token,
        log: Log,
        host: Arc<dyn Host>,
    ) -> Result<Gate> {
        let cannot = |error: std::io::Error| Error::unavailable(format!("cannot listen: {error}"));
        let address = listener.local_addr().map_err(cannot)?;
        listener.set_nonblocking(true).map_err(cannot)?;
        let stop = Arc::new((AtomicBool::new(false), Bell::new()?));
        let shared = stop.clone();
        let descriptors = Descriptors::raise();
        let door = Door { listener, token, log, host, descriptors, pending: VecDeque::new() };
        let thread = std::thread::Builder::new()
            .name("fleet-gate".to_string())
            .spawn(move || door.run(&shared.0, &shared.1))
            .map_err(|error| Error::exhausted(format!("cannot start a thread: {error}")))?;
        Ok(Gate { address, stop, thread: Some(thread) })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.stop.0.store(true, Ordering::SeqCst);
        self.stop.1.ring();
        if let Some(thread) = self.thread.take() {
            // The thread does not panic; if it did, there would be nothing to clean up.
            let _ = thread.join();
        }
    }
}

struct Door {
    listener: TcpListener,
    token: Token,
    log: Log,
    host: Arc<dyn Host>,
    descriptors: Descriptors,
    pending: VecDeque<Visitor>,
}

/// A connection in its handshake.
struct Visitor {
    stream: Stream,
    peer: SocketAddr,
    deadline: Deadline,
    /// Whether the TLS handshake is complete; true at once without TLS.
    shaken: bool,
    /// Bytes received but not processed yet.
    got: Vec<u8>,
    headers: Option<(Header, Header)>,
}

impl Door {
    fn run(mut self, stop: &AtomicBool, bell: &Bell) {
        // After a failed accept (too many open files) the listener stays readable, so pause.
        let mut rest: Option<Deadline> = None;
        while !stop.load(Ordering::SeqCst) {
            let now = Time::now();
            rest = rest.filter(|rest| !rest.is_past(now));
            let first = self.pending.iter().map(|visitor| visitor.deadline).chain(rest).min();
            let listen = if rest.is_some() { PollFlags::empty() } else { PollFlags::IN };
            let mut fds =
                vec![PollFd::new(bell, PollFlags::IN), PollFd::new(&self.listener, listen)];
            fds.extend(
                self.pending.iter().map(|visitor| PollFd::new(&visitor.stream, PollFlags::IN)),
            );
            if let Err(error) = poll(&mut fds, first.and_then(|first| first.remaining(now))) {
                self.log.line(format!("the door of this process fails: {error}"));
                std::thread::sleep(ACCEPT_REST);
            }
            let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
            drop(fds);
            bell.hush();
            self.serve(&ready[2..]);
            if ready[1] && rest.is_none() && !self.accept() {
                rest = Some(Deadline::within(ACCEPT_REST));
            }
        }
    }

    /// Advances every handshake that has input, and drops those past their deadline.
    fn serve(&mut self, ready: &[bool]) {
        let now = Time::now();
        let visitors = std::mem::take(&mut self.pending);
        for (mut visitor, ready) in visitors.into_iter().zip(ready) {
            let step = match ready {
                true => self.step(&mut visitor),
                false => Ok(None),
            };
            match step {
                Ok(Some(hello)) => {
                    self.host.clone().welcome(visitor.stream, hello, visitor.peer);
                }
                Ok(None) if visitor.deadline.is_past(now) => self.drop_logged(
                    &visitor,
                    &Error::invalid(format!("no greeting within {} s", HANDSHAKE_SPAN.as_secs())),
                ),
                Ok(None) => self.pending.push_back(visitor),
                Err(error) => self.drop_logged(&visitor, &error),
            }
        }
    }

    /// Accepts some of the pending connections; false if accepting failed.
    fn accept(&mut self) -> bool {
        for _ in 0..ACCEPTS_MAX {
            match self.listener.accept() {
                Ok((stream, peer)) => self.receive(stream, peer),
                Err(error) => match error.kind() {
                    Io::WouldBlock => return true,
                    Io::Interrupted | Io::ConnectionAborted => {}
                    _ => {
                        // Accepting needs a descriptor, so the oldest connection gives up its own.
                        self.drop_oldest("the process has no descriptor left");
                        self.log.line(format!("cannot accept connections for now: {error}"));
                        return false;
                    }
                },
            }
        }
        true
    }

    /// Starts the handshake of a connection.
    fn receive(&mut self, stream: TcpStream, peer: SocketAddr) {
        if tune(&stream).is_err() {
            return;
        }
        if self.pending.len() >= self.descriptors.share(PENDING_MAX) {
            self.drop_oldest("too many connections in the middle of a handshake");
        }
        if self.descriptors.is_reserved(&stream) && !self.drop_oldest(FEW_DESCRIPTORS) {
            let help = "raise the limit on open files (ulimit -n)";
            self.log.line(format!("refused a connection from {peer}: {FEW_DESCRIPTORS}; {help}"));
            return;
        }
        let stream = match self.token.received(stream) {
            Ok(stream) => stream,
            Err(error) => {
                self.log.line(format!("cannot accept a connection from {peer}: {error}"));
                return;
            }
        };
        let deadline = Deadline::within(HANDSHAKE_SPAN);
        let (got, shaken) = (Vec::new(), false);
        self.pending.push_back(Visitor { stream, peer, deadline, shaken, got, headers: None });
    }

    /// Drops the oldest connection in a handshake; false if there is none.
    fn drop_oldest(&mut self, why: &str) -> bool {
        let Some(oldest) = self.pending.pop_front() else { return false };
        self.drop_logged(&oldest, &Error::exhausted(why));
        true
    }

    fn drop_logged(&self, visitor: &Visitor, error: &Error) {
        self.log.line(format!("dropped a connection from {}: {error}", visitor.peer));
    }

    /// Reads the available bytes. Returns the hello once the connection is admitted.
    fn step(&self, visitor: &mut Visitor) -> Result<Option<Hello>> {
        if !visitor.shaken {
            self.shake(visitor)?;
        }
        if !visitor.shaken {
            return Ok(None);
        }
        let mut bytes = [0; 1024];
        loop {
            // Never read beyond the handshake: later bytes belong to the next owner of the stream.
            let wanted = visitor.wanted()?;
            if wanted == 0 {
                return self.finish(visitor).map(Some);
            }
            let count = wanted.min(bytes.len());
            match (&visitor.stream).read(&mut bytes[..count]) {
                Ok(0) => {
                    return Err(Error::invalid("it left in the middle of the greeting"));
                }
                Ok(count) => visitor.got.extend(&bytes[..count]),
                Err(error) if error.kind() == Io::WouldBlock => return Ok(None),
                Err(error) if error.kind() == Io::Interrupted => {}
                Err(error) => return Err(socket::lost(&error)),
            }
            if visitor.headers.is_none() {
                self.header(visitor)?;
            }
        }
    }

    /// Advances the TLS handshake, if the job uses TLS. Notifies a peer that does not use it.
    fn shake(&self, visitor: &mut Visitor) -> Result<()> {
        let mut first = [0];
        if self.token.is_over_tls()
            && visitor.stream.socket().peek(&mut first).is_ok_and(|count| count == 1)
            && first[0] == crate::handshake::MAGIC[0]
        {
            // Drain the received bytes: closing a socket with unread input sends a reset.
            let mut said = [0; HEADER_BYTES];
            let _ = visitor.stream.socket().read(&mut said);
            let _ = visitor.stream.socket().write(&crate::handshake::WANTS_TLS);
            return Err(Error::invalid("it does not speak TLS, which this job's token asks for"));
        }
        visitor.shaken =
            visitor.stream.shake().map_err(|error| crate::handshake::shake_error(&error))?;
        Ok(())
    }

    /// Checks the part of the header received so far, and answers it when it is complete.
    fn header(&self, visitor: &mut Visitor) -> Result<()> {
        let checked = check_header(&visitor.got);
        let own = new_header()?;
        let now = socket::until(Deadline::within(Duration::ZERO));
        if let Err(error) = checked {
            if visitor.got.first() == Some(&crate::handshake::TLS_FIRST_BYTE) {
                let _ = socket::write_parts(&visitor.stream, &[&TLS_REFUSAL], &now);
            }
            if visitor.got.len() >= 10 && visitor.got.starts_with(&crate::handshake::MAGIC) {
                // A Fleet process of another version: send the header so that it can report this.
                let _ = socket::write_parts(&visitor.stream, &[&own], &now);
            }
            return Err(error);
        }
        if let Some(header) = visitor.got.first_chunk::<HEADER_BYTES>() {
            visitor.headers = Some((*header, own));
            visitor.got.clear();
            socket::write_parts(&visitor.stream, &[&own], &now)?;
        }
        Ok(())
    }

    fn finish(&self, visitor: &Visitor) -> Result<Hello> {
        let Some((client, server)) = &visitor.headers else {
            return Err(Error::internal("a handshake ended before its header"));
        };
        let (code, hello_bytes) = (&visitor.got[..CODE_BYTES], &visitor.got[CODE_BYTES + 4..]);
        let binding = visitor.stream.binding()?;
        if !verify_client(&self.token, [client, server], hello_bytes, &binding, code) {
            let now = socket::until(Deadline::within(Duration::ZERO));
            // Reveals nothing to an attacker, but lets a misconfigured process report its mistake.
            let _ = socket::write_parts(&visitor.stream, &[&REFUSAL], &now);
            return Err(Error::invalid("it does not know the job's token")
                .help("a process of another job, or somebody who tries his luck"));
        }
        let hello = Hello::decode(hello_bytes);
        let result = hello
            .as_ref()
            .map_err(Error::clone)
            .and_then(|hello| self.host.admit(hello, visitor.peer));
        let message = answer(&self.token, [client, server], hello_bytes, &binding, &result);
        let now = socket::until(Deadline::within(Duration::ZERO));
        socket::write_parts(&visitor.stream, &[&message], &now)?;
        result?;
        hello
    }
}

const FEW_DESCRIPTORS: &str = "the last descriptors of the process are kept for its files";
/// Pause after a failed accept.
const ACCEPT_REST: Duration = Duration::from_millis(100);

impl Visitor {
    /// Number of bytes that the current part of the handshake still needs.
    fn wanted(&self) -> Result<usize> {
        if self.headers.is_none() {
            return Ok(HEADER_BYTES - self.got.len());
        }
        let fixed = CODE_BYTES + 4;
        let Some(length) = self.got.get(CODE_BYTES..fixed) else {
            return Ok(fixed - self.got.len());
        };
        let length = u32::from_le_bytes([length[0], length[1], length[2], length[3]]) as usize;
        if length > HELLO_BYTES_MAX {
            return Err(Error::invalid("its greeting is too long")
                .expected(format!("up to {HELLO_BYTES_MAX} bytes"))
                .got(length));
        }
        Ok(fixed + length - self.got.len())
    }
}
