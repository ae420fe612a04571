//! LocalSGD: every rank trains alone, and parameters are averaged every `k_steps` steps.
//!
//! A counter `@STEP_COUNTER@` is 1 in the first step. Ranks average in every step up to
//! `begin_step`, and then after every `k_steps` steps. For each parameter p with its snapshot
//! `p@SNAPSHOT` from the last averaging: p = s - p; p = sum over ranks / N; p = s - p; s = p. The
//! optimizer state is not averaged.

use super::data_parallel::{buckets_of, emit_collective};
use super::{Applies, Conflict, Facts, Named, Strategy, StrategyId, WithServers};
use crate::effective::Effective;
use crate::job::{Job, prepend};
use fleet_base::Result;
use fleet_ir::{BlockId, OpRole, Program, Var, VarId};
use fleet_nn::optimizer::{ParamGrad, Rule};
use fleet_ops::{Emit, OpDef};
use fleet_ops::{
    comm::reduce,
    math::{compare, elementwise, increment, scale},
    tensor::assign,
};
use fleet_tensor::{DType, Shape};
use std::collections::HashMap;

pub struct LocalSgd;

impl Strategy for LocalSgd {
    fn conflicts(&self) -> &'static [Conflict] {
        &[
            (StrategyId::GradientMerge, "both set the steps in which ranks communicate"),
            (StrategyId::Dgc, "ranks that train alone send no gradients"),
        ]
    }

    fn trains_alone(&self) -> bool {
        true
    }

    fn with_servers(&self) -> WithServers {
        WithServers::Refused(
            "servers hold the parameters; with a_sync_configs.k_steps above 0 (GEO), workers train \
             alone between exchanges",
        )
    }

    fn applies(&self, strategy: &Effective<'_>, facts: &Facts<'_>) -> Applies {
        let configs = strategy.localsgd_configs();
        cannot_train_alone(facts, self.switch()).unwrap_or_else(|| {
            Applies::Yes(format!(
                "parameters are averaged every {} steps, starting at step {}",
                configs.k_steps(),
                configs.begin_step()
            ))
        })
    }

    fn finish(&self, job: &mut Job<'_>) -> Result<()> {
        let configs = job.strategy.localsgd_configs();
        let (k, begin) = (f64::from(configs.k_steps()), f64::from(configs.begin_step()));
        let state = State::new(job, k, begin, begin)?;
        let averaging_block = state.emit_condition(job)?;
        average(job, &state, averaging_block)
    }

    fn startup(&self, job: &mut Job<'_>) -> Result<()> {
        take_snapshots(job)
    }
}

/// Returns the reason why ranks cannot train alone, if there is one.
pub(super) fn cannot_train_alone(facts: &Facts<'_>, what: &str) -> Option<Applies> {
    if facts.ranks.count == 1 {
        return Some(Applies::Idle("one rank: nothing to average".into()));
    }
    let rows = facts.optimizer.rows.as_ref().map(|rows| &rows.rule);
    let rules = [
        ("the optimizer", Some(&facts.optimizer.rule)),
        ("the optimizer of embedding tables", rows),
    ];
    let other = rules.into_iter().find_map(|(whose, rule)| {
        let rule = rule.filter(|rule| !matches!(rule, Rule::Sgd(_) | Rule::Momentum(_)))?;
        Some((whose, rule.op()))
    });
    other.map(|(whose, rule)| {
        Applies::No(format!("{what} requires SGD or Momentum, but {whose} is {rule}"))
    })
}

/// Variables that count steps, all int64.
pub(super) struct State {
    pub counter: VarId,
    pub k_steps: VarId,
    pub begin_step: VarId,
    pub last_step: VarId,
}

impl State {
    pub fn new(job: &mut Job<'_>, k: f64, begin: f64, last: f64) -> Result<State> {
        let mut number =
            |name: &str, start: f64| job.state(name, DType::I64, Shape::from([1]), start);
        Ok(State {
            counter: number("@STEP_COUNTER@", 0.0)?,
            k_steps: number("k_steps", k)?,
            begin_step: number("begin_step", begin)?,
            last_step: number("last_step", last)?,
        })
    }

