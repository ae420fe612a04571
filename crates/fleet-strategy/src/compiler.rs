//! Compiles a strategy into programs: decides which strategies apply, in which order and why, and
//! rewrites the programs.
//!
//! [`decide`] only decides; [`minimize`] rewrites.

use crate::auto;
use crate::check::{unmatched, validate};
use crate::decision::{Decided, Decision, Verdict};
use crate::effective::Effective;
use crate::job::Job;
use crate::meta::{self, Applies, Facts, STRATEGIES, Strategy, StrategyId, data_parallel};
use crate::problem::Problem;
use crate::ranks::{Ranks, RingSpec};
use crate::rates::Cluster;
use crate::source::Written;
use fleet_base::{Error, Result};
use fleet_ir::{Program, VarId};
use fleet_nn::Programs;
use fleet_nn::optimizer::{ApplyAt, OptimizerDesc, ParamGrad};
use fleet_ops::Registry;

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

/// Callback with the programs after every pass: (pass, programs).
pub type Observer<'o> = &'o mut dyn FnMut(&str, &Programs);

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
    minimize_observed(programs, registry, loss, optimizer, strategy, on, &mut |_, _| {})
}

/// Like [`minimize`]; `observe` sees the programs after every pass.
pub fn minimize_observed<'s>(
    programs: &mut Programs,
    registry: &'static Registry,
    loss: VarId,
    optimizer: &OptimizerDesc,
    strategy: impl Into<Written<'s>>,
    on: impl Into<Cluster>,
    observe: Observer<'_>,
) -> Result<Plan> {
    let written: Written<'_> = strategy.into();
    let Cluster { ranks, rates } = on.into();
    ranks.check()?;
    // Checked before any pass renames the loss.
    fleet_passes::check_loss(&programs.main, loss)?;
    let mut warnings = validate(written)?;
    let facts = Facts { optimizer, ranks: &ranks, rates: &rates, program: &programs.main };
    let Decided { strategy, decisions } = decide(written, &facts);
    refuse(&decisions, &written)?;
    let found = unmatched(&strategy, facts.program);
    warnings.extend(found.into_iter().map(|problem| written.placed(problem)));
    let applied = applied(&decisions);
    let job = new_job(programs, registry, loss, optimizer, &strategy, ranks);
    let trains_alone = applied.iter().any(|it| it.trains_alone());
    run_phases(Job { trains_alone, ..job }, &applied, decisions, warnings, observe)
}

/// Returns the state of a minimisation before its first phase.
fn new_job<'a>(
    programs: &'a mut Programs,
    registry: &'static Registry,
    loss: VarId,
    optimizer: &OptimizerDesc,
    strategy: &'a Effective<'a>,
    ranks: Ranks,
) -> Job<'a> {
    Job {
        programs,
        registry,
        strategy,
        ranks,
        optimizer: optimizer.clone(),
        user_loss: loss,
        loss,
        grads: Vec::new(),
        block: Program::ROOT,
        update_condition: None,
        skip_update: None,
        rate: None,
        rows_rate: None,
        rings: Vec::new(),
        ring_count: 0,
        gradient_rings: Vec::new(),
        notes: Vec::new(),
        encoded: Vec::new(),
        compressed: Vec::new(),
        trains_alone: false,
    }
}

/// Runs the phases up to the gradients, for a single process. Used when the later phases run
/// elsewhere.
pub(crate) fn differentiate<'a>(
    programs: &'a mut Programs,
    registry: &'static Registry,
    loss: VarId,
    optimizer: &OptimizerDesc,
    strategy: &'a Effective<'a>,
    decisions: &[Decision],
) -> Result<Job<'a>> {
    let applied = applied(decisions);
    let alone = Ranks::new(0, 1);
    let mut job = new_job(programs, registry, loss, optimizer, strategy, alone);
    let run = |job: &mut Job<'_>, phase: &str, body: Phase| -> Result<()> {
        applied.iter().rev().try_for_each(|strategy| {
            let name = format!("{} {phase}", strategy.id());
            pass(job, &name, &mut |_, _| {}, |job| body(*strategy, job))
        })
    };
    run(&mut job, "optimizer", |s, job| s.optimizer(job))?;
    run(&mut job, "forward", |s, job| s.forward(job))?;
    pass(&mut job, "backward", &mut |_, _| {}, append_backward)?;
    run(&mut job, "backward", |s, job| s.backward(job))?;
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

