//! Pipelines whose stages' state is sharded: results that are those of data parallel ranks with the
//! same micro-batches, program text, memory, errors.

use crate::pipeline::{
    ALL_STRATEGIES, STEPS, assert_whole_close, momentum, network, normed, optimizers, pipelined,
    same, shared_table, small_gpt, strategy_of, tables, tokens, train_fed, undropped_gpt, union,
    unlabelled_norms, with,
};
use crate::world::{Trained, assert_close, parameters, rewritten, train};
use fleet_exec::{Device, ExecOptions, Executor, Scope};
use fleet_ir::Program;
use fleet_nn::prelude::*;
use fleet_strategy::{
    DistributedStrategy, HybridConfig, PipelineConfig, Ranks, ShardingConfig, Spread, local_state,
};
use std::collections::BTreeMap;

/// The number of ranks along the axes of sharding, stages and data.
#[derive(Clone, Copy, Debug)]
struct Degrees(usize, usize, usize);

impl Degrees {
    fn ranks(self) -> usize {
        self.0 * self.1 * self.2
    }

    fn copies(self) -> usize {
        self.0 * self.2
    }

    /// Returns the micro-batches of a step: if possible, as many as make the order of sums matter.
    fn micros(self) -> i32 {
        if self.copies() == 3 { 4 } else { 3 }
    }

    fn hybrid(self) -> HybridConfig {
        let Degrees(shards, stages, copies) = self;
        let hybrid = HybridConfig::default().with_sharding_degree(shards as i32);
        hybrid.with_pp_degree(stages as i32).with_dp_degree(copies as i32)
    }
}

/// Returns the settings of a stage of sharding. Those of stage 0 assign none, and make a segment of
/// each layer.
fn configs(stage: i32) -> ShardingConfig {
    let configs = ShardingConfig::default().with_hybrid_dp(true);
    match stage {
        0 => configs.with_segment_broadcast_MB(1e-4),
        _ => configs.with_stage(stage),
    }
}

/// Returns a pipeline with sharded state.
fn sharded(base: &DistributedStrategy, stage: i32, degrees: Degrees) -> DistributedStrategy {
    base.clone().use_sharding(configs(stage)).with_hybrid_configs(degrees.hybrid())
}

/// Returns the state of data parallel ranks that each run all stages.
fn copies_of_all_stages(
    optimizer: &OptimizerDesc,
    base: &DistributedStrategy,
    degrees: Degrees,
) -> BTreeMap<String, Vec<f32>> {
    let one = strategy_of(&pipelined(base.clone(), degrees.micros(), "1F1B"), 1);
    union(&train(network(0), optimizer, &one, degrees.copies(), STEPS, &[]))
}

/// Checks that ranks keep what `expected` has: the same bits, or numbers close to them.
fn check(
    what: &str,
    ranks: &[Trained],
    expected: &BTreeMap<String, Vec<f32>>,
    tolerance: Option<f32>,
) {
    let Some(tolerance) = tolerance else {
        return same(what, ranks, expected);
    };
    let all = union(ranks);
    assert!(all.keys().eq(expected.keys()), "{what}");
    assert_close(&all, expected, tolerance, what);
    for own in ranks {
        assert!(own.kept.iter().all(|(name, value)| all[name] == *value), "{what}");
    }
}

/// Stages of sharding; 0 stands for none.
const STAGES: [i32; 4] = [1, 2, 3, 0];

/// Sums keep their order if groups have no copies. Small segments end inside layers, which prevents
/// fusions, as do casts of divided parameters that are repeated in recomputed layers.
fn tolerance(stage: i32, degrees: Degrees, name: &str) -> Option<f32> {
    let has_fusions = stage != 0 && (stage, name) != (3, "amp+recompute");
    match name {
        _ if has_fusions && degrees.2 == 1 => None,
        "bf16" => Some(5e-2),
        "amp" | "constant" | "amp+recompute" | "fp16" => Some(1e-2),
        _ => Some(1e-6),
    }
}

fn check_all(what: &str, name: &str, optimizer: &OptimizerDesc, degrees: &[Degrees]) {
    for &degrees in degrees {
        let expected = copies_of_all_stages(optimizer, &with(name), degrees);
        for stage in STAGES {
            let what = format!("{what}, {name}, stage {stage}, {degrees:?}");
            let base = pipelined(with(name), degrees.micros(), "1F1B");
            let strategy = sharded(&base, stage, degrees);
            let ranks =
                train(network(degrees.1), optimizer, &strategy, degrees.ranks(), STEPS, &[]);
            check(&what, &ranks, &expected, tolerance(stage, degrees, name));
            check_size(&what, &ranks, &expected, stage, degrees);
        }
    }
}

