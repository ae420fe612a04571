//! Meshes over TCP.
//!
//! Every rank listens on a given port or on one from the system, on the interface of its route to
//! the store. It publishes the address in the store. Two ranks connect at their first transfer; the
//! higher rank connects to the lower one. A pair has [`TcpOptions::streams`] connections: short
//! messages use the first, and long ones are split over all of them.
//!
//! The kernel copies bytes from and to the callers' slices. Only a fold needs one more copy, into a
//! buffer that stays in the cache. A message that fits into a socket's buffer costs one system call
//! on each side.
//!
//! ```
//! use fleet_net::{Fabric, Limits, MemoryStore, TcpFabric, TcpOptions, Token, Transfer};
//! use std::time::Duration;
//! let (store, token) = (MemoryStore::new(), Token::generate()?);
//! std::thread::scope(|scope| {
//!     for rank in 0..2 {
//!         let (store, token) = (&store, &token);
//!         scope.spawn(move || -> fleet_base::Result<()> {
//!             let limits = Limits::within(Duration::from_secs(30));
//!             let options = TcpOptions::new("job/0", rank, 2).interface("127.0.0.1");
//!             let fabric = TcpFabric::start(store, token, options, &limits)?;
//!             let mesh = fabric.open("world", &[0, 1])?;
//!             let mut word = *b"ping";
//!             let transfer = match rank {
//!                 0 => Transfer::Send { to: 1, data: &word },
//!                 _ => Transfer::Recv { from: 0, into: &mut word },
//!             };
//!             mesh.transfer(&mut [transfer], &limits)?;
//!             Ok(())
//!         });
//!     }
//! });
//! # Ok::<(), fleet_base::Error>(())
//! ```

mod accepted;
mod engine;

use crate::handshake::{Hello, Purpose, connect_and_handshake};
use crate::listener::Listener;
use crate::mesh::{check_members, check_transfers};
use crate::registry::{put_member, take_member};
use crate::socket::retry;
use crate::stream::Stream;
use crate::wire::{Reader, Writer};
use crate::{Fabric, Limits, Log, Member, Mesh, Store, Token, Transfer, host};
use accepted::{AcceptedConnections, MeshHello};
use engine::{Engine, Peer};
use fleet_base::{Error, ErrorCode, Result};
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// More streams between two ranks bring no gain.
pub const STREAMS_MAX: usize = 16;
/// Default of [`TcpOptions::spin`]: waking a thread takes about 50 us, the peer's turn a bit more.
const SPIN_TIME: Duration = Duration::from_micros(200);
/// A part of a second-level cache. Measured: 128 KB to 1 MB are equally fast, no limit is slower.
const TURN_BYTES: usize = 256 << 10;
/// Time limit for connecting to a rank that has published its address.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// How the ranks of a job are connected. Equal on all ranks, except for rank, port and interface.
#[derive(Clone, Debug)]
pub struct TcpOptions {
    /// Names the job and the attempt, and prefixes the keys in the store.
    pub job: String,
    /// Rank of this process in the job.
    pub rank: usize,
    /// Number of processes in the job.
    pub size: usize,
    /// Name or address of the interface to listen on. The default is the interface of the route to
    /// the store, or the loopback if the store is in this process.
    pub interface: Option<String>,
    /// Port to listen on. By default, or if the port is taken, the system chooses one.
    pub port: Option<u16>,
    /// Address of the store, for the choice of the interface.
    pub store: Option<SocketAddr>,
    /// Number of connections between two ranks.
    pub streams: usize,
    /// Whether every message carries a CRC-32 of its bytes.
    pub checksum: bool,
    /// Time that a waiting rank polls before it sleeps. It yields its core between polls.
    pub spin_time: Duration,
    /// Maximum bytes written to a stream before this rank reads again. Both directions then
    /// progress evenly, and data in flight stays in the caches.
    pub turn_bytes: usize,
    /// Time that a rank with a broken connection waits for its token to fire, because the token's
    /// reason tells more. Useful for processes with a [`crate::Membership`].
    pub notice_wait: Duration,
    /// Log for events that no call reports.
    pub log: Log,
}

impl TcpOptions {
    /// Returns the defaults for a rank of a job.
    pub fn new(job: &str, rank: usize, size: usize) -> TcpOptions {
        TcpOptions {
            job: job.to_string(),
            rank,
            size,
            interface: None,
            port: None,
            store: None,
            streams: 2,
            checksum: false,
            spin_time: SPIN_TIME,
            turn_bytes: TURN_BYTES,
            notice_wait: Duration::ZERO,
            log: Log::stderr(),
        }
    }

    /// Sets the interface to listen on, by name or address.
    pub fn interface(mut self, interface: &str) -> TcpOptions {
        self.interface = Some(interface.to_string());
        self
    }

    /// Sets the address of the store, on whose route ranks listen.
    pub fn store(mut self, address: SocketAddr) -> TcpOptions {
        self.store = Some(address);
        self
    }
}

