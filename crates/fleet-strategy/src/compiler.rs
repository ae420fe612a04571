//! Compiles a strategy into programs: decides which strategies apply, in which order and why, and
//! rewrites the programs.
//!
//! [`decide`] only decides; [`minimize`] rewrites.

use crate::auto;
use crate::check::{unmatched, validate};
use crate::decision::{Decided, Decision, Verdict};
use crate::effective::Effective;
use crate::job::{Job, OwnUpdates, Rings};
use crate::meta::{self, Applies, Facts, STRATEGIES, Strategy, StrategyId, data_parallel};
use crate::ranks::{Ranks, RingSpec};
use crate::rates::Cluster;
use fleet_base::{Error, Result};
use fleet_config::Problem;
use fleet_config::Written;
use fleet_ir::{OpId, Program, VarId};
use fleet_nn::Programs;
use fleet_nn::optimizer::{ApplyAt, OptimizerDesc, ParamGrad};
use fleet_ops::Registry;
use fleet_passes::{PassManager, Rewritten};

/// Result of [`minimize`].
#[derive(Clone, Debug)]
pub struct Plan {
    pub decisions: Vec<Decision>,
    /// Warnings of the strategy's check.
    pub warnings: Vec<Problem>,
    /// The applied strategies, outermost first, then the optimizer.
    pub chain: Vec<&'static str>,
    pub params_grads: Vec<ParamGrad>,
    pub learning_rate: VarId,
    /// The rings over which the programs communicate.
    pub rings: Vec<RingSpec>,
    /// Notes for the user, such as buckets and checkpoints.
    pub notes: Vec<String>,
}

impl Plan {
    /// Formats the chain, for example `RawProgram -> AMP -> momentum`.
    pub fn chain_text(&self) -> String {
        self.chain.join(" -> ")
    }
}

/// Decides which strategies apply, and why. Does not fail for [`Verdict::Refused`].
pub fn decide<'a>(strategy: impl Into<Written<'a>>, facts: &Facts<'_>) -> Decided<'a> {
    let (strategy, mut decisions) = auto::effective(strategy.into().strategy, facts);
    let own: Vec<Decision> =
        meta::wanted(&strategy).map(|it| decide_one(it, &strategy, facts)).collect();
    let applies = |one: &dyn Strategy| {
        own.iter().any(|it| it.strategy == one.id() && it.verdict == Verdict::Applied)
    };
    let mut conflicts = meta::conflicts(&strategy);
    conflicts.retain(|pair| pair.gives_way().is_none_or(applies));
    let own = own.iter().map(|decision| {
        match conflicts.iter().find(|pair| pair.one.id() == decision.strategy) {
            Some(pair) => {
                let (one, other) = (pair.one.switch(), pair.other.switch());
                let reason = format!("{one} conflicts with {other}: {}", pair.why);
                Decision { verdict: Verdict::Refused, reason, ..decision.clone() }
            }
            None => decision.clone(),
        }
    });
    decisions.extend(own);
    Decided { strategy, decisions }
}

