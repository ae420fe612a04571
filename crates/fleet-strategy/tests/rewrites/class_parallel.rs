//! Divided classes: results are those of one rank with the whole batch, for any number of ranks and
//! classes; sampled classes; refusals.

use crate::world::{rewritten, services};
use fleet_base::Result;
use fleet_exec::{ExecOptions, Executor, Scope};
use fleet_ir::{Division, Program, VarId};
use fleet_nn::optimizer::Rule;
use fleet_nn::prelude::*;
use fleet_strategy::{
    AmpConfig, DistributedStrategy, HybridConfig, Plan, Ranks, ShardingConfig, Spread, layer_ranks,
    local_state, minimize,
};
use fleet_tensor::Tensor;
use fleet_testkit::local;
use std::collections::BTreeMap;

const STEPS: usize = 5;
/// Samples of the whole batch; divisible by 1, 2, 3 and 4.
const BATCH: usize = 12;
const WIDTH: usize = 6;
const WEIGHTS: &str = "class_loss_0.w_0";

/// A network of a class loss.
#[derive(Clone, Copy, Debug)]
struct Model {
    classes: i64,
    is_arcface: bool,
    sample: ClassSample,
    /// Whether the features are normalized over the batch.
    has_batch_norm: bool,
}

const SOFTMAX: Model =
    Model { classes: 10, is_arcface: false, sample: ClassSample::All, has_batch_norm: false };
const ARCFACE: Model = Model { is_arcface: true, ..SOFTMAX };

impl Model {
    fn loss(self) -> ClassLoss {
        let loss = match self.is_arcface {
            // A smaller scale than the default, which saturates the softmax of so few classes.
            true => ClassLoss::arcface(self.classes).scale(8.0),
            false => ClassLoss::softmax(self.classes),
        };
        loss.sample(self.sample)
    }

    fn build(self, net: &Net) -> VarId {
        let x = net.data("x", [-1, WIDTH as i64], DType::F32);
        let label = net.data("label", [-1, 1], DType::I64);
        let hidden = x.fc(Fc::new(8).act(Act::Tanh));
        let hidden = match self.has_batch_norm {
            true => hidden.batch_norm(BatchNorm::new()),
            false => hidden,
        };
        hidden.fc(Fc::new(7).act(Act::Tanh)).class_loss(label, self.loss()).id()
    }

    /// Returns the samples of a rank in a step.
    fn feed(self, step: usize, rank: usize, count: usize) -> Result<(Tensor, Tensor)> {
        let rows = BATCH / count;
        let mine = rank * rows..(rank + 1) * rows;
        let value = |row: usize, column: usize| {
            let number = (step * BATCH + row) * 31 + column * 17 + 3;
            ((number * number) % 97) as f32 / 48.5 - 1.0
        };
        let x: Vec<f32> =
            mine.clone().flat_map(|row| (0..WIDTH).map(move |it| value(row, it))).collect();
        let label: Vec<i64> =
            mine.map(|row| (row * row + step * 5) as i64 % self.classes).collect();
        Ok((
            Tensor::from_slice(&x, [rows as i64, WIDTH as i64])?,
            Tensor::from_slice(&label, [rows as i64, 1])?,
        ))
    }
}

/// Variables with their shapes.
type Kept = BTreeMap<String, (Vec<i64>, Vec<f32>)>;

