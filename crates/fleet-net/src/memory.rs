//! Meshes between threads of one process, for tests and for jobs of a single process.
//!
//! Every ordered pair of ranks has a pipe of [`PIPE_BYTES`]. It is so small that a step which would
//! deadlock on sockets deadlocks here as well.

use crate::mesh::{FOLD_BYTES_MAX, FOLD_UNIT_MAX, check_members, check_transfers, timeout_error};
use crate::{Fabric, Limits, Member, Mesh, Time, Transfer};
use fleet_base::sync::{lock, wait_for};
use fleet_base::{Error, Result};
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

/// Capacity of a pipe in bytes. Beyond it, the writer waits.
pub const PIPE_BYTES: usize = 64 << 10;

/// Creates one fabric for each of `size` ranks, all on one host.
pub fn fabrics(size: usize) -> Vec<MemoryFabric> {
    fabrics_on(&vec!["here".to_string(); size])
}

/// Creates one fabric per rank. `hosts` names the simulated host of each rank.
///
/// ```
/// use fleet_net::{Fabric, memory};
/// let hosts = ["a", "a", "b"].map(String::from);
/// let fabrics = memory::fabrics_on(&hosts);
/// assert_eq!(fabrics[0].member(1).host_id, fabrics[0].member(0).host_id);
/// assert_ne!(fabrics[0].member(2).host_id, fabrics[0].member(0).host_id);
/// ```
pub fn fabrics_on(hosts: &[String]) -> Vec<MemoryFabric> {
    let members = (0..hosts.len())
        .map(|rank| Member {
            rank,
            host: hosts[rank].clone(),
            host_id: hosts[rank].clone(),
            pid: std::process::id(),
        })
        .collect();
    let shared = Arc::new(Shared { members, meshes: Mutex::default(), dead: Mutex::default() });
    (0..hosts.len()).map(|rank| MemoryFabric { rank, shared: shared.clone() }).collect()
}

/// The fabric of one rank. Dropping it (with its meshes) simulates the death of the rank.
pub struct MemoryFabric {
    rank: usize,
    shared: Arc<Shared>,
}

struct Shared {
    members: Vec<Member>,
    meshes: Mutex<HashMap<String, Arc<Hub>>>,
    dead: Mutex<Vec<usize>>,
}

impl Fabric for MemoryFabric {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.shared.members.len()
    }

    fn open(&self, name: &str, members: &[usize]) -> Result<Arc<dyn Mesh>> {
        let rank = check_members(self.rank, self.size(), members)?;
        let dead = lock(&self.shared.dead).clone();
        let hub = lock(&self.shared.meshes)
            .entry(name.to_string())
            .or_insert_with(|| Arc::new(Hub::new(members, &dead)))
            .clone();
        if hub.members != members {
            return Err(Error::invalid(format!(
                "mesh '{name}' was opened with other members by another rank"
            ))
            .expected(format!("{:?}", hub.members))
            .got(format!("{members:?}")));
        }
        Ok(Arc::new(MemoryMesh { rank, hub, shared: self.shared.clone() }))
    }

    fn member(&self, rank: usize) -> Member {
        self.shared.members[rank].clone()
    }
}

impl Drop for MemoryFabric {
    fn drop(&mut self) {
        lock(&self.shared.dead).push(self.rank);
        for hub in lock(&self.shared.meshes).values() {
            hub.leave(self.rank);
        }
    }
}

struct MemoryMesh {
    rank: usize,
    hub: Arc<Hub>,
    shared: Arc<Shared>,
}

/// The pipes of one mesh.
struct Hub {
    members: Vec<usize>,
    state: Mutex<HubState>,
    changed: Condvar,
}

struct HubState {
    /// `pipes[from * size + to]`.
    pipes: Vec<VecDeque<u8>>,
    /// Lengths of messages that are not empty, in the same layout. On a network, headers hold them.
    lengths: Vec<VecDeque<usize>>,
    /// Whether a rank of the mesh has dropped its fabric.
    dead: Vec<bool>,
    /// Whether a rank of the mesh is in a call. Only one call runs at a time.
    busy: Vec<bool>,
    /// Error of a call that failed in the middle of a message, by rank of the mesh.
    broken: Vec<Option<Error>>,
}

impl Hub {
    fn new(members: &[usize], dead: &[usize]) -> Hub {
        let size = members.len();
        let state = HubState {
            pipes: vec![VecDeque::new(); size * size],
            lengths: vec![VecDeque::new(); size * size],
            dead: members.iter().map(|member| dead.contains(member)).collect(),
            busy: vec![false; size],
            broken: vec![None; size],
        };
        Hub { members: members.to_vec(), state: Mutex::new(state), changed: Condvar::new() }
    }

    fn leave(&self, rank_in_job: usize) {
        if let Some(rank) = self.members.iter().position(|member| *member == rank_in_job) {
            lock(&self.state).dead[rank] = true;
            self.changed.notify_all();
        }
    }
}

impl Mesh for MemoryMesh {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.hub.members.len()
    }

    fn member(&self, rank: usize) -> Member {
        self.shared.members[self.hub.members[rank]].clone()
    }

    fn transfer(&self, ops: &mut [Transfer<'_>], limits: &Limits) -> Result<()> {
        check_transfers(self.rank, self.size(), ops)?;
        let hub = self.hub.clone();
        let _hook = limits.abort.on_fire(move |_| {
            let _state = lock(&hub.state);
            hub.changed.notify_all();
        });
        let mut state = lock(&self.hub.state);
        while state.busy[self.rank] {
            state = self.wait(state, ops, &[], limits)?;
        }
        if let Some(error) = &state.broken[self.rank] {
            return Err(error.clone());
        }
        state.busy[self.rank] = true;
        drop(state);
        let mut done = vec![0; ops.len()];
        let result = self.run(ops, &mut done, limits);
        let mut state = lock(&self.hub.state);
        state.busy[self.rank] = false;
        if let Err(error) = &result {
            let error = error.clone().at("an earlier transfer, which broke the mesh");
            state.broken[self.rank] = Some(error);
        }
        self.hub.changed.notify_all();
        result
    }
}

