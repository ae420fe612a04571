//! The world: this process in its job, from which it makes groups.

use crate::Group;
use crate::backend::{Backend, SharedMemory, SingleRank};
use crate::mesh::choose::Algorithm;
use crate::mesh::{Hierarchical, MeshLibrary, OverMesh};
use crate::recorder::Recorder;
use crate::shm::{self, Local, Tuning};
use crate::watch::{TrainingThread, Watch};
use fleet_base::sync::lock;
use fleet_base::{Error, Result};
use fleet_net::{Abort, Deadline, Fabric, Limits, Member, MemoryStore, Store};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

/// This process in its job. Groups are made from it.
#[derive(Clone)]
pub struct World {
    fabric: Arc<dyn Fabric>,
    store: Arc<dyn Store>,
    abort: Abort,
    recorder: Recorder,
    /// Names of groups, none of which may be used twice.
    names: Arc<Mutex<BTreeSet<String>>>,
    /// Opens meshes of a library that has collectives.
    carrier: Option<Arc<dyn MeshLibrary>>,
    /// Lives as long as a group exists.
    watch: Arc<Mutex<Weak<Watch>>>,
    on_fault: Option<OnFault>,
    training_thread: Arc<TrainingThread>,
}

/// Callback for the error that ends a group.
type OnFault = Arc<dyn Fn(&Error) + Send + Sync>;

/// Options of a group; equal on all its ranks.
#[derive(Clone, Debug)]
pub struct GroupOptions {
    /// Timeout of a collective.
    pub timeout: Duration,
    /// Timeout for all ranks to open the group.
    pub timeout_open: Duration,
    /// Time after which a stopped peer is an error.
    pub silence: Duration,
    /// Time after which ranks that wait for each other in different groups are an error, if their
    /// processes are idle. Busy processes get five times as long. Zero disables the check.
    pub deadlock_timeout: Duration,
    /// Whether training steps make the calls of the group: see [`World::makes_step`].
    pub in_steps: bool,
    /// Whether ranks of a host share memory.
    pub shared_memory: bool,
    /// Time that a wait polls before it sleeps. It sleeps sooner if other threads need its core.
    pub spin_time: Option<Duration>,
    /// Size of a chunk in shared memory, in bytes.
    pub slot_bytes: Option<usize>,
    /// Size limit in bytes of an all-reduce that takes one step in shared memory.
    pub small_bytes_max: Option<usize>,
    /// Algorithm of an all-reduce across hosts, for experiments.
    pub algorithm: Algorithm,
    pub hierarchy: Hierarchy,
    /// Whether to use the collectives of a library that provides the mesh (MPI, NCCL).
    pub native: bool,
}

/// Whether an all-reduce uses two levels (`use_hierarchical_allreduce`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Hierarchy {
    /// If there are several hosts, and several ranks of the group share one.
    #[default]
    Auto,
    Never,
    /// Always, with this number of consecutive ranks in a lower group
    /// (`hierarchical_allreduce_inter_nranks`).
    Ranks(usize),
}

impl Default for GroupOptions {
    fn default() -> Self {
        GroupOptions {
            // As in other systems: longer than an evaluation or a checkpoint of one rank.
            timeout: Duration::from_secs(30 * 60),
            timeout_open: Duration::from_secs(10 * 60),
            silence: Duration::from_secs(30),
            deadlock_timeout: Duration::from_secs(60),
            in_steps: false,
            shared_memory: true,
            spin_time: None,
            slot_bytes: None,
            small_bytes_max: None,
            algorithm: Algorithm::Auto,
            hierarchy: Hierarchy::Auto,
            native: true,
        }
    }
}

impl World {
    /// Makes a world. `abort` ends all waits; the heartbeats fire it when a peer fails.
    pub fn new(fabric: Arc<dyn Fabric>, store: Arc<dyn Store>, abort: Abort) -> World {
        let (recorder, watch) = (Recorder::new(None), Arc::default());
        let (names, carrier, on_fault) = (Arc::default(), None, None);
        let training_thread = Arc::<TrainingThread>::default();
        training_thread.record(false);
        World { fabric, store, abort, recorder, names, carrier, watch, on_fault, training_thread }
    }

    /// Calls `on_fault` with the error of every call that ends a group on this rank.
    ///
    /// ```
    /// # use fleet_comm::World;
    /// # use std::sync::{Arc, Mutex};
    /// let seen = Arc::new(Mutex::new(Vec::new()));
    /// let told = seen.clone();
    /// let world = World::threads(1).remove(0);
    /// let world = world.on_fault(move |error| told.lock().unwrap().push(error.to_string()));
    /// let group = world.group("all", &[0], &Default::default())?;
    /// assert!(group.broadcast("weights", &mut [0.0f32], 7).is_err());
    /// assert!(seen.lock().unwrap()[0].starts_with("no such rank in the group"));
    /// # Ok::<(), fleet_base::Error>(())
    /// ```
    pub fn on_fault(mut self, on_fault: impl Fn(&Error) + Send + Sync + 'static) -> World {
        self.on_fault = Some(Arc::new(on_fault));
        self
    }

