//! Groups over NCCL, if the environment requests them.

use fleet_base::{Error, Result};
use fleet_comm::World;
use fleet_topology::Topology;

/// Returns the world unchanged, or with groups over NCCL.
#[cfg(target_os = "linux")]
pub(crate) fn with_nccl(world: World, topology: &Topology) -> Result<World> {
    let job = topology.job();
    if !job.nccl {
        return Ok(world);
    }
    let number = |text: &String| {
        text.parse().map_err(|_| {
            Error::invalid("invalid GPU index").expected("a CUDA device index").got(text)
        })
    };
    world.with_nccl(&fleet_comm::NcclOptions {
        library: job.nccl_library.as_ref().map(Into::into),
        driver: None,
        device: topology.local().devices.first().map(number).transpose()?,
    })
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn with_nccl(world: World, topology: &Topology) -> Result<World> {
    if !topology.job().nccl {
        return Ok(world);
    }
    Err(Error::unsupported("NCCL is supported on Linux only").help("unset FLEET_NCCL"))
}
