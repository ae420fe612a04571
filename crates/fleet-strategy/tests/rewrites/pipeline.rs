//! Pipelines: results that are those of gradient merge on one rank, program text, memory, errors.

use crate::world::{Network, Trained, batch, parameters, rewritten, services, train};
use fleet_exec::{ExecOptions, Executor, Scope};
use fleet_ir::Program;
use fleet_nn::prelude::*;
use fleet_strategy::{
    AmpConfig, DistributedStrategy, HybridConfig, LambConfig, LarsConfig, PipelineConfig, Ranks,
};
use std::collections::BTreeMap;

const STEPS: usize = 5;

fn momentum() -> OptimizerDesc {
    Momentum::new(0.1, 0.9).into()
}

fn configs(micros: i32, schedule: &str) -> PipelineConfig {
    PipelineConfig::default().with_accumulate_steps(micros).with_schedule_mode(schedule)
}

fn pipelined(strategy: DistributedStrategy, micros: i32, schedule: &str) -> DistributedStrategy {
    strategy.use_pipeline(configs(micros, schedule))
}

fn plain(micros: i32, schedule: &str) -> DistributedStrategy {
    pipelined(DistributedStrategy::new(), micros, schedule)
}

const SCHEDULES: [&str; 2] = ["1F1B", "F-then-B"];

/// Six layers, without labels.
fn layers(net: &Net) -> fleet_ir::VarId {
    labelled(net, |_| None)
}

fn two(net: &Net) -> fleet_ir::VarId {
    labelled(net, |layer| Some(layer / 3))
}

fn three(net: &Net) -> fleet_ir::VarId {
    labelled(net, |layer| Some(layer / 2))
}

fn four(net: &Net) -> fleet_ir::VarId {
    labelled(net, |layer| Some([0, 1, 1, 2, 3, 3][layer]))
}

fn six(net: &Net) -> fleet_ir::VarId {
    labelled(net, Some)
}

fn labelled(net: &Net, stage: impl Fn(usize) -> Option<usize>) -> fleet_ir::VarId {
    let guard = |layer: usize| stage(layer).map(|at| net.device_guard(&format!("gpu:{at}")));
    let x = net.data("x", [-1, 6], DType::F32);
    let y = net.data("y", [-1, 1], DType::F32);
    let mut hidden = x;
    for layer in 0..5 {
        let _stage = guard(layer);
        hidden = hidden.fc(Fc::new(8).act(Act::Tanh));
    }
    let _stage = guard(5);
    hidden.fc(1).mse_loss(y, Reduction::Mean).id()
}

/// Returns the network with labels for this number of stages.
fn network(stages: usize) -> Network {
    match stages {
        2 => two,
        3 => three,
        4 => four,
        6 => six,
        _ => layers,
    }
}

/// Returns what all ranks keep together.
fn union(ranks: &[Trained]) -> BTreeMap<String, Vec<f32>> {
    ranks.iter().rev().flat_map(|rank| rank.kept.clone()).collect()
}

fn same(what: &str, ranks: &[Trained], expected: &BTreeMap<String, Vec<f32>>) {
    let all = union(ranks);
    let names = |map: &BTreeMap<String, Vec<f32>>| map.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&all), names(expected), "{what}");
    for (name, value) in expected {
        assert!(all[name] == *value, "{what}: {name}: {:?} and {value:?}", all[name]);
    }
    // Ranks that hold the same variable have the same value.
    for own in ranks {
        assert!(own.kept.iter().all(|(name, value)| all[name] == *value), "{what}");
    }
}

/// Trains on one rank with gradient merge, which is fed the micro-batches one after the other.
fn merged(
    network: Network,
    optimizer: &OptimizerDesc,
    strategy: &DistributedStrategy,
    micros: usize,
) -> BTreeMap<String, Vec<f32>> {
    let strategy = strategy.clone().use_gradient_merge(micros as i32);
    let (programs, _) = rewritten(network, optimizer, &strategy, Ranks::new(0, 1)).unwrap();
    let mut executor = Executor::new(ExecOptions::threads(1));
    let mut scope = Scope::new();
    executor.run(&programs.startup, &mut scope, &[], &[]).unwrap();
    for step in 0..STEPS {
        for piece in 0..micros {
            let (x, y) = batch(step, piece, micros).unwrap();
            executor.run(&programs.main, &mut scope, &[("x", &x), ("y", &y)], &[]).unwrap();
        }
    }
    let mut kept = Trained::of(&scope, Vec::new()).unwrap().kept;
    kept.retain(|name, _| !name.contains("gradient_merge") && !name.ends_with("@GradientMerge"));
    kept
}

fn ops(program: &Program) -> Vec<String> {
    let shown = |op: &fleet_ir::Op| {
        let first = op.all_inputs().chain(op.all_outputs()).next();
        let name = first.map_or("", |var| program.var_name(var));
        let to = match op.name() {
            "send_v2" | "recv_v2" => format!(" ring {}", op.attr_int("ring_id")),
            _ => String::new(),
        };
        format!("{} {name}{to}", op.name())
    };
    program.root_ops().map(|(_, op)| shown(op)).collect()
}

#[test]
fn pipelines_compute_the_bits_of_gradient_merge() {
    for micros in [1usize, 2, 4] {
        let strategy = DistributedStrategy::new();
        let expected = match micros {
            1 => union(&train(layers, &momentum(), &strategy, 1, STEPS, &[])),
            _ => merged(layers, &momentum(), &strategy, micros),
        };
        for schedule in SCHEDULES {
            for stages in [1, 2, 3, 4, 6] {
                let strategy = plain(micros as i32, schedule);
                let what = format!("{micros} micro-batches, {schedule}, {stages} stages");
                let ranks = train(network(stages), &momentum(), &strategy, stages, STEPS, &[]);
                same(&what, &ranks, &expected);
                let ranks = train(layers, &momentum(), &strategy, stages, STEPS, &[]);
                same(&format!("{what}, cut by cost"), &ranks, &expected);
            }
        }
    }
}

#[test]
fn print_programs() {
    for rank in 0..2 {
        let (programs, plan) =
            rewritten(two, &momentum(), &plain(2, "1F1B"), Ranks::new(rank, 2)).unwrap();
        println!("{}", ops(&programs.main).join("\n"));
        println!("{}", programs.startup);
        println!("{:#?}", plan.notes);
    }
}
