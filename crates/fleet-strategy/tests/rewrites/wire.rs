//! Bytes that a rank passes to its rings, measured there rather than computed.

use crate::world::{batch, rewritten};
use fleet_exec::{ExecOptions, Executor, Scope};
use fleet_nn::prelude::*;
use fleet_ops::Services;
use fleet_strategy::{DgcConfig, DistributedStrategy, Ranks};
use fleet_testkit::local::{self, LocalRing};
use std::sync::Arc;

const RANKS: usize = 2;
const ELEMENTS: u64 = 6 * 65_536;

fn network(net: &Net) -> fleet_ir::VarId {
    let (x, y) = (net.data("x", [-1, 6], DType::F32), net.data("y", [-1, 1], DType::F32));
    (x.fc(Fc::new(65_536).no_bias()).square().mean() + y.mean() * 0.0).id()
}

/// Returns the bytes that rank 0 passes to its rings in each step.
fn bytes_by_step(strategy: &DistributedStrategy, steps: usize) -> Vec<u64> {
    bytes_of(&Momentum::new(0.1, 0.9).into(), strategy, steps)
}

fn bytes_of(optimizer: &OptimizerDesc, strategy: &DistributedStrategy, steps: usize) -> Vec<u64> {
    let outcomes = local::run(RANKS, |rank, world| {
        let ranks = Ranks::new(rank, RANKS);
        let (programs, plan) = rewritten(network, optimizer, strategy, ranks)?;
        let rings: Vec<(i64, Arc<LocalRing>)> = plan
            .rings
            .iter()
            .map(|ring| (ring.id, world.ring(ring.id, &ring.members().collect::<Vec<_>>(), rank)))
            .collect();
        let services = rings
            .iter()
            .fold(Services::none(), |services, (id, ring)| services.with_ring(*id, ring.clone()));
        let given = || rings.iter().map(|(_, ring)| ring.bytes_given()).sum::<u64>();
        let mut executor = Executor::new(ExecOptions::threads(1)).services(services);
        let mut scope = Scope::new();
        executor.run(&programs.startup, &mut scope, &[], &[])?;
        let mut before = given();
        let mut counts = Vec::new();
        for step in 0..steps {
            let (x, y) = batch(step, rank, RANKS)?;
            executor.run(&programs.main, &mut scope, &[("x", &x), ("y", &y)], &[])?;
            counts.push(given() - before);
            before = given();
        }
        Ok(counts)
    });
    outcomes.into_iter().next().unwrap().unwrap()
}

#[test]
fn fp16_allreduce_halves_the_bytes() {
    let plain = bytes_by_step(&DistributedStrategy::new(), 2);
    assert_eq!(plain, [4 * ELEMENTS; 2]);
    let half = DistributedStrategy::new().with_fp16_allreduce(true);
    assert_eq!(bytes_by_step(&half, 2), [2 * ELEMENTS; 2]);
    let half = half.with_fp16_allreduce_dtype("bfloat16");
    assert_eq!(bytes_by_step(&half, 2), [2 * ELEMENTS; 2]);
}

/// Adam does not train alone: its gradients are sent, in half precision.
#[test]
fn fp16_allreduce_halves_the_bytes_beside_a_dropped_strategy() {
    let strategy = DistributedStrategy::new().with_localsgd(true).with_fp16_allreduce(true);
    assert_eq!(bytes_of(&Adam::new(0.1).into(), &strategy, 2), [2 * ELEMENTS; 2]);
}

/// Dense before the rampup; at sparsity 0.999 at most 0.3 % of that.
#[test]
fn dgc_sends_a_thousandth() {
    let configs = DgcConfig::default()
        .with_rampup_begin_step(1)
        .with_rampup_step(2)
        .with_sparsity([0.75f32, 0.999]);
    let counts = bytes_by_step(&DistributedStrategy::new().use_dgc(configs), 4);
    let pair = 8;
    let pairs = |sparsity: f64| pair * (ELEMENTS as f64 * (1.0 - sparsity) + 1e-6) as u64;
    assert_eq!(counts, [4 * ELEMENTS, pairs(0.75), pairs(0.999), pairs(0.999)]);
    assert!(1000 * counts[3] <= 3 * counts[0]);
}

/// Steps that only accumulate send nothing.
#[test]
fn gradient_merge_sends_once_in_k_steps() {
    let counts = bytes_by_step(&DistributedStrategy::new().use_gradient_merge(3), 6);
    assert_eq!(counts, [0, 0, 4 * ELEMENTS, 0, 0, 4 * ELEMENTS]);
}