/// A rank after training.
struct Rank {
    main: Program,
    first: Kept,
    kept: Kept,
    losses: Vec<f32>,
    /// The classes that each step used, if they are sampled.
    sampled: Vec<Vec<i64>>,
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

fn divided(strategy: DistributedStrategy) -> DistributedStrategy {
    strategy.with_hybrid_configs(HybridConfig::default().with_split_classes(true))
}

const SAMPLED: &str = "class_loss_0.tmp_5";

fn train(
    model: Model,
    optimizer: &OptimizerDesc,
    strategy: &DistributedStrategy,
    count: usize,
    threads: usize,
) -> Vec<Rank> {
    let outcomes = local::run(count, |rank, world| {
        let net = Net::new();
        net.set_seed(7);
        let loss = model.build(&net);
        let loss_name = net.build()?.main.var_name(loss).to_string();
        let plan: Plan = net.rewrite_with(|programs, registry| {
            minimize(programs, registry, loss, optimizer, strategy, Ranks::new(rank, count))
        })?;
        let programs = net.build()?;
        let executor = Executor::new(ExecOptions::threads(threads));
        let mut executor = executor.services(services(world, &plan, rank));
        let mut scope = Scope::new();
        executor.run(&programs.startup, &mut scope, &[], &[])?;
        let (first, mut losses, mut sampled) = (kept(&scope)?, Vec::new(), Vec::new());
        for step in 0..STEPS {
            let (x, label) = model.feed(step, rank, count)?;
            let feeds = [("x", &x), ("label", &label)];
            let fetch = [&*loss_name, SAMPLED];
            let out = executor.run(&programs.main, &mut scope, &feeds, &fetch)?;
            losses.push(out[0].item::<f32>()?);
            sampled.push(out[1].to_vec::<i64>()?);
        }
        Ok(Rank { main: programs.main, first, kept: kept(&scope)?, losses, sampled })
    });
    let trained = |outcome: Result<Rank>| outcome.unwrap_or_else(|error| panic!("{error}"));
    outcomes.into_iter().map(trained).collect()
}

fn division(rank: &Rank, name: &str) -> Option<Division> {
    let var = rank.main.find_var(name).map(|id| rank.main.var(id));
    var.and_then(|var| var.division).filter(|it| it.is_part())
}

/// Returns the values of whole variables. Checks that variables of which ranks have no parts are
/// equal on all ranks, unless `is_own` says that each has its own.
fn whole(
    ranks: &[Rank],
    of: impl Fn(&Rank) -> &Kept,
    is_own: impl Fn(&str) -> bool,
) -> BTreeMap<String, Vec<f32>> {
    let mut all: BTreeMap<String, Vec<f32>> = BTreeMap::new();
    for rank in ranks {
        for (name, (shape, values)) in of(rank) {
            let Some(division) = division(rank, name) else {
                let held = all.entry(name.clone()).or_insert_with(|| values.clone());
                assert!(is_own(name) || held == values, "{name} differs between ranks");
                continue;
            };
            let held = all.entry(name.clone()).or_default();
            let width = shape[1] as usize;
            held.extend(values);
            let rows = shape[0] as usize * division.parts - division.padding;
            held.truncate(rows * width);
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
        let largest = expected.iter().fold(SMALLEST, |all, it| all.max(it.abs()));
        let is_parameter = !["_velocity_", "_moment", "@"].iter().any(|it| name.contains(it));
        let limit = if is_parameter { limit } else { 4.0 * limit };
        for (a, b) in found.iter().zip(expected) {
            assert!((a - b).abs() <= limit * largest, "{what}: {name}: {a} and {b}");
            compared += 1;
        }
    }
    assert!(compared > 100, "{what}: there is something to compare");
}

/// Biases that start at zero are small sums of large numbers.
const SMALLEST: f32 = 0.01;
/// Of the largest element.
const NEAR: f32 = 1e-6;

/// Checks that ranks compute what one rank computes with the whole batch.
fn check(
    what: &str,
    model: Model,
    optimizer: &OptimizerDesc,
    strategy: &DistributedStrategy,
    counts: &[usize],
    limit: f32,
) {
    // Merged gradients are those of a rank's own samples.
    let is_own = |name: &str| name.ends_with("@GradientMerge");
    let plain = train(model, optimizer, strategy, 1, 1);
    let first = whole(&plain, |rank| &rank.first, is_own);
    let mut last = whole(&plain, |rank| &rank.kept, is_own);
    last.retain(|name, _| !is_own(name));
    for count in counts {
        let what = format!("{what}, {model:?}, {count} ranks");
        let ranks = train(model, optimizer, &divided(strategy.clone()), *count, 1);
        let of_parts = whole(&ranks, |rank| &rank.first, is_own);
        let differs = first.iter().find(|(name, value)| of_parts[*name] != **value);
        assert!(differs.is_none(), "{what}: first values of {:?}", differs.map(|it| it.0));
        for (at, rank) in ranks.iter().enumerate() {
            let rows = (model.classes as usize).div_ceil(*count) as i64;
            assert_eq!(rank.kept[WEIGHTS].0, [rows, 7], "{what}");
            let part = division(rank, WEIGHTS).map(|it| (it.part, it.parts));
            assert_eq!(part, Some((at, *count)), "{what}");
        }
        assert_near(&whole(&ranks, |rank| &rank.kept, is_own), &last, limit, &what);
        for (step, expected) in plain[0].losses.iter().enumerate() {
            let sum: f32 = ranks.iter().map(|rank| rank.losses[step]).sum();
            let mean = sum / *count as f32;
            assert!((mean - expected).abs() <= limit * 10.0 * expected.abs(), "{what}: {mean}");
        }
    }
}

fn momentum() -> OptimizerDesc {
    Momentum::new(0.02, 0.9).into()
}

#[test]
fn results_are_those_of_one_rank() {
    for model in [SOFTMAX, ARCFACE] {
        // 10 and 9 classes are padded at 3 and 4 ranks; of 9, the last of 4 ranks has none.
        for classes in [12, 10, 9] {
            let model = Model { classes, ..model };
            check("plain", model, &momentum(), &DistributedStrategy::new(), &[2, 3, 4], NEAR);
        }
    }
}

/// A sample of all classes is the same as no sample, up to the kind of the gradient.
#[test]
fn a_sample_of_all_classes_is_the_whole() {
    for model in [SOFTMAX, ARCFACE] {
        let all = Model { sample: ClassSample::Ratio(1.0), ..model };
        let sgd: OptimizerDesc = Sgd::new(0.05).into();
        check("all", all, &sgd, &DistributedStrategy::new(), &[2, 3, 4], NEAR);
        let strategy = DistributedStrategy::new();
        let [dense, rows] = [model, all].map(|model| train(model, &sgd, &strategy, 1, 1));
        let of = |ranks: &[Rank]| whole(ranks, |rank| &rank.kept, |_| false);
        assert_near(&of(&rows), &of(&dense), NEAR, "rows");
    }
}

/// Optimizers that compute element by element, with each clip and decay.
fn optimizers() -> Vec<(&'static str, OptimizerDesc)> {
    let decay = Regularizer::L2(0.01);
    vec![
        ("sgd", Sgd::new(0.02).grad_clip(GradClip::GlobalNorm(0.1)).into()),
        ("momentum", Momentum::new(0.02, 0.9).weight_decay(decay).into()),
        ("norm", Momentum::new(0.02, 0.9).grad_clip(GradClip::Norm(0.02)).into()),
        ("adam", Adam::new(0.002).grad_clip(GradClip::GlobalNorm(0.1)).into()),
        ("adamw", AdamW::new(0.002).grad_clip(GradClip::Norm(0.1)).into()),
        ("adagrad", Adagrad::new(0.002).grad_clip(GradClip::value(0.01)).into()),
        ("rmsprop", RmsProp::new(0.001).into()),
        ("lars", LarsMomentum::new(0.02, 0.9).lars_coeff(0.5).lars_weight_decay(0.01).into()),
        ("lamb", Lamb::new(0.002).grad_clip(GradClip::GlobalNorm(0.1)).into()),
    ]
}

/// Rules that divide by a root of the gradient's square amplify the rounding of small gradients.
fn limit_of(optimizer: &OptimizerDesc) -> f32 {
    match optimizer.rule {
        Rule::Sgd(_) | Rule::Momentum(_) | Rule::LarsMomentum(_) => 4.0 * NEAR,
        _ => 50.0 * NEAR,
    }
}

fn with(name: &str) -> DistributedStrategy {
    let strategy = DistributedStrategy::new();
    let amp = AmpConfig::default().with_init_loss_scaling(256.0);
    match name {
        "plain" => strategy,
        "amp" => strategy.use_amp(amp),
        "bf16" => strategy.use_amp(amp.with_use_pure_bf16(true)),
        "recompute" => strategy.use_recompute(["fc_0.tmp_2"]),
        "merge" => strategy.use_gradient_merge(2),
        "unfused" => strategy.with_fuse_all_reduce_ops(false),
        "fp16" => strategy.with_fp16_allreduce(true),
        other => panic!("no strategy {other}"),
    }
}

/// Sums of 16-bit numbers are rounded once on each rank.
fn tolerance(strategy: &str, optimizer: &OptimizerDesc) -> f32 {
    match strategy {
        "amp" | "fp16" => 1e-2,
        "bf16" => 1e-1,
        _ => limit_of(optimizer),
    }
}

#[test]
fn every_optimizer_and_strategy() {
    for strategy in ["plain", "amp", "bf16", "recompute", "merge", "unfused", "fp16"] {
        for (name, optimizer) in optimizers() {
            let (what, limit) = (format!("{strategy}, {name}"), tolerance(strategy, &optimizer));
            check(&what, SOFTMAX, &optimizer, &with(strategy), &[2, 3], limit);
        }
        check(
            strategy,
            ARCFACE,
            &momentum(),
            &with(strategy),
            &[2],
            tolerance(strategy, &momentum()),
        );
    }
    let synchronous = DistributedStrategy::new().with_sync_batch_norm(true);
    let model = Model { has_batch_norm: true, ..SOFTMAX };
    check("batch norm", model, &momentum(), &synchronous, &[2, 4], 1e-5);
}

/// Rules that update rows, with clips.
#[test]
fn sampled_rows_with_other_rules() {
    let model = Model { classes: 40, sample: ClassSample::Ratio(1.0), ..SOFTMAX };
    let rules: [(&str, OptimizerDesc); 5] = [
        ("sgd", Sgd::new(0.02).grad_clip(GradClip::GlobalNorm(0.1)).into()),
        ("momentum", Momentum::new(0.02, 0.9).grad_clip(GradClip::Norm(0.02)).into()),
        ("adam", Adam::new(0.002).grad_clip(GradClip::GlobalNorm(0.1)).into()),
        ("adagrad", Adagrad::new(0.002).grad_clip(GradClip::value(0.01)).into()),
        ("rows", Momentum::new(0.02, 0.9).rows(Adagrad::new(0.05))),
    ];
    for (name, optimizer) in rules {
        let limit = limit_of(&optimizer);
        check(name, model, &optimizer, &DistributedStrategy::new(), &[3], limit);
    }
    let merged = DistributedStrategy::new().use_gradient_merge(2);
    check("merged rows", model, &Sgd::new(0.02).into(), &merged, &[3], 4.0 * NEAR);
}

const SMALL_SAMPLE: Model = Model { classes: 90, sample: ClassSample::Count(14), ..ARCFACE };

/// Only sampled rows change; they include the labels of all ranks.
#[test]
fn only_sampled_rows_are_updated() {
    let sgd: OptimizerDesc = Sgd::new(0.05).into();
    for count in [1, 2, 3] {
        let ranks = train(SMALL_SAMPLE, &sgd, &divided(DistributedStrategy::new()), count, 1);
        let rows = SMALL_SAMPLE.classes as usize / count;
        for (at, rank) in ranks.iter().enumerate() {
            assert!(rank.sampled.iter().all(|step| step.len() == 14));
            assert_ne!(rank.sampled[0], rank.sampled[1], "each step draws again");
            let (first, last) = (&rank.first[WEIGHTS].1, &rank.kept[WEIGHTS].1);
            for row in 0..rows {
                let own = row * 7..(row + 1) * 7;
                let was_sampled = rank.sampled.iter().flatten().any(|it| *it == row as i64);
                let has_changed = first[own.clone()] != last[own];
                assert_eq!(was_sampled, has_changed, "{count} ranks: row {row} of rank {at}");
            }
            for step in 0..STEPS {
                for of in 0..count {
                    let (_, labels) = SMALL_SAMPLE.feed(step, of, count).unwrap();
                    let labels = labels.to_vec::<i64>().unwrap();
                    let own = labels.iter().map(|label| label - (at * rows) as i64);
                    let own = own.filter(|row| (0..rows as i64).contains(row));
                    own.for_each(|row| assert!(rank.sampled[step].contains(&row)));
                }
            }
        }
    }
}

/// A run can be repeated, with any number of threads.
#[test]
fn samples_do_not_depend_on_threads() {
    let sgd: OptimizerDesc = Sgd::new(0.05).into();
    let strategy = divided(DistributedStrategy::new());
    let [one, two] = [1, 2].map(|threads| train(SMALL_SAMPLE, &sgd, &strategy, 2, threads));
    for (one, two) in one.iter().zip(&two) {
        assert!(one.sampled == two.sampled && one.kept == two.kept && one.losses == two.losses);
    }
    assert_ne!(one[0].sampled, one[1].sampled, "ranks draw different classes");
}

/// The loss of a sample, in f64, from the first values of all variables.
fn plain_loss(ranks: &[Rank], all: &BTreeMap<String, Vec<f32>>, rows: usize) -> f64 {
    let number = |name: &str, at: usize| f64::from(all[name][at]);
    let layer = |x: &[f64], name: &str, size: usize| -> Vec<f64> {
        (0..size)
            .map(|to| {
                let products = x.iter().enumerate();
                let sum: f64 = products
                    .map(|(at, x)| x * number(&format!("{name}.w_0"), at * size + to))
                    .sum();
                (sum + number(&format!("{name}.b_0"), to)).tanh()
            })
            .collect()
    };
    let unit = |x: &[f64]| -> Vec<f64> {
        let norm = x.iter().map(|x| x * x).sum::<f64>().sqrt();
        x.iter().map(|x| x / norm).collect()
    };
    let weights = &all[WEIGHTS];
    let mut used: Vec<usize> = Vec::new();
    for (at, rank) in ranks.iter().enumerate() {
        used.extend(rank.sampled[0].iter().map(|row| at * rows + *row as usize));
    }
    let (x, labels) = SMALL_SAMPLE.feed(0, 0, 1).unwrap();
    let (x, labels) = (x.to_vec::<f32>().unwrap(), labels.to_vec::<i64>().unwrap());
    let mut sum = 0.0;
    for (x, label) in x.chunks(WIDTH).zip(labels) {
        let x: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
        let features = unit(&layer(&layer(&x, "fc_0", 8), "fc_1", 7));
        let logit = |class: usize| {
            let row: Vec<f64> = weights[class * 7..][..7].iter().map(|it| f64::from(*it)).collect();
            let cosine: f64 = unit(&row).iter().zip(&features).map(|(a, b)| a * b).sum();
            8.0 * if class == label as usize { (cosine.acos() + 0.5).cos() } else { cosine }
        };
        let all: f64 = used.iter().map(|class| logit(*class).exp()).sum();
        sum += all.ln() - logit(label as usize);
    }
    sum / BATCH as f64
}

/// The loss is that of the sampled classes of all ranks, in plain f64.
#[test]
fn the_loss_is_that_of_the_sampled_classes() {
    let sgd: OptimizerDesc = Sgd::new(0.05).into();
    for count in [1, 2, 3] {
        let ranks = train(SMALL_SAMPLE, &sgd, &divided(DistributedStrategy::new()), count, 1);
        let all = whole(&ranks, |rank| &rank.first, |_| false);
        let rows = SMALL_SAMPLE.classes as usize / count;
        let expected = plain_loss(&ranks, &all, rows);
        let mean = ranks.iter().map(|rank| f64::from(rank.losses[0])).sum::<f64>() / count as f64;
        assert!((mean - expected).abs() < 1e-5 * expected, "{count}: {mean} and {expected}");
    }
}

/// The default scale of 64 saturates the softmax; results agree nonetheless.
#[test]
fn many_classes_at_the_default_scale() {
    fn network(net: &Net) -> VarId {
        let x = net.data("x", [-1, WIDTH as i64], DType::F32);
        let label = net.data("label", [-1, 1], DType::I64);
        x.fc(Fc::new(32).act(Act::Tanh)).class_loss(label, ClassLoss::arcface(1003)).id()
    }
    let run = |count: usize| {
        let outcomes = local::run(count, |rank, world| {
            let strategy = divided(DistributedStrategy::new());
            let sgd: OptimizerDesc = Sgd::new(0.01).into();
            let (programs, plan) = rewritten(network, &sgd, &strategy, Ranks::new(rank, count))?;
            let mut executor =
                Executor::new(ExecOptions::threads(1)).services(services(world, &plan, rank));
            let mut scope = Scope::new();
            executor.run(&programs.startup, &mut scope, &[], &[])?;
            for step in 0..STEPS {
                let (x, label) = Model { classes: 1003, ..ARCFACE }.feed(step, rank, count)?;
                executor.run(&programs.main, &mut scope, &[("x", &x), ("label", &label)], &[])?;
            }
            scope.tensor("fc_0.w_0")?.to_vec::<f32>()
        });
        outcomes.into_iter().map(|it: Result<Vec<f32>>| it.unwrap()).collect::<Vec<_>>()
    };
    let plain = run(1).remove(0);
    let largest = plain.iter().fold(0.0f32, |all, it| all.max(it.abs()));
    for count in [2, 3, 4] {
        for found in run(count) {
            for (a, b) in found.iter().zip(&plain) {
                assert!((a - b).abs() <= NEAR * largest, "{count}: {a} and {b}");
            }
        }
    }
}

fn arcface(net: &Net) -> VarId {
    ARCFACE.build(net)
}

/// Ranks have samples of their own, and own their rows.
#[test]
fn state_of_parts_is_owned() {
    let strategy = divided(DistributedStrategy::new());
    let (programs, plan) = rewritten(arcface, &momentum(), &strategy, Ranks::new(1, 4)).unwrap();
    assert_eq!(plan.chain_text(), "RawProgram -> ClassParallel -> momentum");
    assert_eq!((plan.copy, layer_ranks(&programs.main)), ((1, 4), 1));
    let local = local_state(&programs.main);
    let local: Vec<(&str, Spread)> = local.iter().map(|it| (&*it.name, it.spread)).collect();
    let velocity = "class_loss_0.w_0_velocity_0";
    assert_eq!(local, [(WEIGHTS, Spread::Owner), (velocity, Spread::Owner)]);
    let note = format!("'{WEIGHTS}': rank 1 of 4 has classes 3 to 6 of 10");
    assert!(plan.notes.contains(&note), "{:?}", plan.notes);
    let (plain, _) =
        rewritten(arcface, &momentum(), &DistributedStrategy::new(), Ranks::new(1, 4)).unwrap();
    assert!(plain.main.root_ops().all(|(_, op)| op.name() != "c_class_cross_entropy"));
}

fn without_classes(net: &Net) -> VarId {
    let x = net.data("x", [-1, WIDTH as i64], DType::F32);
    x.fc(3).mean().id()
}

fn tied(net: &Net) -> VarId {
    let label = net.data("label", [-1, 1], DType::I64);
    let table = ParamAttr::new().name("table");
    let rows = label.embedding(Embedding::new(10, 7).weight(table.clone())).flatten(1);
    rows.class_loss(label, ClassLoss::softmax(10).weight(table)).id()
}

#[test]
fn what_cannot_be_divided_is_refused() {
    let refused = |network: fn(&Net) -> VarId,
                   optimizer: OptimizerDesc,
                   strategy: DistributedStrategy,
                   expected: &str| {
        let strategy = divided(strategy);
        let error = rewritten(network, &optimizer, &strategy, Ranks::new(0, 4)).err();
        let error = error.unwrap_or_else(|| panic!("accepted: {expected}")).to_string();
        assert!(error.contains(expected), "{error}");
    };
    let plain = DistributedStrategy::new;
    refused(without_classes, momentum(), plain(), "the program has no class_loss");
    refused(tied, momentum(), plain(), "'table' is also a variable of lookup_table_v2");
    let sharding = plain().use_sharding(ShardingConfig::default());
    refused(arcface, momentum(), sharding, "owners have whole parameters");
    let local = plain().with_localsgd(true);
    refused(arcface, Sgd::new(0.1).into(), local, "cannot train alone");
    let tensor = HybridConfig::default().with_mp_degree(2).with_split_classes(true);
    let strategy = plain().with_hybrid_configs(tensor);
    let error = rewritten(arcface, &momentum(), &strategy, Ranks::new(0, 4)).err();
    assert!(error.is_some(), "divided layers and classes");
}
