//! Meshes in a simulated network. A run depends on the seed only, not on the machine.
//!
//! Every rank is a thread, but only one thread runs at a time, and the seed decides which one. Time
//! is a number that jumps to the next event. Bytes travel in segments that are delayed, reordered,
//! lost and resent, or duplicated. A layer like TCP turns them into a stream again. An algorithm
//! above it is exposed to every fault of a network: any timing, lost connections, ranks that die or
//! hang in the middle of a step, and delayed notices of such failures.
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
use schedule::{Death, Rank, World};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Behaviour of the network. The defaults model a bad day in a data centre.
#[derive(Clone, Debug)]
pub struct Options {
    /// Seed of all random choices.
    pub seed: u64,
    /// Host of each rank. The length of the list is the number of ranks.
    pub hosts: Vec<String>,
    /// Minimum and maximum delay of a segment.
    pub delay_min: Duration,
    /// Maximum delay of a segment.
    pub delay_max: Duration,
    /// Probability that a segment is lost. It is sent again after [`Options::resend_delay`].
    pub loss: f64,
    /// Time after which a lost segment is sent again.
    pub resend_delay: Duration,
    /// Probability that a segment is duplicated.
    pub duplication: f64,
    /// Maximum size of a segment.
    pub segment_bytes_max: usize,
    /// Capacity of a connection in bytes. Beyond it, the sender waits.
    pub pipe_bytes: usize,
    /// Longest delay from a death until the tokens of the other ranks fire.
    pub notice_death: Duration,
    /// Longest delay from the start of a hang until the tokens of the other ranks fire.
    pub notice_hang: Duration,
    /// Faults of processes and connections.
    pub faults: Vec<Fault>,
}

impl Options {
    /// Returns the defaults for `ranks` ranks on one host.
    pub fn new(ranks: usize, seed: u64) -> Options {
        Options {
            seed,
            hosts: vec!["host0".to_string(); ranks],
            delay_min: Duration::from_micros(10),
            delay_max: Duration::from_millis(2),
            loss: 0.02,
            resend_delay: Duration::from_millis(20),
            duplication: 0.02,
            segment_bytes_max: 1448,
            pipe_bytes: 64 << 10,
            notice_death: Duration::from_secs(5),
            notice_hang: Duration::from_secs(30),
            faults: Vec::new(),
        }
    }
}

/// A fault that hits a rank when it starts its transfer number `step` (from 0, over all meshes).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The process dies: a part of its pending sends goes out, and its connections are reset.
    Crash {
        /// The rank.
        rank: usize,
        /// Number of the transfer.
        step: u64,
    },
    /// The process is stopped or its host is cut off: connections stay open but carry nothing.
    Hang {
        /// The rank.
        rank: usize,
        /// Number of the transfer.
        step: u64,
    },
    /// Its connections with `peer` are lost, including bytes in flight. Both processes live.
    Cut {
        /// The rank.
        rank: usize,
        /// Number of the transfer.
        step: u64,
        /// The rank at the other end of the connections.
        peer: usize,
    },
}

/// Result of one rank.
#[derive(Debug)]
pub enum Outcome<T> {
    /// It returned.
    Ended(Result<T>),
    /// It died by a [`Fault::Crash`].
    Crashed,
    /// It hung by a [`Fault::Hang`].
    Hung,
}

/// Result of a simulated run.
#[derive(Debug)]
pub struct Report<T> {
    /// Results by rank.
    pub outcomes: Vec<Outcome<T>>,
    /// Simulated time at which each rank ended.
    pub ended: Vec<Time>,
    /// Number of transfers that each rank started; [`Fault::Crash`] counts in these.
    pub steps: Vec<u64>,
    /// Digest of all events. Equal seeds give equal digests.
    pub digest: u64,
}

/// Runs `work` on every rank and returns when all have ended. Panics in `work` propagate.
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
        world.start();
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
            world.finish(rank);
            Outcome::Ended(result)
        }
        Err(panic) => match panic.downcast::<Death>() {
            Ok(gone) if *gone == Death::Crashed => Outcome::Crashed,
            Ok(_) => Outcome::Hung,
            Err(panic) => {
                // A test failed: let the other ranks end before the panic propagates.
                world.finish(rank);
                resume_unwind(panic)
            }
        },
    };
    (outcome, time)
}

/// The fabric of one rank.
#[derive(Clone)]
pub struct SimFabric {
    rank: usize,
    world: Arc<World>,
    abort: Abort,
}

impl SimFabric {
    /// The token that fires when another rank fails. In a real job the heartbeats fire it.
    pub fn abort(&self) -> &Abort {
        &self.abort
    }

    /// Time on the clock of the simulation.
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
    /// Rank in the mesh.
    rank: usize,
    members: Vec<usize>,
    /// Index of the mesh in the world.
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
                .help("call the algorithm on the thread of the rank"));
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

/// The simulated clock. Reading it takes no lock of the world, so hooks of tokens may read it.
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