    /// Records that the calling thread makes a training step, which calls groups with
    /// [`GroupOptions::in_steps`]. Deadlocks among calls of a single training thread are detected
    /// within seconds; others take [`GroupOptions::deadlock_timeout`].
    pub fn makes_step(&self) {
        self.training_thread.record(true);
    }

    pub(crate) fn report_fault(&self, error: &Error) {
        if let Some(on_fault) = &self.on_fault {
            on_fault(error);
        }
    }

    /// Uses meshes of a library that has collectives.
    #[cfg(any(all(feature = "mpi", unix), all(feature = "nccl", target_os = "linux")))]
    pub(crate) fn with_carrier(mut self, carrier: Arc<dyn MeshLibrary>) -> World {
        self.carrier = Some(carrier);
        self
    }

    /// Uses NCCL's collectives for groups, on one GPU of this process: see [`crate::NcclOptions`].
    #[cfg(all(feature = "nccl", target_os = "linux"))]
    pub fn with_nccl(self, options: &crate::NcclOptions) -> Result<World> {
        let (fabric, store) = (self.fabric.clone(), self.store.clone());
        let opener = crate::nccl::Opener::start(options, fabric, store)?;
        Ok(self.with_carrier(Arc::new(opener)))
    }

    /// Makes a job whose ranks are threads of this process, and returns their worlds.
    pub fn threads(ranks: usize) -> Vec<World> {
        let store = MemoryStore::new();
        fleet_net::memory::fabrics(ranks)
            .into_iter()
            .map(|fabric| World::new(Arc::new(fabric), Arc::new(store.clone()), Abort::new()))
            .collect()
    }

    /// Sets the file to which the flight recorder writes after a failure, a different one per rank.
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

    /// The store of the job's rendezvous.
    pub fn store(&self) -> Arc<dyn Store> {
        self.store.clone()
    }

    /// The token that fires when another rank fails.
    pub fn abort(&self) -> &Abort {
        &self.abort
    }

    pub fn recorder(&self) -> &Recorder {
        &self.recorder
    }

    /// Makes the group `name` of `members`. These are ranks in the job; the position in the list is
    /// the rank in the group. Every member must call it with the same arguments. A name is used for
    /// one group only.
    pub fn group(&self, name: &str, members: &[usize], options: &GroupOptions) -> Result<Group> {
        let rank = fleet_net::mesh::check_members(self.rank(), self.size(), members)
            .map_err(|error| error.at(format!("group '{name}'")))?;
        // A second group would use the first one's entries in the store and wait forever.
        if !lock(&self.names).insert(name.to_string()) {
            return Err(Error::invalid(format!("duplicate group name '{name}'"))
                .help("keep and reuse the group that was opened first"));
        }
        let processes: Vec<Member> =
            members.iter().map(|member| self.fabric.member(*member)).collect();
        let abort = self.abort.child();
        let limits = Limits::new(Deadline::within(options.timeout_open), &abort);
        let open =
            GroupBuilder { world: self, name, rank, members: processes, options, abort, limits };
        let backend = open.backend().map_err(|error| {
            error.at(format!("opening group '{name}', rank {rank} of {}", members.len()))
        })?;
        let GroupBuilder { members: processes, abort, .. } = open;
        let watch = match members.len() > 1 && !options.deadlock_timeout.is_zero() {
            true => Some(self.watch(options.deadlock_timeout)?),
            false => None,
        };
        let (world, options) = (self.clone(), options.clone());
        Ok(Group::new(world, name, rank, members, processes, backend, abort, options, watch))
    }

    fn watch(&self, span: Duration) -> Result<Arc<Watch>> {
        // No code panics under this lock.
        let mut watch = lock(&self.watch);
        if let Some(running) = watch.upgrade() {
            return Ok(running);
        }
        let (fabric, trainer) = (self.fabric.clone(), self.training_thread.clone());
        let ranks = (self.rank(), self.size());
        let started = Watch::start(ranks, trainer, self.store.clone(), span, move |rank| {
            fabric.member(rank)
        })?;
        let started = Arc::new(started);
        *watch = Arc::downgrade(&started);
        Ok(started)
    }
}

/// A group that is being opened.
struct GroupBuilder<'a> {
    world: &'a World,
    name: &'a str,
    rank: usize,
    members: Vec<Member>,
    options: &'a GroupOptions,
    abort: Abort,
    limits: Limits,
}

