//! The host of the store and of the heartbeats: one thread, in the launcher or in rank 0.

use super::protocol::{Answer, REQUEST_BYTES_MAX, Request, encode_answer};
use super::table::{Table, check_key};
use super::waiters::{Answers, RequestId, Waiters};
use crate::frame::{FRAME_HEADER_BYTES, FrameHeader, FrameReader};
use crate::handshake::{Hello, Purpose};
use crate::listener::{Acceptor, Listener};
use crate::membership::{
    EXITED, HEARTBEAT, LEAVE, MEMBER_BYTES_MAX, MemberHello, NOTICE, decode_exit, encode_vigilance,
};
use crate::registry::{FailureNotice, MemberId, Registry, Vigilance};
use crate::socket::{Waker, poll};
use crate::stream::Stream;
use crate::token::random;
use crate::wire::{Reader, Writer};
use crate::{Deadline, Log, Member, Time, Token};
use fleet_base::sync::lock;
use fleet_base::{Error, Result};
use rustix::event::{PollFd, PollFlags};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io::{ErrorKind as Io, Write};
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

/// Maximum number of connections of members and clients together. A rank has a handful.
pub const CONNECTIONS_MAX: usize = 1 << 14;
/// Maximum number of waiting requests of all clients.
const WAITERS_MAX: usize = 1 << 16;
/// Maximum number of unread bytes of a client. Beyond it, the client is dropped.
const UNREAD_BYTES_MAX: usize = 256 << 20;
/// Maximum number of clients whose answers are kept for retries.
const SESSIONS_MAX: usize = 1 << 16;
/// Maximum number of answers kept for one client: those to requests that it still waits for.
const ANSWERS_KEPT_MAX: usize = 1 << 10;

/// The server of a job's store and heartbeats. It runs until it is dropped.
///
/// ```
/// use fleet_net::{Limits, Log, Store, StoreClient, StoreServer, Token, Vigilance};
/// use std::time::Duration;
/// let token = Token::generate()?;
/// let server = StoreServer::bind("127.0.0.1:0", &token, Vigilance::default(), Log::stderr())?;
/// let limits = Limits::within(Duration::from_secs(60));
/// let store = StoreClient::connect(server.address(), &token, &limits)?;
/// assert_eq!(store.add("ranks", 1, &limits)?, 1);
/// # Ok::<(), fleet_base::Error>(())
/// ```
pub struct StoreServer {
    /// Closed first, so that no connection arrives during shutdown.
    listener: Option<Listener>,
    address: SocketAddr,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    vigilance: Vigilance,
    /// Random number that tells clients whether they have reconnected to the same store.
    incarnation: u64,
    registry: Mutex<Registry>,
    events: Mutex<Vec<Event>>,
    waker: Waker,
    stop: AtomicBool,
    connections: AtomicUsize,
}

enum Event {
    Connected(Stream, Hello, SocketAddr),
    Failed(String, FailureNotice),
}

impl StoreServer {
    /// Listens on `address`. With port 0 the system chooses the port: see [`StoreServer::address`].
    pub fn bind(
        address: impl ToSocketAddrs + std::fmt::Debug,
        token: &Token,
        vigilance: Vigilance,
        log: Log,
    ) -> Result<StoreServer> {
        let listener = TcpListener::bind(&address).map_err(|error| {
            let kind = match error.kind() {
                Io::AddrInUse => Error::unavailable("the port of the store is in use"),
                _ => Error::invalid("the store cannot listen"),
            };
            kind.at(format!("{address:?}: {error}"))
                .help("use port 0 to let the system choose a free port")
        })?;
        StoreServer::start(listener, token, vigilance, log)
    }

    /// Serves on a socket that is already listening, such as an inherited one.
    pub fn start(
        listener: TcpListener,
        token: &Token,
        vigilance: Vigilance,
        log: Log,
    ) -> Result<StoreServer> {
        StoreServer::start_logging(listener, token, vigilance, (log.clone(), log))
    }

