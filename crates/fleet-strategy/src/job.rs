//! The state of a minimisation, which its phases rewrite.

use crate::effective::Effective;
use crate::grid::{Axis, Grid};
use crate::owners::Shards;
use crate::pipeline::Pipeline;
use crate::ranks::{Ranks, RingSpec};
use fleet_base::{Error, Result};
use fleet_ir::{BlockId, Division, OpId, OpRole, Program, Var, VarId, VarKind};
use fleet_nn::Programs;
use fleet_nn::optimizer::{ApplyAt, OptimizerDesc, ParamGrad};
use fleet_ops::{Emit, Registry};
use fleet_ops::{control::conditional_block, tensor::fill};
use fleet_tensor::{DType, Shape};
use std::collections::{HashMap, HashSet};

/// The state of a minimisation during its phases.
pub struct Job<'a> {
    pub programs: &'a mut Programs,
    pub registry: &'static Registry,
    pub strategy: &'a Effective<'a>,
    pub ranks: Ranks,
    /// How the ranks divide the work.
    pub grid: Grid,
    pub optimizer: OptimizerDesc,
    /// The loss that the user minimises.
    pub user_loss: VarId,
    /// The variable that is differentiated: the loss, possibly cast and scaled.
    pub loss: VarId,
    /// Parameters with their gradients, last parameter first.
    pub grads: Vec<ParamGrad>,
    /// The block in which gradients are processed further, and values for the updates in it. The
    /// block is the root block or a conditional one.
    pub at: ApplyAt,
    /// The condition of that block. Ops that must run before the start of the block get their own
    /// blocks with the same condition.
    pub update_condition: Option<VarId>,
    pub rings: Rings,
    /// Notes for the user.
    pub notes: Vec<String>,
    /// Gradients that are sent in another form; `decode` restores them.
    pub encoded: Vec<Encoded>,
    /// Embedding tables whose sparse gradients are summed over steps in dense accumulators.
    pub merged_tables: Vec<VarId>,
    /// Parameters with compressed gradients, and the received gradients. They are updated
    /// separately.
    pub compressed: Vec<ParamGrad>,
    /// Whether every rank trains alone and sends no gradients.
    pub trains_alone: bool,
    /// The division of parameters among ranks, under sharding.
    pub shards: Option<Shards>,
    /// The ranks that share this rank's layers, under tensor parallelism.
    pub layers: Option<Layers>,
    /// Class weights, of which each rank has other rows: their gradients stay with it.
    pub class_weights: HashSet<VarId>,
    /// The pipeline of which this rank is a stage.
    pub pipeline: Option<Pipeline>,
    /// The main program before its ops or layers were divided.
    pub whole: Option<Program>,
    /// The updates that the program had, until they are put back.
    pub updates: Option<OwnUpdates>,
}

/// The ranks that share layers, each of which has a part of their parameters.
#[derive(Clone, Copy, Debug)]
pub struct Layers {
    /// Ring of these ranks.
    pub ring: i64,
    /// The part that this rank has.
    pub part: usize,
    /// Number of parts.
    pub parts: usize,
}

/// The updates of a program that trains in one process, taken off while its gradients are
/// processed.
#[derive(Clone, Debug)]
pub struct OwnUpdates {
    /// Schedules, clipping and updates, in order; none if they stay in the program.
    pub ops: Vec<OpId>,
    /// Parameters with the gradients that these ops read.
    pub grads: Vec<ParamGrad>,
}

/// The rings of a job.
#[derive(Default)]
pub struct Rings {
    /// Those that this rank is in.
    pub own: Vec<RingSpec>,
    /// Number of rings with an id.
    count: i64,
    /// Ids of the rings that send gradients.
    gradients: Vec<i64>,
}

/// A gradient that is sent in another form.
#[derive(Clone, Copy, Debug)]
pub struct Encoded {
    pub index: usize,
    pub original: VarId,
}

