//! Meshes in a simulated network: the same run for the same seed, whatever the machine does.
//!
//! Every rank is a thread, but only one of them runs at a time, and which one is drawn from the
//! seed; time is a number that jumps to the next event. Bytes travel in segments that are late, out
//! of order, lost and sent again, or come twice; a layer as in TCP makes a stream of them again.
//! Above it an algorithm meets all that a network may do to it: any timing, a lost connection, a
//! rank that dies in the middle of a step, one that falls silent, and the notice of it some time
//! later.
//!
//! ```
//! use fleet_net::sim::{self, Fault, Outcome};
//! use fleet_net::{Fabric, Transfer};
//! use std::time::Duration;
//!
//! let options = sim::Options {
//!     faults: vec![Fault::Crash { rank: 1, step: 0 }],
//!     ..sim::Options::new(2, 42)
//! };
//! let report = sim::run(&options, |fabric| {
//!     let mesh = fabric.open("world", &[0, 1])?;
//!     let mut into = [0];
//!     let limits = mesh.limits(Duration::from_secs(60), fabric.abort());
//!     let from = 1 - mesh.rank();
//!     mesh.transfer(&mut [Transfer::Recv { from, into: &mut into }], &limits)
//! });
//! assert!(matches!(report.outcomes[1], Outcome::Crashed));
//! let Outcome::Ended(Err(error)) = &report.outcomes[0] else { panic!() };
//! assert!(error.to_string().contains("rank 1"), "{error}");
//! ```

mod network;
mod schedule;

use crate::mesh::{check_members, check_transfers};
use crate::{Abort, Fabric, Limits, Member, Mesh, Time, Transfer};
use fleet_base::{Error, Result};
use schedule::{Gone, Rank, World};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// What the network does. The defaults are a bad day in a data centre.
#[derive(Clone, Debug)]
pub struct Options {
    pub seed: u64,
    /// The host of each rank; their number is the number of ranks.
    pub hosts: Vec<String>,
    /// A segment takes between these.
    pub delay_min: Duration,
    pub delay_max: Duration,
    /// The chance that a segment is lost, and sent again after [`Options::resend`].
    pub loss: f64,
    pub resend: Duration,
    /// The chance that a segment comes twice.
    pub duplication: f64,
    pub segment_bytes_max: usize,
    /// What a connection holds before its sender waits.
    pub pipe_bytes: usize,
    /// How long after a death the others' tokens fire, at the latest.
    pub notice_death: Duration,
    /// The same for silence.
    pub notice_silence: Duration,
    pub faults: Vec<Fault>,
}

impl Options {
    pub fn new(ranks: usize, seed: u64) -> Options {
        Options {
            seed,
            hosts: vec!["host0".to_string(); ranks],
            delay_min: Duration::from_micros(10),
            delay_max: Duration::from_millis(2),
            loss: 0.02,
            resend: Duration::from_millis(20),
            duplication: 0.02,
            segment_bytes_max: 1448,
            pipe_bytes: 64 << 10,
            notice_death: Duration::from_secs(5),
            notice_silence: Duration::from_secs(30),
            faults: Vec::new(),
        }
    }
}

/// What happens to a rank when it comes to its transfer number `step` (from 0, over all meshes).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The process dies: a part of what it was about to send is sent, its connections are reset.
    Crash { rank: usize, step: u64 },
    /// The process stops (SIGSTOP), or its host is cut off: connections stay, nothing comes.
    Silence { rank: usize, step: u64 },
    /// Its connections with `peer` are lost, with what was on the way; both processes live.
    Cut { rank: usize, step: u64, peer: usize },
}

/// How one rank ended.
#[derive(Debug)]
pub enum Outcome<T> {
    Ended(Result<T>),
    Crashed,
    Silent,
}

#[derive(Debug)]
pub struct Report<T> {
    /// By rank.
    pub outcomes: Vec<Outcome<T>>,
    /// What the clock showed when each rank ended.
    pub ended: Vec<Time>,
    /// How many transfers each rank began: what [`Fault::Crash`] counts.
    pub steps: Vec<u64>,
    /// A digest of every event, equal for equal seeds.
    pub digest: u64,
}