    /// Counts the step, and returns the block that runs in steps in which ranks average.
    pub fn emit_condition(&self, job: &mut Job<'_>) -> Result<BlockId> {
        let State { counter, k_steps, begin_step, last_step } = *self;
        let mut emit = job.emit_into(Program::ROOT, OpRole::OPTIMIZE);
        let count = emit.op(&increment::DEF).input("X", counter).output("Out", counter).done()?;
        emit.ops.clear();
        let early = binary(&mut emit, &compare::LESS_EQUAL, counter, begin_step)?;
        let passed = binary(&mut emit, &elementwise::SUB, counter, last_step)?;
        let due = binary(&mut emit, &compare::EQUAL, passed, k_steps)?;
        let must_average = binary(&mut emit, &compare::LOGICAL_OR, early, due)?;
        emit.append();
        // The counter is incremented first, so it includes the current step.
        prepend(&mut job.programs.main, vec![count]);
        job.conditional(must_average)
    }
}

/// Emits an op with two inputs and returns its result.
pub(super) fn binary(
    emit: &mut Emit<'_>,
    def: &'static OpDef,
    x: VarId,
    y: VarId,
) -> Result<VarId> {
    emit.op(def).input("X", x).input("Y", y).one("Out")
}

/// Averages every parameter in the block, bucket by bucket. While one bucket is in flight, the next
/// is prepared.
pub(super) fn average(job: &mut Job<'_>, state: &State, block: BlockId) -> Result<()> {
    let rings = job.world_rings()?;
    let count = job.ranks.count;
    let params: Vec<ParamGrad> = job.grads.iter().map(|(param, _)| (*param, *param)).collect();
    let buckets: Vec<Vec<VarId>> = buckets_of(job, &params)
        .iter()
        .map(|bucket| bucket.iter().map(|at| params[*at].0).collect())
        .collect();
    let mut snapshots: HashMap<VarId, VarId> = HashMap::new();
    for (param, _) in params {
        snapshots.insert(param, snapshot(&mut job.programs.main, param)?);
    }
    let mut emit = job.emit_into(block, OpRole::OPTIMIZE);
    let difference = |emit: &mut Emit<'_>, param: VarId| -> Result<()> {
        let call = emit.op(&elementwise::SUB).input("X", snapshots[&param]);
        call.input("Y", param).output("Out", param).done().map(|_| ())
    };
    for (index, bucket) in buckets.iter().enumerate() {
        bucket.iter().try_for_each(|param| difference(&mut emit, *param))?;
        let ring = rings[index % rings.len()];
        let label = format!("parameters {}/{}", index + 1, buckets.len());
        emit_collective(&mut emit, &reduce::ALL_SUM, bucket, (ring, count), &label)?;
    }
    for param in buckets.into_iter().flatten() {
        let call = emit.op(&scale::DEF).input("X", param).output("Out", param);
        call.attr("scale", 1.0 / count as f64).done()?;
        difference(&mut emit, param)?;
        let call = emit.op(&assign::DEF).input("X", param);
        call.output("Out", snapshots[&param]).done()?;
    }
    emit.op(&assign::DEF).input("X", state.counter).output("Out", state.last_step).done()?;
    emit.append();
    Ok(())
}

/// Returns the variable `p@SNAPSHOT` of a program; adds it if needed.
fn snapshot(program: &mut Program, param: VarId) -> Result<VarId> {
    let var = program.var(param);
    let made = Var::persistable(format!("{}@SNAPSHOT", var.name), var.dtype, var.shape);
    match program.find_var(&made.name) {
        Some(found) => Ok(found),
        None => program.add_var(Program::ROOT, made),
    }
}

/// Copies the parameters to their snapshots after the initial broadcast.
pub(super) fn take_snapshots(job: &mut Job<'_>) -> Result<()> {
    let names: Vec<String> = job.grads.iter().map(|(param, _)| job.name(*param)).collect();
    for name in names {
        let startup = &mut job.programs.startup;
        let param = startup.var_named(&name)?;
        let copy = snapshot(startup, param)?;
        let mut emit = job.emit_startup();
        emit.op(&assign::DEF).input("X", param).output("Out", copy).done()?;
        emit.append();
    }
    Ok(())
}
