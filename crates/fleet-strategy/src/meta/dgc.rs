//! Deep gradient compression, for Momentum: only the k largest elements of each gradient with
//! 16,384 elements or more are sent (see the op `dgc`). Smaller and sparse gradients are summed as
//! usual.
//!
//! A counter, 0 in the first step, tracks the rampup. Gradients are clipped locally, by norm,
//! before they are compressed: `clip_norm / sqrt(ranks)`. Before the rampup, their sums are clipped
//! to `clip_norm`, like all other gradients.

use super::{Applies, Conflict, Facts, Named, Strategy, StrategyId, WithServers};
use crate::effective::Effective;
use crate::job::{Job, prepend};
use fleet_base::{Error, Result};
use fleet_config::Problem;
use fleet_ir::{OpRole, Program, Regularizer, VarId};
use fleet_nn::GradClip;
use fleet_nn::optimizer::{MomentumRule, Rule};
use fleet_ops::Emit;
use fleet_ops::{comm::dgc, math::increment};
use fleet_tensor::{DType, Shape};

/// Selection does not pay off for smaller gradients.
pub const ELEMENTS_MIN: i64 = 16384;

pub struct Dgc;

impl Strategy for Dgc {
    fn conflicts(&self) -> &'static [Conflict] {
        &[
            (StrategyId::Amp, "amp scales gradients, and compression keeps some for later steps"),
            (StrategyId::Fp16AllReduce, "both change how gradients are sent"),
            (StrategyId::Lars, "both replace Momentum"),
            (StrategyId::GradientMerge, "both keep gradients for later steps"),
        ]
    }

    fn gives_way(&self) -> bool {
        true
    }

    fn check(&self, strategy: &Effective<'_>, problems: &mut Vec<Problem>) {
        let configs = strategy.dgc_configs();
        for (index, pair) in configs.sparsity.windows(2).enumerate() {
            if pair[1] < pair[0] {
                let path = format!("dgc_configs.sparsity[{}]", index + 1);
                let (least, got) = (pair[0], pair[1]);
                let message = format!("expected at least {least} as before it, got {got}");
                let problem = Problem::error(path, message)
                    .why("compression uses the list in order and must increase")
                    .help("list the sparsities in ascending order");
                problems.push(problem);
            }
        }
        let steps = usize::try_from(configs.rampup_step()).unwrap_or(0);
        let count = configs.sparsity.len();
        if steps > 0 && count > steps {
            let s = if steps == 1 { "" } else { "s" };
            let message = format!("{count} sparsities share {steps} step{s}");
            let problem = Problem::warning("dgc_configs.rampup_step", message)
                .why("some of the list is never used")
                .help(format!("use at least {count}"));
            problems.push(problem);
        }
    }

    fn with_servers(&self) -> WithServers {
        WithServers::Refused("gradients are sent to servers, not summed over workers")
    }

    fn applies(&self, strategy: &Effective<'_>, facts: &Facts<'_>) -> Applies {
        if !matches!(facts.optimizer.rule, Rule::Momentum(_)) {
            let rule = facts.optimizer.rule.op();
            return Applies::No(format!("DGC requires Momentum, got {rule}"));
        }
        if facts.ranks.count == 1 {
            return Applies::Idle("one rank: no gradient is sent".into());
        }
        match facts.optimizer.settings.grad_clip {
            None | Some(GradClip::Norm(_)) => {}
            Some(_) => {
                return Applies::Refused(
                    self.switch().into(),
                    "dgc supports only clipping by norm, which it applies to each rank's gradients"
                        .into(),
                );
            }
        }
        let tables = facts.optimizer.tables(facts.program);
        let large = facts.program.parameters().filter(|(id, var)| {
            let is_large = var.shape.numel().is_some_and(|n| n as i64 >= ELEMENTS_MIN);
            var.dtype == DType::F32 && is_large && !tables.contains(id)
        });
        let configs = strategy.dgc_configs();
        Applies::Yes(format!(
            "{} parameters of {ELEMENTS_MIN} elements or more are compressed from step {}, \
             finally to {:.3} %",
            large.count(),
            configs.rampup_begin_step(),
            100.0 * (1.0 - configs.sparsities().last().copied().unwrap_or(0.999))
        ))
    }

    fn communicate(&self, job: &mut Job<'_>) -> Result<()> {
        // Embedding tables with their own rule are not updated by Momentum.
        let tables = job.optimizer.tables(&job.programs.main);
        let (large, rest): (Vec<_>, Vec<_>) =
            job.grads.iter().copied().partition(|(param, grad)| {
                let var = job.programs.main.var(*grad);
                let elements = var.shape.numel().unwrap_or(0) as i64;
                let is_large = var.dtype == DType::F32 && elements >= ELEMENTS_MIN;
                is_large && !job.is_sparse(*grad) && !tables.contains(param)
            });
        job.grads = rest;
        if large.is_empty() {
            return Ok(());
        }
        // Incremented at the start of each step, so the first step reads 0.
        let step = job.state("__dgc_counter__", DType::F32, Shape::from([1]), -1.0)?;
        let mut emit = job.emit_into(Program::ROOT, OpRole::FORWARD);
        let count = emit.op(&increment::DEF).input("X", step).output("Out", step).done()?;
        prepend(&mut job.programs.main, vec![count]);
        let rings = job.world_rings()?;
        let mut placed = Vec::new();
        for (index, (param, grad)) in large.iter().enumerate() {
            let ring = rings[index % rings.len()];
            let (out, op) = compress(job, *param, *grad, step, ring)?;
            placed.push((vec![*grad], vec![op]));
            job.compressed.push((*param, out));
        }
        job.notes.push(format!("dgc: {} gradients are compressed", large.len()));
        // An all-reduce of n numbers sends 2 n (N - 1) / N; exchanging all pairs sends 2 k (N - 1).
        let kept =
            1.0 - f64::from(job.strategy.dgc_configs().sparsities().last().copied().unwrap_or(0.0));
        let times = kept * job.ranks.count as f64;
        if times > 1.0 {
            let least = 1.0 - 1.0 / job.ranks.count as f64;
            job.notes.push(format!(
                "dgc: pairs of {} ranks are {times:.2} times the bytes without dgc: up to a \
                 sparsity of {least:.4}, sums would be smaller",
                job.ranks.count
            ));
        }
        job.place(placed)
    }

    fn finish(&self, job: &mut Job<'_>) -> Result<()> {
        let compressed = std::mem::take(&mut job.compressed);
        for (param, grad) in &compressed {
            update(job, *param, *grad)?;
        }
        job.grads.extend(compressed);
        Ok(())
    }
}

