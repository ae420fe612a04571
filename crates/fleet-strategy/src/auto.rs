//! `auto`: a strategy chosen from the program's costs, with the reasoning.
//!
//! Only when nothing else is assigned. What is chosen never changes what is trained, but for
//! fp16_allreduce, which rounds what travels and is taken only where the network would hold up the
//! machine: DGC, LocalSGD, gradient merge, LARS and LAMB train something else, and are the user's to
//! choose.

use crate::DistributedStrategy;
use crate::compiler::{Decision, Verdict};
use crate::meta::Facts;
use fleet_base::text;
use fleet_ops::{CostCtx, InferCtx, Meta, Registry, meta};

/// Work of a rank, in flop a second: what a few CPU cores do.
const FLOPS_PER_SECOND: f64 = 100e9;
/// Samples that a rank is taken to work on in a step.
const SAMPLES: f64 = 32.0;
/// Bytes a second between ranks of one machine.
const BYTES_PER_SECOND_INSIDE: f64 = 5e9;
/// Bytes a second between machines, of ten-gigabit Ethernet.
const BYTES_PER_SECOND_BETWEEN: f64 = 1.1e9;
/// The backward pass costs twice the forward pass.
const PASSES: f64 = 3.0;

/// The strategy that is in force, and why, where `auto` had a say.
pub fn effective(facts: &Facts<'_>) -> (DistributedStrategy, Vec<Decision>) {
    let given = facts.strategy.clone();
    if !given.auto() {
        return (given, Vec::new());
    }
    let mut rest = given.clone();
    rest.auto = None;
    let decision = |verdict, reason: String| Decision { strategy: "Auto", verdict, reason };
    if !rest.is_empty() {
        let reason = "other fields are assigned, and they are what counts".to_string();
        return (rest, vec![decision(Verdict::Idle, reason)]);
    }
    let (chosen, reasons) = choose(facts);
    (chosen, reasons.into_iter().map(|reason| decision(Verdict::Applied, reason)).collect())
}

fn choose(facts: &Facts<'_>) -> (DistributedStrategy, Vec<String>) {
    let mut strategy = DistributedStrategy::new();
    let ranks = facts.ranks;
    if ranks.count == 1 {
        return (strategy, vec!["one rank: nothing to choose".into()]);
    }
    let flops = PASSES * SAMPLES * forward_flops(facts);
    let bytes: f64 = facts
        .program
        .parameters()
        .filter(|(_, var)| !var.stop_gradient)
        .map(|(_, var)| var.shape.numel().unwrap_or(0) as f64 * var.dtype.size() as f64)
        .sum();
    let nodes = ranks.count.div_ceil(ranks.per_node);
    let speed = if nodes > 1 { BYTES_PER_SECOND_BETWEEN } else { BYTES_PER_SECOND_INSIDE };
    let share = (ranks.count - 1) as f64 / ranks.count as f64;
    let (compute, network) = (flops / FLOPS_PER_SECOND, 2.0 * bytes * share / speed);
    let mut reasons = vec![format!(
        "a step of {SAMPLES} samples is about {}flop a rank, {:.2} s at {}flop/s; {} of gradients take {:.2} s",
        text::count(flops),
        compute,
        text::count(FLOPS_PER_SECOND),
        text::bytes(bytes as u64),
        network
    )];
    if nodes > 1 {
        strategy.set_nccl_comm_num(2);
        reasons.push(format!("{nodes} machines: two communicators side by side fill the network"));
        if ranks.per_node > 1 && ranks.count.is_multiple_of(ranks.per_node) {
            strategy.set_use_hierarchical_allreduce(true);
            reasons.push(format!(
                "{} ranks a machine: sums go up inside of machines first, so each byte crosses the network once a machine",
                ranks.per_node
            ));
        }
    }
    if network > compute {
        strategy.set_fp16_allreduce(true);
        reasons.push(
            "the network takes longer than the work: gradients travel in half precision".into(),
        );
    } else {
        reasons.push(
            "communication fits behind the backward pass: gradients travel as they are".into(),
        );
    }
    reasons.push(
        "amp is not chosen: processors of this kind compute 16-bit floats by way of 32".into(),
    );
    (strategy, reasons)
}

/// Work of one sample, by the ops' own estimates; unknown dimensions count once.
fn forward_flops(facts: &Facts<'_>) -> f64 {
    let registry = Registry::standard();
    let one_sample = |var| {
        let mut meta = meta(facts.program, var);
        meta.shape.dims_mut().iter_mut().filter(|dim| **dim < 0).for_each(|dim| *dim = 1);
        meta
    };
    let mut total = 0.0;
    for (_, op) in facts.program.root_ops() {
        let Some(def) = registry.find(op.name()) else { continue };
        let mut infer = InferCtx::new(op, one_sample);
        if (def.infer)(&mut infer).is_err() {
            continue;
        }
        let outputs = infer.into_outputs();
        let inputs: Vec<Vec<Meta>> = op
            .inputs
            .iter()
            .map(|vars| vars.iter().map(|var| one_sample(*var)).collect())
            .collect();
        total += (def.traits.cost)(&CostCtx { op, inputs: &inputs, outputs: &outputs }).flops;
    }
    total
}
