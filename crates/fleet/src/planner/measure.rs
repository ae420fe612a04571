//! How long the ops of a network really take, beside the time that speeds of the machine predict.
//!
//! Arithmetic and memory speeds are those of a large product and of a large copy. Most ops reach
//! only a part of them. So one process trains the whole network for some steps, with made-up data,
//! and each kind of op gets a factor: the measured time over the predicted one. What a step takes
//! beside its ops is measured too. Medians count, as a job's steps are an average.

use super::memory::rank_memory;
use super::predict::{Machines, Network, compile, feeds, fixed_batch, memory_of};
use super::speeds::{OpFactors, Speeds};
use crate::{Session, probe};
use fleet_base::Result;
use fleet_exec::{ExecOptions, Outline, Trace};
use fleet_strategy::{DistributedStrategy, Ranks};
use fleet_tensor::{DType, Shape, Tensor};
use std::collections::{BTreeMap, HashMap};

/// Least number of steps to run; the first one also plans and fills caches.
const STEPS: usize = 4;
/// More steps run until they have taken this long, up to a limit: short ones vary more.
const SECONDS_MIN: f64 = 0.25;
const STEPS_MAX: usize = 200;
/// Limit on the predicted seconds of the least number of steps: for larger networks the batch is
/// smaller.
const SECONDS_MAX: f64 = 2.0;
/// Limit if the batch cannot be smaller.
const SECONDS_MAX_OF_ONE: f64 = 10.0;
/// Limits of a factor, for ops whose measured time is too short to mean anything.
const FACTORS: (f64, f64) = (0.25, 50.0);

/// Measures the ops of a network on this machine, in batches of up to `batch` rows. Returns no
/// factors if one process does not have the memory for it: half of the machine's, or `memory`.
pub fn op_factors(
    network: Network<'_>,
    base: &DistributedStrategy,
    threads: usize,
    batch: usize,
    memory: Option<u64>,
) -> Result<OpFactors> {
    let speeds = Speeds { rates: probe::alone(threads)?, ..Speeds::default() };
    let machines = Machines { ranks: Ranks::new(0, 1), speeds, threads };
    let memory = memory.unwrap_or(u64::MAX).min(rank_memory(1).map_or(u64::MAX, |all| all / 2));
    let mut batch = batch.max(1);
    loop {
        let made = compile(network, &machines, base, 0, batch)?;
        let times = made.outline.steps.iter().map(|step| machines.speeds.compute_seconds(step));
        let seconds = times.sum::<f64>() * STEPS as f64;
        let is_last = batch == 1 || fixed_batch(&network.programs.main).is_some();
        let is_small = seconds <= if is_last { SECONDS_MAX_OF_ONE } else { SECONDS_MAX };
        let fits = memory_of(&made.outline.summary) < memory;
        if is_small && fits {
            return measure(network, base, &machines, batch);
        }
        if is_last {
            return Ok(OpFactors::default());
        }
        batch = batch.div_ceil(2);
    }
}

fn measure(
    network: Network<'_>,
    base: &DistributedStrategy,
    machines: &Machines,
    batch: usize,
) -> Result<OpFactors> {
    let made = compile(network, machines, base, 0, batch)?;
    let loss = network.programs.main.var_name(network.loss).to_string();
    let options = ExecOptions { profile: true, ..ExecOptions::threads(machines.threads) };
    let data: Vec<(String, Tensor)> = feeds(&made.programs.main, batch)
        .into_iter()
        .map(|(name, dtype, shape)| Ok((name.to_string(), made_up(dtype, shape)?)))
        .collect::<Result<_>>()?;
    let fed: Vec<(&str, &Tensor)> = data.iter().map(|(name, it)| (name.as_str(), it)).collect();
    let mut session = Session::new(made.programs, options)?;
    // A program may come without its startup program.
    let main = &session.programs.main;
    for (_, var) in main.vars().filter(|(_, var)| var.persistable) {
        if !session.scope.contains(&var.name) {
            session.scope.set(&var.name, made_up(var.dtype, var.shape)?);
        }
    }
    let mut of_ops: HashMap<String, Vec<f64>> = HashMap::new();
    let mut beside_ops = Vec::new();
    session.run(&fed, &[&loss])?;
    let mut sum = 0.0;
    for step in 1..STEPS_MAX {
        if step >= STEPS && sum >= SECONDS_MIN {
            break;
        }
        let mut left = probe::seconds_of(|| session.run(&fed, &[&loss]).map(drop))?;
        sum += left;
        for (op, seconds) in by_op(&session.executor.trace()) {
            left -= seconds;
            of_ops.entry(op).or_default().push(seconds);
        }
        beside_ops.push(left.max(0.0));
    }
    let medians = of_ops.into_iter().map(|(op, seconds)| (op, probe::median(seconds))).collect();
    let by_op = factors(&medians, &made.outline, &machines.speeds);
    Ok(OpFactors { by_op, seconds_beside_ops: probe::median(beside_ops) })
}

/// Returns an input whose values are valid for every op: ids of 0, and numbers about 0.5.
fn made_up(dtype: DType, shape: Shape) -> Result<Tensor> {
    let mut tensor = Tensor::zeros(dtype, shape)?;
    if dtype == DType::F32 {
        let values = tensor.as_mut_slice::<f32>()?;
        values.iter_mut().enumerate().for_each(|(at, it)| *it = 0.25 + (at % 64) as f32 / 128.0);
    }
    Ok(tensor)
}

/// Returns the seconds of each kind of op of the compute lane in a step.
fn by_op(trace: &Trace) -> HashMap<String, f64> {
    let mut seconds = HashMap::new();
    for span in trace.spans.iter().filter(|span| span.lane == 0) {
        *seconds.entry(span.op.clone()).or_insert(0.0) += (span.end_us - span.begin_us) * 1e-6;
    }
    seconds
}

fn factors(
    measured: &HashMap<String, f64>,
    outline: &Outline,
    speeds: &Speeds,
) -> BTreeMap<String, f64> {
    let mut predicted: HashMap<&str, f64> = HashMap::new();
    for step in &outline.steps {
        *predicted.entry(&step.op).or_insert(0.0) += speeds.compute_seconds(step);
    }
    let known = predicted.into_iter().filter_map(|(op, predicted)| {
        let factor = measured.get(op)? / predicted;
        let is_known = predicted > 0.0 && factor.is_finite();
        is_known.then(|| (op.to_string(), factor.clamp(FACTORS.0, FACTORS.1)))
    });
    known.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use fleet_nn::optimizer::OptimizerDesc;
    use fleet_nn::prelude::*;

    #[test]
    fn ops_are_measured_if_the_network_fits() {
        let net = Net::new();
        let ids = net.data("ids", [-1, 2], DType::I64).embedding(Embedding::new(50, 8)).flatten(1);
        let loss = ids.fc(Fc::new(16).act(Act::Gelu)).fc(1).mean().id();
        let programs = net.build().unwrap();
        let optimizer: OptimizerDesc = Adam::new(0.1).into();
        let network = Network { programs: &programs, loss, optimizer: &optimizer };
        let base = DistributedStrategy::new();
        let measured = |memory| op_factors(network, &base, 1, 64, memory).unwrap();
        let OpFactors { by_op: factors, seconds_beside_ops } = measured(None);
        assert!(factors.len() > 3, "{factors:?}");
        assert!(factors.values().all(|it| (FACTORS.0..=FACTORS.1).contains(it)), "{factors:?}");
        assert!(seconds_beside_ops > 0.0);
        assert_eq!(measured(Some(100)), OpFactors::default());
    }
}