/// Checks that one rank of a group has each divided variable.
fn check_size(
    what: &str,
    ranks: &[Trained],
    all: &BTreeMap<String, Vec<f32>>,
    stage: i32,
    degrees: Degrees,
) {
    let size = |map: &BTreeMap<String, Vec<f32>>| map.values().map(Vec::len).sum::<usize>();
    let (total, params) = (size(all), size(&parameters(all)));
    let held: usize = ranks.iter().map(|rank| size(&rank.kept)).sum();
    let limit = match stage {
        1 | 2 => (total - params) * degrees.2 + params * degrees.copies(),
        _ => total * degrees.2,
    };
    // Rates, powers of Adam and counters of AMP.
    let numbers = 32 * ranks.len();
    assert!(held <= limit + numbers, "{what}: {held} of {limit}");
}

#[test]
fn every_optimizer_computes_the_same() {
    for (name, optimizer) in optimizers() {
        check_all(name, "plain", &optimizer, &[Degrees(2, 3, 1), Degrees(2, 2, 2)]);
        check_all(name, "amp", &optimizer, &[Degrees(2, 2, 1)]);
    }
}

#[test]
fn every_strategy_computes_the_same() {
    const DEGREES: [Degrees; 3] = [Degrees(2, 2, 1), Degrees(3, 2, 1), Degrees(3, 1, 1)];
    let clipped: OptimizerDesc =
        Momentum::new(0.1, 0.9).grad_clip(GradClip::GlobalNorm(0.1)).into();
    for name in ALL_STRATEGIES {
        check_all("momentum", name, &clipped, &DEGREES);
    }
    let adam = Adam::new(0.01).grad_clip(GradClip::GlobalNorm(0.1)).into();
    check_all("adam", "lamb", &adam, &DEGREES);
}

#[test]
fn virtual_stages_and_schedules() {
    let optimizer: OptimizerDesc = Adam::new(0.01).grad_clip(GradClip::GlobalNorm(0.1)).into();
    let degrees = Degrees(2, 2, 1);
    let schedules = [(4, 2, "1F1B"), (6, 2, "F-then-B"), (2, 3, "F-then-B"), (2, 3, "ZBH1")];
    for (parts, micros, schedule) in schedules {
        let one = strategy_of(&pipelined(with("plain"), micros, "1F1B"), 1);
        let expected = union(&train(network(0), &optimizer, &one, 2, STEPS, &[]));
        let pipeline = PipelineConfig::default().with_accumulate_steps(micros);
        let pipeline = pipeline.with_schedule_mode(schedule).with_virtual_stages(parts as i32 / 2);
        for stage in STAGES {
            let strategy = sharded(&with("plain").use_pipeline(pipeline.clone()), stage, degrees);
            let what = format!("{parts} parts, {schedule}, stage {stage}");
            if schedule == "ZBH1" && !matches!(stage, 1 | 2) {
                let ranks = Ranks::new(0, 4);
                let error = rewritten(network(0), &optimizer, &strategy, ranks).unwrap_err();
                assert!(error.to_string().contains("ZBH1 divides backward passes"), "{error}");
                continue;
            }
            let tolerance = tolerance(stage, degrees, "plain");
            for network in [network(parts), network(0)] {
                let ranks = train(network, &optimizer, &strategy, 4, STEPS, &[]);
                check(&what, &ranks, &expected, tolerance);
            }
        }
    }
}