/// The listener of one rank and the addresses of the others.
pub struct TcpFabric {
    shared: Arc<Shared>,
}

struct Shared {
    options: TcpOptions,
    token: Token,
    address: SocketAddr,
    /// By rank.
    members: Vec<(Member, SocketAddr)>,
    accepted: Arc<AcceptedConnections>,
    _listener: Listener,
}

impl TcpFabric {
    /// Listens, publishes the address, and waits until every rank has done so. The error after the
    /// deadline names the keys of the missing ranks.
    pub fn start(
        store: &dyn Store,
        token: &Token,
        options: TcpOptions,
        limits: &Limits,
    ) -> Result<TcpFabric> {
        check_options(&options)?;
        let ip = match (&options.interface, options.store) {
            (Some(interface), _) => host::address_of(interface)?,
            (None, Some(store)) => host::local_address_towards(store)?,
            (None, None) => std::net::Ipv4Addr::LOCALHOST.into(),
        };
        let listener = listen(ip, &options)?;
        let accepted = Arc::new(AcceptedConnections::new(&options));
        let listener =
            Listener::start(listener, token.clone(), options.log.clone(), accepted.clone())?;
        let address = listener.address();
        let (job, own) = (&options.job, host::own_member(options.rank));
        let value = put_member(Writer::new().text(&address.to_string()), &own).0;
        let place = |error: Error| error.at(format!("{own} waiting for the ranks of '{job}'"));
        let (prefix, own_value) = (format!("{job}/address/rank "), (options.rank, &*value));
        let values = store.exchange(&prefix, own_value, 0..options.size, limits).map_err(place)?;
        let members = values
            .iter()
            .enumerate()
            .map(|(rank, value)| decode_address(rank, value))
            .collect::<Result<Vec<_>>>()?;
        for (member, at) in &members {
            if at.ip().is_loopback() && member.host_id != own.host_id && member.host != own.host {
                return Err(Error::invalid(format!(
                    "{member} listens on {at}, which only its own machine can reach"
                ))
                .help(
                    "use an address of the store that other machines can reach, or set an \
                    interface",
                ));
            }
        }
        let shared = Shared {
            options,
            token: token.clone(),
            address,
            members,
            accepted,
            _listener: listener,
        };
        Ok(TcpFabric { shared: Arc::new(shared) })
    }

    /// The address on which this rank listens.
    pub fn address(&self) -> SocketAddr {
        self.shared.address
    }
}

/// Listens on the port of the options. Another program may have taken it since the launcher chose
/// it. A port from the system serves as well, unless a firewall blocks it.
fn listen(ip: std::net::IpAddr, options: &TcpOptions) -> Result<TcpListener> {
    let port = options.port.unwrap_or(0);
    let listener = TcpListener::bind((ip, port)).or_else(|error| {
        if port == 0 {
            return Err(error);
        }
        let listener = TcpListener::bind((ip, 0))?;
        let other = listener.local_addr()?.port();
        options.log.line(format!(
            "cannot listen on port {port} of {ip} ({error}): ranks connect to port {other} instead"
        ));
        Ok(listener)
    });
    listener.map_err(|error| {
        Error::unavailable(format!("cannot listen on {ip}: {error}"))
            .help("choose another interface")
    })
}

fn check_options(options: &TcpOptions) -> Result<()> {
    if options.rank >= options.size {
        return Err(Error::invalid("the rank is not in the job")
            .expected(format!("a rank below {}", options.size))
            .got(options.rank));
    }
    if options.streams == 0 || options.streams > STREAMS_MAX {
        return Err(Error::invalid("invalid number of streams")
            .expected(format!("1 to {STREAMS_MAX}"))
            .got(options.streams));
    }
    Ok(())
}

fn decode_address(rank: usize, value: &[u8]) -> Result<(Member, SocketAddr)> {
    let mut reader = Reader::new(value);
    let address = reader.text()?.parse();
    let member = take_member(&mut reader)?;
    reader.end()?;
    match address {
        Ok(address) if member.rank == rank => Ok((member, address)),
        _ => Err(Error::invalid(format!("no valid address of rank {rank} in the store"))
            .help("check that no other job uses the store under the same name")),
    }
}

impl Fabric for TcpFabric {
    fn rank(&self) -> usize {
        self.shared.options.rank
    }

    fn size(&self) -> usize {
        self.shared.options.size
    }

    fn open(&self, name: &str, members: &[usize]) -> Result<Arc<dyn Mesh>> {
        let rank = check_members(self.rank(), self.size(), members)?;
        accepted::check_name(name)?;
        let state = State { peers: members.iter().map(|_| None).collect(), broken: None };
        Ok(Arc::new(TcpMesh {
            name: name.to_string(),
            rank,
            members: members.to_vec(),
            shared: self.shared.clone(),
            state: Mutex::new(state),
        }))
    }

    fn member(&self, rank: usize) -> Member {
        self.shared.members[rank].0.clone()
    }
}