type Phase = fn(&dyn Strategy, &mut Job<'_>) -> Result<()>;

/// Runs all phases, in order.
fn run_phases(
    mut job: Job<'_>,
    applied: &[&'static dyn Strategy],
    decisions: Vec<Decision>,
    warnings: Vec<Problem>,
    observe: Observer<'_>,
) -> Result<Plan> {
    let run = |job: &mut Job<'_>, observe: Observer<'_>, phase: &str, body: Phase| -> Result<()> {
        for strategy in applied.iter().rev() {
            pass(job, &format!("{} {phase}", strategy.id()), observe, |job| body(*strategy, job))?;
        }
        Ok(())
    };
    run(&mut job, observe, "optimizer", |s, job| s.optimizer(job))?;
    run(&mut job, observe, "forward", |s, job| s.forward(job))?;
    pass(&mut job, "backward", observe, append_backward)?;
    run(&mut job, observe, "backward", |s, job| s.backward(job))?;
    run(&mut job, observe, "merge", |s, job| s.merge(job))?;
    run(&mut job, observe, "encode", |s, job| s.encode(job))?;
    run(&mut job, observe, "communicate", |s, job| s.communicate(job))?;
    run(&mut job, observe, "decode", |s, job| s.decode(job))?;
    run(&mut job, observe, "unscale", |s, job| s.unscale(job))?;
    pass(&mut job, "update", observe, update)?;
    run(&mut job, observe, "finish", |s, job| s.finish(job))?;
    for strategy in applied {
        pass(&mut job, &format!("{} startup", strategy.id()), observe, |job| {
            strategy.startup(job)
        })?;
    }
    if job.ranks.count > 1 {
        pass(&mut job, "rings", observe, data_parallel::declare_rings)?;
    }
    let mut chain = chain(&decisions);
    chain.push(job.optimizer.rule.op());
    let learning_rate = job.rate.ok_or_else(|| Error::internal("no rate was emitted"))?;
    Ok(Plan {
        decisions,
        warnings,
        chain,
        params_grads: job.grads,
        learning_rate,
        rings: job.rings,
        notes: job.notes,
    })
}

/// Runs one pass. Debug builds verify its result, and name the pass if it is invalid.
fn pass(
    job: &mut Job<'_>,
    name: &str,
    observe: Observer<'_>,
    body: impl FnOnce(&mut Job<'_>) -> Result<()>,
) -> Result<()> {
    body(job).map_err(|error| error.at(format!("pass '{name}'")))?;
    if cfg!(debug_assertions) {
        for program in [&job.programs.main, &job.programs.startup] {
            fleet_ops::verify::verify(program, job.registry).map_err(|error| {
                Error::internal(format!("pass '{name}' produced an invalid program: {error}"))
            })?;
        }
    }
    observe(name, job.programs);
    Ok(())
}

/// Appends the backward pass, then sorts gradients in the reverse order of their parameters. This
/// is roughly the order in which the backward pass computes them, and the order in which the
/// documented buckets are formed.
fn append_backward(job: &mut Job<'_>) -> Result<()> {
    job.grads = job.optimizer.backward(job.programs, job.registry, job.loss)?;
    job.grads.sort_by_key(|(param, _)| std::cmp::Reverse(*param));
    Ok(())
}

/// Appends gradient clipping and updates.
pub(crate) fn update(job: &mut Job<'_>) -> Result<()> {
    let (rate, rows_rate) = (job.rate, job.rows_rate);
    let at = ApplyAt { block: job.block, skip_update: job.skip_update, rate, rows_rate };
    let optimizer = job.optimizer.clone();
    let rate = optimizer.apply_gradients_at(job.programs, job.registry, &job.grads, &at)?;
    job.rate = Some(rate);
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