    /// Like [`StoreServer::start`], with a separate log for rejected connections.
    pub fn start_logging(
        listener: TcpListener,
        token: &Token,
        vigilance: Vigilance,
        (listener_log, log): (Log, Log),
    ) -> Result<StoreServer> {
        let shared = Arc::new(Shared {
            vigilance,
            incarnation: u64::from_le_bytes(random()?),
            registry: Mutex::new(Registry::new(vigilance)),
            events: Mutex::default(),
            waker: Waker::new()?,
            stop: AtomicBool::new(false),
            connections: AtomicUsize::new(0),
        });
        let listener = Listener::start(listener, token.clone(), listener_log, shared.clone())?;
        let address = listener.address();
        let server = ServerThread::new(shared.clone(), log);
        let thread = std::thread::Builder::new()
            .name("fleet-store".to_string())
            .spawn(move || server.run())
            .map_err(|error| Error::exhausted(format!("cannot start a thread: {error}")))?;
        Ok(StoreServer { listener: Some(listener), address, shared, thread: Some(thread) })
    }

    /// Address on which the server listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Reports to the group how a member ended, for a launcher that saw the member end. `how` is a
    /// phrase such as "exit code 3" or "killed by signal 9 (SIGKILL)".
    pub fn report_end(&self, group: &str, member: &Member, how: &str) {
        let notice =
            lock(&self.shared.registry).exited(group, member.clone(), how.to_string(), Time::now());
        if let Some(notice) = notice {
            lock(&self.shared.events).push(Event::Failed(group.to_string(), notice));
            self.shared.waker.wake();
        }
    }
}

impl Drop for StoreServer {
    fn drop(&mut self) {
        drop(self.listener.take());
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.waker.wake();
        if let Some(thread) = self.thread.take() {
            // The thread does not panic; if it did, there would be nothing to clean up.
            let _ = thread.join();
        }
    }
}

impl Acceptor for Shared {
    fn admit(&self, hello: &Hello, _peer: SocketAddr) -> Result<Vec<u8>> {
        if self.connections.load(Ordering::SeqCst) >= CONNECTIONS_MAX {
            return Err(Error::unavailable(format!(
                "the store has reached its limit of {CONNECTIONS_MAX} connections"
            )));
        }
        let answer = match hello.purpose {
            Purpose::Store => {
                Reader::new(&hello.body).u64()?;
                Writer::new().u64(self.incarnation).0
            }
            Purpose::Member => {
                let hello = MemberHello::decode(&hello.body)?;
                let id = (hello.group.clone(), hello.member.rank);
                let mut registry = lock(&self.registry);
                let before = registry.join(id, hello.member, hello.session, Time::now())?;
                drop(registry);
                if let Some(notice) = before {
                    lock(&self.events).push(Event::Failed(hello.group, notice));
                }
                encode_vigilance(&self.vigilance, self.incarnation)
            }
            other => {
                return Err(Error::invalid("wrong kind of connection to the store")
                    .expected("a client of the store or a member")
                    .got(format!("{other:?}")));
            }
        };
        Ok(answer)
    }

    fn accept(self: Arc<Self>, stream: Stream, hello: Hello, peer: SocketAddr) {
        self.connections.fetch_add(1, Ordering::SeqCst);
        lock(&self.events).push(Event::Connected(stream, hello, peer));
        self.waker.wake();
    }
}

/// State of the store's thread.
struct ServerThread {
    shared: Arc<Shared>,
    log: Log,
    table: Table,
    waiters: Waiters,
    connections: BTreeMap<u64, Connection>,
    connection_next: u64,
    sessions: HashMap<u64, Session>,
}

struct Connection {
    stream: Stream,
    peer: SocketAddr,
    role: Role,
    reader: FrameReader,
    out: VecDeque<Vec<u8>>,
    /// Number of bytes written of the first frame in `out`.
    out_start: usize,
    out_bytes: usize,
    broken: Option<Error>,
}

enum Role {
    Client { id: u64 },
    Member { member: MemberId, session: u64, beat_next: Time },
}

/// Answers to one client's changes, for retries after a lost connection.
#[derive(Default)]
struct Session {
    answers: BTreeMap<u64, Vec<u8>>,
    used: Time,
}

impl ServerThread {
    fn new(shared: Arc<Shared>, log: Log) -> ServerThread {
        ServerThread {
            shared,
            log,
            table: Table::default(),
            waiters: Waiters::default(),
            connections: BTreeMap::new(),
            connection_next: 0,
            sessions: HashMap::new(),
        }
    }