/// Anchors end segments in the passes of each micro-batch.
#[test]
fn segments_end_at_anchors() {
    let (optimizer, degrees) = (momentum(), Degrees(2, 2, 1));
    for name in ["plain", "amp"] {
        let expected = copies_of_all_stages(&optimizer, &with(name), degrees);
        let base = pipelined(with(name), degrees.micros(), "1F1B");
        let anchors = ["fc_0.tmp_2", "fc_1.tmp_2", "fc_3.tmp_2"];
        let anchored = ShardingConfig::default().with_sharding_segment_strategy("segment_anchors");
        let anchored = anchored.with_segment_anchors(anchors);
        let anchored = base.clone().use_sharding(anchored).with_hybrid_configs(degrees.hybrid());
        let ranks = train(network(2), &optimizer, &anchored, 4, STEPS, &[]);
        same(name, &ranks, &expected);
        let segments = |strategy: &DistributedStrategy| {
            let (_, plan) = rewritten(network(2), &optimizer, strategy, Ranks::new(0, 4)).unwrap();
            let note = plan.notes.iter().find(|it| it.ends_with(" segments")).unwrap();
            note.split(' ').nth(1).unwrap().parse::<usize>().unwrap()
        };
        // Two more in each pass of each micro-batch, at least.
        let more = segments(&anchored) - segments(&sharded(&base, 3, degrees));
        assert!(more >= 8, "{name}: {more}");
    }
}

/// Owners accumulate the gradients of several steps, each of several micro-batches.
#[test]
fn gradients_of_several_steps_are_merged() {
    let optimizer: OptimizerDesc = Adam::new(0.01).grad_clip(GradClip::GlobalNorm(0.1)).into();
    let merge = with("plain").use_gradient_merge(2);
    let expected = parameters(&train(network(0), &optimizer, &merge, 2, 4, &[])[0].kept);
    for stage in STAGES {
        let strategy = pipelined(with("plain"), 3, "1F1B");
        let configs = configs(stage).with_gradient_merge_acc_step(2);
        let strategy = strategy.use_sharding(configs);
        let strategy = strategy.with_hybrid_configs(Degrees(2, 2, 1).hybrid());
        let ranks = train(network(2), &optimizer, &strategy, 4, 4, &[]);
        let all = union(&ranks);
        assert_close(&parameters(&all), &expected, 1e-6, &format!("stage {stage}"));
        let merged =
            |it: &Trained| it.kept.keys().filter(|it| it.ends_with("@GradientMerge")).count();
        assert_eq!(ranks.iter().map(merged).sum::<usize>(), 12, "each has one accumulator");
    }
}

/// Ranks of the first and the last stage own the embedding, and share its first values.
#[test]
fn stages_share_an_embedding() {
    let clipped: OptimizerDesc =
        Adam::new(0.01).epsilon(1e-3).grad_clip(GradClip::GlobalNorm(0.1)).into();
    let all = [Degrees(2, 2, 1), Degrees(2, 2, 2), Degrees(2, 4, 1)];
    for (name, degrees) in [("plain", &all[..]), ("amp", &all[..1]), ("lamb", &all[..1])] {
        let tolerance = if name == "amp" { 1e-3 } else { 2e-6 };
        for &degrees in degrees {
            let base = pipelined(with(name), 3, "1F1B");
            let one = strategy_of(&base, 1);
            let one = train_fed(small_gpt, tokens, &clipped, &one, degrees.copies(), &[]);
            for stage in STAGES {
                let what = format!("{name}, stage {stage}, {degrees:?}");
                let strategy = sharded(&base, stage, degrees);
                let ranks = train_fed(small_gpt, tokens, &clipped, &strategy, degrees.ranks(), &[]);
                check(&what, &ranks, &union(&one), Some(tolerance));
                let held = |at: usize| ranks[at].kept.contains_key("word_embedding_moment1_0");
                let last = degrees.0 * (degrees.1 - 1);
                assert_eq!([0, 1, last, last + 1].map(held), [true, false, true, false], "{what}");
            }
        }
    }
}

/// Ranks share layers, the state of parts of each stage, and the embedding.
#[test]
fn stages_of_divided_layers() {
    let clipped: OptimizerDesc =
        Adam::new(0.01).epsilon(1e-3).grad_clip(GradClip::GlobalNorm(0.1)).into();
    let base = pipelined(with("plain"), 2, "1F1B");
    let one = train_fed(undropped_gpt, tokens, &clipped, &base, 1, &[]);
    for stage in STAGES {
        let hybrid = Degrees(2, 2, 1).hybrid().with_mp_degree(2);
        let strategy = base.clone().use_sharding(configs(stage)).with_hybrid_configs(hybrid);
        let ranks = train_fed(undropped_gpt, tokens, &clipped, &strategy, 8, &[]);
        assert_whole_close(&ranks, &one[0], &format!("stage {stage}"));
    }
}

