//! Strategies: what each contributes to a minimisation, one file each.
//!
//! A minimisation has fixed phases; the compiler walks them, and in each asks every strategy that
//! applies. A strategy implements the phases that it has something to say in, and nothing else:
//!
//! | phase | then there is | who speaks |
//! | --- | --- | --- |
//! | `optimizer` | the user's rule | LARS, LAMB, DGC: another rule |
//! | `forward` | the forward pass | AMP, synchronous batch norm |
//! | (the backward pass is appended) | | |
//! | `backward` | gradients, `job.grads` | recompute; data parallel scales the loss |
//! | `merge` | gradients of this rank, this step | gradient merge: goes on in a block of its own |
//! | `encode` | gradients to be sent | AMP and fp16_allreduce: half precision |
//! | `communicate` | | data parallel, DGC: sums over ranks |
//! | `decode` | sums | back to single precision |
//! | `unscale` | gradients of all | AMP: loss scaling |
//! | (clips, regularisers, updates are appended) | | |
//! | `finish` | updated parameters | LocalSGD: averages; gradient merge: clears |
//! | `startup` | | broadcasts, snapshots |
//!
//! Phases run through [`STRATEGIES`] from the last (innermost) to the first (outermost), `startup`
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

/// Every strategy, outermost first: the order in which the chain is printed.
///
/// Order matters between: fp16_allreduce inside data parallel (casts before sums), gradient merge
/// inside both (what is sent is the merged gradient), AMP before recompute in `forward` and behind
/// it in `backward` (what is computed again is the rewritten forward pass).
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

/// Whether a strategy changes what is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The same mathematics: held to the unrewritten program by tests.
    Keeps,
    /// Other mathematics, held to its closed form.
    Changes,
}

/// One strategy.
pub trait Strategy: Sync {
    /// As the documents call it in a chain: `AMP`, `RawProgram`.
    fn name(&self) -> &'static str;
    fn kind(&self) -> Kind;
    /// The field of a strategy that asks for it; empty for what nobody has to ask for.
    fn switch(&self) -> &'static str;
    /// Whether the user asked for it.
    fn wanted(&self, strategy: &DistributedStrategy) -> bool;
    /// Whether it can do something here, and why (not).
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

/// What a strategy decides by.
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

/// A strategy's answer.
#[derive(Clone, Debug, PartialEq)]
pub enum Applies {
    /// With what it will do.
    Yes(String),
    /// Nothing to do here, which is no mistake.
    Idle(String),
    /// Cannot be, though asked for: left out with a warning, as documented.
    No(String),
    /// Cannot be, and leaving it out would train another model than the user thinks: the field that
    /// asks for it, and why.
    Refused(String, String),
}

/// Where a process stands among the ranks of its job.
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

    /// Machines.
    pub fn nodes(&self) -> usize {
        self.count.div_ceil(self.per_node.max(1))
    }

    pub fn check(&self) -> Result<()> {
        if self.count == 0 || self.rank >= self.count || self.per_node == 0 {
            return Err(Error::invalid("no such place among ranks")
                .expected("0 <= rank < ranks, and ranks on a machine above 0")
                .got(format!(
                    "rank {} of {}, {} a machine",
                    self.rank, self.count, self.per_node
                )));
        }
        Ok(())
    }
}

/// A ring that the rewritten program talks over: `nranks` ranks of the job from `first` on, each
/// `stride` apart. Whoever runs the program makes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RingSpec {
    pub id: i64,
    pub label: String,
    pub first: usize,
    pub stride: usize,
    pub nranks: usize,
    /// This rank's place in the ring.
    pub rank: usize,
}

impl RingSpec {
    /// The members, as ranks of the job.
    pub fn members(&self) -> impl Iterator<Item = usize> + use<> {
        let (first, stride) = (self.first, self.stride);
        (0..self.nranks).map(move |index| first + index * stride)
    }
}

/// A minimisation on its way through the phases.
pub struct Job<'a> {
    pub programs: &'a mut Programs,
    pub registry: &'static Registry,
    pub strategy: &'a DistributedStrategy,
    pub ranks: Ranks,
    pub optimizer: OptimizerDesc,
    /// What the user minimises.
    pub user_loss: VarId,
    /// What is differentiated.
    pub loss: VarId,
    /// Parameters with their gradients, last parameter first.
    pub grads: Vec<ParamGrad>,
    /// Where the way of the gradients goes on: the root, or a block that runs in some steps only.
    pub block: BlockId,
    /// The condition of that block: what must not wait for the block's beginning goes into blocks
    /// of its own under the same condition.
    pub due: Option<VarId>,
    /// A bool that optimizers which know it take for "leave everything as it is".
    pub skip_update: Option<VarId>,
    pub rate: Option<VarId>,
    /// The rate of tables that have a rule of their own, where it is emitted early.
    pub rows_rate: Option<VarId>,
    pub rings: Vec<RingSpec>,
    /// Rings that were numbered, also those that this rank is not in.
    pub ring_count: i64,
    /// The rings over which gradients go, by id.
    pub gradient_rings: Vec<i64>,
    /// What is worth telling the user.
    pub notes: Vec<String>,
    /// Gradients that were replaced for the time of their travel: what `decode` restores.
    pub encoded: Vec<Encoded>,
    /// Parameters whose gradients are compressed, with what came back: they are updated by
    /// themselves.
    pub compressed: Vec<ParamGrad>,
    /// Names of the strategies that apply.
    pub chain: Vec<&'static str>,
}

