//! Pipelines: results that are those of gradient merge on one rank, program text, memory, errors.

use crate::world::{Network, Trained, assert_close, batch, rewritten, services, train};
use fleet_base::Result;
use fleet_exec::{ExecOptions, Executor, Scope};
use fleet_ir::Program;
use fleet_nn::models::{GptConfig, gpt};
use fleet_nn::prelude::*;
use fleet_strategy::{
    AmpConfig, DistributedStrategy, HybridConfig, LambConfig, LarsConfig, PipelineConfig, Ranks,
};
use fleet_tensor::Tensor;
use fleet_testkit::local;
use std::collections::BTreeMap;

pub const STEPS: usize = 5;

pub fn momentum() -> OptimizerDesc {
    Momentum::new(0.1, 0.9).into()
}

pub fn configs(micros: i32, schedule: &str) -> PipelineConfig {
    PipelineConfig::default().with_accumulate_steps(micros).with_schedule_mode(schedule)
}

pub fn pipelined(
    strategy: DistributedStrategy,
    micros: i32,
    schedule: &str,
) -> DistributedStrategy {
    strategy.use_pipeline(configs(micros, schedule))
}

fn plain(micros: i32, schedule: &str) -> DistributedStrategy {
    pipelined(DistributedStrategy::new(), micros, schedule)
}

const SCHEDULES: [&str; 3] = ["1F1B", "F-then-B", "ZBH1"];

