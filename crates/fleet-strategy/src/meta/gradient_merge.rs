//! Gradient merge: gradients of `k_steps` steps make one update.
//!
//! Each gradient has an accumulator, `p@GRAD@GradientMerge`, to which every step adds it. In every
//! k-th step, conditional blocks divide by k (`avg`) and send the sums. Each of them directly
//! follows the last gradient of a bucket, so that communication overlaps the backward pass. A last
//! block handles loss scaling, clipping and updates, and clears the accumulators. Ranks thus
//! communicate once in k steps. The learning rate schedule counts every step.

use super::{Applies, Facts, Strategy, WithServers};
use crate::effective::Effective;
use crate::job::{Job, prepend};
use fleet_base::{Error, Result};
use fleet_config::Problem;
use fleet_ir::{OpRole, Program};
use fleet_nn::optimizer::OptimizerDesc;
use fleet_ops::{
    math::{compare, elementwise, increment, scale},
    tensor::fill,
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
            "servers make the updates; a_sync_configs.max_merge_var_num merges gradients to be sent",
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
        let (k, avg) = (configs.k_steps(), configs.avg());
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
            let (_, grad) = job.grads[index];
            if job.is_sparse(grad) {
                return Err(Error::unsupported("gradient_merge does not support sparse rows")
                    .got(format!("the gradient '{}'", job.name(grad)))
                    .help("set is_sparse to false to make the embedding's gradient dense"));
            }
            let shape = job.programs.main.var(grad).shape;
            let name = format!("{}@GradientMerge", job.name(grad));
            let merged = job.state(&name, DType::F32, shape, 0.0)?;
            let mut emit = job.emit(OpRole::BACKWARD);
            emit.op(&elementwise::ADD)
                .input("X", merged)
                .input("Y", grad)
                .output("Out", merged)
                .done()?;
            let ops = std::mem::take(&mut emit.ops);
            job.place(vec![(vec![grad], ops)])?;
            job.grads[index].1 = merged;
        }
        let mut emit = job.emit_into(Program::ROOT, OpRole::OPTIMIZE);
        emit.op(&increment::DEF).input("X", step).output("Out", step).done()?;
        emit.op(&elementwise::MOD).input("X", step).input("Y", every).output("Out", step).done()?;
        let name = "gradient_merge_cond";
        let due =
            emit.op(&compare::EQUAL).input("X", step).input("Y", zero).named(name).one("Out")?;
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

    fn finish(&self, job: &mut Job<'_>) -> Result<()> {
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
}

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
