//! Compiles a strategy into programs: [`decide`] decides which strategies apply, and [`minimize`]
//! rewrites the programs.

use crate::decision::{Decision, Outcome};
use crate::effective::Effective;
use crate::grid::{Axis, Grid};
use crate::job::{Job, OwnUpdates, Rings};
use crate::meta::pipeline::stages;
use crate::meta::{Facts, Strategy, data_parallel};
use crate::pipeline::StageInfo;
use crate::ranks::{Ranks, RingSpec};
use crate::rates::Cluster;
use crate::report::{Report, decide};
use fleet_base::Result;
use fleet_config::Problem;
use fleet_config::Written;
use fleet_ir::{OpId, Program, VarId};
use fleet_nn::Programs;
use fleet_nn::optimizer::{ApplyAt, OptimizerDesc, ParamGrad};
use fleet_ops::Registry;
use fleet_passes::{PassManager, Rewritten};
use std::collections::HashSet;

/// Result of [`minimize`].
#[derive(Clone, Debug)]
pub struct Plan {
    /// The outcome for each requested strategy.
    pub decisions: Vec<Decision>,
    /// The outcome for each assigned field.
    pub outcomes: Vec<Outcome>,
    /// Warnings of the report on the strategy.
    pub warnings: Vec<Problem>,
    /// The applied strategies, outermost first, then the optimizer.
    pub chain: Vec<&'static str>,
    /// The trained parameters with the gradients that the updates use.
    pub params_grads: Vec<ParamGrad>,
    /// The variable that holds the learning rate of the step.
    pub learning_rate: VarId,
    /// The rings over which the programs communicate.
    pub rings: Vec<RingSpec>,
    /// Notes for the user, such as buckets and checkpoints.
    pub notes: Vec<String>,
    /// The place of this rank among the ranks with samples of their own, and their number. Ranks
    /// that share layers have the same samples.
    pub copy: (usize, usize),
    /// The main program before its ops or layers were divided, if ranks divide them: forward ops
    /// only.
    pub whole: Option<Program>,
    /// The stage of this rank, in a pipeline.
    pub stage: Option<StageInfo>,
    /// Whether ranks divide the state of the model, so that no rank has all of it.
    pub divides_state: bool,
    /// By rank of this rank's sharding group: the number of elements of the parameters that it
    /// owns. Empty without sharding.
    pub owned_elements: Vec<u64>,
}

impl Plan {
    /// Formats the chain, for example `RawProgram -> AMP -> momentum`.
    pub fn chain_text(&self) -> String {
        self.chain.join(" -> ")
    }
}

/// Rewrites the programs of a network into those of one rank: backward pass, communication, update.
/// A strategy with errors is rejected first, with all errors at once. `on` gives the ranks and, if
/// known, the speed of their machines ([`Cluster`]).
///
/// ```
/// use fleet_nn::prelude::*;
/// use fleet_strategy::{DistributedStrategy, Ranks, minimize};
/// let net = Net::new();
/// let (x, y) = (net.data("x", [-1, 13], DType::F32), net.data("y", [-1, 1], DType::F32));
/// let loss = x.fc(1).mse_loss(y, Reduction::Mean).id();
/// let strategy = DistributedStrategy::new().with_fuse_grad_size_in_MB(16);
/// let plan = net.rewrite_with(|programs, registry| {
///     minimize(programs, registry, loss, &Sgd::new(0.1).into(), &strategy, Ranks::new(0, 8))
/// })?;
/// assert_eq!(plan.chain_text(), "RawProgram -> sgd");
/// assert_eq!(plan.notes, ["all-reduce ops before and after fusion: 2 -> 1"]);
/// # Ok::<(), fleet_base::Error>(())
/// ```
pub fn minimize<'s>(
    programs: &mut Programs,
    registry: &'static Registry,
    loss: VarId,
    optimizer: &OptimizerDesc,
    strategy: impl Into<Written<'s>>,
    on: impl Into<Cluster>,
) -> Result<Plan> {
    let manager = PassManager::new(registry);
    minimize_with(manager, programs, registry, loss, optimizer, strategy, on)
}

/// Like [`minimize`], with a pass manager that may have an observer.
pub fn minimize_with<'s>(
    manager: PassManager<'_>,
    programs: &mut Programs,
    registry: &'static Registry,
    loss: VarId,
    optimizer: &OptimizerDesc,
    strategy: impl Into<Written<'s>>,
    on: impl Into<Cluster>,
) -> Result<Plan> {
    minimize_from(manager, programs, registry, Start::Loss(loss), optimizer, strategy, on)
}

