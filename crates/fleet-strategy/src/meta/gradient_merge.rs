//! Gradient merge: gradients of `k_steps` steps make one update.
//!
//! Each gradient has an accumulator, `p@GRAD@GradientMerge`, to which every step adds it. In every
//! k-th step, conditional blocks divide by k (`avg`) and send the sums. Each of them directly
//! follows the last gradient of a bucket, so that communication overlaps the backward pass. A last
//! block handles loss scaling, clipping and updates, and clears the accumulators. Ranks thus
//! communicate once in k steps. The learning rate schedule counts every step.
//!
//! Sparse gradients have a dense accumulator too, of the size of the table. It is summed over ranks
//! like any other one. Before the update, its rows that are not zero become sparse rows again, so
//! that rows which no step has read keep their values and state.
//!
//! Under sharding, owners may accumulate sums instead (see `sharding.rs`).

use super::{Applies, Facts, Strategy, WithServers};
use crate::effective::Effective;
use crate::job::{Job, prepend};
use fleet_base::{Result, text};
use fleet_config::Problem;
use fleet_ir::{OpRole, Program, Var, VarId, VarKind};
use fleet_nn::optimizer::OptimizerDesc;
use fleet_ops::{
    math::{compare, elementwise, increment, scale, sum},
    tensor::{fill, nonzero_rows},
};
use fleet_tensor::{DType, Shape};

pub struct GradientMerge;

impl Strategy for GradientMerge {
    fn idle(&self, strategy: &Effective<'_>) -> Option<Problem> {
        let path = "gradient_merge_configs.k_steps";
        let problem = Problem::warning(path, "gradient_merge has no effect");
        let is_idle = strategy.gradient_merge_configs().k_steps() <= 1;
        is_idle.then(|| problem.why("one step makes one update").help("use 2 or more"))
    }

    fn with_servers(&self) -> WithServers {
        WithServers::Refused(
            "servers make the updates; a_sync_configs.max_merge_var_num merges gradients to send",
        )
    }

    fn applies(&self, strategy: &Effective<'_>, _: &Facts<'_>) -> Applies {
        let configs = strategy.gradient_merge_configs();
        Applies::Yes(format!(
            "an update every {} steps, with the {} of their gradients",
            configs.k_steps(),
            if configs.avg() { "mean" } else { "sum" }
        ))
    }

    fn merge(&self, job: &mut Job<'_>) -> Result<()> {
        let configs = job.strategy.gradient_merge_configs();
        match merges_at_owners(job) {
            true => Ok(()),
            false => merge(job, configs.k_steps(), configs.avg()),
        }
    }

    fn unscale(&self, job: &mut Job<'_>) -> Result<()> {
        if merges_at_owners(job) { Ok(()) } else { rows_of_tables(job) }
    }

    fn finish(&self, job: &mut Job<'_>) -> Result<()> {
        if merges_at_owners(job) { Ok(()) } else { clear(job) }
    }
}

/// Accumulates the current gradients over `k` steps, and continues in blocks that run in every k-th
/// step.
pub(super) fn merge(job: &mut Job<'_>, k: i32, avg: bool) -> Result<()> {
    // Learning rate schedules count every step, so rates are computed outside the conditional
    // block.
    let rates = |job: &mut Job<'_>, optimizer: &OptimizerDesc| {
        optimizer.emit_rate(job.programs, job.registry)
    };
    let optimizer = job.optimizer.clone();
    job.at.rate = Some(rates(job, &optimizer)?);
    job.at.rows_rate = optimizer.rows.as_deref().map(|rows| rates(job, rows)).transpose()?;
    let one = Shape::from([1]);
    let step = job.state("gradient_merge_step", DType::I32, one, 0.0)?;
    let every = job.state("gradient_merge_k", DType::I32, one, f64::from(k))?;
    let zero = job.state("gradient_merge_zero", DType::I32, one, 0.0)?;
    for index in 0..job.grads.len() {
        accumulate(job, index)?;
    }
    describe_tables(job);
    let mut emit = job.emit_into(Program::ROOT, OpRole::OPTIMIZE);
    emit.op(&increment::DEF).input("X", step).output("Out", step).done()?;
    emit.op(&elementwise::MOD).input("X", step).input("Y", every).output("Out", step).done()?;
    let name = "gradient_merge_cond";
    let due = emit.op(&compare::EQUAL).input("X", step).input("Y", zero).named(name).one("Out")?;
    // Computed before the backward pass, so that the first bucket can be sent during it.
    let first = std::mem::take(&mut emit.ops);
    prepend(&mut job.programs.main, first);
    job.at.block = job.conditional(due)?;
    job.update_condition = Some(due);
    if avg {
        divide(job, f64::from(k))?;
    }
    Ok(())
}

