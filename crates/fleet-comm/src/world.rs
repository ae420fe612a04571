//! The world: this process in its job, from which it makes groups.

use crate::mesh::MeshLibrary;
use crate::recorder::Recorder;
use crate::watch::{TrainingThread, Watch};
use fleet_base::sync::lock;
use fleet_base::{Error, Result};
use fleet_net::{Abort, Fabric, Member, MemoryStore, Store};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

/// This process in its job. Groups are made from it.
#[derive(Clone)]
pub struct World {
    pub(crate) fabric: Arc<dyn Fabric>,
    store: Arc<dyn Store>,
    abort: Abort,
    recorder: Recorder,
    /// Names of groups, none of which may be used twice.
    pub(crate) names: Arc<Mutex<BTreeSet<String>>>,
    /// Opens meshes of a library that has collectives.
    pub(crate) carrier: Option<Arc<dyn MeshLibrary>>,
    /// Lives as long as a group exists.
    watch: Arc<Mutex<Weak<Watch>>>,
    on_fault: Option<OnFault>,
    training_thread: Arc<TrainingThread>,
}

/// Callback for the error that ends a group.
type OnFault = Arc<dyn Fn(&Error) + Send + Sync>;

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
    /// [`crate::GroupOptions::in_steps`]. Deadlocks among calls of a single training thread are
    /// detected within seconds; others take [`crate::GroupOptions::deadlock_timeout`].
    pub fn makes_step(&self) {
        self.training_thread.record(true);
    }

    pub(crate) fn report_fault(&self, error: &Error) {
        if let Some(on_fault) = &self.on_fault {
            on_fault(error);
        }
    }

    /// Uses meshes of a library that has collectives.
    pub(crate) fn with_carrier(mut self, carrier: Arc<dyn MeshLibrary>) -> World {
        self.carrier = Some(carrier);
        self
    }

    /// Uses NCCL's collectives for groups, on one GPU of this process: see [`crate::NcclOptions`].
    #[cfg(target_os = "linux")]
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

    /// Rank of this process in the job.
    pub fn rank(&self) -> usize {
        self.fabric.rank()
    }

    /// Number of processes in the job.
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

    /// The flight recorder, which has the last calls of all groups.
    pub fn recorder(&self) -> &Recorder {
        &self.recorder
    }

    pub(crate) fn watch(&self, span: Duration) -> Result<Arc<Watch>> {
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

    /// The process of a rank of the job.
    pub fn member(&self, rank: usize) -> Member {
        self.fabric.member(rank)
    }

    pub(crate) fn recorder_handle(&self) -> Recorder {
        self.recorder.clone()
    }
}