/// A gradient that travels in another form.
#[derive(Clone, Copy, Debug)]
pub struct Encoded {
    pub index: usize,
    pub original: VarId,
}

impl Job<'_> {
    pub fn has(&self, strategy: &str) -> bool {
        self.chain.contains(&strategy)
    }

    /// Emission into the main program's block in which gradients go on.
    pub fn emit(&mut self, role: OpRole) -> Emit<'_> {
        let mut emit = Emit::new(&mut self.programs.main, self.registry, role);
        emit.block = self.block;
        emit
    }

    pub fn emit_startup(&mut self) -> Emit<'_> {
        Emit::new(&mut self.programs.startup, self.registry, OpRole::FORWARD)
    }

    /// A variable of both programs that lives from step to step and starts as `value`.
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

    /// A ring of ranks of the job, which this rank is one of.
    pub fn ring(&mut self, label: &str, first: usize, stride: usize, nranks: usize) -> i64 {
        let id = self.ring_count;
        self.ring_count += 1;
        let rank = (self.ranks.rank - first) / stride;
        let label = label.to_string();
        self.rings.push(RingSpec { id, label, first, stride, nranks, rank });
        id
    }

    /// The rings of all ranks over which gradients go; made when first asked for.
    pub fn world_rings(&mut self) -> Vec<i64> {
        if self.gradient_rings.is_empty() {
            let asked = self.strategy.nccl_comm_num();
            let count = asked.clamp(1, RINGS_MAX);
            if asked > count {
                self.notes.push(format!(
                    "nccl_comm_num is {asked}: {count} communicators are made, the most"
                ));
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

    /// Puts ops behind the last op that writes one of their variables `after`. Where gradients go
    /// on in a block that runs in some steps only, they stand there in blocks under the same
    /// condition.
    pub fn place(&mut self, placed: Vec<(Vec<VarId>, Vec<OpId>)>) -> Result<()> {
        let Some(due) = self.due else {
            self.weave(placed);
            return Ok(());
        };
        for (after, new) in placed {
            let block = self.due_block(due, &after)?;
            let main = &mut self.programs.main;
            let ops = [main.block(block).ops(), &new].concat();
            main.set_block_ops(block, ops);
        }
        Ok(())
    }

    fn weave(&mut self, placed: Vec<(Vec<VarId>, Vec<OpId>)>) {
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
        let mut woven = Vec::with_capacity(ops.len());
        for (at, id) in ops.into_iter().enumerate() {
            woven.push(id);
            woven.extend(behind.remove(&at).unwrap_or_default());
        }
        main.set_block_ops(Program::ROOT, woven);
    }

    /// The block under the condition `due` that stands right behind the last write of `after`; made
    /// where there is none. What nobody writes goes into the current block.
    fn due_block(&mut self, due: VarId, after: &[VarId]) -> Result<BlockId> {
        let main = &mut self.programs.main;
        let mut ops = main.block(Program::ROOT).ops().to_vec();
        let writes = |id: &OpId| {
            let mut written = HashSet::new();
            main.writes_of(*id, &mut written);
            after.iter().any(|var| written.contains(var))
        };
        let Some(at) = ops.iter().rposition(writes) else { return Ok(self.block) };
        let last = main.op(ops[at]);
        if let Some(inner) = last.sub_block().filter(|_| last.input("Cond") == [due]) {
            return Ok(inner);
        }
        let inner = main.add_block(Program::ROOT);
        let mut emit = Emit::new(main, self.registry, OpRole::OPTIMIZE);
        let call = emit.named_op("conditional_block")?.input("Cond", due);
        let op = call.attr("sub_block", inner).done()?;
        ops.insert(at + 1, op);
        main.set_block_ops(Program::ROOT, ops);
        Ok(inner)
    }
}

/// Communicators that a job may have side by side: every one is a thread and a set of connections.
pub const RINGS_MAX: i32 = 8;

/// `condition` (a bool) as an op over a new block of the main program, for ops that run in some
/// steps.
pub fn conditional(job: &mut Job<'_>, condition: VarId) -> Result<BlockId> {
    let inner = job.programs.main.add_block(Program::ROOT);
    let mut emit = Emit::new(&mut job.programs.main, job.registry, OpRole::OPTIMIZE);
    emit.named_op("conditional_block")?.input("Cond", condition).attr("sub_block", inner).done()?;
    emit.append();
    Ok(inner)
}