/// Decides about a strategy, apart from its conflicts with others.
fn decide_one(one: &dyn Strategy, strategy: &Effective<'_>, facts: &Facts<'_>) -> Decision {
    let mut problems = Vec::new();
    one.check(strategy, &mut problems);
    let switch = one.switch().to_string();
    let error = problems.into_iter().find(Problem::is_error);
    let (field, verdict, reason) = match (error, one.idle(strategy)) {
        (Some(error), _) => {
            let reason = format!("{}: {}", error.path, error.message);
            (error.path, Verdict::Refused, reason)
        }
        (None, Some(idle)) => (switch, Verdict::Idle, format!("{}: {}", idle.message, idle.why)),
        (None, None) => match one.applies(strategy, facts) {
            Applies::Yes(reason) => (switch, Verdict::Applied, reason),
            Applies::Idle(reason) => (switch, Verdict::Idle, reason),
            Applies::No(reason) => (switch, Verdict::Dropped, reason),
            Applies::Refused(field, reason) => (field, Verdict::Refused, reason),
        },
    };
    Decision { strategy: one.id(), field, verdict, reason }
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
    let Cluster { ranks, rates } = on.into();
    ranks.check()?;
    if let Start::Loss(loss) = start {
        // Checked before any pass renames the loss.
        fleet_passes::check_loss(&programs.main, loss)?;
    }
    let mut warnings = validate(written)?;
    let facts = Facts { optimizer, ranks: &ranks, rates: &rates, program: &programs.main };
    let Decided { strategy, decisions } = decide(written, &facts);
    refuse(&decisions, &written)?;
    let found = unmatched(&strategy, facts.program);
    warnings.extend(found.into_iter().map(|problem| written.placed(problem)));
    let applied = applied(&decisions);
    let job = new_job(programs, registry, start, optimizer, &strategy, ranks);
    let trains_alone = applied.iter().any(|it| it.trains_alone());
    run_phases(Job { trains_alone, ..job }, manager, &applied, decisions, warnings)
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
    Job {
        programs,
        registry,
        strategy,
        ranks,
        optimizer: optimizer.clone(),
        user_loss: loss,
        loss,
        grads: updates.as_ref().map_or(Vec::new(), |updates| updates.grads.clone()),
        at: ApplyAt { rate, ..ApplyAt::default() },
        update_condition: None,
        rings: Rings::default(),
        notes: Vec::new(),
        encoded: Vec::new(),
        compressed: Vec::new(),
        trains_alone: false,
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
    strategy: &'a Effective<'a>,
    decisions: &[Decision],
) -> Result<Job<'a>> {
    let applied = applied(decisions);
    let alone = Ranks::new(0, 1);
    let mut job = new_job(programs, registry, start, optimizer, strategy, alone);
    run_list(manager, &mut job, &applied, &TO_GRADIENTS)?;
    Ok(job)
}

fn applied(decisions: &[Decision]) -> Vec<&'static dyn Strategy> {
    let is_applied = |id: StrategyId| {
        decisions.iter().any(|it| it.strategy == id && it.verdict == Verdict::Applied)
    };
    STRATEGIES.iter().copied().filter(|it| is_applied(it.id())).collect()
}

/// Returns the names of the applied strategies, outermost first.
pub(crate) fn chain(decisions: &[Decision]) -> Vec<&'static str> {
    applied(decisions).iter().map(|it| it.id().name()).collect()
}

/// Returns an error if any strategy is refused. It has the reasons, the fields and values that
/// request the strategies, and their positions in files.
pub(crate) fn refuse(decisions: &[Decision], written: &Written<'_>) -> Result<()> {
    let refused: Vec<&Decision> =
        decisions.iter().filter(|decision| decision.verdict == Verdict::Refused).collect();
    if refused.is_empty() {
        return Ok(());
    }
    let reasons: Vec<&str> = refused.iter().map(|decision| decision.reason.as_str()).collect();
    let fields: Vec<&str> = refused.iter().map(|decision| decision.field.as_str()).collect();
    let error = Error::unsupported(format!("invalid strategy: {}", reasons.join("; ")));
    let error = fields.iter().fold(error, |error, field| error.at(written.place_of(field)));
    Err(error.help(format!(
        "change or remove {}; `fleet strategy explain` shows the effect of each switch",
        fields.join(" and ")
    )))
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
fn run_phases(
    mut job: Job<'_>,
    mut manager: PassManager<'_>,
    applied: &[&'static dyn Strategy],
    decisions: Vec<Decision>,
    warnings: Vec<Problem>,
) -> Result<Plan> {
    run_list(&mut manager, &mut job, applied, &TO_GRADIENTS)?;
    run_list(&mut manager, &mut job, applied, &FROM_GRADIENTS)?;
    // Outermost first, unlike the other phases.
    for strategy in applied {
        let name = format!("{} startup", strategy.id());
        manager.run(&name, &mut job, |job| strategy.startup(job))?;
    }
    if job.ranks.count > 1 {
        manager.run("rings", &mut job, data_parallel::declare_rings)?;
    }
    let mut chain = chain(&decisions);
    chain.push(job.optimizer.rule.op());
    let learning_rate = job.rate()?;
    Ok(Plan {
        decisions,
        warnings,
        chain,
        params_grads: job.grads,
        learning_rate,
        rings: job.rings.own,
        notes: job.notes,
    })
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
