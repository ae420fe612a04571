//! fp16_allreduce: single-precision gradients are sent as 16-bit floats, `g.cast_fp16_0`
//! (`g.cast_bf16_0` with `fp16_allreduce_dtype` bfloat16). On arrival they are cast back,
//! `g.cast_fp16_0.cast_fp32_0`.

use super::{Applies, Facts, Strategy, WithServers, trains_alone};
use crate::effective::Effective;
use crate::job::{Encoded, Job};
use fleet_base::Result;
use fleet_config::Problem;
use fleet_ir::{OpRole, Program, Var, VarId};
use fleet_ops::math::cast;
use fleet_tensor::DType;

pub struct Fp16AllReduce;

impl Strategy for Fp16AllReduce {
    fn check(&self, strategy: &Effective<'_>, problems: &mut Vec<Problem>) {
        if strategy.fp16_allreduce_dtype.is_some() && !strategy.fp16_allreduce() {
            let message = "has no effect without fp16_allreduce";
            let problem = Problem::warning("fp16_allreduce_dtype", message)
                .why("it selects the 16-bit type in which gradients are sent")
                .help("set fp16_allreduce to true, or remove this field");
            problems.push(problem);
        }
    }

    fn with_servers(&self) -> WithServers {
        WithServers::Refused("gradients are sent to servers as 32-bit floats")
    }

    fn applies(&self, strategy: &Effective<'_>, facts: &Facts<'_>) -> Applies {
        if facts.copies(strategy) == 1 {
            let what = if facts.ranks.count == 1 { "one rank" } else { "one copy of the model" };
            return Applies::Idle(format!("{what}: no gradient is sent"));
        }
        if trains_alone(strategy) {
            return Applies::Idle("ranks that train alone send no gradients".into());
        }
        Applies::Yes(format!(
            "single-precision gradients are sent in half the bytes, as {}",
            strategy.fp16_allreduce_dtype()
        ))
    }

    fn encode(&self, job: &mut Job<'_>) -> Result<()> {
        let (dtype, suffix) = match job.strategy.fp16_allreduce_dtype() {
            "bfloat16" => (DType::BF16, "cast_bf16_0"),
            _ => (DType::F16, "cast_fp16_0"),
        };
        let mut placed = Vec::new();
        for index in 0..job.grads.len() {
            let (param, original) = job.grads[index];
            let is_f32 = job.programs.main.var(original).dtype == DType::F32;
            let is_sent = !job.is_sparse(original) && !job.class_weights.contains(&param);
            if !is_f32 || !is_sent {
                continue;
            }
            let name = format!("{}.{suffix}", job.name(original));
            let (half, op) = cast(job, original, &name, dtype, OpRole::BACKWARD)?;
            placed.push((vec![original], vec![op]));
            job.grads[index].1 = half;
            job.encoded.push(Encoded { index, original });
        }
        job.place(placed)
    }

    fn decode(&self, job: &mut Job<'_>) -> Result<()> {
        for Encoded { index, .. } in std::mem::take(&mut job.encoded) {
            let half = job.grads[index].1;
            let name = format!("{}.cast_fp32_0", job.name(half));
            let (wide, op) = cast(job, half, &name, DType::F32, OpRole::OPTIMIZE)?;
            job.append(op);
            job.grads[index].1 = wide;
        }
        Ok(())
    }
}

/// Creates a cast of `from` to a new variable; the op is in no block yet.
pub(super) fn cast(
    job: &mut Job<'_>,
    from: VarId,
    name: &str,
    to: DType,
    role: OpRole,
) -> Result<(VarId, fleet_ir::OpId)> {
    let main = &mut job.programs.main;
    let (name, shape) = (main.fresh_name(name), main.var(from).shape);
    // In the root block, because other blocks may read it.
    let made = main.add_var(Program::ROOT, Var::new(name, to, shape))?;
    let mut emit = job.emit(role);
    let op = emit.op(&cast::DEF).input("X", from).output("Out", made).attr("out_dtype", to);
    let op = op.done()?;
    Ok((made, op))
}
