//! Chooses recompute so that a step fits a memory budget.
//!
//! The memory of a step is known from its plan, before anything runs. Candidates are therefore
//! planned, from one without recompute to those that keep the fewest activations. Of the candidates
//! that fit, the one with the fewest flops is chosen: first with checkpoints in memory, then with
//! offload.

use fleet_base::{Error, Result, text};
use fleet_exec::{Device, ExecOptions, Executor, PlanSummary, Scope};
use fleet_ir::VarId;
use fleet_nn::Programs;
use fleet_nn::optimizer::OptimizerDesc;
use fleet_ops::Registry;
use fleet_strategy::{DistributedStrategy, Ranks, minimize, recompute_candidates};
use fleet_tensor::{DType, Shape};

/// Budget for the temporaries of a step (`PlanSummary::arena_bytes` and scratch) with these feeds.
pub(crate) struct Budget<'a> {
    pub bytes: usize,
    pub feed: &'a [(&'a str, DType, Shape)],
}

/// Numbers of checkpoints to try; larger ones make little difference.
const COUNTS: [usize; 8] = [1, 2, 3, 4, 6, 8, 12, 16];

/// Returns the strategy with the recompute that fits, and a line that describes it.
pub(crate) fn fit(
    programs: &Programs,
    registry: &'static Registry,
    loss: VarId,
    (optimizer, strategy): (&OptimizerDesc, &DistributedStrategy),
    ranks: Ranks,
    budget: &Budget<'_>,
) -> Result<(DistributedStrategy, String)> {
    let places = recompute_candidates(&programs.main);
    let need = |strategy: &DistributedStrategy| -> Result<PlanSummary> {
        let mut copy = programs.clone();
        minimize(&mut copy, registry, loss, optimizer, strategy, ranks)?;
        let options = ExecOptions { device: Device::Null, ..ExecOptions::threads(1) };
        Executor::new(options).plan(&copy.main, &Scope::new(), budget.feed, &[])
    };
    let bytes = |summary: &PlanSummary| summary.arena_bytes + summary.scratch_bytes;
    let plain = strategy.clone().with_recompute(false);
    let all = bytes(&need(&plain)?);
    let line = |what: String, found: usize| {
        let (found, all) = (text::bytes(found as u64), text::bytes(all as u64));
        let budget = text::bytes(budget.bytes as u64);
        format!("memory: {what} needs {found} of {budget}; without recompute: {all}")
    };
    if all <= budget.bytes {
        return Ok((plain, line("no recompute".into(), all)));
    }
    let mut least = all;
    for offload in [false, true] {
        let mut best: Option<(f64, usize, usize, DistributedStrategy)> = None;
        for count in COUNTS.into_iter().filter(|count| *count <= places.len()) {
            let strategy = with_checkpoints(&plain, &spread(&places, count), offload);
            let summary = need(&strategy)?;
            let found = bytes(&summary);
            least = least.min(found);
            let cheaper = best.as_ref().is_none_or(|(flops, ..)| summary.flops < *flops);
            if found <= budget.bytes && cheaper {
                best = Some((summary.flops, found, count, strategy));
            }
        }
        if let Some((_, found, count, strategy)) = best {
            let what = format!("recompute with {count} checkpoints");
            let what = if offload { format!("{what} and offload") } else { what };
            return Ok((strategy, line(what, found)));
        }
    }
    Err(Error::exhausted("no recompute fits a step into the memory budget")
        .expected(text::bytes(budget.bytes as u64))
        .got(format!("at least {}", text::bytes(least as u64)))
        .help("feed smaller batches and use gradient_merge, or raise the budget"))
}

fn spread(places: &[String], count: usize) -> Vec<String> {
    let spacing = places.len() as f64 / (count + 1) as f64;
    let mut names: Vec<String> =
        (1..=count).map(|index| places[(index as f64 * spacing) as usize].clone()).collect();
    names.dedup();
    names
}

fn with_checkpoints(
    plain: &DistributedStrategy,
    names: &[String],
    offload: bool,
) -> DistributedStrategy {
    let mut configs = plain.recompute_configs().clone();
    configs.checkpoints = names.to_vec();
    let mut strategy = plain.clone().with_recompute(true);
    strategy.recompute_configs = Some(configs.with_enable_offload(offload));
    strategy
}

#[cfg(test)]
mod tests {
    use crate::prelude::*;
    use crate::topology::Env;
    use crate::{Distributed, DistributedStrategy, Fleet};

    /// Trains three steps under a budget; returns the job and a parameter.
    fn train(bytes: usize) -> Result<(Distributed, Vec<f32>)> {
        let fleet = Fleet::join(&Env::new())?;
        let net = Net::new();
        net.set_seed(3);
        let x = net.data("x", [-1, 64], DType::F32);
        let hidden = (0..12).fold(x, |x, _| x.fc(Fc::new(64).act(Act::Tanh)).dropout(0.1));
        let loss = hidden.fc(1).square().mean();
        let shape = Shape::from([512, 64]);
        let optimizer = fleet.distributed_optimizer(Sgd::new(0.1), &DistributedStrategy::new());
        let feed = [("x", DType::F32, shape)];
        let job = optimizer.minimize_within(&net, loss, bytes, &feed)?;
        let mut options = ExecOptions::threads(1);
        options.build = BuildOptions::none();
        let mut session = fleet.session(net.build()?, &job, options)?;
        let values: Vec<f32> = (0..512 * 64).map(|at| (at % 13) as f32 * 0.1).collect();
        let x = Tensor::from_slice(&values, shape)?;
        for _ in 0..3 {
            session.run(&[("x", &x)], &[])?;
        }
        Ok((job, session.scope.tensor("fc_0.w_0")?.to_vec()?))
    }

    #[test]
    fn as_little_recompute_as_fits() {
        let note = |job: &Distributed| job.plan.notes.last().cloned().unwrap_or_default();
        let (all, expected) = train(1 << 30).unwrap();
        assert!(note(&all).starts_with("memory: no recompute"), "{}", note(&all));
        let (mut recomputed, mut offloaded) = (false, false);
        let mut bytes = 8 << 20;
        let error = loop {
            match train(bytes) {
                Ok((job, found)) => {
                    assert_eq!(found, expected, "{}", note(&job));
                    recomputed |= job.strategy.recompute() && !note(&job).contains("offload");
                    offloaded |= note(&job).contains("and offload needs");
                }
                Err(error) => break error.to_string(),
            }
            bytes -= bytes / 8;
        };
        assert!(recomputed && offloaded, "{recomputed} {offloaded}");
        assert!(error.contains("no recompute fits a step into the memory budget"), "{error}");
    }
}
