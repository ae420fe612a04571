//! Adaptive LocalSGD: LocalSGD with an interval that depends on the loss.
//!
//! In every step, the loss is averaged over ranks. The first step stores this average, loss0, and
//! the learning rate, lr0. At each averaging after `begin_step`, the interval becomes
//! `ceil(sqrt(lr0 * loss / (lr * loss0) * init_k_steps))`, limited to 1..16. The better the model,
//! the more often ranks average.

use super::data_parallel::emit_collective;
use super::local_sgd::{State, average, binary, cannot_train_alone, take_snapshots};
use super::{Applies, Conflict, Facts, Named, Strategy, StrategyId, WithServers};
use crate::effective::Effective;
use crate::job::Job;
use fleet_base::Result;
use fleet_ir::{BlockId, OpRole, Program, VarId};
use fleet_ops::{
    comm::reduce,
    math::{cast, clip, compare, elementwise, scale, unary},
    tensor::assign,
};
use fleet_tensor::{DType, Shape};

/// The longest interval.
const K_STEPS_MAX: f64 = 16.0;

pub struct AdaptiveLocalSgd;

impl Strategy for AdaptiveLocalSgd {
    fn conflicts(&self) -> &'static [Conflict] {
        &[
            (StrategyId::LocalSgd, "both set when workers average"),
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
        let configs = strategy.adaptive_localsgd_configs();
        cannot_train_alone(facts, self.switch()).unwrap_or_else(|| {
            Applies::Yes(format!(
                "parameters are averaged, at first every {} steps, then at an interval that \
                 depends on the loss",
                configs.init_k_steps()
            ))
        })
    }

    fn finish(&self, job: &mut Job<'_>) -> Result<()> {
        let configs = job.strategy.adaptive_localsgd_configs();
        let (k, begin) = (f64::from(configs.init_k_steps()), f64::from(configs.begin_step()));
        let one = Shape::from([1]);
        let state = State::new(job, k, begin, 0.0)?;
        let first_loss = job.state("loss_0", DType::F32, one, 0.0)?;
        let first_rate = job.state("lr_0", DType::F32, one, 0.0)?;
        let loss = average_loss(job)?;
        let rate = job.rate()?;
        remember_first(job, &state, (loss, first_loss), (rate, first_rate))?;
        let meeting = state.emit_condition(job)?;
        average(job, &state, meeting)?;
        next_interval(job, &state, meeting, (loss, first_loss), (rate, first_rate), k)
    }

    fn startup(&self, job: &mut Job<'_>) -> Result<()> {
        take_snapshots(job)
    }
}

fn average_loss(job: &mut Job<'_>) -> Result<VarId> {
    let (ring, count, loss) = (job.world_rings()?[0], job.ranks.count, job.user_loss);
    let mut emit = job.emit_into(Program::ROOT, OpRole::OPTIMIZE);
    let mean = emit.op(&scale::DEF).input("X", loss).attr("scale", 1.0 / count as f64);
    let mean = mean.named("avg_loss").one("Out")?;
    emit_collective(&mut emit, &reduce::ALL_SUM, &[mean], (ring, count), "loss")?;
    emit.append();
    Ok(mean)
}

/// In the first step, stores the loss and the rate.
fn remember_first(
    job: &mut Job<'_>,
    state: &State,
    (loss, first_loss): (VarId, VarId),
    (rate, first_rate): (VarId, VarId),
) -> Result<()> {
    let one = job.state("one", DType::I64, Shape::from([1]), 1.0)?;
    let mut emit = job.emit_into(Program::ROOT, OpRole::OPTIMIZE);
    let first = binary(&mut emit, &compare::EQUAL, state.counter, one)?;
    emit.append();
    let block = job.conditional(first)?;
    let mut emit = job.emit_into(block, OpRole::OPTIMIZE);
    emit.op(&assign::DEF).input("X", loss).output("Out", first_loss).done()?;
    emit.op(&assign::DEF).input("X", rate).output("Out", first_rate).done()?;
    emit.append();
    Ok(())
}

/// After `begin_step`, sets a new interval.
fn next_interval(
    job: &mut Job<'_>,
    state: &State,
    block: BlockId,
    (loss, first_loss): (VarId, VarId),
    (rate, first_rate): (VarId, VarId),
    k: f64,
) -> Result<()> {
    let mut emit = job.emit_into(block, OpRole::OPTIMIZE);
    let above = binary(&mut emit, &elementwise::MUL, first_rate, loss)?;
    let below = binary(&mut emit, &elementwise::MUL, rate, first_loss)?;
    let ratio = binary(&mut emit, &elementwise::DIV, above, below)?;
    let scaled = emit.op(&scale::DEF).input("X", ratio).attr("scale", k).one("Out")?;
    let root = emit.op(&unary::SQRT).input("X", scaled).one("Out")?;
    let whole = emit.op(&unary::CEIL).input("X", root).one("Out")?;
    let held = emit.op(&clip::CLIP).input("X", whole).attr("min", 1.0).attr("max", K_STEPS_MAX);
    let held = held.one("Out")?;
    let steps = emit.op(&cast::DEF).input("X", held).attr("out_dtype", DType::I64).one("Out")?;
    // Up to `begin_step`, the interval does not change.
    let is_past = binary(&mut emit, &compare::GREATER_THAN, state.counter, state.begin_step)?;
    let chosen = emit
        .op(&compare::WHERE)
        .input("Condition", is_past)
        .input("X", steps)
        .input("Y", state.k_steps)
        .one("Out")?;
    emit.op(&assign::DEF).input("X", chosen).output("Out", state.k_steps).done()?;
    emit.append();
    Ok(())
}
