//! Strategies: the contribution of each to a minimisation, one file each.
//!
//! A minimisation has fixed phases. In each phase, the compiler calls every strategy that applies.
//! A strategy implements only the phases to which it contributes:
//!
//! | phase | result | strategies |
//! | --- | --- | --- |
//! | `optimizer` | the optimizer's rule | LARS, LAMB: another rule |
//! | `forward` | the forward pass | AMP, synchronous batch norm |
//! | (the backward pass is appended) | | |
//! | `backward` | gradients, `job.grads` | recompute; data parallel scales the loss |
//! | `merge` | gradients of this rank and step | gradient merge: continues in conditional blocks |
//! | `encode` | gradients to be sent | AMP and fp16_allreduce: half precision |
//! | `communicate` | sums over ranks | data parallel, DGC |
//! | `decode` | sums in single precision | AMP, fp16_allreduce |
//! | `unscale` | unscaled gradients | AMP: loss scaling |
//! | (clips, regularisers, updates are appended) | | |
//! | `finish` | updated parameters | LocalSGD: averages; DGC: updates; gradient merge: clears |
//! | `startup` | initial parameters | data parallel: broadcasts; LocalSGD: snapshots |
//!
//! Phases call [`STRATEGIES`] from the last (innermost) to the first (outermost), but `startup`
//! from the first to the last.

pub mod adaptive_local_sgd;
pub mod amp;
pub mod data_parallel;
pub mod dgc;
pub mod fp16_allreduce;
pub mod gradient_merge;
pub mod lamb;
pub mod lars;
pub mod local_sgd;
mod offload;
pub mod recompute;
pub mod sync_batch_norm;

use crate::DistributedStrategy;
use crate::rates::Rates;
use fleet_base::{Error, Result};
use fleet_ir::{BlockId, OpId, OpRole, Program, Var, VarId, VarKind};
use fleet_nn::Programs;
use fleet_nn::optimizer::{OptimizerDesc, ParamGrad};
use fleet_ops::{Emit, Registry};
use fleet_tensor::{DType, Shape};
use std::collections::{HashMap, HashSet};

/// All strategies, outermost first: the order in which the chain is printed.
///
/// The order matters for these pairs. fp16_allreduce is inside data parallel, so that casts precede
/// sums. Gradient merge is inside both, so that the merged gradient is sent. AMP is outside of
/// recompute, and its `forward` precedes recompute's `backward`, so that the rewritten forward pass
/// is recomputed.
pub static STRATEGIES: &[&dyn Strategy] = &[
    &data_parallel::DataParallel,
    &fp16_allreduce::Fp16AllReduce,
    &gradient_merge::GradientMerge,
    &local_sgd::LocalSgd,
    &adaptive_local_sgd::AdaptiveLocalSgd,
    &amp::Amp,
    &recompute::Recompute,
    &dgc::Dgc,
    &lars::Lars,
    &lamb::Lamb,
    &sync_batch_norm::SyncBatchNorm,
];

/// Whether a strategy changes the mathematics of training.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Keeps the mathematics; tested by equality with the program before the rewrite.
    Keeps,
    /// Changes the mathematics; tested against its closed form.
    Changes,
}