impl Job<'_> {
    /// Returns an emitter into the main program's block in which gradients are processed further.
    pub fn emit(&mut self, role: OpRole) -> Emit<'_> {
        self.emit_into(self.at.block, role)
    }

    pub fn emit_startup(&mut self) -> Emit<'_> {
        Emit::new(&mut self.programs.startup, self.registry, OpRole::FORWARD)
    }

    /// Adds a persistent variable with the initial value `value` to both programs.
    pub fn state(&mut self, name: &str, dtype: DType, shape: Shape, value: f64) -> Result<VarId> {
        let name = self.programs.main.fresh_name(name);
        let var = Var::persistable(name, dtype, shape);
        let filled = self.programs.startup.add_var(Program::ROOT, var.clone())?;
        let mut emit = self.emit_startup();
        emit.op(&fill::FILL_CONSTANT)
            .attr("shape", shape.to_vec())
            .attr("dtype", dtype)
            .attr("value", value)
            .output("Out", filled)
            .done()?;
        emit.append();
        self.programs.main.add_var(Program::ROOT, var)
    }

    /// Like [`Job::state`], for a value of the shape of a parameter, of which this rank may have a
    /// part.
    pub fn state_of(&mut self, param: VarId, name: &str, dtype: DType) -> Result<VarId> {
        let var = self.programs.main.var(param);
        let (shape, division) = (var.shape, var.division.filter(Division::is_part));
        let state = self.state(name, dtype, shape, 0.0)?;
        self.programs.main.var_mut(state).division = division;
        let startup = &mut self.programs.startup;
        let filled = startup.var_named(self.programs.main.var_name(state))?;
        startup.var_mut(filled).division = division;
        Ok(state)
    }

    /// Adds a ring of ranks of the job that includes this rank, and returns its id.
    pub fn ring(&mut self, label: &str, first: usize, stride: usize, nranks: usize) -> i64 {
        let id = self.rings.count;
        self.ring_at(id, label, first, stride, nranks);
        id
    }

    /// Like [`Job::ring`], with a number that the caller chooses. Later rings have larger numbers.
    pub fn ring_at(&mut self, id: i64, label: &str, first: usize, stride: usize, nranks: usize) {
        self.reserve_rings(id + 1);
        let rank = (self.ranks.rank - first) / stride;
        let label = label.to_string();
        self.rings.own.push(RingSpec { id, label, first, stride, nranks, rank });
    }

    /// Adds the ring of the ranks that differ from this one in their place along `axis` only.
    pub fn ring_along(&mut self, label: &str, axis: Axis) -> i64 {
        let id = self.rings.count;
        self.ring_along_at(id, label, axis);
        id
    }

    /// Like [`Job::ring_along`], with a number that the caller chooses.
    pub fn ring_along_at(&mut self, id: i64, label: &str, axis: Axis) {
        let grid = self.grid;
        let first = grid.first(axis, self.ranks.rank);
        self.ring_at(id, label, first, grid.stride(axis), grid.degree(axis));
    }

    /// Returns the number of ranks that train the same part of the model with other samples.
    pub fn copies(&self) -> usize {
        self.grid.copy(self.ranks.rank).1
    }

    /// Returns these ranks as (first, distance, number).
    pub fn copy_ring(&self) -> Result<(usize, usize, usize)> {
        let ring = self.grid.copies(self.ranks.rank);
        ring.ok_or_else(|| Error::internal("no ring connects all copies of the model"))
    }

    /// Makes these the rings of [`Job::world_rings`].
    pub fn use_world_rings(&mut self, rings: Vec<i64>) {
        self.rings.gradients = rings;
    }

    /// Leaves the ring ids below `count` unused.
    pub fn reserve_rings(&mut self, count: i64) {
        self.rings.count = self.rings.count.max(count);
    }

    /// Returns the rings of the ranks over which gradients are summed, those with a copy of this
    /// rank's part of the model; creates them on the first call.
    pub fn world_rings(&mut self) -> Result<Vec<i64>> {
        if self.rings.gradients.is_empty() {
            let asked = self.strategy.nccl_comm_num();
            let count = asked.clamp(1, RINGS_MAX);
            if asked > count {
                self.notes
                    .push(format!("nccl_comm_num is {asked}: limited to {count} communicators"));
            }
            let (first, stride, copies) = self.copy_ring()?;
            for index in 0..count {
                let label = match copies == self.ranks.count {
                    true => format!("all ranks {index}"),
                    false => format!("{copies} copies {index}"),
                };
                let ring = self.ring(&label, first, stride, copies);
                self.rings.gradients.push(ring);
            }
        }
        Ok(self.rings.gradients.clone())
    }

    /// Appends an op to the block in which gradients are processed further.
    pub fn append(&mut self, op: OpId) {
        append(&mut self.programs.main, self.at.block, &[op]);
    }

    /// Returns an emitter into another block of the main program.
    pub fn emit_into(&mut self, block: BlockId, role: OpRole) -> Emit<'_> {
        let mut emit = Emit::new(&mut self.programs.main, self.registry, role);
        emit.block = block;
        emit
    }

    /// Appends a conditional block to the main program, for ops that run only in steps in which
    /// `condition` (a bool) is true.
    pub fn conditional(&mut self, condition: VarId) -> Result<BlockId> {
        let inner = self.programs.main.add_block(Program::ROOT);
        let mut emit = Emit::new(&mut self.programs.main, self.registry, OpRole::OPTIMIZE);
        let call = emit.op(&conditional_block::DEF).input("Cond", condition);
        call.attr("sub_block", inner).done()?;
        emit.append();
        Ok(inner)
    }

    /// Returns the learning rate, which is emitted with the updates or before.
    pub fn rate(&self) -> Result<VarId> {
        self.at.rate.ok_or_else(|| Error::internal("no learning rate was emitted"))
    }

    pub fn name(&self, var: VarId) -> String {
        self.programs.main.var_name(var).to_string()
    }

    pub fn is_sparse(&self, var: VarId) -> bool {
        self.programs.main.var(var).kind == VarKind::SparseRows
    }

    /// Inserts ops after the last op that writes one of their variables `after`. If gradients are
    /// processed further in a conditional block, the ops are put into blocks with the same
    /// condition.
    pub fn place(&mut self, placed: Vec<(Vec<VarId>, Vec<OpId>)>) -> Result<()> {
        let Some(condition) = self.update_condition else {
            self.insert_ops(placed);
            return Ok(());
        };
        for (after, new) in placed {
            let block = self.conditional_block_after(condition, &after)?;
            append(&mut self.programs.main, block, &new);
        }
        Ok(())
    }

    fn insert_ops(&mut self, placed: Vec<(Vec<VarId>, Vec<OpId>)>) {
        let main = &mut self.programs.main;
        let ops = main.block(Program::ROOT).ops().to_vec();
        let mut last_write: HashMap<VarId, usize> = HashMap::new();
        for (at, id) in ops.iter().enumerate() {
            for var in main.op(*id).all_outputs() {
                last_write.insert(var, at);
            }
        }
        let mut behind: HashMap<usize, Vec<OpId>> = HashMap::new();
        for (after, new) in placed {
            let at = after.iter().filter_map(|var| last_write.get(var)).copied().max();
            behind.entry(at.unwrap_or(ops.len().saturating_sub(1))).or_default().extend(new);
        }
        let mut merged = Vec::with_capacity(ops.len());
        for (at, id) in ops.into_iter().enumerate() {
            merged.push(id);
            merged.extend(behind.remove(&at).unwrap_or_default());
        }
        main.set_block_ops(Program::ROOT, merged);
    }

    /// Returns the block with this condition that directly follows the last write of `after`, and
    /// adds it if needed. Returns the current block if no op writes these variables.
    fn conditional_block_after(&mut self, condition: VarId, after: &[VarId]) -> Result<BlockId> {
        let main = &mut self.programs.main;
        let mut ops = main.block(Program::ROOT).ops().to_vec();
        let writes = |id: &OpId| {
            let mut written = HashSet::new();
            main.writes_of(*id, &mut written);
            after.iter().any(|var| written.contains(var))
        };
        let Some(at) = ops.iter().rposition(writes) else { return Ok(self.at.block) };
        let last = main.op(ops[at]);
        if let Some(inner) = last.sub_block().filter(|_| last.input("Cond") == [condition]) {
            return Ok(inner);
        }
        let inner = main.add_block(Program::ROOT);
        let mut emit = Emit::new(main, self.registry, OpRole::OPTIMIZE);
        let call = emit.op(&conditional_block::DEF).input("Cond", condition);
        let op = call.attr("sub_block", inner).done()?;
        ops.insert(at + 1, op);
        main.set_block_ops(Program::ROOT, ops);
        Ok(inner)
    }
}

/// Appends ops to a block.
fn append(program: &mut Program, block: BlockId, ops: &[OpId]) {
    let ops = [program.block(block).ops(), ops].concat();
    program.set_block_ops(block, ops);
}

/// Inserts ops at the start of a program.
pub fn prepend(program: &mut Program, mut ops: Vec<OpId>) {
    ops.extend_from_slice(program.block(Program::ROOT).ops());
    program.set_block_ops(Program::ROOT, ops);
}

/// Limit of parallel communicators; each is a thread and a set of connections.
pub const RINGS_MAX: i32 = 8;
