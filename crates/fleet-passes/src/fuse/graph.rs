//! Positions, readers and writers in the root block, accesses of ops to variables, and edits of
//! lists of ops.

use fleet_ir::{BlockId, OpId, Program, VarId};
use fleet_ops::{Emit, Registry};
use std::collections::{HashMap, HashSet};

/// The ops of the root block by position, with the readers and writers of each variable. An op with
/// a sub-block reads and writes what the ops in it do.
pub(crate) struct Graph {
    position: HashMap<OpId, usize>,
    readers: HashMap<VarId, Vec<OpId>>,
    writers: HashMap<VarId, Vec<OpId>>,
    keep: HashSet<VarId>,
}

impl Graph {
    pub fn new(program: &Program, keep: &[VarId]) -> Graph {
        let mut graph = Graph {
            position: HashMap::new(),
            readers: HashMap::new(),
            writers: HashMap::new(),
            keep: keep.iter().copied().collect(),
        };
        let (mut reads, mut writes) = (HashSet::new(), HashSet::new());
        for (position, (id, _)) in program.root_ops().enumerate() {
            graph.position.insert(id, position);
            program.reads_of(id, &mut reads);
            for var in reads.drain() {
                graph.readers.entry(var).or_default().push(id);
            }
            program.writes_of(id, &mut writes);
            for var in writes.drain() {
                graph.writers.entry(var).or_default().push(id);
            }
        }
        graph
    }

    pub fn position(&self, op: OpId) -> usize {
        self.position[&op]
    }

    /// Returns the ops that read the variable, in program order.
    pub fn readers(&self, var: VarId) -> &[OpId] {
        self.readers.get(&var).map_or(&[], Vec::as_slice)
    }

    /// Returns the ops that write the variable, in program order.
    pub fn writers(&self, var: VarId) -> &[OpId] {
        self.writers.get(&var).map_or(&[], Vec::as_slice)
    }

    /// Returns whether the variable is a temporary that is written at most once and read only by
    /// `ops`.
    pub fn is_only_read_by(&self, program: &Program, var: VarId, ops: &[OpId]) -> bool {
        !self.keep.contains(&var)
            && !program.var(var).persistable
            && self.writers(var).len() <= 1
            && self.readers(var).iter().all(|reader| ops.contains(reader))
    }
}

/// Variables that a set of ops reads and writes.
#[derive(Default)]
pub(super) struct Accesses {
    reads: HashSet<VarId>,
    writes: HashSet<VarId>,
}

impl Accesses {
    pub fn add(&mut self, program: &Program, op: OpId) {
        program.reads_of(op, &mut self.reads);
        program.writes_of(op, &mut self.writes);
    }

    pub fn of(program: &Program, op: OpId) -> Accesses {
        let mut accesses = Accesses::default();
        accesses.add(program, op);
        accesses
    }

    /// Returns whether the two sets of ops must keep their order.
    pub fn conflicts_with(&self, other: &Accesses) -> bool {
        !self.writes.is_disjoint(&other.writes)
            || !self.writes.is_disjoint(&other.reads)
            || !self.reads.is_disjoint(&other.writes)
    }
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

    /// Removes `ops`.
    pub fn remove(&mut self, ops: &[OpId]) {
        self.removed.extend(ops);
    }

    /// Removes `ops` and inserts `new` at the position of `at`, which is one of them.
    pub fn replace(&mut self, ops: &[OpId], at: OpId, new: Vec<OpId>) {
        self.remove(ops);
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
    registry: &'p Registry,
    like: OpId,
) -> Emit<'p> {
    let op = program.op(like);
    let (role, device, source) = (op.role, op.device.clone(), op.source.clone());
    Emit { device, source, ..Emit::new(program, registry, role) }
}
