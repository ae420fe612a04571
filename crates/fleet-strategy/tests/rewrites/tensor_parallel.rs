//! Tensor parallelism: program text, first values that are slices of the whole, and results that
//! are those of one process.

use crate::world::{batch, services};
use fleet_base::Result;
use fleet_exec::{ExecOptions, Executor, Scope};
use fleet_ir::{Program, VarId};
use fleet_nn::models::{BertConfig, GptConfig, bert_mlm, gpt};
use fleet_nn::prelude::*;
use fleet_strategy::{DistributedStrategy, HybridConfig, Plan, Ranks, minimize};
use fleet_tensor::Tensor;
use fleet_testkit::local;
use std::collections::BTreeMap;

const STEPS: usize = 5;

/// A network, and the batch of a step: the rows of one copy of `copies`.
#[derive(Clone, Copy)]
struct Model {
    network: fn(&Net) -> VarId,
    feed: fn(usize, usize, usize) -> Result<Vec<(&'static str, Tensor)>>,
}

/// A pair of divided layers, and a divided bias, between whole ones.
fn layers(net: &Net) -> VarId {
    let x = net.data("x", [-1, 6], DType::F32);
    let y = net.data("y", [-1, 1], DType::F32);
    let wide =
        x.fc(Fc::new(12).act(Act::Tanh)).fc(Fc::new(24).act(Act::Gelu).split(Split::Columns));
    let narrow = wide.fc(Fc::new(12).act(Act::Tanh).split(Split::Rows));
    narrow.fc(1).mse_loss(y, Reduction::Mean).id()
}

fn rows(step: usize, copy: usize, copies: usize) -> Result<Vec<(&'static str, Tensor)>> {
    let (x, y) = batch(step, copy, copies)?;
    Ok(vec![("x", x), ("y", y)])
}

const LAYERS: Model = Model { network: layers, feed: rows };

/// A layer of rows after a whole one: it takes its part of the input.
fn rows_alone(net: &Net) -> VarId {
    let x = net.data("x", [-1, 6], DType::F32);
    let y = net.data("y", [-1, 1], DType::F32);
    let hidden = x.fc(Fc::new(12).act(Act::Tanh)).fc(Fc::new(12).split(Split::Rows));
    hidden.relu().fc(1).mse_loss(y, Reduction::Mean).id()
}

const VOCABULARY: i64 = 24;
const LENGTH: i64 = 4;
const SENTENCES: i64 = 12;

fn decoder(dropout: f64) -> GptConfig {
    GptConfig {
        vocabulary: VOCABULARY,
        hidden: 24,
        layers: 2,
        heads: 12,
        ffn: 36,
        length: LENGTH,
        dropout,
        initializer_range: 0.1,
    }
}

fn gpt_plain(net: &Net) -> VarId {
    gpt(net, &decoder(0.0)).loss.id()
}

fn gpt_dropout(net: &Net) -> VarId {
    gpt(net, &decoder(0.2)).loss.id()
}

fn number(step: usize, at: usize) -> i64 {
    let number = (step * 977 + at * 31 + 5) as i64;
    number * number % 1009 % VOCABULARY
}

fn sentences(step: usize, copy: usize, copies: usize) -> Result<Vec<(&'static str, Tensor)>> {
    let rows = SENTENCES as usize / copies;
    let ids = |shift: usize| -> Result<Tensor> {
        let all = copy * rows * LENGTH as usize..(copy + 1) * rows * LENGTH as usize;
        let ids: Vec<i64> = all.map(|at| number(step, at + shift)).collect();
        Tensor::from_slice(&ids, [rows as i64, LENGTH])
    };
    Ok(vec![("tokens", ids(0)?), ("labels", ids(1)?)])
}

const GPT: Model = Model { network: gpt_plain, feed: sentences };

fn bert(net: &Net) -> VarId {
    let config = BertConfig {
        vocabulary: VOCABULARY,
        hidden: 24,
        layers: 1,
        heads: 12,
        ffn: 36,
        length: LENGTH,
        positions: LENGTH + 2,
        dropout: 0.0,
        initializer_range: 0.1,
        ..BertConfig::base()
    };
    bert_mlm(net, &config).loss.id()
}

fn masked(step: usize, copy: usize, copies: usize) -> Result<Vec<(&'static str, Tensor)>> {
    let mut feeds = sentences(step, copy, copies)?;
    let rows = SENTENCES / copies as i64;
    feeds[0].0 = "src_ids";
    feeds.truncate(1);
    let places = copy as i64 * rows * LENGTH..(copy as i64 + 1) * rows * LENGTH;
    let types: Vec<i64> = places.map(|at| at % 2).collect();
    feeds.push(("sent_ids", Tensor::from_slice(&types, [rows, LENGTH])?));
    let mask = vec![1.0f32; (rows * LENGTH) as usize];
    feeds.push(("input_mask", Tensor::from_slice(&mask, [rows, LENGTH])?));
    let first = copy as i64 * rows;
    let place = |row: i64| row * LENGTH + (first + row) % LENGTH;
    let positions: Vec<i64> = (0..rows).map(place).collect();
    feeds.push(("mask_pos", Tensor::from_slice(&positions, [rows, 1])?));
    let labels: Vec<i64> = (first..first + rows).map(|at| number(step, at as usize + 7)).collect();
    feeds.push(("mask_label", Tensor::from_slice(&labels, [rows, 1])?));
    Ok(feeds)
}

const BERT: Model = Model { network: bert, feed: masked };

/// Variables with their shapes.
type Kept = BTreeMap<String, (Vec<i64>, Vec<f32>)>;

/// A rank after training.
struct Rank {
    main: Program,
    first: Kept,
    kept: Kept,
    losses: Vec<f32>,
}

fn kept(scope: &Scope) -> Result<Kept> {
    let mut kept = Kept::new();
    for name in scope.names() {
        let tensor = scope.tensor(name)?;
        let numbers = match tensor.dtype() {
            DType::F32 => tensor.to_vec::<f32>()?,
            DType::I32 => tensor.to_vec::<i32>()?.iter().map(|it| *it as f32).collect(),
            _ => continue,
        };
        kept.insert(name.to_string(), (tensor.shape().to_vec(), numbers));
    }
    Ok(kept)
}

/// Returns the strategy with a number of parts.
fn split(strategy: DistributedStrategy, parts: usize) -> DistributedStrategy {
    strategy.with_hybrid_configs(HybridConfig::default().with_mp_degree(parts as i32))
}

/// Trains on `parts * copies` ranks.
fn train(
    model: Model,
    optimizer: &OptimizerDesc,
    strategy: &DistributedStrategy,
    (parts, copies): (usize, usize),
    steps: usize,
) -> Vec<Rank> {
    let count = parts * copies;
    let outcomes = local::run(count, |rank, world| {
        let net = Net::new();
        net.set_seed(7);
        let loss = (model.network)(&net);
        let loss_name = net.build()?.main.var_name(loss).to_string();
        let plan: Plan = net.rewrite_with(|programs, registry| {
            minimize(programs, registry, loss, optimizer, strategy, Ranks::new(rank, count))
        })?;
        let programs = net.build()?;
        let executor = Executor::new(ExecOptions::threads(1));
        let mut executor = executor.services(services(world, &plan, rank));
        let mut scope = Scope::new();
        executor.run(&programs.startup, &mut scope, &[], &[])?;
        let (first, mut losses) = (kept(&scope)?, Vec::new());
        for step in 0..steps {
            let feeds = (model.feed)(step, rank / parts, copies)?;
            let feeds: Vec<(&str, &Tensor)> = feeds.iter().map(|(name, it)| (*name, it)).collect();
            let out = executor.run(&programs.main, &mut scope, &feeds, &[&loss_name])?;
            losses.push(out[0].item::<f32>()?);
        }
        Ok(Rank { main: programs.main, first, kept: kept(&scope)?, losses })
    });
    let trained = |outcome: Result<Rank>| outcome.unwrap_or_else(|error| panic!("{error}"));
    outcomes.into_iter().map(trained).collect()
}

/// Returns the values of whole variables, from those of the ranks that share them. Checks that
/// whole variables are equal on all of these.
fn whole(ranks: &[Rank], of: impl Fn(&Rank) -> &Kept) -> BTreeMap<String, Vec<f32>> {
    let mut all: BTreeMap<String, Vec<f32>> = BTreeMap::new();
    for rank in ranks {
        for (name, (shape, values)) in of(rank) {
            let var = rank.main.find_var(name).map(|id| rank.main.var(id));
            let Some(division) = var.and_then(|var| var.division).filter(|it| it.is_part()) else {
                let held = all.entry(name.clone()).or_insert_with(|| values.clone());
                assert!(held == values, "{name} differs between ranks");
                continue;
            };
            let run: i64 = shape[division.axis..].iter().product();
            let run = run as usize / division.groups;
            let length = values.len() * division.parts;
            let whole = all.entry(name.clone()).or_insert_with(|| vec![f32::NAN; length]);
            for (index, from) in values.chunks(run).enumerate() {
                let at = (index * division.parts + division.part) * run;
                whole[at..at + run].copy_from_slice(from);
            }
        }
    }
    all
}

/// Fails if a parameter differs by more than `limit` of its largest element, or another variable,
/// which is a sum of large numbers of both signs, by more than four times that.
fn assert_near(
    found: &BTreeMap<String, Vec<f32>>,
    expected: &BTreeMap<String, Vec<f32>>,
    limit: f32,
    what: &str,
) {
    let mut compared = 0;
    for (name, expected) in expected {
        let found = found.get(name).unwrap_or_else(|| panic!("{what}: no {name}"));
        assert_eq!(found.len(), expected.len(), "{what}: {name}");
        // Biases that start at zero are small sums of large numbers.
        let largest = expected.iter().fold(SMALLEST, |all, it| all.max(it.abs()));
        let limit = if is_parameter(name) { limit } else { 4.0 * limit };
        for (a, b) in found.iter().zip(expected) {
            assert!((a - b).abs() <= limit * largest, "{what}: {name}: {a} and {b}");
            compared += 1;
        }
    }
    assert!(compared > 100, "{what}: there is something to compare");
}

const SMALLEST: f32 = 0.01;

fn is_parameter(name: &str) -> bool {
    !(name.contains("_velocity_") || name.contains("_moment") || name.contains('@'))
}

/// Checks that ranks that share layers compute what one rank computes.
fn check(
    what: &str,
    model: Model,
    optimizer: &OptimizerDesc,
    strategy: &DistributedStrategy,
    places: &[(usize, usize)],
    limit: f32,
) {
    let plain = train(model, optimizer, strategy, (1, 1), STEPS);
    let first = whole(&plain, |rank| &rank.first);
    let last = whole(&plain, |rank| &rank.kept);
    for (parts, copies) in places {
        let what = format!("{what}, {parts} parts, {copies} copies");
        let strategy = split(strategy.clone(), *parts);
        let ranks = train(model, optimizer, &strategy, (*parts, *copies), STEPS);
        for copy in ranks.chunks(*parts) {
            let of_parts = whole(copy, |rank| &rank.first);
            let differs = first.iter().find(|(name, value)| of_parts[*name] != **value);
            assert!(differs.is_none(), "{what}: first values of {:?}", differs.map(|it| it.0));
            assert_near(&whole(copy, |rank| &rank.kept), &last, limit, &what);
            let size = |rank: &Rank| rank.kept.values().map(|it| it.1.len()).sum::<usize>();
            assert!(size(&copy[0]) < size(&plain[0]), "{what}: a rank has a part");
        }
        if *copies == 1 {
            for rank in &ranks {
                assert!(rank.losses == ranks[0].losses, "{what}: ranks have one loss");
                for (loss, plain) in rank.losses.iter().zip(&plain[0].losses) {
                    assert!((loss - plain).abs() <= limit * 10.0 * plain.abs(), "{what}");
                }
            }
        }
    }
}

const PLACES: [(usize, usize); 5] = [(2, 1), (3, 1), (4, 1), (2, 2), (3, 2)];
/// Of the largest element.
const NEAR: f32 = 1e-6;

fn momentum() -> OptimizerDesc {
    Momentum::new(0.02, 0.9).into()
}

#[test]
fn layers_are_those_of_one_rank() {
    check("layers", LAYERS, &momentum(), &DistributedStrategy::new(), &PLACES, NEAR);
    let alone = Model { network: rows_alone, feed: rows };
    check("rows", alone, &momentum(), &DistributedStrategy::new(), &PLACES, NEAR);
}

#[test]
fn gpt_is_that_of_one_rank() {
    check("gpt", GPT, &momentum(), &DistributedStrategy::new(), &PLACES, NEAR);
}

#[test]
fn bert_is_that_of_one_rank() {
    check("bert", BERT, &momentum(), &DistributedStrategy::new(), &PLACES, NEAR);
}

/// The numbers of a part are those of the whole.
#[test]
fn dropout_is_that_of_one_rank() {
    let model = Model { network: gpt_dropout, feed: sentences };
    check("dropout", model, &momentum(), &DistributedStrategy::new(), &PLACES[..3], NEAR);
}