impl MemoryMesh {
    fn run(&self, ops: &mut [Transfer<'_>], done: &mut [usize], limits: &Limits) -> Result<()> {
        let mut scratch = Scratch::new();
        let mut begun = vec![false; ops.len()];
        loop {
            let mut state = lock(&self.hub.state);
            let mut moved = false;
            for index in 0..ops.len() {
                // Messages to or from one peer keep the order of the list.
                let earlier = (0..index).any(|other| {
                    ops[other].peer() == ops[index].peer()
                        && ops[other].is_send() == ops[index].is_send()
                        && done[other] < ops[other].bytes()
                });
                if !earlier && self.begin(&mut state, &ops[index], &mut begun[index])? {
                    moved |= self.step(&mut state, &mut ops[index], &mut done[index], &mut scratch);
                }
            }
            if moved {
                self.hub.changed.notify_all();
            }
            if ops.iter().zip(&*done).all(|(op, done)| *done == op.bytes()) {
                return Ok(());
            }
            if !moved {
                drop(self.wait(state, ops, done, limits)?);
            }
        }
    }

    /// Starts an op. Returns whether both ends of its message have started, and an error if they
    /// belong to different messages.
    fn begin(&self, state: &mut HubState, op: &Transfer<'_>, begun: &mut bool) -> Result<bool> {
        let (size, bytes) = (self.size(), op.bytes());
        if *begun || bytes == 0 {
            return Ok(true);
        }
        if op.is_send() {
            state.lengths[self.rank * size + op.peer()].push_back(bytes);
            *begun = true;
            return Ok(true);
        }
        let Some(length) = state.lengths[op.peer() * size + self.rank].pop_front() else {
            return Ok(false);
        };
        if length != bytes {
            let words = "message size mismatch: the two ranks transfer different messages";
            return Err(Error::invalid(words)
                .expected(format!("{bytes} bytes"))
                .got(format!("{length} bytes"))
                .at(self.member(op.peer())));
        }
        *begun = true;
        Ok(true)
    }

    /// Moves the bytes that can be moved now; true if there were any.
    fn step(
        &self,
        state: &mut HubState,
        op: &mut Transfer<'_>,
        done: &mut usize,
        scratch: &mut Scratch,
    ) -> bool {
        let size = self.size();
        let pipe = match op {
            Transfer::Send { to, .. } => &mut state.pipes[self.rank * size + *to],
            Transfer::Recv { from, .. } | Transfer::Fold { from, .. } => {
                &mut state.pipes[*from * size + self.rank]
            }
        };
        let left = op.bytes() - *done;
        let count = match op {
            Transfer::Send { data, .. } => {
                let count = left.min(PIPE_BYTES - pipe.len());
                pipe.extend(&data[*done..*done + count]);
                count
            }
            Transfer::Recv { into, .. } => {
                let count = left.min(pipe.len());
                for (place, byte) in into[*done..].iter_mut().zip(pipe.drain(..count)) {
                    *place = byte;
                }
                count
            }
            Transfer::Fold { unit, sink, .. } => {
                let count = left.min(pipe.len()) / *unit * *unit;
                let piece = &mut scratch.aligned()[..count];
                for (place, byte) in piece.iter_mut().zip(pipe.drain(..count)) {
                    *place = byte;
                }
                if count > 0 {
                    sink(*done, piece);
                }
                count
            }
        };
        *done += count;
        count > 0
    }

    /// Waits for a change. Returns an error if waiting cannot succeed.
    fn wait<'s>(
        &self,
        state: MutexGuard<'s, HubState>,
        ops: &[Transfer<'_>],
        done: &[usize],
        limits: &Limits,
    ) -> Result<MutexGuard<'s, HubState>> {
        limits.abort.check()?;
        let open = || ops.iter().zip(done).filter(|(op, done)| **done < op.bytes());
        if let Some((op, _)) = open().find(|(op, _)| state.dead[op.peer()]) {
            let member = self.member(op.peer());
            return Err(Error::unavailable(format!("{member} is dead")));
        }
        let left = limits.deadline.remaining(Time::now()).unwrap_or(WAIT_MAX);
        if left.is_zero() {
            let list: Vec<_> = open()
                .map(|(op, done)| (self.member(op.peer()), op.is_send(), *done, op.bytes()))
                .collect();
            return Err(timeout_error(&list));
        }
        Ok(wait_for(&self.hub.changed, state, left.min(WAIT_MAX)).0)
    }
}

/// Longest sleep of a waiter before it checks again. Correctness does not depend on it.
const WAIT_MAX: Duration = Duration::from_secs(1);

/// Buffer for pieces of folds, aligned for any element type.
pub(crate) struct Scratch(Vec<u8>);

impl Scratch {
    pub(crate) fn new() -> Scratch {
        Scratch(Vec::new())
    }

    /// Returns [`FOLD_BYTES_MAX`] bytes, aligned to 64.
    pub(crate) fn aligned(&mut self) -> &mut [u8] {
        const ALIGN: usize = 64;
        const { assert!(ALIGN >= FOLD_UNIT_MAX) };
        if self.0.is_empty() {
            self.0 = vec![0; FOLD_BYTES_MAX + ALIGN];
        }
        let start = self.0.as_ptr().align_offset(ALIGN);
        &mut self.0[start..start + FOLD_BYTES_MAX]
    }
}