/// Runs `work` on every rank; ends when all have ended. A panic in `work` goes on to the caller.
pub fn run<T: Send>(options: &Options, work: impl Fn(&SimFabric) -> Result<T> + Sync) -> Report<T> {
    let world = Arc::new(World::new(options));
    let work = &work;
    let ends: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..options.hosts.len())
            .map(|rank| {
                let world = world.clone();
                scope.spawn(move || run_rank(world, rank, work))
            })
            .collect();
        world.begin();
        threads.into_iter().map(|thread| thread.join()).collect()
    });
    let mut report =
        Report { outcomes: vec![], ended: vec![], steps: world.steps(), digest: world.digest() };
    for end in ends {
        match end {
            Ok((outcome, time)) => {
                report.outcomes.push(outcome);
                report.ended.push(time);
            }
            Err(panic) => resume_unwind(panic),
        }
    }
    report
}

fn run_rank<T>(
    world: Arc<World>,
    rank: usize,
    work: &(impl Fn(&SimFabric) -> Result<T> + Sync),
) -> (Outcome<T>, Time) {
    world.await_turn(rank);
    let fabric = SimFabric { rank, world: world.clone(), abort: world.abort(rank) };
    let result = catch_unwind(AssertUnwindSafe(|| work(&fabric)));
    let time = world.now();
    let outcome = match result {
        Ok(result) => {
            world.end(rank);
            Outcome::Ended(result)
        }
        Err(panic) => match panic.downcast::<Gone>() {
            Ok(gone) if *gone == Gone::Crashed => Outcome::Crashed,
            Ok(_) => Outcome::Silent,
            Err(panic) => {
                // A test failed: let the others end before it is told.
                world.end(rank);
                resume_unwind(panic)
            }
        },
    };
    (outcome, time)
}

/// One rank's way into the network.
#[derive(Clone)]
pub struct SimFabric {
    rank: usize,
    world: Arc<World>,
    abort: Abort,
}

impl SimFabric {
    /// The token that the notice of another rank's death fires, as the heartbeats do in a real job.
    pub fn abort(&self) -> &Abort {
        &self.abort
    }

    pub fn now(&self) -> Time {
        self.world.now()
    }
}

impl Fabric for SimFabric {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.world.size()
    }

    fn open(&self, name: &str, members: &[usize]) -> Result<Arc<dyn Mesh>> {
        let rank = check_members(self.rank, self.size(), members)?;
        let mesh = self.world.open(name, members)?;
        Ok(Arc::new(SimMesh {
            rank,
            members: members.to_vec(),
            mesh,
            owner: Rank { rank: self.rank, thread: std::thread::current().id() },
            world: self.world.clone(),
        }))
    }

    fn member(&self, rank: usize) -> Member {
        self.world.member(rank)
    }
}

struct SimMesh {
    /// In the mesh.
    rank: usize,
    members: Vec<usize>,
    /// The world's number for it.
    mesh: usize,
    owner: Rank,
    world: Arc<World>,
}

impl Mesh for SimMesh {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.members.len()
    }

    fn transfer(&self, ops: &mut [Transfer<'_>], limits: &Limits) -> Result<()> {
        check_transfers(self.rank, self.members.len(), ops)?;
        if self.owner.thread != std::thread::current().id() {
            return Err(Error::unsupported("a simulated mesh is used by another thread")
                .help("in the simulator a rank is one thread; call the algorithm directly"));
        }
        self.world.transfer(self.owner.rank, self.mesh, &self.members, ops, limits)
    }

    fn member(&self, rank: usize) -> Member {
        self.world.member(self.members[rank])
    }

    fn now(&self) -> Time {
        self.world.now()
    }
}

/// The clock of the world; read without its lock, so that hooks of tokens may ask for the time.
#[derive(Default)]
struct Clock(AtomicU64);

impl Clock {
    fn now(&self) -> Time {
        Time::from_nanos(self.0.load(Ordering::SeqCst))
    }

    fn set(&self, time: Time) {
        self.0.store(time.nanos(), Ordering::SeqCst);
    }
}
