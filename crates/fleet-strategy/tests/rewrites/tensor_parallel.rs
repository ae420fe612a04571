//! Tensor parallelism: program text, first values that are slices of the whole, and results that
//! are those of one process.

use crate::world::{batch, rewritten, services};
use fleet_base::Result;
use fleet_exec::{ExecOptions, Executor, Scope};
use fleet_ir::{Program, VarId};
use fleet_nn::models::{BertConfig, GptConfig, bert_mlm, gpt};
use fleet_nn::optimizer::Rule;
use fleet_nn::prelude::*;
use fleet_strategy::{
    AmpConfig, DistributedStrategy, HybridConfig, LambConfig, LarsConfig, Plan, Ranks,
    ShardingConfig, minimize,
};
use fleet_tensor::{Tensor, bf16, f16};
use fleet_testkit::local;
use std::collections::{BTreeMap, BTreeSet};

const STEPS: usize = 5;

type Feeds = Vec<(&'static str, Tensor)>;

/// A network, and the batch of a step: the rows of one copy of `copies`.
#[derive(Clone, Copy)]
struct Model {
    network: fn(&Net) -> VarId,
    feed: fn(usize, usize, usize) -> Result<Feeds>,
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

fn rows(step: usize, copy: usize, copies: usize) -> Result<Feeds> {
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

/// Every number of ranks divides it.
const VOCABULARY: i64 = 24;
/// No number of ranks divides it: 2 to 4 ranks have 1 to 3 rows of padding.
const ODD: i64 = 25;
/// The last of 4 ranks has only padding.
const TINY: i64 = 5;
const LENGTH: i64 = 4;
const SENTENCES: i64 = 12;

fn decoder(vocabulary: i64, dropout: f64) -> GptConfig {
    GptConfig {
        vocabulary,
        hidden: 24,
        layers: 2,
        heads: 12,
        ffn: 36,
        length: LENGTH,
        dropout,
        initializer_range: 0.1,
    }
}

fn gpt_plain<const WORDS: i64>(net: &Net) -> VarId {
    gpt(net, &decoder(WORDS, 0.0)).loss.id()
}

fn gpt_dropout(net: &Net) -> VarId {
    gpt(net, &decoder(VOCABULARY, 0.2)).loss.id()
}

/// Returns one of `words` words; the last is not rare.
fn number(words: i64, step: usize, at: usize) -> i64 {
    let number = (step * 977 + at * 31 + 5) as i64;
    number * number % 1009 % (words + 2).min(words + at as i64 % 3) % words
}

fn sentences<const WORDS: i64>(step: usize, copy: usize, copies: usize) -> Result<Feeds> {
    let rows = SENTENCES as usize / copies;
    let ids = |shift: usize| -> Result<Tensor> {
        let all = copy * rows * LENGTH as usize..(copy + 1) * rows * LENGTH as usize;
        let ids: Vec<i64> = all.map(|at| number(WORDS, step, at + shift)).collect();
        Tensor::from_slice(&ids, [rows as i64, LENGTH])
    };
    Ok(vec![("tokens", ids(0)?), ("labels", ids(1)?)])
}

const GPT: Model = Model { network: gpt_plain::<VOCABULARY>, feed: sentences::<VOCABULARY> };

fn bert<const WORDS: i64>(net: &Net) -> VarId {
    let config = BertConfig {
        vocabulary: WORDS,
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

fn masked<const WORDS: i64>(step: usize, copy: usize, copies: usize) -> Result<Feeds> {
    let mut feeds = sentences::<WORDS>(step, copy, copies)?;
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
    let labels: Vec<i64> =
        (first..first + rows).map(|at| number(WORDS, step, at as usize + 7)).collect();
    feeds.push(("mask_label", Tensor::from_slice(&labels, [rows, 1])?));
    Ok(feeds)
}

const BERT: Model = Model { network: bert::<VOCABULARY>, feed: masked::<VOCABULARY> };

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
    let hybrid = strategy.hybrid_configs().clone().with_mp_degree(parts as i32);
    strategy.with_hybrid_configs(hybrid)
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
            let is_trained = var.is_some_and(|var| var.is_parameter());
            let Some(division) = var.and_then(|var| var.division).filter(|it| it.is_part()) else {
                let held = all.entry(name.clone()).or_insert_with(|| values.clone());
                assert!(held == values, "{name} differs between ranks");
                continue;
            };
            let inner: i64 = shape[division.axis + 1..].iter().product();
            let run = shape[division.axis] * inner / division.groups as i64;
            let padding = division.padding * inner as usize;
            let (run, count) = (run as usize, values.len() / run as usize);
            let (block, first) = (run * division.parts - padding, run * division.part);
            let own = block.saturating_sub(first).min(run);
            let whole = all.entry(name.clone()).or_insert_with(|| vec![f32::NAN; block * count]);
            for (index, from) in values.chunks(run).enumerate() {
                let at = index * block + first.min(block);
                whole[at..at + own].copy_from_slice(&from[..own]);
                let is_zero = from[own..].iter().all(|value| *value == 0.0);
                assert!(is_zero || !is_trained, "padding of {name}: {:?}", &from[own..]);
            }
        }
    }
    all
}

/// How far the numbers of two trainings may be apart.
#[derive(Default)]
struct Limit {
    /// As a part of the largest element of a parameter. Other variables are sums of large numbers
    /// of both signs and may differ by four times as much.
    of_largest: f32,
    /// Elements of parameters whose first gradient is nothing but the rounding of the numbers that
    /// cancel in it. Other partial sums round otherwise, and may turn its sign. A rule that divides
    /// by the root of the square moves the element by up to the rate whatever the gradient's size:
    /// Adagrad by rate * g / (|g| + epsilon).
    undetermined: BTreeMap<String, BTreeSet<usize>>,
    /// How far apart such elements may be besides.
    turned: f32,
}

impl Limit {
    fn of_largest(limit: f32) -> Limit {
        Limit { of_largest: limit, ..Limit::default() }
    }

    fn of(&self, name: &str, at: usize, largest: f32) -> f32 {
        let is_turned = self.undetermined.get(name).is_some_and(|places| places.contains(&at));
        let factor = if is_parameter(name) { 1.0 } else { 4.0 };
        factor * self.of_largest * largest + if is_turned { self.turned } else { 0.0 }
    }
}

/// Fails if the numbers of two trainings are farther apart than `limit`.
fn assert_near(
    found: &BTreeMap<String, Vec<f32>>,
    expected: &BTreeMap<String, Vec<f32>>,
    limit: &Limit,
    what: &str,
) {
    let mut compared = 0;
    for (name, expected) in expected {
        let found = found.get(name).unwrap_or_else(|| panic!("{what}: no {name}"));
        assert_eq!(found.len(), expected.len(), "{what}: {name}");
        // Biases that start at zero are small sums of large numbers.
        let largest = expected.iter().fold(SMALLEST, |all, it| all.max(it.abs()));
        for (at, (a, b)) in found.iter().zip(expected).enumerate() {
            let limit = limit.of(name, at, largest);
            assert!((a - b).abs() <= limit, "{what}: {name}[{at}]: {a} and {b}");
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
    check_within(what, model, optimizer, strategy, places, &Limit::of_largest(limit));
}

fn check_within(
    what: &str,
    model: Model,
    optimizer: &OptimizerDesc,
    strategy: &DistributedStrategy,
    places: &[(usize, usize)],
    limit: &Limit,
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
            // Sums over steps are those of a copy's own samples.
            let is_own = |name: &String| *copies > 1 && name.ends_with("@GradientMerge");
            let last = last.clone().into_iter().filter(|(name, _)| !is_own(name)).collect();
            assert_near(&whole(copy, |rank| &rank.kept), &last, limit, &what);
            let size = |rank: &Rank| rank.kept.values().map(|it| it.1.len()).sum::<usize>();
            assert!(size(&copy[0]) < size(&plain[0]), "{what}: a rank has a part");
        }
        if *copies == 1 {
            for rank in &ranks {
                assert!(rank.losses == ranks[0].losses, "{what}: ranks have one loss");
                for (loss, plain) in rank.losses.iter().zip(&plain[0].losses) {
                    let limit = limit.of_largest * 10.0 * plain.abs();
                    assert!((loss - plain).abs() <= limit, "{what}");
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

/// A table, a bias and a soft cap of the logits of a vocabulary that no number of ranks divides.
fn words<const WORDS: i64>(net: &Net) -> VarId {
    let tokens = net.data("tokens", [-1, LENGTH], DType::I64);
    let labels = net.data("labels", [-1, LENGTH], DType::I64);
    let table = Embedding::new(WORDS, 6).weight(Init::uniform(-0.5, 0.5)).split_vocabulary();
    let layer = || Fc::new(12).num_flatten_dims(2).act(Act::Tanh);
    let hidden = tokens.embedding(table).fc(layer()).fc(layer()).fc(layer());
    let last = Fc::new(WORDS).num_flatten_dims(2).bias(Init::Constant(0.1)).split(Split::Columns);
    let logits = hidden.fc(last).scale(0.5, 0.1).tanh().scale(4.0, 0.0).reshape([-1, WORDS]);
    logits.cross_entropy(labels.reshape([-1, 1])).id()
}

const WORDS: Model = Model { network: words::<ODD>, feed: sentences::<ODD> };

/// Padding has no probability, no gradient and no norm.
#[test]
fn odd_vocabularies_are_those_of_one_rank() {
    let odd = Model { network: gpt_plain::<ODD>, feed: sentences::<ODD> };
    let bert = Model { network: bert::<ODD>, feed: masked::<ODD> };
    let tiny = Model { network: words::<TINY>, feed: sentences::<TINY> };
    let by_sequence = HybridConfig::default().with_mp_split_sequence(true);
    let by_sequence = DistributedStrategy::new().with_hybrid_configs(by_sequence);
    let plain = DistributedStrategy::new;
    check("odd gpt", odd, &momentum(), &plain(), &PLACES, NEAR);
    check("odd gpt by sequence", odd, &momentum(), &by_sequence, &[(2, 1), (4, 1)], NEAR);
    check("odd bert", bert, &momentum(), &plain(), &PLACES, NEAR);
    check("tiny", tiny, &momentum(), &plain(), &PLACES, NEAR);
    check("words", WORDS, &momentum(), &plain(), &PLACES, NEAR);
    for name in STRATEGIES {
        for (of, optimizer) in optimizers() {
            let what = format!("odd, {name}, {of}");
            let limit = Limit {
                of_largest: tolerance(name, &optimizer),
                undetermined: undetermined(WORDS, name),
                turned: 2.0 * optimizer.settings.learning_rate.value_at(0) as f32,
            };
            check_within(&what, WORDS, &optimizer, &with(name), &[(3, 1)], &limit);
        }
    }
}

/// Returns the positions in each parameter at which the gradient of the first step is smaller than
/// the rounding of the 16-bit numbers that it sums, though not zero.
///
/// One bias of [`WORDS`] has the gradient -2.7e-5 in single precision on one rank and on three. It
/// is the sum of numbers up to 7e-2. With AMP it is -1.3e-5 on one rank and -0.4e-5 on three.
fn undetermined(model: Model, strategy: &str) -> BTreeMap<String, BTreeSet<usize>> {
    let rounding = match strategy {
        "amp" | "fp16" => f32::from(f16::EPSILON),
        "bf16" => f32::from(bf16::EPSILON),
        _ => return BTreeMap::new(),
    };
    let rank = &train(model, &Sgd::new(1.0).into(), &with(strategy), (1, 1), 1)[0];
    let parameters = rank.first.iter().filter(|(name, _)| is_parameter(name));
    let of_parameter = |(name, (_, first)): (&String, &(Vec<i64>, Vec<f32>))| {
        let gradient: Vec<f32> =
            first.iter().zip(&rank.kept[name].1).map(|(before, after)| before - after).collect();
        let largest = gradient.iter().fold(0.0f32, |all, it| all.max(it.abs()));
        let is_small =
            |at: &usize| gradient[*at] != 0.0 && gradient[*at].abs() <= rounding * largest;
        (name.clone(), (0..gradient.len()).filter(is_small).collect())
    };
    parameters.map(of_parameter).collect()
}

#[test]
fn bert_is_that_of_one_rank() {
    check("bert", BERT, &momentum(), &DistributedStrategy::new(), &PLACES, NEAR);
}

/// The numbers of a part are those of the whole.
#[test]
fn dropout_is_that_of_one_rank() {
    let model = Model { network: gpt_dropout, feed: sentences::<VOCABULARY> };
    check("dropout", model, &momentum(), &DistributedStrategy::new(), &PLACES[..3], NEAR);
}

/// Every optimizer, with each clip and decay.
fn optimizers() -> Vec<(&'static str, OptimizerDesc)> {
    let decay = Regularizer::L2(0.01);
    vec![
        ("sgd", Sgd::new(0.02).grad_clip(GradClip::GlobalNorm(0.1)).into()),
        ("momentum", Momentum::new(0.02, 0.9).weight_decay(decay).into()),
        ("nesterov", Momentum::new(0.02, 0.9).use_nesterov(true).into()),
        ("norm", Momentum::new(0.02, 0.9).grad_clip(GradClip::Norm(0.02)).into()),
        ("adam", Adam::new(0.002).grad_clip(GradClip::GlobalNorm(0.1)).into()),
        ("adamw", AdamW::new(0.002).grad_clip(GradClip::Norm(0.1)).into()),
        ("adamax", Adamax::new(0.002).weight_decay(Regularizer::L1(0.01)).into()),
        ("adagrad", Adagrad::new(0.002).grad_clip(GradClip::value(0.01)).into()),
        ("adadelta", Adadelta::new(0.1).grad_clip(GradClip::GlobalNorm(0.1)).into()),
        ("rmsprop", RmsProp::new(0.001).into()),
        ("lars", lars().exclude_from_weight_decay(["fc_1.b"]).into()),
        ("lars and clip", lars().grad_clip(GradClip::GlobalNorm(0.1)).into()),
        ("lamb", Lamb::new(0.002).exclude_from_weight_decay([".b_0"]).into()),
        (
            "lamb and norm",
            Lamb::new(0.002).always_adapt(true).grad_clip(GradClip::Norm(0.1)).into(),
        ),
    ]
}

fn lars() -> LarsMomentum {
    LarsMomentum::new(0.02, 0.9).lars_coeff(0.5).lars_weight_decay(0.01)
}

/// Rules that divide by a root of the gradient's square amplify the rounding of small gradients.
fn limit_of(optimizer: &OptimizerDesc) -> f32 {
    match optimizer.rule {
        Rule::Sgd(_) | Rule::Momentum(_) | Rule::LarsMomentum(_) => NEAR,
        _ => 50.0 * NEAR,
    }
}

/// The strategies that tensor parallelism can be combined with.
const STRATEGIES: [&str; 9] =
    ["plain", "amp", "bf16", "recompute", "merge", "unfused", "fp16", "lars", "lamb"];

fn with(name: &str) -> DistributedStrategy {
    let strategy = DistributedStrategy::new();
    let amp = AmpConfig::default().with_init_loss_scaling(256.0);
    match name {
        "plain" => strategy,
        "amp" => strategy.use_amp(amp),
        "bf16" => strategy.use_amp(amp.with_use_pure_bf16(true)),
        "recompute" => strategy.use_recompute(["fc_0.tmp_2", "fc_2.tmp_2"]),
        "merge" => strategy.use_gradient_merge(2),
        "unfused" => strategy.with_fuse_all_reduce_ops(false),
        "fp16" => strategy.with_fp16_allreduce(true),
        // Omitted with a warning where the optimizer is another one.
        "lars" => strategy.use_lars(LarsConfig::default().with_lars_coeff(0.5)),
        "lamb" => strategy.use_lamb(LambConfig::default()),
        other => panic!("no strategy {other}"),
    }
}

/// Sums of 16-bit numbers are rounded once on each rank.
fn tolerance(strategy: &str, optimizer: &OptimizerDesc) -> f32 {
    match strategy {
        "amp" | "fp16" => limit_of(optimizer).max(1e-2),
        "bf16" => limit_of(optimizer).max(1e-1),
        _ => limit_of(optimizer),
    }
}

#[test]
fn every_optimizer_and_strategy() {
    for strategy in STRATEGIES {
        for (name, optimizer) in optimizers() {
            let what = format!("{strategy}, {name}");
            let limit = tolerance(strategy, &optimizer);
            check(&what, LAYERS, &optimizer, &with(strategy), &[(2, 1), (3, 2)], limit);
        }
    }
}

/// Ranks that share layers divide the state of their parts further.
#[test]
fn sharding_of_parts() {
    for stage in [1, 2, 3] {
        for (name, optimizer) in optimizers() {
            let plain = train(LAYERS, &optimizer, &DistributedStrategy::new(), (1, 1), STEPS);
            let last = whole(&plain, |rank| &rank.kept);
            let configs = ShardingConfig::default().with_stage(stage).with_mp_degree(2);
            let strategy = DistributedStrategy::new().use_sharding(configs.with_sharding_degree(2));
            let ranks = train(LAYERS, &optimizer, &strategy, (2, 2), STEPS);
            let what = format!("stage {stage}, {name}");
            let limit = Limit::of_largest(limit_of(&optimizer));
            assert_near(&whole(&ranks, |rank| &rank.kept), &last, &limit, &what);
        }
    }
}

fn refused(model: Model, strategy: &DistributedStrategy, optimizer: &OptimizerDesc) -> String {
    let ranks = Ranks::new(0, 8);
    match rewritten(model.network, optimizer, strategy, ranks) {
        Ok((_, plan)) => panic!("not refused: {:?}", plan.decisions),
        Err(error) => error.to_string(),
    }
}

#[test]
fn what_cannot_be_divided_is_refused() {
    let check = |network: fn(&Net) -> VarId, strategy: DistributedStrategy, parts: &[&str]| {
        let error = refused(Model { network, feed: rows }, &strategy, &momentum());
        assert!(parts.iter().all(|part| error.contains(part)), "{error}");
    };
    let plain = DistributedStrategy::new;
    check(crate::world::mlp, split(plain(), 2), &["mp_degree", "no parameter of the program"]);
    check(layers, split(plain(), 3), &["multiply to the job's 8 ranks: got mp_degree 3"]);
    let odd = |net: &Net| {
        let x = net.data("x", [-1, 6], DType::F32);
        x.fc(Fc::new(9).split(Split::Columns)).fc(Fc::new(1).split(Split::Rows)).mean().id()
    };
    check(
        odd,
        split(plain(), 2),
        &[
            "mul needs parts of equal sizes",
            "multiple of 2 in dimension 1",
            "[-1, 9]",
            "fc_0.tmp_1",
        ],
    );
    let heads = |net: &Net| {
        let x = net.data("x", [-1, 4, 12], DType::F32);
        let attention = MultiHeadAttention::new(3).split_heads();
        x.multi_head_attention(attention).mean().id()
    };
    check(heads, split(plain(), 2), &["reshape2", "2 ranks can divide", "linear_0.tmp_1", "split"]);
    let unknown = |net: &Net| {
        let x = net.data("x", [-1, 6], DType::F32);
        x.fc(Fc::new(8).split(Split::Columns)).cumsum(1).mean().id()
    };
    check(unknown, split(plain(), 2), &["cumsum", "does not compute on parts", "fc_0.tmp_1"]);
    let loss = |net: &Net| {
        let x = net.data("x", [-1, 6], DType::F32);
        x.fc(Fc::new(8).split(Split::Columns)).mean().id()
    };
    check(
        loss,
        split(plain(), 2),
        &["mean does not reduce the divided dimension", "split by rows"],
    );
    let whole_rows = |net: &Net| {
        let x = net.data("x", [-1, 6], DType::F32);
        x.fc(Fc::new(8).split(Split::Columns)).fc(4).mean().id()
    };
    check(whole_rows, split(plain(), 2), &["needs rows of Y", "Split::Rows"]);
    let alone = split(plain().with_localsgd(true), 2);
    check(layers, alone, &["tensor_parallel", "conflicts with", "localsgd"]);
    let wide = |net: &Net| {
        let x = net.data("x", [-1, 6], DType::F32);
        let wide = x.fc(160).fc(Fc::new(160).split(Split::Columns));
        wide.fc(Fc::new(1).split(Split::Rows)).mean().id()
    };
    check(wide, split(plain().with_dgc(true), 2), &["tensor_parallel conflicts with dgc"]);
}

/// Returns the ops that communicate: name, ring, and number of ranks.
fn communication(program: &Program) -> Vec<String> {
    let ops = program.root_ops().map(|(_, op)| op);
    ops.filter(|op| op.attr("ring_id").is_some() && op.name() != "c_comm_init")
        .map(|op| format!("{} {}/{}", op.name(), op.attr_int("ring_id"), op.attr_int("nranks")))
        .collect()
}

#[test]
fn programs_at_any_number_of_ranks() {
    for count in [2, 8, 1024] {
        let strategy = split(DistributedStrategy::new(), 2);
        let (programs, plan) =
            rewritten(layers, &momentum(), &strategy, Ranks::new(1, count)).unwrap();
        let copies = count / 2;
        let data = if copies > 1 { vec![format!("c_allreduce_sum 2/{copies}")] } else { vec![] };
        let mut expected = vec![
            "c_check_batch 0/2".to_string(),
            "c_identity 0/2".to_string(),
            "mp_allreduce_sum 0/2".to_string(),
            "mp_allreduce_sum 0/2".to_string(),
        ];
        expected.extend(data);
        assert_eq!(communication(&programs.main), expected);
        let rings: Vec<_> = plan.rings.iter().map(|it| (it.id, it.nranks, it.rank)).collect();
        let members: Vec<usize> = plan.rings[0].members().collect();
        assert_eq!((rings[0], members), ((0, 2, 1), vec![0, 1]));
        if copies > 1 {
            let of_data: Vec<usize> = plan.rings[1].members().take(2).collect();
            assert_eq!((rings[1], of_data), ((2, copies, 0), vec![1, 3]));
        }
        let shape = |name: &str| {
            let main = &programs.main;
            main.var(main.var_named(name).unwrap()).shape.to_vec()
        };
        assert_eq!((shape("fc_1.w_0"), shape("fc_2.w_0")), (vec![12, 12], vec![12, 12]));
        assert_eq!((shape("fc_1.b_0"), shape("fc_2.b_0")), (vec![12], vec![12]));
        assert_eq!(shape("fc_1.w_0_velocity_0"), [12, 12]);
        let scale = programs.main.root_ops().find(|(_, op)| op.name() == "scale");
        assert_eq!(
            scale.map(|(_, op)| op.attr_float("scale")),
            (copies > 1).then(|| 1.0 / copies as f64)
        );
    }
}

/// Updates by norms add the squared norms of the parts; whole parameters need no sums.
#[test]
fn norms_of_parts() {
    for (optimizer, whole, of_part) in [
        (OptimizerDesc::from(lars()), "lars_momentum", "c_lars_momentum 0/2"),
        (Lamb::new(0.01).into(), "lamb", "c_lamb 0/2"),
    ] {
        for count in [2, 8, 1024] {
            let strategy = split(DistributedStrategy::new(), 2);
            let (programs, plan) =
                rewritten(layers, &optimizer, &strategy, Ranks::new(1, count)).unwrap();
            let main = &programs.main;
            let updates: Vec<String> = communication(main);
            let of_parts = updates.iter().filter(|op| *op == of_part).count();
            let ops = || main.root_ops().map(|(_, op)| op);
            let of_whole = ops().filter(|op| op.name() == whole).count();
            // The weight and the bias of a layer by columns, and the weight of one by rows.
            assert_eq!((of_parts, of_whole), (3, 5), "{count}");
            let label = ops().find(|op| op.name().starts_with("c_la")).unwrap();
            assert_eq!(label.attr_str("label"), "norms of fc_1.b_0");
            assert_eq!(plan.chain.last(), Some(&whole));
            let text = main.to_string();
            assert!(text.contains(&format!("c_{whole}")), "{text}");
            let again = Program::parse(&text, fleet_ops::Registry::standard()).unwrap();
            assert_eq!(again.to_string(), text);
        }
    }
}

/// Ranks that share layers and feed different samples would train neither.
#[test]
fn different_samples_are_refused() {
    let errors = local::run(2, |rank, world| {
        let strategy = split(DistributedStrategy::new(), 2);
        let (programs, plan) = rewritten(layers, &momentum(), &strategy, Ranks::new(rank, 2))?;
        let executor = Executor::new(ExecOptions::threads(1));
        let mut executor = executor.services(services(world, &plan, rank));
        let mut scope = Scope::new();
        executor.run(&programs.startup, &mut scope, &[], &[])?;
        let ((x, _), (_, y)) = (batch(rank, 0, 1)?, batch(0, 0, 1)?);
        let ran = executor.run(&programs.main, &mut scope, &[("x", &x), ("y", &y)], &[]);
        Ok(ran.expect_err("batches differ").to_string())
    });
    for error in errors {
        let error = error.unwrap();
        assert!(error.contains("feed different samples") && error.contains("'x'"), "{error}");
    }
}

fn normalized(net: &Net) -> VarId {
    let x = net.data("x", [-1, 6], DType::F32);
    let y = net.data("y", [-1, 1], DType::F32);
    let wide = x.fc(12).batch_norm(BatchNorm::new()).fc(Fc::new(12).split(Split::Columns));
    wide.tanh().fc(Fc::new(1).split(Split::Rows)).mse_loss(y, Reduction::Mean).id()
}

/// Statistics span the copies of the model.
#[test]
fn batch_norms_are_synchronous_over_copies() {
    let model = Model { network: normalized, feed: rows };
    let strategy = DistributedStrategy::new().with_sync_batch_norm(true);
    check("batch norm", model, &momentum(), &strategy, &[(2, 1), (2, 2), (3, 2)], 1e-5);
}

/// A table with sparse gradients, with a rule of its own or that of the layers.
fn sparse<const WORDS: i64>(net: &Net) -> VarId {
    let ids = net.data("tokens", [-1, LENGTH], DType::I64);
    let labels = net.data("labels", [-1, LENGTH], DType::I64);
    let table = Embedding::new(WORDS, 6).sparse().split_vocabulary().padding_idx(3);
    let hidden = ids.embedding(table).flatten(1).fc(Fc::new(12).act(Act::Tanh));
    let target = labels.cast(DType::F32).flatten(1).scale(0.05, -0.5);
    hidden.fc(LENGTH).mse_loss(target, Reduction::Mean).id()
}

#[test]
fn sparse_rows_of_parts() {
    let model = Model { network: sparse::<VOCABULARY>, feed: sentences::<VOCABULARY> };
    let odd = Model { network: sparse::<ODD>, feed: sentences::<ODD> };
    let rules: [OptimizerDesc; 3] = [
        Sgd::new(0.02).into(),
        Sgd::new(0.02).rows(Adam::new(0.01)),
        Momentum::new(0.02, 0.9).rows(Sgd::new(0.1).grad_clip(GradClip::GlobalNorm(0.1))),
    ];
    for optimizer in rules {
        let strategy = DistributedStrategy::new();
        check("sparse", model, &optimizer, &strategy, &PLACES, 50.0 * NEAR);
        check("odd sparse", odd, &optimizer, &strategy, &PLACES, 50.0 * NEAR);
    }
}

/// Norms, dropouts and sums compute on parts of sequences.
#[test]
fn sequences_are_divided() {
    let hybrid = HybridConfig::default().with_mp_split_sequence(true);
    let strategy = DistributedStrategy::new().with_hybrid_configs(hybrid);
    let dropout = Model { network: gpt_dropout, feed: sentences::<VOCABULARY> };
    check("gpt by sequence", GPT, &momentum(), &strategy, &[(2, 1), (4, 1), (2, 3)], NEAR);
    check("bert by sequence", BERT, &momentum(), &strategy, &[(2, 1), (4, 1)], NEAR);
    check("dropout by sequence", dropout, &momentum(), &strategy, &[(2, 1), (4, 1)], NEAR);
    let strategy = split(strategy, 2);
    let (programs, _) =
        rewritten(gpt_plain::<VOCABULARY>, &momentum(), &strategy, Ranks::new(1, 2)).unwrap();
    let main = &programs.main;
    let (mut norms, mut sums) = (Vec::new(), 0);
    for (_, op) in main.root_ops() {
        sums += usize::from(op.name() == "mp_allreduce_sum" && op.role.is_forward());
        if op.name() == "layer_norm" {
            norms.push(main.var(op.input("X")[0]).shape.to_vec());
        }
    }
    assert_eq!((norms, sums), (vec![vec![-1, LENGTH / 2, 24]; 5], 0));
}

/// The second half of the rows is large enough that its rank's gradients overflow in 16 bits.
fn overflowing(net: &Net) -> VarId {
    let x = net.data("x", [-1, 6], DType::F32);
    let y = net.data("y", [-1, 1], DType::F32);
    let wide = x.fc(Fc::new(8).act(Act::Tanh).split(Split::Columns));
    let rows = [[0.1; 4], [6e4; 4]].concat();
    let last = Fc::new(1).weight(Init::Assign(rows)).split(Split::Rows);
    (wide.fc(last).scale(1e-5, 0.0)).mse_loss(y, Reduction::Mean).id()
}

/// All ranks skip a step in which the gradients of one of them are not finite.
#[test]
fn overflow_of_one_part_skips_the_step() {
    let model = Model { network: overflowing, feed: rows };
    let amp = AmpConfig::default().with_init_loss_scaling(32768.0 * 1024.0);
    let strategy = split(DistributedStrategy::new().use_amp(amp), 2);
    for rank in train(model, &momentum(), &strategy, (2, 1), 1) {
        assert_eq!(rank.kept["skipped_steps_0"].1, [1.0]);
        for (name, first) in rank.first.iter().filter(|(name, _)| name.starts_with("fc_")) {
            assert!(rank.kept[name] == *first, "{name} has changed");
        }
    }
}

/// Without a degree, the mark of a layer changes nothing but the text of its variable.
#[test]
fn marks_alone_change_nothing() {
    let unmarked = |net: &Net| {
        let x = net.data("x", [-1, 6], DType::F32);
        let y = net.data("y", [-1, 1], DType::F32);
        let wide = x.fc(Fc::new(12).act(Act::Tanh)).fc(Fc::new(24).act(Act::Gelu));
        wide.fc(Fc::new(12).act(Act::Tanh)).fc(1).mse_loss(y, Reduction::Mean).id()
    };
    let text = |network: fn(&Net) -> VarId| {
        let strategy = DistributedStrategy::new();
        let (programs, _) = rewritten(network, &momentum(), &strategy, Ranks::new(0, 2)).unwrap();
        let text = format!("{}{}", programs.startup, programs.main);
        let lines = text.lines().map(|line| line.split(" at=").next().unwrap_or_default());
        lines.map(|line| line.replace(" split=0", "").replace(" split=1", "")).collect::<Vec<_>>()
    };
    assert_eq!(text(layers), text(unmarked));
}
