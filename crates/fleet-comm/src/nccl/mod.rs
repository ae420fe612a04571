//! Groups over NCCL. Each rank has a GPU; the CUDA and NCCL libraries are loaded at run time.
//!
//! A group has a mesh in addition to its communicator. The mesh serves three purposes: all ranks
//! check every call before NCCL starts it, messages between two ranks use it, and it shows that a
//! rank has failed or died. NCCL itself would wait forever for a dead peer; Fleet aborts it, so the
//! guarantees of a group hold.
//!
//! Tensors are in host memory here. They are copied through pinned memory to the device and back
//! (`staged.rs`). Between ranks of one host, shared memory is therefore faster unless GPUs are
//! wanted for another reason; turning `GroupOptions::native` off uses it for a group.
//!
//! Sums have the same bits on every rank, but other bits than with other backends, because NCCL
//! chooses the order.

mod communicator;
mod cuda;
mod staged;

use crate::mesh::agree::Claim;
use crate::mesh::{LibraryMesh, MeshLibrary, Step};
use communicator::{Communicator, Nccl, UNIQUE_ID_BYTES, UniqueId};
use cuda::Cuda;
use fleet_base::{Error, Result};
use fleet_net::{Fabric, Limits, Mesh, Store};
use staged::Collectives;
use std::path::PathBuf;
use std::sync::Arc;

/// How a process uses NCCL and its GPU: see [`crate::World::with_nccl`].
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
    /// `libnccl.so.2` or its folder; by default the system's.
    pub library: Option<PathBuf>,
    /// `libcuda.so.1` or its folder; by default the system's.
    pub driver: Option<PathBuf>,
    /// Index of the GPU among the visible ones. The default is the rank's number on its host, or
    /// the only visible GPU.
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

    /// Rejects groups in which two ranks use one GPU: they would wait for each other.
    fn check_devices(&self, name: &str, members: &[usize], limits: &Limits) -> Result<()> {
        let rank = self.fabric.rank();
        let own = self.fabric.member(rank);
        let neighbours: Vec<usize> = members
            .iter()
            .copied()
            .filter(|other| self.fabric.member(*other).host_id == own.host_id)
            .collect();
        let (prefix, place) =
            (format!("nccl/device/{name}/"), self.nccl.cuda.pci_address.as_bytes());
        let ranks = neighbours.iter().copied();
        let places = self.store.exchange(&prefix, (rank, place), ranks, limits)?;
        let same = |(other, its): &(&usize, &Vec<u8>)| **other != rank && its.as_slice() == place;
        let Some((other, _)) = neighbours.iter().zip(&places).find(same) else { return Ok(()) };
        let (a, b) = (rank.min(*other), rank.max(*other));
        Err(Error::invalid(format!(
            "{} and {} use the same GPU",
            self.fabric.member(a),
            self.fabric.member(b)
        ))
        .expected("one GPU per rank of a host")
        .got(format!("{} at {} for both", self.nccl.cuda.device, self.nccl.cuda.pci_address))
        .help("start as many ranks as the host has GPUs, each with its own GPU"))
    }

    /// Makes the id on the first member; the other members read it from the store.
    fn unique_id(&self, name: &str, mesh: &dyn Mesh, limits: &Limits) -> Result<UniqueId> {
        let key = format!("nccl/id/{name}");
        if mesh.rank() == 0 {
            let made = self.nccl.unique_id();
            let value = match &made {
                Ok(id) => [b"+", id.0.as_slice()].concat(),
                // The other ranks wait for the id, so they get the reason of the failure.
                Err(error) => format!("!{error}").into_bytes(),
            };
            self.store.set(&key, &value, limits)?;
            return made;
        }
        let value = self.store.wait(&[&key], limits)?.swap_remove(0);
        let id = value.strip_prefix(b"+").and_then(|id| <[u8; UNIQUE_ID_BYTES]>::try_from(id).ok());
        id.map(UniqueId).ok_or_else(|| {
            let reason = String::from_utf8_lossy(&value).into_owned();
            Error::unavailable(format!("{} could not create the NCCL communicator", mesh.member(0)))
                .got(reason)
        })
    }
}

impl MeshLibrary for Opener {
    fn open(&self, name: &str, members: &[usize], limits: &Limits) -> Result<LibraryMesh> {
        let mesh = self.fabric.open(name, members)?;
        let own = self.check_devices(name, members, limits);
        // A rank that failed tells the others, which would wait for it. This exchange also opens
        // the connections whose end later shows that a rank has died.
        let claim = own.as_ref().map_or_else(Claim::error, |()| Claim::ok());
        let agreed = Step::new(&*mesh, limits, name).agree(&claim);
        own.and(agreed)?;
        let id = self.unique_id(name, &*mesh, limits)?;
        let nccl = &self.nccl;
        let communicator = Communicator::open(nccl, id, mesh.clone(), limits)?;
        let (version, abort) = (&nccl.version, limits.abort.clone());
        let own = Collectives::new(version, name, mesh.clone(), abort, &nccl.cuda, communicator)?;
        Ok((mesh, Box::new(own)))
    }

    fn replaces_shared_memory(&self) -> bool {
        true
    }
}