#[test]
fn sparse_gradients() {
    let optimizer: OptimizerDesc =
        Momentum::new(0.1, 0.9).grad_clip(GradClip::GlobalNorm(0.1)).into();
    let base = pipelined(with("plain"), 3, "1F1B");
    for network in [tables, shared_table] {
        for degrees in [Degrees(2, 2, 1), Degrees(2, 2, 2)] {
            let one = strategy_of(&base, 1);
            let one = union(&train_fed(network, tokens, &optimizer, &one, degrees.copies(), &[]));
            for stage in STAGES {
                let strategy = sharded(&base, stage, degrees);
                let ranks = train_fed(network, tokens, &optimizer, &strategy, degrees.ranks(), &[]);
                check(&format!("stage {stage}, {degrees:?}"), &ranks, &one, Some(1e-6));
            }
        }
    }
}

#[test]
fn synchronous_batch_norms() {
    let base = pipelined(with("plain").with_sync_batch_norm(true), 2, "1F1B");
    let one = train(unlabelled_norms, &momentum(), &strategy_of(&base, 1), 2, STEPS, &[]);
    for stage in STAGES {
        let strategy = sharded(&base, stage, Degrees(2, 3, 1));
        let ranks = train(normed, &momentum(), &strategy, 6, STEPS, &[]);
        check(&format!("stage {stage}"), &ranks, &union(&one), Some(1e-5));
    }
    let strategy = sharded(&base, 1, Degrees(2, 3, 2));
    let error = rewritten(normed, &momentum(), &strategy, Ranks::new(0, 12)).unwrap_err();
    assert!(error.to_string().contains("no ring connects all of them"), "{error}");
}

/// Returns the collectives of the root block, as (name, ring, ranks).
fn collectives(program: &Program) -> Vec<(&str, i64, i64)> {
    let ops = program.root_ops().filter(|(_, op)| op.name().starts_with("c_"));
    ops.map(|(_, op)| (op.name(), op.attr_int("ring_id"), op.attr_int("nranks"))).collect()
}

/// Ranks are numbered along sharding, then stages, then copies.
#[test]
fn programs_of_any_number_of_ranks() {
    let clipped: OptimizerDesc =
        Momentum::new(0.1, 0.9).grad_clip(GradClip::GlobalNorm(0.1)).into();
    let base = pipelined(with("plain"), 2, "1F1B");
    for (degrees, rank) in [(Degrees(2, 2, 1), 3), (Degrees(8, 2, 64), 17 * 16 + 11)] {
        let Degrees(shards, stages, copies) = degrees;
        let count = degrees.ranks();
        let strategy = sharded(&base, 1, degrees);
        let (programs, plan) =
            rewritten(network(2), &clipped, &strategy, Ranks::new(rank, count)).unwrap();
        assert_eq!(plan.chain_text(), "Sharding -> Pipeline -> momentum");
        let shard = rank % shards;
        let copy = rank / shards / stages;
        assert_eq!(plan.copy, (copy * shards + shard, degrees.copies()));
        let stage = plan.stage.unwrap();
        assert_eq!((stage.number, stage.count), (1, 2));
        assert_eq!((stage.copy, stage.copies), plan.copy);
        let first = copy * shards * stages;
        let mut rings: Vec<_> = plan
            .rings
            .iter()
            .map(|ring| (ring.id, ring.first, ring.stride, ring.nranks, ring.rank))
            .collect();
        rings.sort_unstable();
        let pair = |id: i64| (id, first + shard, shards, 2, 1);
        let mut expected = vec![
            (1, first + shards, 1, shards, shard),
            (3, first, 1, shards * stages, shards + shard),
            pair(4),
            pair(20),
            pair(21),
        ];
        let mut sums = vec![
            ("c_reduce_sum", 1, shards as i64),
            ("c_allreduce_sum", 3, (shards * stages) as i64),
            ("c_broadcast", 1, shards as i64),
        ];
        if copies > 1 {
            expected.insert(1, (2, shards + shard, shards * stages, copies, copy));
            sums.push(("c_allreduce_sum", 2, copies as i64));
        }
        assert_eq!(rings, expected);
        let mut found = collectives(&programs.main);
        // The loss of the last stage.
        found.retain(|it| it.1 != 4);
        assert!(sums.iter().all(|it| found.contains(it)), "{found:?}");
        assert!(found.iter().all(|it| sums.contains(it)), "{found:?}");
        let scale = programs.main.root_ops().find(|(_, op)| op.name() == "scale").unwrap();
        assert_eq!(scale.1.attr_float("scale"), 1.0 / degrees.copies() as f64);
        assert!(local_state(&programs.main).iter().all(|var| var.spread == Spread::Owner));
    }
}