fn momentum(job: &Job<'_>) -> Result<MomentumRule> {
    match &job.optimizer.rule {
        Rule::Momentum(rule) => Ok(rule.clone()),
        other => Err(Error::internal("DGC was applied to another rule").got(other.op())),
    }
}

fn regular(job: &Job<'_>, param: VarId) -> (i64, f64) {
    let own = job.programs.main.var(param).param.as_ref().and_then(|it| it.regularizer);
    match own.or(job.optimizer.settings.weight_decay) {
        None => (0, 0.0),
        Some(Regularizer::L1(coeff)) => (1, coeff),
        Some(Regularizer::L2(coeff)) => (2, coeff),
    }
}

fn compress(
    job: &mut Job<'_>,
    param: VarId,
    grad: VarId,
    step: VarId,
    ring: i64,
) -> Result<(VarId, fleet_ir::OpId)> {
    let rule = momentum(job)?;
    let configs = job.strategy.dgc_configs();
    let (kind, coeff) = regular(job, param);
    let need_clip = job.programs.main.var(param).param.as_ref().is_none_or(|it| it.need_clip);
    let clip = match job.optimizer.settings.grad_clip {
        Some(GradClip::Norm(norm)) if need_clip => norm / (job.ranks.count as f64).sqrt(),
        _ => 0.0,
    };
    let (name, shape) = (job.name(param), job.programs.main.var(param).shape);
    let u = job.state(&format!("{name}__dgc_u__"), DType::F32, shape, 0.0)?;
    let v = job.state(&format!("{name}__dgc_v__"), DType::F32, shape, 0.0)?;
    let sparsity: Vec<f64> = configs.sparsities().into_iter().map(decimal).collect();
    let nranks = job.ranks.count;
    let mut emit = Emit::new(&mut job.programs.main, job.registry, OpRole::BACKWARD);
    let op = emit
        .op(&dgc::DEF)
        .input("U", u)
        .input("V", v)
        .input("Grad", grad)
        .input("Param", param)
        .input("CurrentStep", step)
        .output("UOut", u)
        .output("VOut", v)
        .named(format!("{name}__dgc_grad__"))
        .attr("ring_id", ring)
        .attr("nranks", nranks)
        .attr("label", name)
        .attr("m", rule.mu)
        .attr("use_nesterov", rule.use_nesterov)
        .attr("sparsity", sparsity)
        .attr("rampup_begin_step", f64::from(configs.rampup_begin_step()))
        .attr("rampup_step", f64::from(configs.rampup_step()))
        .attr("regular_type", kind)
        .attr("regular_coeff", coeff)
        .attr("local_clip_norm", clip)
        .done()?;
    Ok((job.programs.main.op(op).output("GradOut")[0], op))
}

/// Returns the decimal number as written: 0.999 and not 0.9990000128746033.
fn decimal(value: f32) -> f64 {
    value.to_string().parse().unwrap_or(f64::from(value))
}

fn update(job: &mut Job<'_>, param: VarId, grad: VarId) -> Result<()> {
    let rule = momentum(job)?;
    let (kind, coeff) = regular(job, param);
    let var = job.programs.main.var(param);
    let lr_scale = var.param.as_ref().map_or(1.0, |it| it.learning_rate);
    let (shape, name) = (var.shape, format!("{}_velocity_0", var.name));
    let velocity = job.state(&name, DType::F32, shape, 0.0)?;
    let step = job.programs.main.var_named("__dgc_counter__")?;
    let rate = job.rate()?;
    let begin = f64::from(job.strategy.dgc_configs().rampup_begin_step());
    let mut emit = job.emit(OpRole::OPTIMIZE);
    emit.op(&dgc::MOMENTUM)
        .input("Param", param)
        .input("Grad", grad)
        .input("Velocity", velocity)
        .input("LearningRate", rate)
        .input("CurrentStep", step)
        .output("ParamOut", param)
        .output("VelocityOut", velocity)
        .attr("mu", rule.mu)
        .attr("use_nesterov", rule.use_nesterov)
        .attr("rampup_begin_step", begin)
        .attr("regular_type", kind)
        .attr("regular_coeff", coeff)
        .attr("lr_scale", lr_scale)
        .done()?;
    emit.append();
    Ok(())
}