struct TcpMesh {
    name: String,
    /// Rank in the mesh.
    rank: usize,
    members: Vec<usize>,
    shared: Arc<Shared>,
    state: Mutex<State>,
}

struct State {
    /// Connections by rank in the mesh; made at the first transfer.
    peers: Vec<Option<Peer>>,
    broken: Option<Error>,
}

impl Mesh for TcpMesh {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.members.len()
    }

    fn transfer(&self, ops: &mut [Transfer<'_>], limits: &Limits) -> Result<()> {
        check_transfers(self.rank, self.members.len(), ops)?;
        let mut state = self.lock();
        if let Some(error) = &state.broken {
            return Err(error.clone());
        }
        limits.abort.check()?;
        let result = self.run(&mut state, ops, limits);
        if let Err(error) = &result {
            let broken = error.clone().at("an earlier transfer, which broke the mesh");
            state.broken = Some(broken);
            // Close the connections, so that the peers notice at once.
            state.peers.iter_mut().for_each(|peer| *peer = None);
        }
        result
    }

    fn member(&self, rank: usize) -> Member {
        self.shared.members[self.members[rank]].0.clone()
    }

    fn closed_peer(&self) -> Option<usize> {
        let state = self.lock();
        state.peers.iter().position(|peer| peer.as_ref().is_some_and(Peer::is_closed))
    }
}

impl TcpMesh {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned: PoisonError<_>| {
            // A sink panicked in the middle of a message.
            let mut state: MutexGuard<'_, State> = poisoned.into_inner();
            state.broken.get_or_insert(Error::internal("a fold panicked in an earlier transfer"));
            state
        })
    }

    fn run(&self, state: &mut State, ops: &mut [Transfer<'_>], limits: &Limits) -> Result<()> {
        for op in ops.iter() {
            if state.peers[op.peer()].is_none() {
                let peer = self.connect(op.peer(), limits)?;
                state.peers[op.peer()] = Some(peer);
            }
        }
        let options = &self.shared.options;
        let engine = Engine {
            checksum: options.checksum,
            spin_time: options.spin_time,
            turn_bytes: options.turn_bytes.max(1),
        };
        engine.run(&mut state.peers, ops, limits).map_err(|failure| match failure {
            engine::Failure::Limits(error) => error,
            engine::Failure::Timeout(waiting) => {
                let waiting: Vec<_> = waiting
                    .into_iter()
                    .map(|(rank, send, done, bytes)| (self.member(rank), send, done, bytes))
                    .collect();
                crate::mesh::timeout_error(&waiting)
            }
            engine::Failure::Peer(rank, error) => self.peer_error(rank, error, limits),
        })
    }

    /// The error of a broken connection, or the token's reason if the token fires soon.
    fn peer_error(&self, rank: usize, error: Error, limits: &Limits) -> Error {
        if error.kind() == fleet_base::ErrorKind::Unavailable
            && let Err(reason) = limits.abort.sleep(self.shared.options.notice_wait)
        {
            return reason;
        }
        let member = self.member(rank);
        let text = match error.code() {
            Some(ErrorCode::ConnectionClosed | ErrorCode::ConnectionLost) => {
                format!("{member} is lost: {error}")
            }
            _ => format!("{member}: {error}"),
        };
        let error = Error::new(error.kind(), text);
        match error.kind() {
            fleet_base::ErrorKind::Unavailable => error.caused_by(member.rank),
            _ => error,
        }
    }

    /// All streams to a peer. The higher rank connects, and the lower one waits for it.
    fn connect(&self, peer: usize, limits: &Limits) -> Result<Peer> {
        let shared = &self.shared;
        let (own, theirs) = (self.members[self.rank], self.members[peer]);
        let (member, address) = &shared.members[theirs];
        let streams = (0..shared.options.streams)
            .map(|stream| {
                let hello = MeshHello {
                    job: shared.options.job.clone(),
                    mesh: self.name.clone(),
                    from: own,
                    to: theirs,
                    stream,
                    streams: shared.options.streams,
                    checksum: shared.options.checksum,
                };
                if own < theirs {
                    let key = (self.name.clone(), theirs, stream);
                    return shared.accepted.take(&key, member, limits);
                }
                self.connect_stream(*address, &hello, limits).map_err(|error| {
                    let place = format!("{member}, mesh '{}'", self.name);
                    match limits.abort.sleep(shared.options.notice_wait) {
                        Err(reason) => reason,
                        Ok(()) => error.at(place),
                    }
                })
            })
            .collect::<Result<Vec<_>>>()?;
        Ok(Peer::new(streams))
    }

    fn connect_stream(
        &self,
        address: SocketAddr,
        hello: &MeshHello,
        limits: &Limits,
    ) -> Result<Stream> {
        let hello = Hello { purpose: Purpose::Mesh, body: hello.encode() };
        let limits = limits.at_most(CONNECT_TIMEOUT);
        retry(&limits, |limits| connect_and_handshake(address, &self.shared.token, &hello, limits))
            .map(|(stream, _)| stream)
    }
}
