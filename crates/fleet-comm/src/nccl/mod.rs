//! Groups over NCCL: ranks that have a GPU each, by the libraries of CUDA and NCCL that the machine
//! has.
//!
//! A group has a mesh beside its communicator. Over the mesh every call is checked on all ranks
//! before NCCL hears of it, messages between two ranks go, and a rank that fails or dies is seen;
//! so what Fleet promises stays: NCCL, which would wait for ever for a peer that is gone, is told
//! to give up.
//!
//! Tensors are in memory of the host here. They go through pinned memory to the device, and come
//! back the same way (`staged.rs`), so between ranks of one host memory is the faster way where
//! nothing else asks for NCCL: `GroupOptions::native` off brings that back for a group.
//!
//! Sums have the same bits on every rank, but not those of the other backends: the order is NCCL's.

mod communicator;
mod cuda;
mod staged;

use crate::mesh::agree::Claim;
use crate::mesh::{Carried, Carrier, Step};
use communicator::{Communicator, Nccl, UNIQUE_ID_BYTES, UniqueId};
use cuda::Cuda;
use fleet_base::{Error, Result};
use fleet_net::{Fabric, Limits, Mesh, Store};
use staged::Collectives;
use std::path::PathBuf;
use std::sync::Arc;

/// How a process comes to NCCL and its GPU: [`crate::World::with_nccl`].
///
/// ```no_run
/// use fleet_comm::{GroupOptions, NcclOptions, ReduceOp, World};
/// /// On every rank of a job, a process each.
/// fn average(world: World, gradient: &mut [f32]) -> fleet_base::Result<()> {
///     let world = world.with_nccl(&NcclOptions::default())?;
///     let all: Vec<usize> = (0..world.size()).collect();
///     let group = world.group("world", &all, &GroupOptions::default())?;
///     group.all_reduce("fc.w@GRAD", gradient, ReduceOp::Avg)
/// }
/// ```
#[derive(Clone, Debug, Default)]
pub struct NcclOptions {
    /// `libnccl.so.2`, or the folder that it is in; by default the system's.
    pub library: Option<PathBuf>,
    /// `libcuda.so.1`, or the folder that it is in; by default the system's.
    pub driver: Option<PathBuf>,
    /// The GPU, counted among those that the process may see; by default the rank's number among
    /// the ranks of its host, or the only one.
    pub device: Option<usize>,
}

/// Opens groups over NCCL.
pub(crate) struct Opener {
    nccl: Arc<Nccl>,
    fabric: Arc<dyn Fabric>,
    store: Arc<dyn Store>,
}

impl Opener {
    pub fn start(
        options: &NcclOptions,
        fabric: Arc<dyn Fabric>,
        store: Arc<dyn Store>,
    ) -> Result<Opener> {
        let rank = fabric.rank();
        let own = fabric.member(rank);
        let local = (0..rank).filter(|other| fabric.member(*other).host_id == own.host_id).count();
        let start = || {
            let cuda = Cuda::start(options.driver.as_deref(), options.device, local)?;
            Nccl::start(options.library.as_deref(), cuda)
        };
        let nccl = start().map_err(|error| error.at(format!("NCCL for {own}")))?;
        Ok(Opener { nccl: Arc::new(nccl), fabric, store })
    }

    /// Two ranks on one GPU would wait for each other in it.
    fn check_devices(&self, name: &str, members: &[usize], limits: &Limits) -> Result<()> {
        let rank = self.fabric.rank();
        let own = self.fabric.member(rank);
        let key = |rank: usize| format!("nccl/device/{name}/{rank}");
        self.store.set(&key(rank), self.nccl.cuda.place.as_bytes(), limits)?;
        let beside: Vec<usize> = members
            .iter()
            .copied()
            .filter(|other| self.fabric.member(*other).host_id == own.host_id)
            .collect();
        let keys: Vec<String> = beside.iter().map(|other| key(*other)).collect();
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        let places = self.store.wait(&keys, limits)?;
        let same = |(other, place): &(&usize, &Vec<u8>)| {
            **other != rank && place.as_slice() == self.nccl.cuda.place.as_bytes()
        };
        let Some((other, _)) = beside.iter().zip(&places).find(same) else { return Ok(()) };
        let (a, b) = (rank.min(*other), rank.max(*other));
        Err(Error::invalid(format!(
            "{} and {} have one GPU",
            self.fabric.member(a),
            self.fabric.member(b)
        ))
        .expected("a GPU for each rank of a host")
        .got(format!("{} at {} for both", self.nccl.cuda.device, self.nccl.cuda.place))
        .help("start as many ranks as the host has GPUs, and give each its own"))
    }

    /// The first member makes it, and the others read it.
    fn unique_id(&self, name: &str, mesh: &dyn Mesh, limits: &Limits) -> Result<UniqueId> {
        let key = format!("nccl/id/{name}");
        if mesh.rank() == 0 {
            let made = self.nccl.unique_id();
            let told = match &made {
                Ok(id) => [b"+", id.0.as_slice()].concat(),
                // The others wait for it: they get the reason.
                Err(error) => format!("!{error}").into_bytes(),
            };
            self.store.set(&key, &told, limits)?;
            return made;
        }
        let told = self.store.wait(&[&key], limits)?.swap_remove(0);
        let id = told.strip_prefix(b"+").and_then(|id| <[u8; UNIQUE_ID_BYTES]>::try_from(id).ok());
        id.map(UniqueId).ok_or_else(|| {
            let reason = String::from_utf8_lossy(&told).into_owned();
            Error::unavailable(format!("{} has made no communicator", mesh.member(0))).got(reason)
        })
    }
}

impl Carrier for Opener {
    fn open(&self, name: &str, members: &[usize], limits: &Limits) -> Result<Carried> {
        let mesh = self.fabric.open(name, members)?;
        let own = self.check_devices(name, members, limits);
        // Who cannot go on tells the others, who would wait for it; and connections are there from
        // here on, by whose end a rank is seen that is gone.
        let claim = own.as_ref().map_or_else(Claim::refusal, |()| Claim::fine());
        let agreed = Step::new(&*mesh, limits, name).agree(&claim);
        own.and(agreed)?;
        let id = self.unique_id(name, &*mesh, limits)?;
        let nccl = &self.nccl;
        let communicator = Communicator::open(nccl, id, mesh.clone(), limits)?;
        let (version, abort) = (&nccl.version, limits.abort.clone());
        let own = Collectives::new(version, name, mesh.clone(), abort, &nccl.cuda, communicator)?;
        Ok((mesh, Box::new(own)))
    }

    fn is_for_hosts(&self) -> bool {
        true
    }
}