/// Six layers, without labels.
pub fn layers(net: &Net) -> fleet_ir::VarId {
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
pub fn network(stages: usize) -> Network {
    match stages {
        2 => two,
        3 => three,
        4 => four,
        6 => six,
        _ => layers,
    }
}

/// Returns what all ranks keep together.
pub fn union(ranks: &[Trained]) -> BTreeMap<String, Vec<f32>> {
    ranks.iter().rev().flat_map(|rank| rank.kept.clone()).collect()
}

pub fn same(what: &str, ranks: &[Trained], expected: &BTreeMap<String, Vec<f32>>) {
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

/// Every optimizer, each with a clip, a decay, or none.
pub fn optimizers() -> Vec<(&'static str, OptimizerDesc)> {
    let decay = Regularizer::L2(0.01);
    vec![
        ("sgd", Sgd::new(0.1).grad_clip(GradClip::GlobalNorm(0.1)).into()),
        ("momentum", Momentum::new(0.1, 0.9).weight_decay(decay).into()),
        ("nesterov", Momentum::new(0.1, 0.9).use_nesterov(true).into()),
        ("adam", Adam::new(0.01).grad_clip(GradClip::GlobalNorm(0.1)).into()),
        ("adamw", AdamW::new(0.01).grad_clip(GradClip::Norm(0.1)).into()),
        ("adamax", Adamax::new(0.01).weight_decay(Regularizer::L1(0.01)).into()),
        ("adagrad", Adagrad::new(0.01).grad_clip(GradClip::value(0.01)).into()),
        ("adadelta", Adadelta::new(0.1).grad_clip(GradClip::GlobalNorm(0.1)).into()),
        ("rmsprop", RmsProp::new(0.01).into()),
        ("lars", LarsMomentum::new(0.1, 0.9).grad_clip(GradClip::GlobalNorm(0.1)).into()),
        ("lamb", Lamb::new(0.01).weight_decay(decay).into()),
    ]
}

/// The strategies that a pipeline can be combined with.
pub fn with(name: &str) -> DistributedStrategy {
    let strategy = DistributedStrategy::new();
    let amp = AmpConfig::default().with_init_loss_scaling(256.0);
    match name {
        "plain" => strategy,
        "amp" => strategy.use_amp(amp),
        "constant" => strategy.use_amp(amp.with_use_dynamic_loss_scaling(false)),
        "bf16" => strategy.use_amp(amp.with_use_pure_bf16(true)),
        // At all borders of stages, so that one rank recomputes the same ops.
        "recompute" => strategy.use_recompute((0..5).map(|layer| format!("fc_{layer}.tmp_2"))),
        "amp+recompute" => with("recompute").use_amp(amp),
        "fp16" => strategy.with_fp16_allreduce(true),
        "lars" => strategy.use_lars(LarsConfig::default().with_lars_coeff(0.1)),
        "lamb" => strategy.use_lamb(LambConfig::default()),
        other => panic!("no strategy {other}"),
    }
}

pub const ALL_STRATEGIES: [&str; 8] =
    ["plain", "amp", "constant", "bf16", "recompute", "amp+recompute", "fp16", "lars"];

/// Pipelines of 2, 3 and 4 stages compute the bits of one rank that runs all stages.
fn check_bits(what: &str, optimizer: &OptimizerDesc, strategy: &DistributedStrategy) {
    for micros in [2, 4] {
        let one = pipelined(strategy.clone(), micros, "1F1B");
        let one = union(&train(layers, optimizer, &one, 1, STEPS, &[]));
        for (stages, schedule) in [(2, "1F1B"), (3, "F-then-B"), (3, "ZBH1"), (4, "1F1B")] {
            let what = format!("{what}, {stages} stages, {micros} micro-batches, {schedule}");
            let strategy = pipelined(strategy.clone(), micros, schedule);
            let ranks = train(network(stages), optimizer, &strategy, stages, STEPS, &[]);
            same(&what, &ranks, &one);
            let most = |it: &Trained| it.kept.keys().filter(|it| it.ends_with(".w_0")).count();
            assert!(ranks.iter().all(|rank| most(rank) < 6), "{what}: each has its parameters");
        }
    }
}

#[test]
fn every_optimizer_computes_the_same_bits() {
    for (name, optimizer) in optimizers() {
        for strategy in ["plain", "amp"] {
            check_bits(&format!("{name}, {strategy}"), &optimizer, &with(strategy));
        }
    }
}

#[test]
fn every_strategy_computes_the_same_bits() {
    let clipped: OptimizerDesc =
        Momentum::new(0.1, 0.9).grad_clip(GradClip::GlobalNorm(0.1)).into();
    for name in ALL_STRATEGIES {
        check_bits(name, &clipped, &with(name));
    }
    let adam = Adam::new(0.01).grad_clip(GradClip::GlobalNorm(0.1)).into();
    check_bits("lamb", &adam, &with("lamb"));
    let schedule = LrSchedule::step(0.1, 2);
    check_bits("schedule", &Sgd::new(schedule).into(), &with("amp"));
}

/// One rank with micro-batches merges gradients; what a step skips under mixed precision too.
#[test]
fn one_rank_computes_the_bits_of_gradient_merge() {
    for (name, optimizer) in optimizers() {
        for strategy in ["plain", "bf16", "recompute"] {
            let expected = merged(layers, &optimizer, &with(strategy), 4);
            let one = pipelined(with(strategy), 4, "1F1B");
            let ranks = train(layers, &optimizer, &one, 1, STEPS, &[]);
            same(&format!("{name}, {strategy}"), &ranks, &expected);
        }
    }
}

#[test]
fn virtual_stages_compute_the_same_bits() {
    let optimizer: OptimizerDesc = Adam::new(0.01).grad_clip(GradClip::GlobalNorm(0.1)).into();
    for (stages, parts, micros) in [(2, 4, 2), (2, 4, 4), (2, 6, 4), (3, 6, 3), (2, 6, 2)] {
        for schedule in ["1F1B", "F-then-B"] {
            for strategy in ["plain", "amp+recompute"] {
                let what = format!("{parts} parts on {stages} stages, {micros}, {schedule}");
                let one = pipelined(with(strategy), micros, "1F1B");
                let one = union(&train(layers, &optimizer, &one, 1, STEPS, &[]));
                let configs = configs(micros, schedule).with_virtual_stages(parts / stages);
                let strategy = with(strategy).use_pipeline(configs);
                let labelled = network(parts as usize);
                let ranks = train(labelled, &optimizer, &strategy, stages as usize, STEPS, &[]);
                same(&what, &ranks, &one);
                let ranks = train(layers, &optimizer, &strategy, stages as usize, STEPS, &[]);
                same(&format!("{what}, cut by cost"), &ranks, &one);
            }
        }
    }
}

/// Pipelines with copies sum the merged gradients, as data parallel ranks with gradient merge do.
#[test]
fn pipelines_of_several_ranks_are_data_parallel() {
    let optimizer: OptimizerDesc = Adam::new(0.01).grad_clip(GradClip::GlobalNorm(0.1)).into();
    for name in ALL_STRATEGIES {
        for (stages, copies) in [(2, 2), (3, 2), (2, 3)] {
            let strategy = pipelined(with(name), 2, "1F1B");
            let plain = train(layers, &optimizer, &strategy_of(&strategy, 1), copies, STEPS, &[]);
            let ranks = train(network(stages), &optimizer, &strategy, stages * copies, STEPS, &[]);
            same(&format!("{name}, {copies} x {stages}"), &ranks, &union(&plain));
        }
    }
}

/// Returns a strategy with this number of stages.
pub fn strategy_of(strategy: &DistributedStrategy, stages: i32) -> DistributedStrategy {
    strategy.clone().with_hybrid_configs(HybridConfig::default().with_pp_degree(stages))
}

/// Returns the values that a rank is fed in a step, by the number of its pipeline.
pub type Feed = fn(step: usize, copy: usize, copies: usize) -> Vec<(&'static str, Tensor)>;

/// Trains a network on `count` ranks; each fetches the variables that it has.
pub fn train_fed(
    network: Network,
    feed: Feed,
    optimizer: &OptimizerDesc,
    strategy: &DistributedStrategy,
    count: usize,
    fetch: &[&str],
) -> Vec<Trained> {
    let outcomes = local::run(count, |rank, world| {
        let ranks = Ranks::new(rank, count);
        let (programs, plan) = rewritten(network, optimizer, strategy, ranks)?;
        let stage = plan.stage.clone().unwrap_or_default();
        let executor = Executor::new(ExecOptions::threads(1));
        let mut executor = executor.services(services(world, &plan, rank));
        let mut scope = Scope::new();
        executor.run(&programs.startup, &mut scope, &[], &[])?;
        let own = |name: &&&str| programs.main.find_var(name).is_some();
        let fetch: Vec<&str> = fetch.iter().filter(own).copied().collect();
        let mut fetched = Vec::new();
        for step in 0..STEPS {
            let fed = feed(step, stage.copy, stage.copies.max(1));
            let fed: Vec<(&str, &Tensor)> = fed.iter().map(|(name, it)| (*name, it)).collect();
            let out = executor.run(&programs.main, &mut scope, &fed, &fetch)?;
            fetched.push(out.iter().flat_map(|it| it.to_vec::<f32>().unwrap()).collect());
        }
        Trained::of(&scope, fetched)
    });
    outcomes.into_iter().map(Result::unwrap).collect()
}

pub fn two_inputs(step: usize, copy: usize, copies: usize) -> Vec<(&'static str, Tensor)> {
    let (x, y) = batch(step, copy, copies).unwrap();
    vec![("x", x), ("y", y)]
}

pub const LOSS: &str = "mean_0.tmp_0";

/// All ranks can fetch the mean loss of the micro-batches. A value with rows is that of the whole
/// batch, on the rank that computes it.
#[test]
fn results_are_those_of_the_whole_batch() {
    for (stages, virtual_stages) in [(1, 1), (2, 1), (4, 1), (2, 2)] {
        let configs = configs(4, "1F1B").with_virtual_stages(virtual_stages);
        let strategy = DistributedStrategy::new().use_pipeline(configs);
        let network = network(stages * virtual_stages as usize);
        let sgd: OptimizerDesc = Sgd::new(0.0).into();
        let fetch = [LOSS, "fc_0.tmp_2", "fc_5.tmp_1"];
        let ranks = train_fed(network, two_inputs, &sgd, &strategy, stages, &fetch);
        let plain = DistributedStrategy::new();
        let whole = &train_fed(layers, two_inputs, &sgd, &plain, 1, &fetch)[0].fetched;
        let mut found = 0;
        for rank in &ranks {
            for (own, whole) in rank.fetched.iter().zip(whole) {
                assert!((own[0] - whole[0]).abs() < 1e-6, "{} and {}", own[0], whole[0]);
                found += own.len() - 1;
                // The first stage has the 12 x 8 values, the last one the 12 predictions.
                assert!(
                    own.len() == 1
                        || own[1..] == whole[1..][..own.len() - 1]
                        || own[1..] == whole[1 + 96..]
                );
            }
        }
        assert_eq!(found, STEPS * (96 + 12));
    }
}

pub fn normed(net: &Net) -> fleet_ir::VarId {
    let guard = |at: usize| net.device_guard(&format!("gpu:{at}"));
    let x = net.data("x", [-1, 6], DType::F32);
    let y = net.data("y", [-1, 1], DType::F32);
    let first = {
        let _stage = guard(0);
        x.fc(8).batch_norm(BatchNorm::new()).relu().dropout(0.3)
    };
    let second = {
        let _stage = guard(1);
        first.fc(8).batch_norm(BatchNorm::new()).dropout(0.2) + first
    };
    let _stage = guard(2);
    (second.fc(8) + first).fc(1).mse_loss(y, Reduction::Mean).id()
}

/// Statistics change in the order of the micro-batches, and each draws its own random numbers. A
/// value of the first stage goes through the second one to the third.
#[test]
fn batch_norms_and_dropout_compute_the_same_bits() {
    for strategy in ["plain", "amp"] {
        for (micros, schedule) in [(2, "1F1B"), (3, "1F1B"), (4, "F-then-B")] {
            let one = pipelined(with(strategy), micros, "1F1B");
            let one = union(&train(normed, &momentum(), &one, 1, STEPS, &[]));
            let strategy = pipelined(with(strategy), micros, schedule);
            let ranks = train(normed, &momentum(), &strategy, 3, STEPS, &[]);
            same(&format!("{micros} micro-batches, {schedule}"), &ranks, &one);
        }
    }
    let synchronous = plain(2, "1F1B").with_sync_batch_norm(true);
    let ranks = train(normed, &momentum(), &synchronous, 6, STEPS, &[]);
    let copies = strategy_of(&synchronous, 1);
    let plain = train(unlabelled_norms, &momentum(), &copies, 2, STEPS, &[]);
    same("synchronous", &ranks, &union(&plain));
}

/// Like `normed`, for ranks that each run all of it.
pub fn unlabelled_norms(net: &Net) -> fleet_ir::VarId {
    let x = net.data("x", [-1, 6], DType::F32);
    let y = net.data("y", [-1, 1], DType::F32);
    let first = x.fc(8).batch_norm(BatchNorm::new()).relu().dropout(0.3);
    let second = first.fc(8).batch_norm(BatchNorm::new()).dropout(0.2) + first;
    (second.fc(8) + first).fc(1).mse_loss(y, Reduction::Mean).id()
}

pub fn small_gpt(net: &Net) -> fleet_ir::VarId {
    gpt(net, &sizes()).loss.id()
}

fn sizes() -> GptConfig {
    let (vocabulary, length) = (17, 5);
    let (hidden, layers, heads, ffn, dropout) = (8, 4, 2, 16, 0.1);
    GptConfig { vocabulary, hidden, layers, heads, ffn, length, dropout, ..GptConfig::small() }
}

pub fn tokens(step: usize, copy: usize, copies: usize) -> Vec<(&'static str, Tensor)> {
    let rows = 12 / copies;
    let value = |at: usize| ((step * 60 + copy * rows * 5 + at) * 7 % 17) as i64;
    let of = |shift: usize| {
        let values: Vec<i64> = (0..rows * 5).map(|at| value(at + shift)).collect();
        Tensor::from_slice(&values, [rows as i64, 5]).unwrap()
    };
    vec![("tokens", of(0)), ("labels", of(1))]
}

/// The first and the last stage share the embedding. Its gradient is a sum over both, which adds in
/// another order than one rank. In a global norm it counts once.
#[test]
fn stages_share_an_embedding() {
    let clipped: OptimizerDesc =
        Adam::new(0.01).epsilon(1e-3).grad_clip(GradClip::GlobalNorm(0.1)).into();
    for name in ["plain", "amp", "lamb"] {
        let one = strategy_of(&pipelined(with(name), 2, "1F1B"), 1);
        let tolerance = if name == "amp" { 1e-3 } else { 2e-6 };
        for (stages, copies, virtual_stages) in
            [(2, 1, 1), (3, 1, 1), (4, 1, 1), (2, 1, 2), (2, 2, 1)]
        {
            let configs = configs(2, "1F1B").with_virtual_stages(virtual_stages);
            let hybrid = HybridConfig::default().with_pp_degree(stages as i32);
            let strategy = with(name).use_pipeline(configs).with_hybrid_configs(hybrid);
            let what = format!("{name}, {stages} x {copies}, {virtual_stages}");
            let ranks = train_fed(small_gpt, tokens, &clipped, &strategy, stages * copies, &[]);
            let (first, last) = (&ranks[0].kept, &ranks[stages - 1].kept);
            assert!(first["word_embedding"] == last["word_embedding"], "{what}: copies are equal");
            let (all, one) =
                (union(&ranks), train_fed(small_gpt, tokens, &clipped, &one, copies, &[]));
            assert_eq!(all.len(), one[0].kept.len(), "{what}");
            assert_close(&all, &one[0].kept, tolerance, &what);
        }
    }
}

/// Ranks share the layers of each stage, and stages the embedding.
#[test]
fn stages_of_divided_layers() {
    let clipped: OptimizerDesc =
        Adam::new(0.01).epsilon(1e-3).grad_clip(GradClip::GlobalNorm(0.1)).into();
    let one = train_fed(undropped_gpt, tokens, &clipped, &plain(2, "1F1B"), 1, &[]);
    for (stages, copies) in [(2, 1), (4, 1), (2, 2)] {
        let hybrid = HybridConfig::default().with_pp_degree(stages).with_mp_degree(2);
        let strategy = plain(2, "1F1B").with_hybrid_configs(hybrid);
        let count = 2 * (stages * copies) as usize;
        let ranks = train_fed(undropped_gpt, tokens, &clipped, &strategy, count, &[]);
        assert_whole_close(&ranks, &one[0], &format!("{stages} stages, {copies} copies"));
    }
}

/// Compares the variables of which ranks do not have parts.
pub fn assert_whole_close(ranks: &[Trained], one: &Trained, what: &str) {
    let all = &one.kept;
    let mut compared = 0;
    for own in ranks {
        for (name, value) in own.kept.iter().filter(|(name, value)| all[*name].len() == value.len())
        {
            let close = |(a, b): (&f32, &f32)| (a - b).abs() <= 2e-6 * (1.0 + a.abs());
            assert!(value.iter().zip(&all[name]).all(close), "{what}: {name}");
            compared += 1;
        }
    }
    assert!(compared > 50, "{what}: {compared}");
}

pub fn undropped_gpt(net: &Net) -> fleet_ir::VarId {
    gpt(net, &GptConfig { dropout: 0.0, vocabulary: 18, ..sizes() }).loss.id()
}

pub fn tables(net: &Net) -> fleet_ir::VarId {
    let guard = |at: usize| net.device_guard(&format!("gpu:{at}"));
    let tokens = net.data("tokens", [-1, 5], DType::I64);
    net.data("labels", [-1, 5], DType::I64);
    let hidden = {
        let _stage = guard(0);
        tokens.embedding(Embedding::new(17, 4).sparse().weight("table")).flatten(1).fc(8).tanh()
    };
    let _stage = guard(1);
    let other = tokens.embedding(Embedding::new(17, 4).sparse()).flatten(1);
    (hidden.fc(4) + other.fc(4)).fc(1).mean().id()
}

/// Like `tables`, but both stages look up the rows of one table.
pub fn shared_table(net: &Net) -> fleet_ir::VarId {
    let guard = |at: usize| net.device_guard(&format!("gpu:{at}"));
    let tokens = net.data("tokens", [-1, 5], DType::I64);
    net.data("labels", [-1, 5], DType::I64);
    let hidden = {
        let _stage = guard(0);
        tokens.embedding(Embedding::new(17, 4).sparse().weight("table")).flatten(1).fc(8).tanh()
    };
    let _stage = guard(1);
    let other = tokens.embedding(Embedding::new(17, 4).sparse().weight("table")).flatten(1);
    (hidden.fc(4) + other.fc(4)).fc(1).mean().id()
}

/// Rows of embedding tables have an optimizer of their own.
#[test]
fn sparse_gradients() {
    let clipped = || Momentum::new(0.1, 0.9).grad_clip(GradClip::GlobalNorm(0.1));
    let rows: OptimizerDesc = clipped().rows(Sgd::new(1.0).grad_clip(GradClip::GlobalNorm(0.1)));
    for optimizer in [clipped().into(), rows] {
        for micros in [1, 4] {
            let one = union(&train_fed(tables, tokens, &optimizer, &plain(micros, "1F1B"), 1, &[]));
            for schedule in SCHEDULES {
                let strategy = plain(micros, schedule);
                let ranks = train_fed(tables, tokens, &optimizer, &strategy, 2, &[]);
                same(schedule, &ranks, &one);
            }
            let strategy = plain(micros, "1F1B");
            let one = union(&train_fed(shared_table, tokens, &optimizer, &strategy, 1, &[]));
            let ranks = train_fed(shared_table, tokens, &optimizer, &strategy, 2, &[]);
            assert_close(&union(&ranks), &one, 1e-6, "a shared table");
            assert!(ranks[0].kept["table"] == ranks[1].kept["table"]);
        }
    }
}

/// Returns the order of passes and messages: `F` and `B` for the passes of micro-batches, by their
/// first op that is not one of the ops in between; `>` and `<` for messages, with their rings. A
/// `B` after its message computes gradients of weights.
fn order(program: &Program) -> String {
    let mut shown: Vec<String> = Vec::new();
    for (_, op) in program.root_ops() {
        let micro = |name: &str| name.split_once("@MICRO_").map(|(_, micro)| micro.to_string());
        let mut names = op.all_inputs().chain(op.all_outputs()).map(|var| program.var_name(var));
        let text = match (op.name(), names.find_map(micro)) {
            ("send_v2", _) => format!(">{}", op.attr_int("ring_id")),
            ("recv_v2", _) => format!("<{}", op.attr_int("ring_id")),
            ("micro_batch_slice" | "concat" | "sum" | "elementwise_add", _) | (_, None) => continue,
            (_, Some(micro)) if op.role.is_forward() => format!("F{micro}"),
            (_, Some(micro)) => format!("B{micro}"),
        };
        if shown.last() != Some(&text) {
            shown.push(text);
        }
    }
    shown.join(" ")
}

#[test]
fn passes_are_in_the_order_of_the_schedule() {
    let check = |network: Network, configs: PipelineConfig, ranks: Ranks, expected: &str| {
        let strategy = DistributedStrategy::new().use_pipeline(configs);
        let (programs, plan) = rewritten(network, &momentum(), &strategy, ranks).unwrap();
        assert_eq!(plan.chain_text().replace("RawProgram -> ", ""), "Pipeline -> momentum");
        assert_eq!(order(&programs.main), expected, "{ranks:?}");
    };
    // Before a pass, values for the next one are received.
    let text = "F0 >20 <21 F1 >20 B0 <21 F2 >20 <21 B1 B2";
    check(two, configs(3, "1F1B"), Ranks::new(0, 2), text);
    let text = "<20 F0 <20 B0 >21 B0 F1 <20 B1 >21 B1 F2 B2 >21 B2";
    check(two, configs(3, "1F1B"), Ranks::new(1, 2), text);
    let text = "<20 F0 <20 B0 >21 F1 <20 B1 >21 B0 F2 B2 >21 B1 B2";
    check(two, configs(3, "ZBH1"), Ranks::new(1, 2), text);
    let text = "F0 >20 F1 >20 <21 F2 >20 <21 B0 <21 B1 B2";
    check(two, configs(3, "F-then-B"), Ranks::new(0, 2), text);
    let text = "<20 F0 >22 <23 F1 >22 <20 B0 >21 B0 <23 F2 >22 <23 B1 >21 B1 B2 >21 B2";
    check(three, configs(3, "1F1B"), Ranks::new(1, 3), text);
    // The ranks of a pipeline are consecutive.
    for (count, copies) in [(2, 1), (8, 4), (1024, 512)] {
        let text = "<20 F0 <20 B0 >21 B0 F1 B1 >21 B1";
        let ranks = Ranks::new(count - 1, count);
        check(two, configs(2, "1F1B"), ranks, text);
        let (programs, plan) = rewritten(two, &momentum(), &plain(2, "1F1B"), ranks).unwrap();
        let stage = plan.stage.unwrap();
        assert_eq!((stage.number, stage.count), (1, 2));
        assert_eq!((stage.copy, stage.copies), (copies - 1, copies));
        let rings: Vec<_> = plan
            .rings
            .iter()
            .filter(|ring| ring.id != 2)
            .map(|ring| (ring.id, ring.first, ring.stride, ring.nranks, ring.rank))
            .collect();
        let pair = |id: i64| (id, count - 2, 1, 2, 1);
        assert_eq!(rings, [pair(4), pair(20), pair(21)]);
        let sums = programs.main.root_ops().filter(|(_, op)| op.name() == "c_allreduce_sum");
        let sums: Vec<_> =
            sums.map(|(_, op)| (op.attr_int("ring_id"), op.attr_int("nranks"))).collect();
        assert_eq!(sums, if copies > 1 { vec![(2, copies as i64)] } else { vec![] });
        let fill =
            programs.main.root_ops().find(|(_, op)| op.role.is_loss() && op.role.is_backward());
        assert_eq!(fill.unwrap().1.attr_float("value"), 0.5);
        let held: Vec<&str> = programs.startup.parameters().map(|(_, var)| &*var.name).collect();
        let own = ["fc_3.w_0", "fc_3.b_0", "fc_4.w_0", "fc_4.b_0", "fc_5.w_0", "fc_5.b_0"];
        assert_eq!(held, own);
        let held: Vec<&str> = programs.main.parameters().map(|(_, var)| &*var.name).collect();
        assert_eq!(held, own);
    }
}

#[test]
fn notes_state_the_stage_and_the_bubble() {
    let strategy = plain(8, "1F1B");
    let (_, plan) = rewritten(layers, &momentum(), &strategy, Ranks::new(1, 2)).unwrap();
    assert_eq!(
        plan.notes,
        [
            "pipeline: stage 1 of 2 has 10 of 19 forward ops and 6 of 12 parameters",
            "pipeline: if all parts take the same time, a stage waits for (S - 1) / (M + S - 1) = \
             11.1 % of a step (S = 2, M = 8)",
        ]
    );
    let configs = configs(8, "1F1B").with_virtual_stages(2);
    let strategy = DistributedStrategy::new().use_pipeline(configs);
    let (_, plan) = rewritten(layers, &momentum(), &strategy, Ranks::new(0, 2)).unwrap();
    let last = plan.notes.last().unwrap();
    assert!(last.contains("(S - 1) / (v M + S - 1) = 5.9 % of a step"), "{last}");
    let (_, plan) = rewritten(small_gpt, &momentum(), &plain(2, "1F1B"), Ranks::new(0, 2)).unwrap();
    let note = "pipeline: several stages use word_embedding, and each updates its copy";
    assert!(plan.notes.contains(&note.to_string()), "{:?}", plan.notes);
}

/// Returns the size of the temporaries of each rank, for micro-batches of 64 rows.
fn arenas(schedule: &str, micros: i32) -> Vec<usize> {
    let outcomes = local::run(4, |rank, world| {
        let strategy = plain(micros, schedule);
        let (programs, plan) = rewritten(wide, &momentum(), &strategy, Ranks::new(rank, 4))?;
        let executor = Executor::new(ExecOptions::threads(1));
        let mut executor = executor.services(services(world, &plan, rank));
        let mut scope = Scope::new();
        executor.run(&programs.startup, &mut scope, &[], &[])?;
        let rows = i64::from(64 * micros);
        let feeds = [("x", DType::F32, [rows, 8].into()), ("y", DType::F32, [rows, 1].into())];
        Ok(executor.plan(&programs.main, &scope, &feeds, &[])?.arena_bytes)
    });
    outcomes.into_iter().map(Result::unwrap).collect()
}

/// Activations are far larger than parameters.
fn wide(net: &Net) -> fleet_ir::VarId {
    let x = net.data("x", [-1, 8], DType::F32);
    let y = net.data("y", [-1, 1], DType::F32);
    let hidden = (0..12).fold(x, |x, layer| {
        let _stage = net.device_guard(&format!("gpu:{}", layer / 3));
        x.fc(Fc::new(32).act(Act::Tanh))
    });
    let _stage = net.device_guard("gpu:3");
    hidden.fc(1).mse_loss(y, Reduction::Mean).id()
}

/// With 1F1B, a stage holds the activations of as many micro-batches as there are stages from it to
/// the last, with ZBH1 of as many as there are stages, and with F-then-B of all.
#[test]
fn the_number_of_stages_bounds_the_memory() {
    let (eight, sixteen) = (arenas("1F1B", 8), arenas("1F1B", 16));
    let (all, twice) = (arenas("F-then-B", 8), arenas("F-then-B", 16));
    let (few, many) = (arenas("ZBH1", 8), arenas("ZBH1", 16));
    /// The gradient of the loss, and the loss, of a micro-batch.
    const OF_A_MICRO_BATCH: usize = 256;
    for stage in 0..4 {
        assert!(many[stage] <= few[stage] + 8 * OF_A_MICRO_BATCH, "{few:?} {many:?}");
        assert!(few[stage] < all[stage], "{few:?} {all:?}");
        assert!(sixteen[stage] <= eight[stage] + 8 * OF_A_MICRO_BATCH, "{eight:?} {sixteen:?}");
        assert!(twice[stage] > all[stage] * 3 / 2, "{all:?} {twice:?}");
        assert!(eight[stage] < all[stage] * (6 - stage) / 8, "{eight:?} {all:?}");
    }
}

#[test]
fn what_cannot_be_cut_is_refused() {
    let check = |network: Network, strategy: &DistributedStrategy, ranks: usize, part: &str| {
        let error = rewritten(network, &momentum(), strategy, Ranks::new(0, ranks)).unwrap_err();
        assert!(error.to_string().contains(part), "{error}");
    };
    let holes: Network = |net| labelled(net, |layer| Some(2 * (layer / 3)));
    let some: Network = |net| labelled(net, |layer| (layer != 2).then_some(layer / 3));
    let back: Network = |net| labelled(net, |layer| Some([0, 1, 0, 1, 1, 1][layer]));
    let plain = plain(2, "1F1B");
    check(holes, &plain, 2, "no op has the label gpu:1, but gpu:2 has ops");
    check(some, &plain, 2, "has no device label, but others have labels of stages");
    check(on_cpu, &plain, 2, "has the label 'cpu', which names no stage");
    check(back, &plain, 2, "stage 0 of the pipeline reads 'fc_1.tmp_2', which stage 1 computes");
    check(three, &plain, 4, "the degrees do not multiply to the job's 4 ranks: got pipelines of 3");
    let hybrid = |pp: i32, dp: i32| {
        let hybrid = HybridConfig::default().with_pp_degree(pp).with_dp_degree(dp);
        plain.clone().with_hybrid_configs(hybrid)
    };
    check(layers, &hybrid(2, 3), 4, "4 ranks: got pp_degree 2 x dp_degree 3");
    check(layers, &hybrid(3, -1), 4, "do not multiply to the job's 4 ranks");
    check(three, &hybrid(2, -1), 4, "name 3 parts, which 2 stages cannot divide evenly");
    check(
        layers,
        &hybrid(64, -1),
        64,
        "the program has 19 forward ops, which cannot form 64 stages",
    );
    let uneven = configs(3, "1F1B").with_virtual_stages(2);
    let uneven = DistributedStrategy::new().use_pipeline(uneven);
    check(four, &uneven, 2, "expected accumulate_steps to be a multiple of 2, got 3");
    let parts = configs(2, "ZBH1").with_virtual_stages(2);
    let parts = DistributedStrategy::new().use_pipeline(parts);
    check(
        four,
        &parts,
        2,
        "ZBH1 runs one part of the program on each stage: expected 2 parts, got 4",
    );
    let many = DistributedStrategy::new().use_pipeline(configs(i32::MAX, "1F1B"));
    check(layers, &many, 2, "expected at most 1024 accumulate_steps, got 2147483647");
    check(layers, &many, 1, "expected at most 1024 accumulate_steps");
    check(branches, &plain, 2, "pipeline does not support the branches of a cond");
    check(counts, &plain, 2, "stages of the pipeline share 'counter'");
    check(everywhere, &plain, 2, "a gradient flows through an op that runs on all stages");
    check(measured, &plain, 2, "runs on all stages reads 'fc_0.tmp_1', which stage 0 computes");

    let switched = |strategy: DistributedStrategy, part: &str| {
        check(layers, &pipelined(strategy, 2, "1F1B"), 2, part);
    };
    let none = DistributedStrategy::new;
    switched(none().use_gradient_merge(2), "set pipeline_configs.accumulate_steps");
    switched(none().with_localsgd(true), "need the whole model");
    switched(none().with_adaptive_localsgd(true), "need the whole model");
    switched(none().with_dgc(true), "conflicts with dgc");
    let mut offload = none().use_recompute(["fc_1.tmp_2"]);
    offload.recompute_configs_mut().set_enable_offload(true);
    switched(offload, "enable_offload conflicts with pipeline");
    let off = hybrid(2, -1).with_pipeline(false);
    check(layers, &off, 2, "2 stages, but pipeline is false");
}

fn on_cpu(net: &Net) -> fleet_ir::VarId {
    let x = net.data("x", [-1, 6], DType::F32);
    let first = {
        let _stage = net.device_guard("gpu:0");
        x.fc(8)
    };
    let second = {
        let _stage = net.device_guard("gpu:1");
        first.fc(8)
    };
    let _stage = net.device_guard("cpu");
    second.fc(1).mean().id()
}

fn branches(net: &Net) -> fleet_ir::VarId {
    let x = net.data("x", [-1, 6], DType::F32).fc(8);
    net.cond(x.mean().greater_than(0.0), || x.fc(1).mean(), || x.fc(2).mean()).id()
}

/// Both stages add to one counter.
fn counts(net: &Net) -> fleet_ir::VarId {
    let counter = net.create_global_var("counter", [1], 0.0, DType::F32);
    let x = net.data("x", [-1, 6], DType::F32);
    let first = {
        let _stage = net.device_guard("gpu:0");
        (counter + 1.0).assign_to(counter);
        x.fc(8)
    };
    let _stage = net.device_guard("gpu:1");
    (counter + 1.0).assign_to(counter);
    first.fc(1).mean().id()
}

fn everywhere(net: &Net) -> fleet_ir::VarId {
    let x = net.data("x", [-1, 6], DType::F32);
    let first = {
        let _stage = net.device_guard("gpu:0");
        x.fc(8)
    };
    let scaled = {
        let _all = net.device_guard("gpu:all");
        first * 2.0
    };
    let _stage = net.device_guard("gpu:1");
    scaled.fc(1).mean().id()
}

fn measured(net: &Net) -> fleet_ir::VarId {
    let x = net.data("x", [-1, 6], DType::F32);
    let first = {
        let _stage = net.device_guard("gpu:0");
        x.fc(8)
    };
    {
        let _all = net.device_guard("gpu:all");
        first.mean();
    }
    let _stage = net.device_guard("gpu:1");
    first.fc(1).mean().id()
}

/// The size of a batch is known when it is fed.
#[test]
fn rows_that_micro_batches_do_not_divide_are_refused() {
    let check = |configs: PipelineConfig, part: &str| {
        let strategy = DistributedStrategy::new().use_pipeline(configs);
        let outcomes = local::run(2, |rank, world| {
            let (programs, plan) = rewritten(two, &momentum(), &strategy, Ranks::new(rank, 2))?;
            let executor = Executor::new(ExecOptions::threads(1));
            let mut executor = executor.services(services(world, &plan, rank));
            let mut scope = Scope::new();
            executor.run(&programs.startup, &mut scope, &[], &[])?;
            let (x, y) = batch(0, 0, 1)?;
            executor.run(&programs.main, &mut scope, &[("x", &x), ("y", &y)], &[])
        });
        for outcome in outcomes {
            let error = outcome.unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    };
    check(
        configs(5, "1F1B"),
        "expected a multiple of 5 rows, one for each micro-batch, got 12 rows",
    );
    let sized = configs(3, "1F1B").with_micro_batch_size(5);
    check(sized, "expected 3 micro-batches of 5 rows, got a batch of 12 rows");
    let fixed: Network = |net| {
        let x = net.data("x", [12, 6], DType::F32);
        x.fc(8).fc(1).mean().id()
    };
    let strategy = plain(5, "1F1B");
    let error = rewritten(fixed, &momentum(), &strategy, Ranks::new(0, 2)).unwrap_err();
    assert!(error.to_string().contains("got a program for 12 rows"), "{error}");
}

/// A program for one batch size has the shapes of micro-batches; a stage that reads no fed variable
/// knows their rows.
#[test]
fn batch_sizes_of_programs_and_strategies() {
    let expected = merged(layers, &momentum(), &DistributedStrategy::new(), 4);
    let fixed: Network = |net| {
        let x = net.data("x", [12, 6], DType::F32);
        let y = net.data("y", [12, 1], DType::F32);
        let hidden = (0..5).fold(x, |x, _| x.fc(Fc::new(8).act(Act::Tanh)));
        hidden.fc(1).mse_loss(y, Reduction::Mean).id()
    };
    let ranks = train(fixed, &momentum(), &plain(4, "1F1B"), 3, STEPS, &[LOSS]);
    same("a fixed batch size", &ranks, &expected);
    let sized =
        DistributedStrategy::new().use_pipeline(configs(4, "1F1B").with_micro_batch_size(3));
    let ranks = train(three, &momentum(), &sized, 3, STEPS, &[LOSS]);
    same("an assigned size", &ranks, &expected);
    let (programs, _) = rewritten(three, &momentum(), &sized, Ranks::new(1, 3)).unwrap();
    let reads = |var| programs.main.root_ops().any(|(_, op)| op.all_inputs().any(|it| it == var));
    assert!(programs.main.vars().filter(|(_, var)| var.is_data).all(|(var, _)| !reads(var)));
}