/// A strategy.
pub trait Strategy: Sync {
    /// Returns the name that documents use in a chain: `AMP`, `RawProgram`.
    fn name(&self) -> &'static str;
    fn kind(&self) -> Kind;
    /// Returns the field that switches the strategy on; empty if it is always on.
    fn switch(&self) -> &'static str;
    /// Returns whether the user requested it.
    fn wanted(&self, strategy: &DistributedStrategy) -> bool;
    /// Returns whether it applies here, and why or why not.
    fn applies(&self, facts: &Facts<'_>) -> Applies;

    fn optimizer(&self, _: &mut Job<'_>) -> Result<()> {
        Ok(())
    }
    fn forward(&self, _: &mut Job<'_>) -> Result<()> {
        Ok(())
    }
    fn backward(&self, _: &mut Job<'_>) -> Result<()> {
        Ok(())
    }
    fn merge(&self, _: &mut Job<'_>) -> Result<()> {
        Ok(())
    }
    fn encode(&self, _: &mut Job<'_>) -> Result<()> {
        Ok(())
    }
    fn communicate(&self, _: &mut Job<'_>) -> Result<()> {
        Ok(())
    }
    fn decode(&self, _: &mut Job<'_>) -> Result<()> {
        Ok(())
    }
    fn unscale(&self, _: &mut Job<'_>) -> Result<()> {
        Ok(())
    }
    fn finish(&self, _: &mut Job<'_>) -> Result<()> {
        Ok(())
    }
    fn startup(&self, _: &mut Job<'_>) -> Result<()> {
        Ok(())
    }
}

/// The facts on which a strategy decides whether it applies.
pub struct Facts<'a> {
    pub strategy: &'a DistributedStrategy,
    pub optimizer: &'a OptimizerDesc,
    pub ranks: &'a Ranks,
    pub rates: &'a Rates,
    pub program: &'a Program,
}

impl Facts<'_> {
    pub fn rule(&self) -> &'static str {
        self.optimizer.rule.op()
    }
}

/// A strategy's decision.
#[derive(Clone, Debug, PartialEq)]
pub enum Applies {
    /// Applies; with a description of its effect.
    Yes(String),
    /// Nothing to do here, which is not an error.
    Idle(String),
    /// Not applicable although requested; omitted with a warning, as documented.
    No(String),
    /// Not applicable, and omitting it would train a different model than the user expects: the
    /// field that requests it, and the reason.
    Refused(String, String),
}

/// The position of a process among the ranks of its job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ranks {
    pub rank: usize,
    pub count: usize,
    /// Ranks on one machine.
    pub per_node: usize,
}

impl Ranks {
    /// Rank `rank` of `count`, all on one machine.
    pub fn new(rank: usize, count: usize) -> Ranks {
        Ranks { rank, count, per_node: count }
    }

    pub fn per_node(mut self, per_node: usize) -> Ranks {
        self.per_node = per_node;
        self
    }

    /// Returns the number of machines.
    pub fn nodes(&self) -> usize {
        self.count.div_ceil(self.per_node.max(1))
    }

    pub fn check(&self) -> Result<()> {
        if self.count == 0 || self.rank >= self.count || self.per_node == 0 {
            return Err(Error::invalid("invalid rank or size of a machine")
                .expected("0 <= rank < ranks, and at least one rank per machine")
                .got(format!(
                    "rank {} of {}, {} per machine",
                    self.rank, self.count, self.per_node
                )));
        }
        Ok(())
    }
}

/// A ring over which the rewritten program communicates: `nranks` ranks of the job, starting at
/// `first`, each `stride` apart. The runtime that executes the program creates it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RingSpec {
    pub id: i64,
    pub label: String,
    pub first: usize,
    pub stride: usize,
    pub nranks: usize,
    /// Rank of this process within the ring.
    pub rank: usize,
}

impl RingSpec {
    /// Returns the members, as ranks of the job.
    pub fn members(&self) -> impl Iterator<Item = usize> + use<> {
        let (first, stride) = (self.first, self.stride);
        (0..self.nranks).map(move |index| first + index * stride)
    }
}

/// The state of a minimisation during its phases.
pub struct Job<'a> {
    pub programs: &'a mut Programs,
    pub registry: &'static Registry,
    pub strategy: &'a DistributedStrategy,
    pub ranks: Ranks,
    pub optimizer: OptimizerDesc,
    /// The loss that the user minimises.
    pub user_loss: VarId,
    /// The variable that is differentiated: the loss, possibly cast and scaled.
    pub loss: VarId,
    /// Parameters with their gradients, last parameter first.
    pub grads: Vec<ParamGrad>,
    /// The block in which gradients are processed further: the root block or a conditional one.
    pub block: BlockId,
    /// The condition of that block. Ops that must run before the start of the block get their own
    /// blocks with the same condition.
    pub update_condition: Option<VarId>,
    /// A bool variable; optimizers that support it skip the update when it is true.
    pub skip_update: Option<VarId>,
    pub rate: Option<VarId>,
    /// Learning rate of tables that have their own rule, if it is emitted early.
    pub rows_rate: Option<VarId>,
    pub rings: Vec<RingSpec>,
    /// Number of rings with an id, including those that this rank is not in.
    pub ring_count: i64,
    /// Ids of the rings that send gradients.
    pub gradient_rings: Vec<i64>,
    /// Notes for the user.
    pub notes: Vec<String>,
    /// Gradients that are sent in another form; `decode` restores them.
    pub encoded: Vec<Encoded>,
    /// Parameters with compressed gradients, and the received gradients. They are updated
    /// separately.
    pub compressed: Vec<ParamGrad>,
    /// Names of the strategies that apply.
    pub chain: Vec<&'static str>,
}

