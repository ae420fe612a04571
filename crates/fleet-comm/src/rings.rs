//! The standard groups of a job, derived from its world: all ranks, the ranks of a host, one rank
//! of each host, and the rings that programs name by number.
//!
//! A group is one sequence of calls, so `nccl_comm_num` communicators are that many groups of the
//! same ranks. Gradient buckets use them in turn.
//!
//! ```
//! use fleet_comm::{GroupOptions, ReduceOp, Rings, World};
//! fn train(world: World) -> fleet_base::Result<()> {
//!     let rings = Rings::new(&world, &GroupOptions::default());
//!     let (all, host) = (rings.all()?, rings.host()?);
//!     assert_eq!((all.size(), host.size()), (4, 4));
//!     let leads = rings.leaders()?.is_some();
//!     assert_eq!(leads, world.rank() == 0);
//!     // Two communicators over all ranks, as rings 1 and 2; bucket `i` uses `parallel[i % 2]`.
//!     let parallel = rings.parallel(1, &[0, 1, 2, 3], 2)?;
//!     parallel[1].all_reduce("bucket 1", &mut [1.0f32], ReduceOp::Sum)?;
//!     assert_eq!(rings.ring(2, &[0, 1, 2, 3])?.name(), parallel[1].name());
//!     Ok(())
//! }
//! std::thread::scope(|scope| {
//!     for world in World::threads(4) {
//!         scope.spawn(|| train(world).expect("no rank fails"));
//!     }
//! });
//! ```

use crate::{Group, GroupOptions, World};
use fleet_base::sync::lock;
use fleet_base::{Error, Result};
use fleet_net::Member;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

/// Maximum number of concurrent communicators over the same ranks. More give no gain, and each
/// needs connections and buffers.
pub const PARALLEL_RINGS_MAX: usize = 64;

/// The groups of one rank, opened at their first use. A second request returns the same group. A
/// world must have one `Rings` only.
///
/// All ranks of a group must open it. The order among groups does not matter.
pub struct Rings {
    world: World,
    options: GroupOptions,
    opened: Mutex<BTreeMap<String, Group>>,
}

impl World {
    /// The ranks of the job by host; hosts are in the order of their first rank. Ranks in one list
    /// can share memory.
    ///
    /// ```
    /// assert_eq!(fleet_comm::World::threads(3)[2].hosts(), [[0, 1, 2]]);
    /// ```
    pub fn hosts(&self) -> Vec<Vec<usize>> {
        let members: Vec<Member> = (0..self.size()).map(|rank| self.member(rank)).collect();
        crate::open::by_host(&members)
    }
}

impl Rings {
    /// Returns the groups of a world. Each is opened with these options at its first use.
    pub fn new(world: &World, options: &GroupOptions) -> Rings {
        Rings { world: world.clone(), options: options.clone(), opened: Mutex::default() }
    }

    /// All ranks of the job.
    pub fn all(&self) -> Result<Group> {
        let all: Vec<usize> = (0..self.world.size()).collect();
        self.open("all", &all)
    }

    /// The ranks of this rank's host.
    pub fn host(&self) -> Result<Group> {
        let own = self.world.rank();
        let hosts = self.world.hosts();
        let found = hosts.iter().enumerate().find(|(_, ranks)| ranks.contains(&own));
        let (index, ranks) = found.ok_or_else(|| Error::internal("a rank belongs to no host"))?;
        self.open(&format!("host {index}"), ranks)
    }

    /// The first rank of each host, to communicate between hosts; `None` on other ranks.
    pub fn leaders(&self) -> Result<Option<Group>> {
        let leaders: Vec<usize> = self.world.hosts().iter().map(|ranks| ranks[0]).collect();
        match leaders.contains(&self.world.rank()) {
            true => self.open("leaders", &leaders).map(Some),
            false => Ok(None),
        }
    }

    /// The ring `id` of `members`: one group, however often it is requested.
    pub fn ring(&self, id: i64, members: &[usize]) -> Result<Group> {
        self.open(&format!("ring {id}"), members)
    }

    /// Rings `first`, `first + 1`, ... of the same members, for concurrent calls (`nccl_comm_num`).
    pub fn parallel(&self, first: i64, members: &[usize], count: usize) -> Result<Vec<Group>> {
        if count == 0 || count > PARALLEL_RINGS_MAX {
            return Err(Error::invalid("invalid number of parallel communicators")
                .expected(format!("1 to {PARALLEL_RINGS_MAX}"))
                .got(count));
        }
        (0..count).map(|index| self.ring(first + index as i64, members)).collect()
    }

    fn open(&self, name: &str, members: &[usize]) -> Result<Group> {
        // Hold the lock while the group opens: threads that request one ring must get one group.
        let mut opened = self.lock();
        if let Some(group) = opened.get(name) {
            if group.ranks() != members {
                return Err(Error::invalid(format!("'{name}' was opened with other members"))
                    .expected(format!("{:?}", group.ranks()))
                    .got(format!("{members:?}")));
            }
            return Ok(group.clone());
        }
        let group = self.world.group(&format!("{name} of the rings"), members, &self.options)?;
        opened.insert(name.to_string(), group.clone());
        Ok(group)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Group>> {
        // The map is consistent between calls, even if a thread panicked.
        lock(&self.opened)
    }
}
