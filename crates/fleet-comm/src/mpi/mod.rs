//! Jobs that `mpirun` has started: ranks find each other through MPI, data goes over MPI's network
//! (InfiniBand, Slingshot, whatever the library drives), and a group's collectives are the
//! library's own where it has them.
//!
//! What Fleet promises stays: every call is checked on all ranks before data moves, waits end with
//! a deadline, the fired token or word of a death, and the flight recorder writes. Heartbeats go to
//! a store that rank 0 hosts beside MPI. Ranks of one host share memory, as always, unless a group
//! is opened without. One promise is the library's: that a sum has the same bits on every rank. The
//! standard recommends that and does not demand it; `GroupOptions::native` off brings ours back.
//!
//! The library is found at run time: nothing of MPI is needed to build. Open MPI, MPICH, Intel MPI
//! and MVAPICH are known; others are refused.
//!
//! After an error in the middle of a transfer nobody in this process can use MPI any more, for MPI
//! has no way to take back the memory of what is under way; the process should end.
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
use crate::mesh::{Carried, Carrier};
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

/// How a process enters its MPI job; the same on all ranks but for paths.
#[derive(Clone, Debug)]
pub struct MpiOptions {
    /// The library, or the folder that it is in; by default the system's.
    pub library: Option<PathBuf>,
    /// The interface of rank 0 on which its store listens; by default its first one that other
    /// machines can reach, or the loopback where all ranks are on one machine.
    pub interface: Option<String>,
    /// How soon a death or silence is noticed.
    pub vigilance: Vigilance,
    /// How long ranks wait for each other at the beginning.
    pub timeout_open: Duration,
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

/// This process in a job of MPI. MPI begins once in a process and ends with this.
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

/// The group of the heartbeats, of which a job of MPI has one.
const HEARTBEATS: &str = "mpi";
/// Address and token of the store, as rank 0 tells them: both are short.
const GREETING_BYTES: usize = 256;
/// How long rank 0 keeps the store for ranks that have not said that they are done.
const END_SPAN: Duration = Duration::from_secs(30);

impl Mpi {
    /// Begins MPI and meets the other ranks.
    pub fn start(options: &MpiOptions) -> Result<Mpi> {
        let library = Arc::new(Library::start(options.library.as_deref())?);
        let place = format!("rank {} of {} in {}", library.rank, library.size, library.version);
        match Mpi::meet(&library, options) {
            Ok(job) => Ok(job),
            Err(error) => Err(error.at(place)),
        }
    }