    fn run(mut self) {
        while !self.shared.stop.load(Ordering::SeqCst) {
            let next = self.run_timers();
            let ids = self.wait(next);
            self.shared.waker.clear();
            let events = std::mem::take(&mut *lock(&self.shared.events));
            for event in events {
                match event {
                    Event::Connected(stream, hello, peer) => self.register(stream, &hello, peer),
                    Event::Failed(group, notice) => self.notify_group(&group, &notice),
                }
            }
            for id in ids {
                self.read(id);
            }
            self.write_all();
            self.remove_broken();
        }
    }

    /// Handles deadlines, heartbeats and failures; returns the time of the next one.
    fn run_timers(&mut self) -> Option<Time> {
        let now = Time::now();
        let (failed, next_failure) = lock(&self.shared.registry).check(now);
        for (group, notice) in failed {
            self.log.line(format!("group '{group}': {}", notice.error()));
            self.notify_group(&group, &notice);
        }
        let (answers, next_wait) = self.waiters.expire(now, &self.table);
        self.send_answers(answers);
        let beat = self.shared.vigilance.beat;
        let mut next_beat = None;
        for connection in self.connections.values_mut() {
            let Role::Member { beat_next, .. } = &mut connection.role else { continue };
            let due = *beat_next <= now;
            if due {
                *beat_next = now.plus(beat);
            }
            let next = *beat_next;
            next_beat = Some(next_beat.map_or(next, |other: Time| other.min(next)));
            if due {
                connection.send(HEARTBEAT, 0, &[]);
            }
        }
        self.write_all();
        [next_failure, next_wait.and_then(Deadline::time), next_beat].into_iter().flatten().min()
    }

    /// Waits for the waker, a connection or the time `next`. Returns the readable connections.
    fn wait(&mut self, next: Option<Time>) -> Vec<u64> {
        let waker = &self.shared.waker;
        let mut fds = vec![PollFd::new(waker, PollFlags::IN)];
        for connection in self.connections.values() {
            let mut flags = PollFlags::IN;
            flags.set(PollFlags::OUT, !connection.out.is_empty());
            fds.push(PollFd::new(&connection.stream, flags));
        }
        let span = next.map(|next| next.since(Time::now()));
        if let Err(error) = poll(&mut fds, span) {
            self.log.line(format!("the store cannot poll its connections: {error}"));
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
        let read = PollFlags::IN | PollFlags::HUP | PollFlags::ERR;
        self.connections
            .keys()
            .zip(&fds[1..])
            .filter(|(_, fd)| fd.revents().intersects(read))
            .map(|(id, _)| *id)
            .collect()
    }

    /// Registers a connection, or removes it from the count of connections.
    fn register(&mut self, stream: Stream, hello: &Hello, peer: SocketAddr) {
        let Some((role, missed)) = self.role_of(hello) else {
            self.shared.connections.fetch_sub(1, Ordering::SeqCst);
            return;
        };
        let bytes_max = match role {
            Role::Client { .. } => REQUEST_BYTES_MAX,
            Role::Member { .. } => MEMBER_BYTES_MAX,
        };
        let mut connection = Connection {
            stream,
            peer,
            role,
            reader: FrameReader::new(bytes_max),
            out: VecDeque::new(),
            out_start: 0,
            out_bytes: 0,
            broken: None,
        };
        for notice in missed {
            connection.send(NOTICE, 0, &notice.encode());
        }
        self.connections.insert(self.connection_next, connection);
        self.connection_next += 1;
    }

    /// The role of a connection, and the notices that it has missed. `admit` has already decoded
    /// the same bytes.
    fn role_of(&self, hello: &Hello) -> Option<(Role, Vec<FailureNotice>)> {
        if hello.purpose != Purpose::Member {
            let id = Reader::new(&hello.body).u64().ok()?;
            return Some((Role::Client { id }, Vec::new()));
        }
        let hello = MemberHello::decode(&hello.body).ok()?;
        let id = (hello.group.clone(), hello.member.rank);
        let mut registry = lock(&self.shared.registry);
        // Its old connection may have been marked as lost since it was admitted.
        registry.join(id.clone(), hello.member, hello.session, Time::now()).ok()?;
        let missed = registry.notices(&hello.group);
        Some((Role::Member { member: id, session: hello.session, beat_next: Time::now() }, missed))
    }

    /// Handles the frames that have arrived on a connection.
    fn read(&mut self, id: u64) {
        /// Limit of frames in a row, so that other connections get their turn.
        const FRAMES_MAX: usize = 64;
        for _ in 0..FRAMES_MAX {
            let Some(connection) = self.connections.get_mut(&id) else { return };
            if connection.broken.is_some() {
                return;
            }
            match connection.reader.read(&connection.stream) {
                Ok(Some((header, payload))) => self.frame(id, header, &payload),
                Ok(None) => return,
                Err(error) => connection.broken = Some(error),
            }
        }
    }

    fn frame(&mut self, id: u64, header: FrameHeader, payload: &[u8]) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        match &connection.role {
            Role::Client { id: client } => {
                let client = *client;
                match Request::decode(header.kind, payload) {
                    Ok((request, open)) => self.request(id, client, header.id, request, open),
                    Err(error) => {
                        self.log.line(format!("invalid request from {}: {error}", connection.peer));
                        connection.send(0, header.id, &encode_answer(&Err(error)));
                    }
                }
            }
            Role::Member { member, session, .. } => {
                let now = Time::now();
                let mut registry = lock(&self.shared.registry);
                registry.heartbeat(member, *session, now);
                match header.kind {
                    HEARTBEAT => {}
                    LEAVE => registry.leave(member, *session),
                    EXITED => {
                        let group = member.0.clone();
                        let report = decode_exit(payload).ok();
                        let notice =
                            report.and_then(|(m, how)| registry.exited(&group, m, how, now));
                        drop(registry);
                        if let Some(notice) = notice {
                            self.notify_group(&group, &notice);
                        }
                    }
                    other => {
                        let error = Error::unsupported("unknown kind of frame from a member");
                        connection.broken = Some(error.got(other));
                    }
                }
            }
        }
    }

