//! From what a process knows of its job to its groups.

use crate::Group;
use crate::backend::{Backend, SharedMemory, Solo};
use crate::recorder::Recorder;
use crate::shm::{self, Local, Tuning};
use fleet_base::{Error, Result};
use fleet_net::{Abort, Deadline, Fabric, Limits, Member, MemoryStore, Store};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// This process in its job: what groups are made from.
#[derive(Clone)]
pub struct World {
    fabric: Arc<dyn Fabric>,
    store: Arc<dyn Store>,
    abort: Abort,
    recorder: Recorder,
}

/// What may be chosen for a group; the same on all its ranks.
#[derive(Clone, Debug)]
pub struct GroupOptions {
    /// A collective that takes longer is an error.
    pub timeout: Duration,
    /// How long to wait for all ranks when the group is made.
    pub timeout_open: Duration,
    /// A peer that is stopped for longer than this is an error.
    pub silence: Duration,
    /// Whether ranks of a host share memory.
    pub shared_memory: bool,
    /// How long a wait polls before it sleeps. Without it: a moment where every rank of the host has a
    /// core, not at all where they outnumber the cores.
    pub spin: Option<Duration>,
    /// Bytes of a chunk in shared memory.
    pub slot_bytes: Option<usize>,
    /// All-reduces up to this many bytes go in one step in shared memory.
    pub small_bytes_max: Option<usize>,
}

impl Default for GroupOptions {
    fn default() -> Self {
        GroupOptions {
            // As other systems: longer than any evaluation or checkpoint of one rank takes.
            timeout: Duration::from_secs(30 * 60),
            timeout_open: Duration::from_secs(10 * 60),
            silence: Duration::from_secs(30),
            shared_memory: true,
            spin: None,
            slot_bytes: None,
            small_bytes_max: None,
        }
    }
}

impl World {
    /// `abort` ends everything that waits; heartbeats fire it when a peer is gone.
    pub fn new(fabric: Arc<dyn Fabric>, store: Arc<dyn Store>, abort: Abort) -> World {
        World { fabric, store, abort, recorder: Recorder::new(None) }
    }

    /// Ranks that are threads of this process, each with its world.
    pub fn threads(ranks: usize) -> Vec<World> {
        let store = MemoryStore::new();
        fleet_net::memory::fabrics(ranks)
            .into_iter()
            .map(|fabric| World::new(Arc::new(fabric), Arc::new(store.clone()), Abort::new()))
            .collect()
    }

    /// Where the flight recorder is written when a collective fails: a path of this rank alone.
    pub fn record_to(mut self, path: PathBuf) -> World {
        self.recorder = Recorder::new(Some(path));
        self
    }

    pub fn rank(&self) -> usize {
        self.fabric.rank()
    }

    pub fn size(&self) -> usize {
        self.fabric.size()
    }

    pub fn recorder(&self) -> &Recorder {
        &self.recorder
    }

    /// The group `name` of `members` (ranks of the job; the position in the list is the rank in the
    /// group). Every member makes it with the same arguments; a name is used once in a job.
    pub fn group(&self, name: &str, members: &[usize], options: &GroupOptions) -> Result<Group> {
        let rank = fleet_net::mesh::check_members(self.rank(), self.size(), members)
            .map_err(|error| error.at(format!("group '{name}'")))?;
        let people: Vec<Member> =
            members.iter().map(|member| self.fabric.member(*member)).collect();
        let abort = self.abort.child();
        let limits = Limits::new(Deadline::within(options.timeout_open), &abort);
        let open = Open { world: self, name, rank, members: people, options, abort, limits };
        let backend = open.backend().map_err(|error| {
            error.at(format!("opening group '{name}', rank {rank} of {}", members.len()))
        })?;
        let Open { members: people, abort, .. } = open;
        Ok(Group::new(self.clone(), name, rank, members, people, backend, abort, options.clone()))
    }
}

/// A group that is being opened.
struct Open<'a> {
    world: &'a World,
    name: &'a str,
    rank: usize,
    members: Vec<Member>,
    options: &'a GroupOptions,
    abort: Abort,
    limits: Limits,
}

impl Open<'_> {
    fn backend(&self) -> Result<Box<dyn Backend>> {
        if self.members.len() == 1 {
            return Ok(Box::new(Solo));
        }
        let own = &self.members[self.rank];
        let together = self.members.iter().all(|member| member.host_id == own.host_id);
        if together && self.options.shared_memory && self.members.len() <= shm::LOCAL_RANKS_MAX {
            let local = Local {
                name: self.name.to_string(),
                members: self.members.clone(),
                rank: self.rank,
            };
            let engine = shm::join(
                local,
                self.slot_bytes(),
                self.tuning(),
                &*self.world.store,
                &self.limits,
                &self.abort,
            )?;
            if let Some(engine) = engine {
                return Ok(Box::new(SharedMemory(engine)));
            }
        }
        Err(Error::unsupported("groups across hosts"))
    }

    fn slot_bytes(&self) -> usize {
        const SLOT_BYTES: usize = 128 << 10;
        self.options
            .slot_bytes
            .unwrap_or(SLOT_BYTES)
            .clamp(64 << 10, 64 << 20)
            .next_multiple_of(4096)
    }

    fn tuning(&self) -> Tuning {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let crowded = self.members.len() > cores;
        let spin = match crowded {
            true => Duration::ZERO,
            false => Duration::from_micros(50),
        };
        Tuning {
            spin: self.options.spin.unwrap_or(spin),
            yields: if crowded { 8 } else { 0 },
            small_bytes_max: self
                .options
                .small_bytes_max
                .unwrap_or(16 << 10)
                .min(self.slot_bytes()),
            silence: self.options.silence,
        }
    }
}

impl World {
    pub(crate) fn recorder_handle(&self) -> Recorder {
        self.recorder.clone()
    }
}