/// Where a minimisation starts.
#[derive(Debug)]
pub(crate) enum Start {
    Loss(VarId),
    /// The program has gradients and updates of `loss` already.
    Updates {
        loss: VarId,
        rate: VarId,
        updates: OwnUpdates,
    },
}

/// Like [`minimize_with`], also for programs that have updates.
pub(crate) fn minimize_from<'s>(
    manager: PassManager<'_>,
    programs: &mut Programs,
    registry: &'static Registry,
    start: Start,
    optimizer: &OptimizerDesc,
    strategy: impl Into<Written<'s>>,
    on: impl Into<Cluster>,
) -> Result<Plan> {
    let written: Written<'_> = strategy.into();
    let Cluster { ranks, rates, layout } = on.into();
    ranks.check()?;
    if let Start::Loss(loss) = start {
        // Checked before any pass renames the loss.
        fleet_passes::check_loss(&programs.main, loss)?;
    }
    let (ranks_of, rates, layout) = (&ranks, &rates, layout.as_ref());
    let (program, servers) = (&programs.main, None);
    let facts = Facts { optimizer, ranks: ranks_of, rates, layout, program, servers };
    let report = decide(written, &facts);
    report.refuse()?;
    let job = new_job(programs, registry, start, optimizer, &report.strategy, ranks);
    let trains_alone = report.applied().iter().any(|it| it.trains_alone());
    run_phases(Job { trains_alone, ..job }, manager, &report)
}

/// Returns the state of a minimisation before its first phase.
fn new_job<'a>(
    programs: &'a mut Programs,
    registry: &'static Registry,
    start: Start,
    optimizer: &OptimizerDesc,
    strategy: &'a Effective<'a>,
    ranks: Ranks,
) -> Job<'a> {
    let (loss, rate, updates) = match start {
        Start::Loss(loss) => (loss, None, None),
        Start::Updates { loss, rate, updates } => (loss, Some(rate), Some(updates)),
    };
    let grid = stages::grid(strategy, &programs.main, ranks.count);
    let grid = grid.unwrap_or(Grid::new([1, 1, 1, ranks.count]));
    Job {
        programs,
        registry,
        strategy,
        ranks,
        grid,
        optimizer: optimizer.clone(),
        user_loss: loss,
        loss,
        grads: updates.as_ref().map_or(Vec::new(), |updates| updates.grads.clone()),
        at: ApplyAt { rate, ..ApplyAt::default() },
        update_condition: None,
        rings: Rings::default(),
        notes: Vec::new(),
        encoded: Vec::new(),
        merged_tables: Vec::new(),
        compressed: Vec::new(),
        trains_alone: false,
        shards: None,
        layers: None,
        class_weights: HashSet::new(),
        pipeline: None,
        whole: None,
        updates,
    }
}

/// Runs the phases up to the gradients, for a single process. Used when the later phases run
/// elsewhere.
pub(crate) fn differentiate<'a>(
    manager: &mut PassManager<'_>,
    programs: &'a mut Programs,
    registry: &'static Registry,
    start: Start,
    optimizer: &OptimizerDesc,
    report: &'a Report<'a>,
) -> Result<Job<'a>> {
    let alone = Ranks::new(0, 1);
    let mut job = new_job(programs, registry, start, optimizer, &report.strategy, alone);
    run_list(manager, &mut job, &report.applied(), &TO_GRADIENTS)?;
    Ok(job)
}

/// A phase of a minimisation.
enum Phase {
    /// A phase of every applied strategy, innermost first.
    Each(&'static str, fn(&dyn Strategy, &mut Job<'_>) -> Result<()>),
    Once(&'static str, fn(&mut Job<'_>) -> Result<()>),
}

const TO_GRADIENTS: [Phase; 4] = [
    Phase::Each("optimizer", |strategy, job| strategy.optimizer(job)),
    Phase::Each("forward", |strategy, job| strategy.forward(job)),
    Phase::Once("backward", append_backward),
    Phase::Each("backward", |strategy, job| strategy.backward(job)),
];

const FROM_GRADIENTS: [Phase; 7] = [
    Phase::Each("merge", |strategy, job| strategy.merge(job)),
    Phase::Each("encode", |strategy, job| strategy.encode(job)),
    Phase::Each("communicate", |strategy, job| strategy.communicate(job)),
    Phase::Each("decode", |strategy, job| strategy.decode(job)),
    Phase::Each("unscale", |strategy, job| strategy.unscale(job)),
    Phase::Once("update", update),
    Phase::Each("finish", |strategy, job| strategy.finish(job)),
];