/// Replaces the dense accumulators of tables by their rows that are not zero.
pub(super) fn rows_of_tables(job: &mut Job<'_>) -> Result<()> {
    for index in 0..job.grads.len() {
        let (param, merged) = job.grads[index];
        if !job.merged_tables.contains(&param) {
            continue;
        }
        let (block, main) = (job.at.block, &mut job.programs.main);
        let name = main.fresh_name(&format!("{}@ROWS", main.var_name(merged)));
        let (dtype, shape) = (main.var(merged).dtype, main.var(merged).shape);
        let var = Var { kind: VarKind::SparseRows, ..Var::new(name, dtype, shape) };
        let rows = main.add_var(block, var)?;
        let mut emit = job.emit(OpRole::OPTIMIZE);
        emit.op(&nonzero_rows::DEF).input("X", merged).output("Out", rows).done()?;
        emit.append();
        job.grads[index].1 = rows;
    }
    Ok(())
}

/// Clears the accumulators after an update.
pub(super) fn clear(job: &mut Job<'_>) -> Result<()> {
    let main = &job.programs.main;
    let merged: Vec<_> = main
        .vars()
        .filter(|(_, var)| var.persistable && var.name.ends_with("@GradientMerge"))
        .map(|(id, var)| (id, var.shape))
        .collect();
    let mut emit = job.emit(OpRole::OPTIMIZE);
    for (grad, shape) in merged {
        emit.op(&fill::FILL_CONSTANT)
            .attr("shape", shape.to_vec())
            .attr("dtype", DType::F32)
            .output("Out", grad)
            .done()?;
    }
    emit.append();
    Ok(())
}

/// Returns whether sharding merges gradients at their owners, after ranks have summed them.
fn merges_at_owners(job: &Job<'_>) -> bool {
    job.shards.as_ref().is_some_and(|shards| shards.merge.is_some())
}

/// Adds a gradient to its accumulator, which replaces it.
fn accumulate(job: &mut Job<'_>, index: usize) -> Result<()> {
    let (param, grad) = job.grads[index];
    // The name is the same in a pipeline, whose gradients are sums over micro-batches, so that
    // checkpoints pass between layouts.
    let name = format!("{}@GRAD@GradientMerge", job.name(param));
    let merged = job.state_of(param, &name, DType::F32)?;
    let is_sparse = job.is_sparse(grad);
    let is_summed = merges_at_owners(job);
    let mut emit = job.emit(OpRole::BACKWARD);
    let call = match is_sparse {
        true => emit.op(&sum::DEF).inputs("X", &[merged, grad]),
        false => emit.op(&elementwise::ADD).input("X", merged).input("Y", grad),
    };
    call.output("Out", merged).done()?;
    // A sum at an owner is awaited at the end, so that the backward pass overlaps it.
    if is_summed {
        emit.append();
    } else {
        let ops = std::mem::take(&mut emit.ops);
        job.place(vec![(vec![grad], ops)])?;
    }
    job.grads[index].1 = merged;
    if is_sparse {
        job.merged_tables.push(param);
    }
    Ok(())
}

/// Adds a note about the memory of dense accumulators of sparse gradients.
fn describe_tables(job: &mut Job<'_>) {
    let main = &job.programs.main;
    let elements = |param: &VarId| main.var(*param).shape.numel().unwrap_or(0) as u64;
    let bytes: u64 = job.merged_tables.iter().map(|param| elements(param) * F32_BYTES).sum();
    let tables = match job.merged_tables.len() {
        0 => return,
        1 => "1 table".to_string(),
        count => format!("{count} tables"),
    };
    let bytes = text::bytes(bytes);
    job.notes.push(format!("gradient merge: dense accumulators of {tables} take {bytes}"));
}

const F32_BYTES: u64 = size_of::<f32>() as u64;

/// Divides every accumulator by k, after its last addition.
fn divide(job: &mut Job<'_>, k: f64) -> Result<()> {
    for index in 0..job.grads.len() {
        let grad = job.grads[index].1;
        let mut emit = job.emit(OpRole::OPTIMIZE);
        let call = emit.op(&scale::DEF).input("X", grad).output("Out", grad);
        call.attr("scale", 1.0 / k).done()?;
        let ops = std::mem::take(&mut emit.ops);
        job.place(vec![(vec![grad], ops)])?;
    }
    Ok(())
}