    fn request(&mut self, connection: u64, client: u64, id: u64, request: Request, open: u64) {
        if self.sessions.len() >= SESSIONS_MAX
            && !self.sessions.contains_key(&client)
            && let Some(oldest) =
                self.sessions.iter().min_by_key(|(_, session)| session.used).map(|(id, _)| *id)
        {
            self.sessions.remove(&oldest);
        }
        let session = self.sessions.entry(client).or_default();
        session.used = Time::now();
        session.answers = session.answers.split_off(&open);
        if let Some(answer) = session.answers.get(&id) {
            // The change was applied before the connection broke; only the answer was lost.
            let answer = answer.clone();
            self.reply(connection, id, &answer);
            return;
        }
        let changes = request.is_change();
        let Some(result) = self.serve((connection, id), request) else { return };
        let answer = encode_answer(&result);
        if changes && let Some(session) = self.sessions.get_mut(&client) {
            session.answers.insert(id, answer.clone());
            while session.answers.len() > ANSWERS_KEPT_MAX {
                session.answers.pop_first();
            }
        }
        self.reply(connection, id, &answer);
    }

    /// Executes a request; `None` if the answer has to wait.
    fn serve(&mut self, id: RequestId, request: Request) -> Option<Result<Answer>> {
        let (result, changed) = match request {
            Request::Get { key } => {
                return Some(Ok(Answer::Value(self.table.get(&key).map(<[u8]>::to_vec))));
            }
            Request::List { prefix } => {
                return Some(Ok(Answer::Entries(self.table.list(&prefix))));
            }
            Request::Wait { .. } | Request::Watch { .. } if self.waiters.len() >= WAITERS_MAX => {
                return Some(Err(Error::exhausted(format!(
                    "the store has reached its limit of {WAITERS_MAX} waiting requests"
                ))));
            }
            Request::Wait { keys, span_ms } => {
                if let Err(error) = keys.iter().try_for_each(|key| check_key(key)) {
                    return Some(Err(error));
                }
                return self.waiters.wait(id, keys, span(span_ms), &self.table);
            }
            Request::Watch { prefix, revision, span_ms } => {
                return self.waiters.watch(id, prefix, revision, span(span_ms), &self.table);
            }
            Request::Set { key, value } => {
                (self.table.set(&key, &value).map(|()| Answer::Done), key)
            }
            Request::Add { key, delta } => (self.table.add(&key, delta).map(Answer::Count), key),
            Request::Swap { key, expected, value } => {
                let swap = self.table.compare_and_set(&key, expected.as_deref(), &value);
                (swap.map(Answer::Swap), key)
            }
            Request::Delete { key } => (Ok(Answer::Existed(self.table.delete(&key))), key),
        };
        if result.is_ok() {
            let answers = self.waiters.changed(&changed, &self.table);
            self.send_answers(answers);
        }
        Some(result)
    }