impl Rewritten for Job<'_> {
    fn programs(&self) -> Vec<(&'static str, &Program)> {
        vec![("startup", &self.programs.startup), ("main", &self.programs.main)]
    }
}

/// Runs phases in order, each as one or more passes.
fn run_list(
    manager: &mut PassManager<'_>,
    job: &mut Job<'_>,
    applied: &[&'static dyn Strategy],
    phases: &[Phase],
) -> Result<()> {
    phases.iter().try_for_each(|phase| match phase {
        Phase::Once(name, body) => manager.run(name, job, body),
        Phase::Each(name, body) => applied.iter().rev().try_for_each(|strategy| {
            let name = format!("{} {name}", strategy.id());
            manager.run(&name, job, |job| body(*strategy, job))
        }),
    })
}

/// Runs all phases, in order.
fn run_phases(mut job: Job<'_>, mut manager: PassManager<'_>, report: &Report<'_>) -> Result<Plan> {
    let applied = report.applied();
    run_list(&mut manager, &mut job, &applied, &TO_GRADIENTS)?;
    run_list(&mut manager, &mut job, &applied, &FROM_GRADIENTS)?;
    // Outermost first, unlike the other phases.
    for strategy in &applied {
        let name = format!("{} startup", strategy.id());
        manager.run(&name, &mut job, |job| strategy.startup(job))?;
    }
    if job.ranks.count > 1 {
        manager.run("rings", &mut job, data_parallel::declare_rings)?;
    }
    let mut chain = report.chain();
    chain.push(job.optimizer.rule.op());
    let learning_rate = job.rate()?;
    Ok(Plan {
        decisions: report.decisions.clone(),
        outcomes: report.outcomes.clone(),
        warnings: report.warnings(),
        chain,
        params_grads: job.grads,
        learning_rate,
        rings: job.rings.own,
        notes: once(job.notes),
        copy: job.grid.copy(job.ranks.rank),
        owned_elements: job.shards.map(|shards| shards.elements).unwrap_or_default(),
        divides_state: job.whole.is_some() || job.grid.degree(Axis::Sharding) > 1,
        whole: job.whole,
        stage: job.pipeline.map(|pipeline| pipeline.info),
    })
}

/// Returns the notes, each once.
pub(crate) fn once(notes: Vec<String>) -> Vec<String> {
    let mut seen = HashSet::new();
    notes.into_iter().filter(|note| seen.insert(note.clone())).collect()
}

/// Appends the backward pass, then sorts gradients in the reverse order of their parameters. This
/// is roughly the order in which the backward pass computes them, and the order in which the
/// documented buckets are formed. A program with updates has a backward pass.
fn append_backward(job: &mut Job<'_>) -> Result<()> {
    if job.updates.is_some() {
        return Ok(());
    }
    job.grads = job.optimizer.backward(job.programs, job.registry, job.loss)?;
    job.grads.sort_by_key(|(param, _)| std::cmp::Reverse(*param));
    Ok(())
}

/// Appends gradient clipping and updates, or those that the program had.
pub(crate) fn update(job: &mut Job<'_>) -> Result<()> {
    if let Some(updates) = job.updates.take() {
        put_back(job, &updates);
        return Ok(());
    }
    let Job { programs, registry, optimizer, grads, at, .. } = job;
    at.rate = Some(optimizer.apply_gradients_at(programs, registry, grads, at)?);
    if let Some(rows) = &optimizer.rows {
        let tables = optimizer.tables(&job.programs.main);
        let count = job.grads.iter().filter(|(param, _)| tables.contains(param)).count();
        let rule = rows.rule.op();
        job.notes.push(match count {
            0 => format!("no parameter is an embedding table: {rule} is not used"),
            1 => format!("1 embedding table is updated by {rule}"),
            _ => format!("{count} embedding tables are updated by {rule}"),
        });
    }
    Ok(())
}

/// Appends the updates that a program had, which read the processed gradients.
fn put_back(job: &mut Job<'_>, updates: &OwnUpdates) {
    let now = |var: &VarId| {
        let at = updates.grads.iter().position(|(_, grad)| grad == var);
        at.map_or(*var, |at| job.grads[at].1)
    };
    let main = &mut job.programs.main;
    for id in &updates.ops {
        main.op_mut(*id).inputs.iter_mut().flatten().for_each(|var| *var = now(var));
    }
    let ops: Vec<OpId> = [main.block(Program::ROOT).ops(), &updates.ops].concat();
    main.set_block_ops(Program::ROOT, ops);
}
