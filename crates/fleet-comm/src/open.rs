//! Opening a group: which ranks share memory, which use the mesh, and at how many levels.

use crate::Group;
use crate::backend::{Backend, SharedMemory, SingleRank};
use crate::mesh::{Hierarchical, MeshLibrary, OverMesh};
use crate::options::{GroupOptions, Hierarchy};
use crate::shm::{self, Local, Tuning};
use crate::world::World;
use fleet_base::sync::lock;
use fleet_base::{Error, Result};
use fleet_net::{Abort, Deadline, Limits, Member};
use std::time::Duration;

impl World {
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
        let abort = self.abort().child();
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
            let store = self.world.store();
            let engine = shm::join(local, slot_bytes, tuning, &*store, &self.limits, &self.abort)?;
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
