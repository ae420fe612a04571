//! Jobs started by `mpirun`. Ranks find each other through MPI, and data goes over MPI's network
//! (InfiniBand, Slingshot or any other that the library supports). Groups use the library's own
//! collectives where it has them.
//!
//! Fleet's guarantees hold: every call is checked on all ranks before data moves. Waits end with a
//! deadline, the fired token or the notice of a death, and the flight recorder works. Heartbeats go
//! to a store that rank 0 hosts next to MPI. Ranks of one host share memory as usual, unless a
//! group is opened without it. One guarantee depends on the library: that a sum has the same bits
//! on every rank. The standard recommends but does not require it. Turning `GroupOptions::native`
//! off restores it.
//!
//! The library is loaded at run time, so building needs nothing of MPI. Open MPI, MPICH, Intel MPI
//! and MVAPICH are supported; other libraries are rejected.
//!
//! After an error in the middle of a transfer, MPI cannot be used in this process, because MPI
//! cannot release the memory of requests in flight. The process should exit.
//!
//! ```no_run
//! use fleet_comm::{GroupOptions, Mpi, MpiOptions, ReduceOp};
//! // mpirun -n 4 program
//! let job = Mpi::start(&MpiOptions::default())?;
//! let all: Vec<usize> = (0..job.size()).collect();
//! let group = job.world().group("world", &all, &GroupOptions::default())?;
//! let mut gradient = vec![1.0f32; 1 << 20];
//! group.all_reduce("fc.w@GRAD", &mut gradient, ReduceOp::Avg)?;
//! job.finish()?;
//! # Ok::<(), fleet_base::Error>(())
//! ```

mod library;
mod mesh;
mod native;

use crate::World;
use crate::mesh::{LibraryMesh, MeshLibrary};
use fleet_base::{Error, Result};
use fleet_net::{
    Abort, Deadline, Limits, Log, Member, Membership, Store, StoreClient, StoreServer, Token,
    Vigilance, host,
};
use library::Library;
use mesh::MpiFabric;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// How a process joins its MPI job. All ranks must use equal options, except for paths.
#[derive(Clone, Debug)]
pub struct MpiOptions {
    /// The library or its folder; by default the system's.
    pub library: Option<PathBuf>,
    /// Interface of rank 0 on which its store listens. The default is its first one that other
    /// machines can reach, or the loopback if there is none.
    pub interface: Option<String>,
    /// Time limits of failure detection.
    pub vigilance: Vigilance,
    /// Time that ranks wait for each other at the start.
    pub timeout_open: Duration,
    /// Log for events that no call reports.
    pub log: Log,
}

impl Default for MpiOptions {
    fn default() -> MpiOptions {
        MpiOptions {
            library: None,
            interface: None,
            vigilance: Vigilance::default(),
            timeout_open: Duration::from_secs(10 * 60),
            log: Log::stderr(),
        }
    }
}

/// This process in an MPI job. A process can start MPI once only; it ends with this value.
pub struct Mpi {
    library: Arc<Library>,
    /// By rank.
    members: Vec<Member>,
    world: World,
    store: Arc<dyn Store>,
    abort: Abort,
    membership: Option<Membership>,
    server: Option<StoreServer>,
    ended: bool,
}

/// Name of the heartbeat group. An MPI job has one.
const HEARTBEATS: &str = "mpi";
/// Size of the message with the store's address and token, which are both short.
const STORE_MESSAGE_BYTES: usize = 256;
/// Time that rank 0 keeps the store open for ranks that have not finished.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(30);

impl Mpi {
    /// Initialises MPI and waits for the other ranks.
    pub fn start(options: &MpiOptions) -> Result<Mpi> {
        let library = Arc::new(Library::start(options.library.as_deref())?);
        let place = format!("rank {} of {} in {}", library.rank, library.size, library.version);
        match Mpi::join(&library, options) {
            Ok(job) => Ok(job),
            Err(error) => Err(error.at(place)),
        }
    }

    fn join(library: &Arc<Library>, options: &MpiOptions) -> Result<Mpi> {
        let limits = Limits::within(options.timeout_open);
        let (rank, size) = (library.rank, library.size);
        let (server, address, token) = share_store(library, options, &limits)?;
        let store: Arc<dyn Store> = Arc::new(StoreClient::connect(address, &token, &limits)?);
        let own = host::own_member(rank);
        let description = encode(&own);
        let own_value = (rank, description.as_bytes());
        let descriptions = store.exchange("mpi/member/", own_value, 0..size, &limits)?;
        let members = descriptions
            .iter()
            .enumerate()
            .map(|(rank, text)| decode(rank, &String::from_utf8_lossy(text)))
            .collect::<Result<Vec<_>>>()?;
        let abort = Abort::new();
        let fired = abort.clone();
        let membership =
            Membership::join(address, &token, HEARTBEATS, own, &limits, move |notice| {
                fired.fire(notice.error());
            })?;
        let fabric = Arc::new(MpiFabric {
            library: library.clone(),
            members: members.clone(),
            store: store.clone(),
            abort: abort.clone(),
            timeout_open: options.timeout_open,
        });
        let carrier = Arc::new(Opener(fabric.clone()));
        let world = World::new(fabric, store.clone(), abort.clone()).with_carrier(carrier);
        Ok(Mpi {
            library: library.clone(),
            members,
            world,
            store,
            abort,
            membership: Some(membership),
            server,
            ended: false,
        })
    }

    /// Rank of this process in the job.
    pub fn rank(&self) -> usize {
        self.library.rank
    }

    /// Number of processes in the job.
    pub fn size(&self) -> usize {
        self.library.size
    }

    /// Name and version of the library, as it reports them.
    pub fn version(&self) -> &str {
        &self.library.version
    }