    fn meet(library: &Arc<Library>, options: &MpiOptions) -> Result<Mpi> {
        let limits = Limits::within(options.timeout_open);
        let (rank, size) = (library.rank, library.size);
        let (server, address, token) = greet(library, options, &limits)?;
        let store: Arc<dyn Store> = Arc::new(StoreClient::connect(address, &token, &limits)?);
        let own = host::own_member(rank);
        let key = |rank: usize| format!("mpi/member/{rank}");
        store.set(&key(rank), encode(&own).as_bytes(), &limits)?;
        let keys: Vec<String> = (0..size).map(key).collect();
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        let said = store.wait(&keys, &limits)?;
        let members = said
            .iter()
            .enumerate()
            .map(|(rank, text)| decode(rank, &String::from_utf8_lossy(text)))
            .collect::<Result<Vec<_>>>()?;
        let abort = Abort::new();
        let told = abort.clone();
        let membership =
            Membership::join(address, &token, HEARTBEATS, own, &limits, move |notice| {
                told.fire(notice.error());
            })?;
        let fabric = Arc::new(MpiFabric {
            library: library.clone(),
            members: members.clone(),
            store: store.clone(),
            abort: abort.clone(),
            timeout_open: options.timeout_open,
        });
        let carrier = Arc::new(Opener(fabric.clone()));
        let world = World::new(fabric, store.clone(), abort.clone()).carried_by(carrier);
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

    pub fn rank(&self) -> usize {
        self.library.rank
    }

    pub fn size(&self) -> usize {
        self.library.size
    }

    /// What the library calls itself.
    pub fn version(&self) -> &str {
        &self.library.version
    }

    /// What groups are made from.
    pub fn world(&self) -> &World {
        &self.world
    }

    pub fn store(&self) -> Arc<dyn Store> {
        self.store.clone()
    }

    /// Fires when another rank is gone.
    pub fn abort(&self) -> &Abort {
        &self.abort
    }

    /// Who the process of a rank is.
    pub fn member(&self, rank: usize) -> &Member {
        &self.members[rank]
    }

    /// Tells the others that this rank ends, and how, before it does.
    pub fn report_end(&self, how: &str) {
        if let Some(membership) = &self.membership {
            membership.report_end(&self.members[self.rank()], how);
        }
    }

    /// Waits until all ranks have come here, and ends MPI. Groups that are still there fail from
    /// then on.
    pub fn finish(mut self) -> Result<()> {
        let limits = Limits::new(Deadline::within(END_SPAN), &self.abort);
        let key = |rank: usize| format!("mpi/done/{rank}");
        self.store.set(&key(self.rank()), b"", &limits)?;
        let keys: Vec<String> = (0..self.size()).map(key).collect();
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        self.store.wait(&keys, &limits)?;
        self.library.end();
        self.leave();
        Ok(())
    }

    /// Says goodbye; rank 0, which has the store, last.
    fn leave(&mut self) {
        self.ended = true;
        if let Some(membership) = self.membership.take() {
            membership.leave();
        }
        let limits = Limits::new(Deadline::within(END_SPAN), &self.abort);
        let key = |rank: usize| format!("mpi/left/{rank}");
        // Who does not hear of it in time finds the store gone, and has nothing left to ask of it.
        let _ = self.store.set(&key(self.rank()), b"", &limits);
        if self.server.is_some() {
            let keys: Vec<String> = (1..self.size()).map(key).collect();
            let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
            let _ = self.store.wait(&keys, &limits);
        }
    }
}

impl Drop for Mpi {
    /// Without [`Mpi::finish`] this is the end of a rank that failed: MPI is not ended, since that
    /// would wait for the others, and `mpirun` ends them.
    fn drop(&mut self) {
        if !self.ended
            && let Some(membership) = self.membership.take()
        {
            // No goodbye: the others learn of the end when the process ends.
            std::mem::forget(membership);
        }
    }
}

/// Opens meshes with the library's collectives.
struct Opener(Arc<MpiFabric>);

impl Carrier for Opener {
    fn open(&self, name: &str, members: &[usize], _: &Limits) -> Result<Carried> {
        let mesh = self.0.open_mesh(name, members)?;
        Ok((mesh.clone(), Box::new(native::Collectives(mesh))))
    }

    fn is_for_hosts(&self) -> bool {
        false
    }
}

/// Rank 0 starts the store and tells the others where it is.
fn greet(
    library: &Library,
    options: &MpiOptions,
    limits: &Limits,
) -> Result<(Option<StoreServer>, SocketAddr, Token)> {
    let mut greeting = vec![0u8; GREETING_BYTES];
    let mut server = None;
    if library.rank == 0 {
        let text = match host_store(options) {
            Ok((address, token, started)) => {
                server = Some(started);
                format!("{address} {}", token.to_text())
            }
            // The others wait for this greeting: they get the reason.
            Err(error) => format!("! {error}"),
        };
        let length = text.len().min(GREETING_BYTES);
        greeting[..length].copy_from_slice(&text.as_bytes()[..length]);
    }
    {
        let _guard = library.enter()?;
        let names = &library.names;
        let into = greeting.as_mut_ptr().cast();
        let bytes = GREETING_BYTES as std::ffi::c_int;
        // SAFETY: the room is as long as is said, on every rank, and stays until the request is
        // done.
        let request = library.request(|to| unsafe {
            (library.f.broadcast)(into, bytes, names.byte, 0, names.world, to)
        })?;
        if let Err(error) = library.finish(&mut [request], limits) {
            // MPI may still write there.
            std::mem::forget(greeting);
            return Err(error);
        }
    }
    let text = String::from_utf8_lossy(&greeting);
    let text = text.trim_end_matches('\0');
    if let Some(reason) = text.strip_prefix("! ") {
        return Err(Error::unavailable(format!("rank 0 cannot host the store: {reason}")));
    }
    let wrong = || Error::internal("rank 0 has told no address of the store").got(text);
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

/// The first address that other machines can reach; the loopback on a machine that has none.
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
        _ => Err(Error::internal(format!("rank {rank} has not said who it is")).got(text)),
    }
}