    fn send_answers(&mut self, answers: Answers) {
        for ((connection, id), answer) in answers {
            self.reply(connection, id, &encode_answer(&answer));
        }
    }

    fn reply(&mut self, connection: u64, id: u64, answer: &[u8]) {
        if let Some(connection) = self.connections.get_mut(&connection) {
            connection.send(0, id, answer);
        }
    }

    /// Sends a notice to every member of the group.
    fn notify_group(&mut self, group: &str, notice: &FailureNotice) {
        let payload = notice.encode();
        for connection in self.connections.values_mut() {
            if matches!(&connection.role, Role::Member { member, .. } if member.0 == group) {
                connection.send(NOTICE, 0, &payload);
            }
        }
    }

    fn write_all(&mut self) {
        for connection in self.connections.values_mut() {
            connection.write();
        }
    }

    /// Removes broken connections.
    fn remove_broken(&mut self) {
        let broken: Vec<u64> = self
            .connections
            .iter()
            .filter(|(_, connection)| connection.broken.is_some())
            .map(|(id, _)| *id)
            .collect();
        for id in broken {
            let Some(connection) = self.connections.remove(&id) else { continue };
            self.shared.connections.fetch_sub(1, Ordering::SeqCst);
            self.waiters.forget(id);
            if let Role::Member { member, session, .. } = &connection.role {
                let came_back = self.connections.values().any(|other| {
                    matches!(&other.role, Role::Member { member: s, session: t, .. }
                        if s == member && t == session)
                });
                if !came_back {
                    lock(&self.shared.registry).connection_lost(member, *session, Time::now());
                }
            }
        }
    }
}

impl Connection {
    fn send(&mut self, kind: u8, id: u64, payload: &[u8]) {
        let header = FrameHeader::of(kind, id, &[payload], true);
        let mut frame = Vec::with_capacity(FRAME_HEADER_BYTES + payload.len());
        frame.extend(header.encode());
        frame.extend(payload);
        self.out_bytes += frame.len();
        self.out.push_back(frame);
        if self.out_bytes > UNREAD_BYTES_MAX {
            self.broken = Some(Error::exhausted("the client does not read its answers"));
        }
    }

    fn write(&mut self) {
        while let Some(frame) = self.out.front() {
            match (&self.stream).write(&frame[self.out_start..]) {
                Ok(count) => {
                    self.out_start += count;
                    self.out_bytes -= count;
                    if self.out_start == frame.len() {
                        self.out.pop_front();
                        self.out_start = 0;
                    }
                }
                Err(error) if error.kind() == Io::WouldBlock => return,
                Err(error) if error.kind() == Io::Interrupted => {}
                Err(error) => {
                    self.broken = Some(crate::socket::lost(&error));
                    return;
                }
            }
        }
    }
}

fn span(span_ms: u64) -> Deadline {
    Deadline::within(std::time::Duration::from_millis(span_ms))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    /// A connection that cannot be registered is removed from the count.
    #[test]
    fn connections_that_are_not_taken_in_are_not_counted() {
        let token = Token::generate().unwrap();
        let vigilance = Vigilance::default();
        let server = StoreServer::bind("127.0.0.1:0", &token, vigilance, Log::silent()).unwrap();
        let peer = server.address();
        let stream = Stream::plain(std::net::TcpStream::connect(peer).unwrap());
        let hello = Hello { purpose: Purpose::Member, body: Vec::new() };
        server.shared.clone().accept(stream, hello, peer);
        let start = Instant::now();
        while server.shared.connections.load(Ordering::SeqCst) > 0 {
            assert!(start.elapsed() < Duration::from_secs(60), "the connection is still counted");
            std::thread::yield_now();
        }
    }
}