    /// The world to make groups from.
    pub fn world(&self) -> &World {
        &self.world
    }

    /// The store that rank 0 hosts next to MPI.
    pub fn store(&self) -> Arc<dyn Store> {
        self.store.clone()
    }

    /// The token that fires when another rank fails.
    pub fn abort(&self) -> &Abort {
        &self.abort
    }

    /// The process of a rank.
    pub fn member(&self, rank: usize) -> &Member {
        &self.members[rank]
    }

    /// Reports to the other ranks that this rank is about to end, and how.
    pub fn report_end(&self, how: &str) {
        if let Some(membership) = &self.membership {
            membership.report_end(&self.members[self.rank()], how);
        }
    }

    /// Waits until all ranks have called this, and finalises MPI. Groups fail afterwards.
    pub fn finish(mut self) -> Result<()> {
        let limits = Limits::new(Deadline::within(SHUTDOWN_TIMEOUT), &self.abort);
        self.store.exchange("mpi/done/", (self.rank(), b""), 0..self.size(), &limits)?;
        self.library.finalize();
        self.leave();
        Ok(())
    }

    /// Leaves the job. Rank 0, which hosts the store, leaves last.
    fn leave(&mut self) {
        self.ended = true;
        if let Some(membership) = self.membership.take() {
            membership.leave();
        }
        let limits = Limits::new(Deadline::within(SHUTDOWN_TIMEOUT), &self.abort);
        let (prefix, own) = ("mpi/left/", self.rank());
        // A failure means that the store has already ended, so nothing depends on it.
        let _ = match self.server.is_some() {
            true => self.store.exchange(prefix, (own, b""), 0..self.size(), &limits).map(drop),
            false => self.store.set(&format!("{prefix}{own}"), b"", &limits),
        };
    }
}

impl Drop for Mpi {
    /// Without [`Mpi::finish`] the rank has failed. MPI is not finalised, because that would wait
    /// for the other ranks, and `mpirun` ends them.
    fn drop(&mut self) {
        if !self.ended
            && let Some(membership) = self.membership.take()
        {
            // Do not leave: the others are notified of a failure when the process ends.
            std::mem::forget(membership);
        }
    }
}

/// Opens meshes with the library's collectives.
struct Opener(Arc<MpiFabric>);

impl MeshLibrary for Opener {
    fn open(&self, name: &str, members: &[usize], _: &Limits) -> Result<LibraryMesh> {
        let mesh = self.0.open_mesh(name, members)?;
        Ok((mesh.clone(), Box::new(native::Collectives(mesh))))
    }

    fn replaces_shared_memory(&self) -> bool {
        false
    }
}

/// Starts the store on rank 0 and sends its address to the other ranks.
fn share_store(
    library: &Library,
    options: &MpiOptions,
    limits: &Limits,
) -> Result<(Option<StoreServer>, SocketAddr, Token)> {
    let mut message = vec![0u8; STORE_MESSAGE_BYTES];
    let mut server = None;
    if library.rank == 0 {
        let text = match host_store(options) {
            Ok((address, token, started)) => {
                server = Some(started);
                format!("{address} {}", token.to_text())
            }
            // The other ranks wait for this message, so it carries the reason of the failure.
            Err(error) => format!("! {error}"),
        };
        let length = text.len().min(STORE_MESSAGE_BYTES);
        message[..length].copy_from_slice(&text.as_bytes()[..length]);
    }
    {
        let _guard = library.enter()?;
        let names = &library.handles;
        let into = message.as_mut_ptr().cast();
        let bytes = STORE_MESSAGE_BYTES as std::ffi::c_int;
        // SAFETY: the buffer has this length on every rank and lives until the request is done.
        let request = library.request(|to| unsafe {
            (library.f.broadcast)(into, bytes, names.byte, 0, names.world, to)
        })?;
        if let Err(error) = library.finish(&mut [request], limits) {
            // MPI may still write to the buffer.
            std::mem::forget(message);
            return Err(error);
        }
    }
    let text = String::from_utf8_lossy(&message);
    let text = text.trim_end_matches('\0');
    if let Some(reason) = text.strip_prefix("! ") {
        return Err(Error::unavailable(format!("rank 0 cannot host the store: {reason}")));
    }
    let wrong = || Error::internal("invalid store address from rank 0").got(text);
    let (address, token) = text.split_once(' ').ok_or_else(wrong)?;
    Ok((server, address.parse().map_err(|_| wrong())?, Token::from_text(token)?))
}

fn host_store(options: &MpiOptions) -> Result<(SocketAddr, Token, StoreServer)> {
    let ip = match &options.interface {
        Some(interface) => host::address_of(interface)?,
        None => reachable()?,
    };
    let token = Token::generate()?;
    let server = StoreServer::bind((ip, 0), &token, options.vigilance, options.log.clone())?;
    Ok((server.address(), token, server))
}

/// The first address that other machines can reach; the loopback if there is none.
fn reachable() -> Result<IpAddr> {
    let all = host::interfaces()?;
    let found = all.iter().map(|(_, ip)| *ip).find(|ip| ip.is_ipv4() && !ip.is_loopback());
    Ok(found.unwrap_or(Ipv4Addr::LOCALHOST.into()))
}

fn encode(member: &Member) -> String {
    format!("{}\n{}\n{}", member.pid, member.host, member.host_id)
}

fn decode(rank: usize, text: &str) -> Result<Member> {
    let mut parts = text.splitn(3, '\n');
    let mut part = || parts.next().map(str::to_string);
    match (part().and_then(|pid| pid.parse().ok()), part(), part()) {
        (Some(pid), Some(host), Some(host_id)) => Ok(Member { rank, host, host_id, pid }),
        _ => Err(Error::internal(format!("invalid member description of rank {rank}")).got(text)),
    }
}