/// The degrees are those of sharding or of the grid; labels name stages, too.
#[test]
fn degrees_from_any_field() {
    let ranks = Ranks::new(1, 4);
    let text = |strategy: &DistributedStrategy| {
        let (programs, _) = rewritten(network(2), &momentum(), strategy, ranks).unwrap();
        programs.main.to_string() + &programs.startup.to_string()
    };
    let pipeline = || pipelined(with("plain"), 3, "1F1B");
    let expected = text(&sharded(&pipeline(), 1, Degrees(2, 2, 1)));
    let stage_1 = || ShardingConfig::default().with_stage(1);
    let by_labels = pipeline().use_sharding(stage_1());
    assert_eq!(text(&by_labels), expected);
    assert_eq!(text(&pipeline().use_sharding(stage_1().with_sharding_degree(2))), expected);
    let own = stage_1().with_sharding_degree(2).with_pp_degree(2).with_dp_degree(1);
    assert_eq!(text(&pipeline().use_sharding(own.clone())), expected);
    // `pp_degree` turns the pipeline on.
    let one = pipelined(with("plain"), 1, "1F1B").use_sharding(own.clone());
    assert_eq!(text(&with("plain").use_sharding(own.clone())), text(&one));

    let check = |strategy: DistributedStrategy, part: &str| {
        let error = rewritten(network(0), &momentum(), &strategy, ranks).unwrap_err();
        assert!(error.to_string().contains(part), "{error}");
    };
    check(by_labels, "4 ranks could be stages, or share state: set hybrid_configs.pp_degree or");
    let other = HybridConfig::default().with_pp_degree(4);
    let other = pipeline().use_sharding(own).with_hybrid_configs(other);
    check(other, "pp_degree is 2 in sharding_configs, but 4 here");
    let three = pipeline().use_sharding(stage_1().with_pp_degree(3));
    check(three, "do not multiply to the job's 4 ranks: got pp_degree 3");
    let off = with("plain").with_pipeline(false).use_sharding(stage_1().with_pp_degree(2));
    check(off, "2 stages, but pipeline is false");
}

/// Eight layers of 64 KiB on each of two stages.
fn deep(net: &Net) -> fleet_ir::VarId {
    let x = net.data("x", [-1, 128], DType::F32);
    let layers = (0..16).fold(x, |x, layer| {
        let _stage = net.device_guard(&format!("gpu:{}", layer / 8));
        x.fc(Fc::new(128).act(Act::Tanh))
    });
    let _stage = net.device_guard("gpu:1");
    layers.mean().id()
}

/// Stages 1 and 2 divide the two moments, and stage 3 also parameters.
#[test]
fn memory_is_divided() {
    const LAYER: usize = 64 * 1024;
    let adam: OptimizerDesc = Adam::new(0.01).into();
    let need = |strategy: &DistributedStrategy, rank: usize| {
        let (programs, _) = rewritten(deep, &adam, strategy, Ranks::new(rank, 8)).unwrap();
        let feeds = [("x", DType::F32, [6, 128].into())];
        let options = ExecOptions { device: Device::Null, ..ExecOptions::threads(1) };
        let plan = Executor::new(options).plan(&programs.main, &Scope::new(), &feeds, &[]);
        let plan = plan.unwrap();
        [plan.persistable_bytes, plan.arena_bytes]
    };
    let base = pipelined(with("plain"), 6, "1F1B");
    let copies = need(&base, 0);
    let [state, gradients, all] = [1, 2, 3].map(|stage| {
        let strategy = sharded(&base, stage, Degrees(4, 2, 1));
        let ranks: Vec<[usize; 2]> = (0..8).map(|rank| need(&strategy, rank)).collect();
        [0, 1].map(|at| ranks.iter().map(|it| it[at]).max().unwrap())
    });
    let shown = format!("{copies:?} {state:?} {gradients:?} {all:?}");
    // Of two moments of 8 layers, a rank has those of 2, and of 3 if layers do not divide evenly.
    assert!(state[0] < copies[0] - 2 * 5 * LAYER + LAYER, "{shown}");
    assert!(gradients == state, "{shown}");
    assert!(all[0] < 3 * 3 * LAYER + LAYER, "{shown}");
}
