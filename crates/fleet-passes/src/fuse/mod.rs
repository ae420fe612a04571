//! Fusions: replace several ops by one that makes fewer passes over memory, with the same results.
//!
//! A fusion matches a forward pattern together with its gradient ops and replaces both, so that
//! intermediate results need not be stored. Each pass has its own file. This file has the shared
//! helpers.

pub(crate) mod batch_norm;
pub(crate) mod elementwise_act;
pub(crate) mod embedding_concat;
pub(crate) mod gemm_epilogue;
pub(crate) mod optimizer;
pub(crate) mod reduced_update;
pub(crate) mod relu_depthwise;
pub(crate) mod residual_norm;

use fleet_ir::{BlockId, Op, OpId, Program, VarId};
use std::collections::{HashMap, HashSet};

/// Writers and readers of each variable of the root block.
pub(crate) struct Graph {
    users: HashMap<VarId, Vec<OpId>>,
    position: HashMap<OpId, usize>,
    last_write: HashMap<VarId, usize>,
    written_again: HashSet<VarId>,
    keep: HashSet<VarId>,
}

impl Graph {
    pub fn new(program: &Program, keep: &[VarId]) -> Graph {
        let mut users: HashMap<VarId, Vec<OpId>> = HashMap::new();
        let (mut position, mut last_write) = (HashMap::new(), HashMap::new());
        let mut written_again = HashSet::new();
        for (at, (id, _)) in program.root_ops().enumerate() {
            position.insert(id, at);
            let (mut reads, mut writes) = (HashSet::new(), HashSet::new());
            program.writes_of(id, &mut writes);
            for var in writes {
                if last_write.insert(var, at).is_some() {
                    written_again.insert(var);
                }
            }
            program.reads_of(id, &mut reads);
            for var in reads {
                users.entry(var).or_default().push(id);
            }
        }
        let keep = keep.iter().copied().collect();
        Graph { users, position, last_write, written_again, keep }
    }

    /// Returns the ops that read the variable, in program order.
    pub fn users(&self, var: VarId) -> &[OpId] {
        self.users.get(&var).map_or(&[], Vec::as_slice)
    }

    /// Returns whether a temporary has its final value when `op` runs.
    pub fn ready(&self, program: &Program, var: VarId, op: OpId) -> bool {
        let written = self.last_write.get(&var);
        program.var(var).persistable || written.is_none_or(|at| *at < self.position[&op])
    }

    /// Returns the first op named `name` that reads `var` in `slot`.
    pub fn user(&self, program: &Program, var: VarId, name: &str, slot: &str) -> Option<OpId> {
        self.users(var).iter().copied().find(|id| {
            let op = program.op(*id);
            op.name() == name && op.input(slot).contains(&var)
        })
    }

    /// Returns whether the variable is a temporary that is written once and read only by `ops`.
    pub fn is_only_read_by(&self, program: &Program, var: VarId, ops: &[OpId]) -> bool {
        !self.keep.contains(&var)
            && !program.var(var).persistable
            && !self.written_again.contains(&var)
            && self.users(var).iter().all(|user| ops.contains(user))
    }
}

/// Positions of ops, and of the writes of each variable.
pub(crate) struct Positions {
    place: HashMap<OpId, usize>,
    writes: HashMap<VarId, Vec<(usize, OpId)>>,
}

impl Positions {
    pub fn new(program: &Program) -> Positions {
        let mut positions = Positions { place: HashMap::new(), writes: HashMap::new() };
        for (place, (id, _)) in program.root_ops().enumerate() {
            positions.place.insert(id, place);
            let mut written = HashSet::new();
            program.writes_of(id, &mut written);
            for var in written {
                positions.writes.entry(var).or_default().push((place, id));
            }
        }
        positions
    }

    pub fn writes(&self, var: VarId) -> &[(usize, OpId)] {
        self.writes.get(&var).map_or(&[], Vec::as_slice)
    }

    pub fn before(&self, first: OpId, second: OpId) -> bool {
        self.place[&first] < self.place[&second]
    }

    /// Returns whether an op between two others writes the variable.
    pub fn changes(&self, var: VarId, from: OpId, to: OpId) -> bool {
        let (from, to) = (self.place[&from], self.place[&to]);
        self.writes(var).iter().any(|(place, _)| from < *place && *place < to)
    }

    /// Returns whether the variable has its final value before `op` runs.
    pub fn ready(&self, var: VarId, op: OpId) -> bool {
        self.writes(var).iter().all(|(_, writer)| self.before(*writer, op))
    }
}

/// Returns the only variable of a slot.
pub(crate) fn only_var(op: &Op, slot: &str) -> Option<VarId> {
    let of = |vars: &[VarId]| match vars {
        [one] => Some(*one),
        _ => None,
    };
    of(op.input(slot)).or_else(|| of(op.output(slot)))
}

/// Ops to remove, and their replacements.
#[derive(Default)]
pub(crate) struct Edit {
    removed: HashSet<OpId>,
    replaced: HashMap<OpId, Vec<OpId>>,
}

impl Edit {
    pub fn is_free(&self, ops: &[OpId]) -> bool {
        ops.iter().all(|op| !self.removed.contains(op))
    }

    /// Removes `ops` and inserts `new` at the position of `at`, which is one of them.
    pub fn replace(&mut self, ops: &[OpId], at: OpId, new: Vec<OpId>) {
        self.removed.extend(ops);
        self.replaced.insert(at, new);
    }

    /// Applies the edit to the root block. Returns whether anything changed.
    pub fn apply(self, program: &mut Program) -> bool {
        self.apply_to(program, Program::ROOT)
    }

    /// Like [`Edit::apply`], for another block.
    pub fn apply_to(self, program: &mut Program, block: BlockId) -> bool {
        if self.removed.is_empty() {
            return false;
        }
        let mut ops = Vec::with_capacity(program.block(block).ops().len());
        for id in program.block(block).ops() {
            match self.replaced.get(id) {
                Some(new) => ops.extend(new),
                None if self.removed.contains(id) => {}
                None => ops.push(*id),
            }
        }
        program.set_block_ops(block, ops);
        true
    }
}

/// Starts an emission with the role and labels of the op `like`, which it replaces. The emitted ops
/// belong to no block until an [`Edit`] inserts them.
pub(crate) fn emit_like<'p>(
    program: &'p mut Program,
    registry: &'p fleet_ops::Registry,
    like: OpId,
) -> fleet_ops::Emit<'p> {
    let op = program.op(like);
    let (role, device, source) = (op.role, op.device.clone(), op.source.clone());
    let mut emit = fleet_ops::Emit::new(program, registry, role);
    emit.device = device;
    emit.source = source;
    emit
}