impl GroupBuilder<'_> {
    fn backend(&self) -> Result<Box<dyn Backend>> {
        let all: Vec<usize> = (0..self.members.len()).collect();
        if let Hierarchy::Ranks(count) = self.options.hierarchy {
            let count = count.clamp(1, all.len());
            return self.hierarchical(all.chunks(count).map(<[usize]>::to_vec).collect());
        }
        let hosts = by_host(&self.members);
        match hosts.len() {
            1 => self.flat(self.name, &all),
            // A library's own collectives take hosts into account.
            count
                if count == all.len()
                    || self.options.hierarchy == Hierarchy::Never
                    || self.carrier().is_some() =>
            {
                self.mesh(self.name, &all).map(|mesh| Box::new(mesh) as Box<dyn Backend>)
            }
            _ => self.hierarchical(hosts),
        }
    }

    /// One level: shared memory if all ranks share it, otherwise the mesh.
    fn flat(&self, name: &str, ranks: &[usize]) -> Result<Box<dyn Backend>> {
        if ranks.len() == 1 {
            return Ok(Box::new(SingleRank));
        }
        let members: Vec<Member> = ranks.iter().map(|rank| self.members[*rank].clone()).collect();
        let together = members.iter().all(|member| member.host_id == members[0].host_id)
            && !self.carrier().is_some_and(MeshLibrary::replaces_shared_memory);
        if together && self.options.shared_memory && members.len() <= shm::LOCAL_RANKS_MAX {
            let rank = ranks.iter().position(|rank| *rank == self.rank).unwrap_or(0);
            let (slot_bytes, tuning) = (self.slot_bytes(), self.tuning(members.len()));
            let local = Local { name: name.to_string(), members, rank };
            let store = &*self.world.store;
            let engine = shm::join(local, slot_bytes, tuning, store, &self.limits, &self.abort)?;
            if let Some(engine) = engine {
                return Ok(Box::new(SharedMemory(engine)));
            }
        }
        self.mesh(name, ranks).map(|mesh| Box::new(mesh) as Box<dyn Backend>)
    }

    fn mesh(&self, name: &str, ranks: &[usize]) -> Result<OverMesh> {
        let members: Vec<usize> = ranks.iter().map(|rank| self.members[*rank].rank).collect();
        let (mesh, native) = match self.carrier() {
            Some(carrier) => {
                carrier.open(name, &members, &self.limits).map(|(mesh, own)| (mesh, Some(own)))?
            }
            None => (self.world.fabric.open(name, &members)?, None),
        };
        Ok(OverMesh::new(name, mesh, self.options.algorithm, native))
    }

    fn carrier(&self) -> Option<&dyn MeshLibrary> {
        self.world.carrier.as_deref().filter(|_| self.options.native)
    }

    fn hierarchical(&self, lowers: Vec<Vec<usize>>) -> Result<Box<dyn Backend>> {
        let all: Vec<usize> = (0..self.members.len()).collect();
        let name = self.name;
        let Some((index, own)) =
            lowers.iter().enumerate().find(|(_, ranks)| ranks.contains(&self.rank))
        else {
            return Err(Error::internal("a rank belongs to no lower group"));
        };
        let leaders: Vec<usize> = lowers.iter().map(|ranks| ranks[0]).collect();
        if leaders.len() == 1 {
            return self.flat(name, &all);
        }
        let whole = self.mesh(name, &all)?;
        let lower = self.flat(&format!("{name}/lower.{index}"), own)?;
        let leaders = match own[0] == self.rank {
            true => Some(self.mesh(&format!("{name}/leaders"), &leaders)?),
            false => None,
        };
        Ok(Box::new(Hierarchical { whole, lower, leaders, size: all.len() }))
    }

    fn slot_bytes(&self) -> usize {
        const SLOT_BYTES: usize = 128 << 10;
        self.options
            .slot_bytes
            .unwrap_or(SLOT_BYTES)
            .clamp(64 << 10, 64 << 20)
            .next_multiple_of(4096)
    }

    fn tuning(&self, ranks: usize) -> Tuning {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let crowded = ranks > cores;
        // Longer than the usual skew of ranks. Polling uses only time that no other thread needs.
        const POLL: Duration = Duration::from_millis(2);
        Tuning {
            poll_time: self.options.spin_time.unwrap_or(POLL),
            // If ranks share cores, the awaited rank may need this core.
            polls_per_yield: if crowded { 1 } else { 64 },
            yields: if crowded { 8 } else { 2 },
            small_bytes_max: self
                .options
                .small_bytes_max
                .unwrap_or(16 << 10)
                .min(self.slot_bytes()),
            silence_timeout: self.options.silence,
        }
    }
}

/// Indices of members by host; hosts are in the order of their first member.
pub(crate) fn by_host(members: &[Member]) -> Vec<Vec<usize>> {
    let mut hosts: Vec<(&str, Vec<usize>)> = Vec::new();
    for (place, member) in members.iter().enumerate() {
        match hosts.iter_mut().find(|(host, _)| *host == member.host_id) {
            Some((_, places)) => places.push(place),
            None => hosts.push((&member.host_id, vec![place])),
        }
    }
    hosts.into_iter().map(|(_, places)| places).collect()
}

impl World {
    /// The process of a rank of the job.
    pub fn member(&self, rank: usize) -> Member {
        self.fabric.member(rank)
    }

    pub(crate) fn recorder_handle(&self) -> Recorder {
        self.recorder.clone()
    }
}
