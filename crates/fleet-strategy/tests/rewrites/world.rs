//! Small networks, trained on several ranks in threads.

use fleet_base::Result;
use fleet_exec::{ExecOptions, Executor, Scope};
use fleet_nn::Programs;
use fleet_nn::prelude::*;
use fleet_ops::Services;
use fleet_strategy::{Cluster, DistributedStrategy, Plan, Ranks, minimize};
use fleet_tensor::Tensor;
use fleet_testkit::local::{self, World};
use std::collections::BTreeMap;

/// Samples of the whole batch; divisible by 1, 2, 3 and 4.
pub const BATCH: usize = 12;
pub const STEPS: usize = 6;
const WIDTH: usize = 6;

/// A function that builds a network and returns its loss.
pub type Network = fn(&Net) -> fleet_ir::VarId;

/// A network of two layers with tanh.
pub fn mlp(net: &Net) -> fleet_ir::VarId {
    let x = net.data("x", [-1, WIDTH as i64], DType::F32);
    let y = net.data("y", [-1, 1], DType::F32);
    let hidden = x.fc(Fc::new(8).act(Act::Tanh)).fc(Fc::new(8).act(Act::Tanh));
    hidden.fc(1).mse_loss(y, Reduction::Mean).id()
}

/// Returns the rewritten programs of one rank.
pub fn rewritten(
    network: Network,
    optimizer: &OptimizerDesc,
    strategy: &DistributedStrategy,
    on: impl Into<Cluster>,
) -> Result<(Programs, Plan)> {
    let net = Net::new();
    net.set_seed(7);
    let loss = network(&net);
    let plan = net.rewrite_with(|programs, registry| {
        minimize(programs, registry, loss, optimizer, strategy, on)
    })?;
    Ok((net.build()?, plan))
}

/// Returns the rings of a plan, as rings in memory.
pub fn services(world: &World, plan: &Plan, rank: usize) -> Services {
    plan.rings.iter().fold(Services::none(), |services, ring| {
        let members: Vec<usize> = ring.members().collect();
        services.with_ring(ring.id, world.ring(ring.id, &members, rank))
    })
}

/// Returns the batch of a step as (x, y): the rows of one rank of `count`.
pub fn batch(step: usize, rank: usize, count: usize) -> Result<(Tensor, Tensor)> {
    let rows = BATCH / count;
    let value = |row: usize, column: usize| {
        let number = (step * BATCH + row) * 31 + column * 17 + 3;
        ((number * number) % 97) as f32 / 48.5 - 1.0
    };
    let mine = rank * rows..(rank + 1) * rows;
    let x: Vec<f32> =
        mine.clone().flat_map(|row| (0..WIDTH).map(move |column| value(row, column))).collect();
    let y: Vec<f32> = mine.map(|row| value(row, 0) * 0.5 - value(row, 3)).collect();
    Ok((
        Tensor::from_slice(&x, [rows as i64, WIDTH as i64])?,
        Tensor::from_slice(&y, [rows as i64, 1])?,
    ))
}

/// The state of a rank after training, and the values fetched during training.
pub struct Trained {
    pub kept: BTreeMap<String, Vec<f32>>,
    /// Fetched variables, by step.
    pub fetched: Vec<Vec<f32>>,
}

/// Trains on `count` ranks and returns the result of each.
pub fn train(
    network: Network,
    optimizer: &OptimizerDesc,
    strategy: &DistributedStrategy,
    count: usize,
    steps: usize,
    fetch: &[&str],
) -> Vec<Trained> {
    train_at(network, optimizer, strategy, count, count, steps, fetch)
}

pub fn train_at(
    network: Network,
    optimizer: &OptimizerDesc,
    strategy: &DistributedStrategy,
    count: usize,
    per_node: usize,
    steps: usize,
    fetch: &[&str],
) -> Vec<Trained> {
    let outcomes = local::run(count, |rank, world| {
        let ranks = Ranks::new(rank, count).per_node(per_node);
        let options = ExecOptions::threads(1);
        train_rank(options, network, optimizer, strategy, ranks, world, steps, fetch)
    });
    outcomes.into_iter().map(|outcome| outcome.expect("every rank trains")).collect()
}

#[allow(clippy::too_many_arguments, reason = "a job and one of its ranks")]
pub fn train_rank(
    options: ExecOptions,
    network: Network,
    optimizer: &OptimizerDesc,
    strategy: &DistributedStrategy,
    ranks: Ranks,
    world: &World,
    steps: usize,
    fetch: &[&str],
) -> Result<Trained> {
    let (programs, plan) = rewritten(network, optimizer, strategy, ranks)?;
    let mut executor = Executor::new(options).services(services(world, &plan, ranks.rank));
    let mut scope = Scope::new();
    executor.run(&programs.startup, &mut scope, &[], &[])?;
    let mut fetched = Vec::new();
    // All stages of a pipeline are fed the same samples.
    let whole = (ranks.rank, ranks.count);
    let (part, parts) = plan.stage.as_ref().map_or(whole, |stage| (stage.copy, stage.copies));
    for step in 0..steps {
        let (x, y) = batch(step, part, parts)?;
        let out = executor.run(&programs.main, &mut scope, &[("x", &x), ("y", &y)], fetch)?;
        fetched.push(out.iter().flat_map(numbers).collect());
    }
    Trained::of(&scope, fetched)
}

impl Trained {
    pub fn of(scope: &Scope, fetched: Vec<Vec<f32>>) -> Result<Trained> {
        let kept = scope.names().map(|name| Ok((name.to_string(), numbers(&scope.tensor(name)?))));
        Ok(Trained { kept: kept.collect::<Result<_>>()?, fetched })
    }
}

fn numbers(tensor: &Tensor) -> Vec<f32> {
    match tensor.dtype() {
        DType::F32 => tensor.to_vec::<f32>().unwrap_or_default(),
        DType::I64 => {
            tensor.to_vec::<i64>().unwrap_or_default().iter().map(|v| *v as f32).collect()
        }
        DType::I32 => {
            tensor.to_vec::<i32>().unwrap_or_default().iter().map(|v| *v as f32).collect()
        }
        _ => Vec::new(),
    }
}

/// Fails if two states differ by more than `tolerance`; compares only variables that both have.
pub fn assert_close(
    a: &BTreeMap<String, Vec<f32>>,
    b: &BTreeMap<String, Vec<f32>>,
    tolerance: f32,
    what: &str,
) {
    let mut compared = 0;
    for (name, left) in a {
        let Some(right) = b.get(name) else { continue };
        assert_eq!(left.len(), right.len(), "{what}: {name}");
        for (x, y) in left.iter().zip(right) {
            let close = (x - y).abs() <= tolerance * (1.0 + x.abs().max(y.abs()));
            assert!(close, "{what}: {name}: {x} and {y}");
            compared += 1;
        }
    }
    assert!(compared > 50, "{what}: there is something to compare");
}

/// Returns only the parameters.
pub fn parameters(kept: &BTreeMap<String, Vec<f32>>) -> BTreeMap<String, Vec<f32>> {
    let is = |name: &str| (name.ends_with(".w_0") || name.ends_with(".b_0")) && !name.contains('@');
    kept.iter().filter(|(name, _)| is(name)).map(|(n, v)| (n.clone(), v.clone())).collect()
}