/// A gradient that is sent in another form.
#[derive(Clone, Copy, Debug)]
pub struct Encoded {
    pub index: usize,
    pub original: VarId,
}

impl Job<'_> {
    pub fn has(&self, strategy: &str) -> bool {
        self.chain.contains(&strategy)
    }

    /// Returns an emitter into the main program's block in which gradients are processed further.
    pub fn emit(&mut self, role: OpRole) -> Emit<'_> {
        let mut emit = Emit::new(&mut self.programs.main, self.registry, role);
        emit.block = self.block;
        emit
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
        emit.named_op("fill_constant")?
            .attr("shape", shape.to_vec())
            .attr("dtype", dtype)
            .attr("value", value)
            .output("Out", filled)
            .done()?;
        emit.append();
        self.programs.main.add_var(Program::ROOT, var)
    }

    /// Adds a ring of ranks of the job that includes this rank, and returns its id.
    pub fn ring(&mut self, label: &str, first: usize, stride: usize, nranks: usize) -> i64 {
        let id = self.ring_count;
        self.ring_count += 1;
        let rank = (self.ranks.rank - first) / stride;
        let label = label.to_string();
        self.rings.push(RingSpec { id, label, first, stride, nranks, rank });
        id
    }

    /// Returns the rings of all ranks that send gradients; creates them on the first call.
    pub fn world_rings(&mut self) -> Vec<i64> {
        if self.gradient_rings.is_empty() {
            let asked = self.strategy.nccl_comm_num();
            let count = asked.clamp(1, RINGS_MAX);
            if asked > count {
                self.notes
                    .push(format!("nccl_comm_num is {asked}: limited to {count} communicators"));
            }
            for index in 0..count {
                let ring = self.ring(&format!("all ranks {index}"), 0, 1, self.ranks.count);
                self.gradient_rings.push(ring);
            }
        }
        self.gradient_rings.clone()
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
            let main = &mut self.programs.main;
            let ops = [main.block(block).ops(), &new].concat();
            main.set_block_ops(block, ops);
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
        let Some(at) = ops.iter().rposition(writes) else { return Ok(self.block) };
        let last = main.op(ops[at]);
        if let Some(inner) = last.sub_block().filter(|_| last.input("Cond") == [condition]) {
            return Ok(inner);
        }
        let inner = main.add_block(Program::ROOT);
        let mut emit = Emit::new(main, self.registry, OpRole::OPTIMIZE);
        let call = emit.named_op("conditional_block")?.input("Cond", condition);
        let op = call.attr("sub_block", inner).done()?;
        ops.insert(at + 1, op);
        main.set_block_ops(Program::ROOT, ops);
        Ok(inner)
    }
}

/// Limit of parallel communicators; each is a thread and a set of connections.
pub const RINGS_MAX: i32 = 8;

/// Appends a conditional block to the main program, for ops that run only in steps in which
/// `condition` (a bool) is true.
pub fn conditional(job: &mut Job<'_>, condition: VarId) -> Result<BlockId> {
    let inner = job.programs.main.add_block(Program::ROOT);
    let mut emit = Emit::new(&mut job.programs.main, job.registry, OpRole::OPTIMIZE);
    emit.named_op("conditional_block")?.input("Cond", condition).attr("sub_block", inner).done()?;
    emit.append();
    Ok(inner)
}
