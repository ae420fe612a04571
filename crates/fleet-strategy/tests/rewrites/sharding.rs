//! Sharding: owners, groups, program text, and results that are those of data parallelism.

use crate::world::{
    Network, Trained, assert_close, batch, mlp, parameters, rewritten, services, train,
};
use fleet_base::Result;
use fleet_exec::{Device, ExecOptions, Executor, PlanSummary, Scope};
use fleet_ir::Program;
use fleet_nn::optimizer::Rule;
use fleet_nn::prelude::*;
use fleet_strategy::{
    AmpConfig, DistributedStrategy, HybridConfig, LambConfig, LarsConfig, PipelineConfig, Ranks,
    ShardingConfig, Spread, local_state,
};
use fleet_testkit::local;
use std::collections::{BTreeMap, BTreeSet};

const STEPS: usize = 5;

fn momentum() -> OptimizerDesc {
    Momentum::new(0.1, 0.9).into()
}

fn stage(stage: i32) -> DistributedStrategy {
    sharded(DistributedStrategy::new(), stage)
}

fn sharded(strategy: DistributedStrategy, stage: i32) -> DistributedStrategy {
    strategy.use_sharding(configs(stage))
}

/// Returns the settings of a stage. Stage 0 assigns none, and cuts a segment at each layer.
fn configs(stage: i32) -> ShardingConfig {
    match stage {
        0 => ShardingConfig::default()
            .with_sharding_segment_strategy("segment_anchors")
            .with_segment_anchors(["fc_0.tmp_2", "fc_1.tmp_2"]),
        _ => ShardingConfig::default().with_stage(stage),
    }
}

const STAGES: [i32; 4] = [1, 2, 3, 0];

/// The documented network: 32 x 64, 64 x 64 and 64 x 2.
fn documented(net: &Net) -> fleet_ir::VarId {
    let x = net.data("x", [-1, 32], DType::F32);
    x.fc(Fc::new(64).act(Act::Relu)).fc(Fc::new(64).act(Act::Relu)).fc(2).mean().id()
}

/// Returns the variables of a program that are optimizer state.
fn velocities(program: &Program) -> Vec<&str> {
    let names = program.vars().map(|(_, var)| var.name.as_str());
    names.filter(|name| name.ends_with("_velocity_0")).collect()
}

#[test]
fn owners_are_the_documented_ones() {
    let owned = |rank: usize| {
        let ranks = Ranks::new(rank, 2);
        let (programs, _) = rewritten(documented, &momentum(), &stage(1), ranks).unwrap();
        let of = |program: &Program| {
            let found = velocities(program).into_iter();
            found.map(|name| name.replace("_velocity_0", "")).collect::<BTreeSet<_>>()
        };
        assert_eq!(of(&programs.main), of(&programs.startup));
        of(&programs.main).into_iter().collect::<Vec<_>>()
    };
    assert_eq!(owned(0), ["fc_0.b_0", "fc_0.w_0", "fc_1.w_0"]);
    assert_eq!(owned(1), ["fc_1.b_0", "fc_2.b_0", "fc_2.w_0"]);
}

/// Returns the collectives of a program: name, number of variables, ring, and root if it has one.
fn communication(program: &Program) -> Vec<String> {
    let ops = program.block_ids().flat_map(|block| program.block_ops(block));
    ops.filter(|(_, op)| op.name().starts_with("c_"))
        .map(|(_, op)| {
            let root = ["root", "root_id"].iter().find(|name| op.attr(name).is_some());
            let root = root.map_or(String::new(), |name| format!(" to {}", op.attr_int(name)));
            format!("{} x{} ring {}{root}", op.name(), op.input("X").len(), op.attr_int("ring_id"))
        })
        .collect()
}

#[test]
fn gradients_go_to_owners_and_parameters_come_back() {
    let (programs, plan) = rewritten(mlp, &momentum(), &stage(1), Ranks::new(1, 2)).unwrap();
    assert_eq!(plan.chain_text(), "Sharding -> momentum");
    assert_eq!(
        communication(&programs.main),
        [
            "c_reduce_sum x3 ring 1 to 1",
            "c_reduce_sum x3 ring 1 to 0",
            "c_broadcast x3 ring 1 to 0",
            "c_broadcast x3 ring 1 to 1",
        ]
    );
    assert_eq!(
        communication(&programs.startup),
        ["c_comm_init x0 ring 1", "c_broadcast x6 ring 1 to 0", "c_sync_comm_stream x6 ring 1"]
    );
}

/// Segments are cut from the last op to the first. The parameters of a segment are sent when the
/// segment before it begins, and are not kept.
#[test]
fn parameters_are_broadcast_by_segments() {
    let strategy = DistributedStrategy::new().use_sharding(configs(0));
    for count in [2, 8, 1024] {
        let (programs, plan) =
            rewritten(mlp, &momentum(), &strategy, Ranks::new(1, count)).unwrap();
        assert_eq!(plan.chain_text(), "Sharding -> momentum");
        let held: Vec<&str> = programs.main.parameters().map(|(_, var)| &*var.name).collect();
        let startup: Vec<&str> = programs.startup.parameters().map(|(_, var)| &*var.name).collect();
        assert_eq!(held, startup);
        assert!(held.len() <= 3, "{held:?}");
    }
    // Rank 1 of 2 owns the parameters from fc_1.b_0.
    let (programs, _) = rewritten(mlp, &momentum(), &strategy, Ranks::new(1, 2)).unwrap();
    let main = programs.main;
    let order: Vec<String> = main
        .root_ops()
        .filter(|(_, op)| {
            matches!(op.name(), "mul" | "mul_grad" | "c_broadcast" | "c_reduce_sum" | "momentum")
        })
        .map(|(_, op)| {
            let vars = match op.name().starts_with("mul") {
                true => op.input("Y"),
                false => &op.inputs[0],
            };
            let names: Vec<&str> = vars.iter().map(|var| main.var_name(*var)).collect();
            format!("{} {}", op.name(), names.join(" "))
        })
        .collect();
    assert_eq!(
        order,
        [
            "c_broadcast fc_0.w_0@BroadCast_0 fc_0.b_0@BroadCast_0",
            "c_broadcast fc_1.w_0@BroadCast_1",
            "c_broadcast fc_1.b_0",
            "mul fc_0.w_0@BroadCast_0",
            "c_broadcast fc_2.w_0 fc_2.b_0",
            "mul fc_1.w_0@BroadCast_1",
            "mul fc_2.w_0",
            "c_broadcast fc_1.w_0@BroadCast_4",
            "mul_grad fc_2.w_0",
            "c_reduce_sum fc_2.b_0@GRAD fc_2.w_0@GRAD",
            "c_broadcast fc_0.w_0@BroadCast_5",
            "c_reduce_sum fc_1.b_0@GRAD",
            "mul_grad fc_1.w_0@BroadCast_4",
            "c_reduce_sum fc_1.w_0@GRAD",
            "mul_grad fc_0.w_0@BroadCast_5",
            "c_reduce_sum fc_0.b_0@GRAD fc_0.w_0@GRAD",
            "momentum fc_1.b_0",
            "momentum fc_2.b_0",
            "momentum fc_2.w_0",
        ]
    );
}

#[test]
fn segments_end_at_anchors() {
    let anchored = |names: &[&str]| {
        let configs = ShardingConfig::default().with_sharding_segment_strategy("segment_anchors");
        let configs = configs.with_segment_anchors(names.iter().map(ToString::to_string));
        let strategy = DistributedStrategy::new().use_sharding(configs);
        rewritten(mlp, &momentum(), &strategy, Ranks::new(0, 2))
    };
    let notes = anchored(&["fc_0.tmp_2"]).unwrap().1.notes;
    assert!(notes.contains(&"sharding: 4 segments".to_string()), "{notes:?}");
    // The size of one parameter is the smallest segment.
    let configs = ShardingConfig::default().with_segment_broadcast_MB(1e-6);
    let strategy = DistributedStrategy::new().use_sharding(configs);
    let notes = rewritten(mlp, &momentum(), &strategy, Ranks::new(0, 2)).unwrap().1.notes;
    assert!(notes.contains(&"sharding: 10 segments".to_string()), "{notes:?}");
    let error = anchored(&["fc_0.tmp_9"]).unwrap_err().to_string();
    assert!(error.contains("unknown anchor variable 'fc_0.tmp_9'; did you mean"), "{error}");
    assert!(anchored(&[]).unwrap_err().to_string().contains("segment_anchors: no anchors"));
}

#[test]
fn groups_of_any_number_of_ranks() {
    for (count, group) in [(8, 4), (1024, 8)] {
        let configs = ShardingConfig::default().with_stage(1).with_hybrid_dp(true);
        let configs = configs.with_sharding_degree(group as i32);
        let strategy = DistributedStrategy::new().use_sharding(configs);
        let (programs, plan) =
            rewritten(mlp, &momentum(), &strategy, Ranks::new(group + 1, count)).unwrap();
        let rings: Vec<_> = plan.rings.iter().map(|it| (it.id, it.rank, it.nranks)).collect();
        assert_eq!(rings, [(1, 1, group), (2, 1, count / group), (3, group + 1, count)]);
        let members: Vec<usize> = plan.rings[0].members().collect();
        assert_eq!(members, (group..2 * group).collect::<Vec<_>>());
        let members: Vec<usize> = plan.rings[1].members().take(2).collect();
        assert_eq!(members, [1, group + 1]);
        // Each owner sums its own gradients over the groups.
        let sums = communication(&programs.main);
        let over_groups = sums.iter().filter(|it| it.starts_with("c_allreduce_sum")).count();
        assert_eq!((over_groups, sums.iter().any(|it| it.ends_with("ring 2"))), (1, true));
        let scale = programs.main.root_ops().find(|(_, op)| op.name() == "scale").unwrap();
        assert_eq!(scale.1.attr_float("scale"), 1.0 / count as f64);
    }
    let (_, plan) = rewritten(mlp, &momentum(), &stage(2), Ranks::new(1023, 1024)).unwrap();
    assert!(plan.notes.iter().any(|it| it.ends_with("owns 0 of 6 parameters")), "{:?}", plan.notes);
}

#[test]
fn degrees_that_do_not_multiply_are_refused() {
    let check = |configs: ShardingConfig, ranks: usize, part: &str| {
        let strategy = DistributedStrategy::new().use_sharding(configs.with_stage(1));
        let error = rewritten(mlp, &momentum(), &strategy, Ranks::new(0, ranks)).unwrap_err();
        assert!(error.to_string().contains(part), "{error}");
    };
    let of = |degree: i32| ShardingConfig::default().with_sharding_degree(degree);
    check(of(2), 4, "do not multiply to the job's 4 ranks: got sharding_degree 2; set hybrid_dp");
    check(of(2).with_dp_degree(3), 4, "4 ranks: got sharding_degree 2 x dp_degree 3");
    let huge = of(i32::MAX).with_dp_degree(i32::MAX).with_mp_degree(i32::MAX);
    check(huge, 4, "got mp_degree 2147483647 x sharding_degree 2147483647 x dp_degree 2147483647");
    check(of(3).with_hybrid_dp(true), 4, "do not multiply to the job's 4 ranks");
    check(ShardingConfig::default().with_dp_degree(3), 4, "got dp_degree 3");
    check(ShardingConfig::default().with_mp_degree(3), 4, "4 ranks: got mp_degree 3");
    check(ShardingConfig::default().with_pp_degree(3), 4, "4 ranks: got pp_degree 3");
}

#[test]
fn hybrid_degrees_are_those_of_sharding() {
    let ranks = Ranks::new(1, 4);
    let text = |strategy: &DistributedStrategy| {
        let (programs, _) = rewritten(mlp, &momentum(), strategy, ranks).unwrap();
        programs.main.to_string()
    };
    let own = ShardingConfig::default().with_stage(1).with_sharding_degree(2).with_dp_degree(2);
    let own = DistributedStrategy::new().use_sharding(own);
    let hybrid = |sharding: i32| HybridConfig::default().with_sharding_degree(sharding);
    assert_eq!(text(&own), text(&stage(1).with_hybrid_configs(hybrid(2))));
    assert_eq!(text(&own), text(&stage(1).with_hybrid_configs(hybrid(2).with_dp_degree(2))));

    let check = |strategy: DistributedStrategy, part: &str| {
        let error = rewritten(mlp, &momentum(), &strategy, ranks).unwrap_err();
        assert!(error.to_string().contains(part), "{error}");
    };
    check(own.with_hybrid_configs(hybrid(4)), "sharding_degree is 2 in sharding_configs, but 4");
    let alone = DistributedStrategy::new().with_hybrid_configs(hybrid(2));
    check(alone, "hybrid_configs.sharding_degree: 2 ranks share no state");
}

/// Returns what all ranks keep together.
fn union(ranks: &[Trained]) -> BTreeMap<String, Vec<f32>> {
    let all = ranks.iter().rev().flat_map(|rank| rank.kept.clone());
    all.collect()
}

/// Checks that sharding computes the same bits as data parallelism.
fn check_bits(
    what: &str,
    network: Network,
    optimizer: &OptimizerDesc,
    strategy: &DistributedStrategy,
) {
    for count in [2, 3, 4] {
        let plain = train(network, optimizer, strategy, count, STEPS, &[]);
        for stage in STAGES {
            let what = format!("{what}, stage {stage}, {count} ranks");
            let strategy = sharded(strategy.clone(), stage);
            let ranks = train(network, optimizer, &strategy, count, STEPS, &[]);
            assert!(union(&ranks) == union(&plain), "{what}: other results");
            for (rank, own) in ranks.iter().enumerate() {
                let all = parameters(&plain[rank].kept);
                let held = parameters(&own.kept);
                assert!(held.iter().all(|(name, value)| all[name] == *value), "{what}");
                assert_eq!(held.len() < all.len(), matches!(stage, 0 | 3), "{what}: rank {rank}");
                let size = |it: &Trained| it.kept.values().map(Vec::len).sum::<usize>();
                let has_state = !matches!(optimizer.rule, Rule::Sgd(_));
                let is_divided = has_state || matches!(stage, 0 | 3);
                assert_eq!(size(own) < size(&plain[rank]), is_divided, "{what}: rank {rank}");
            }
        }
    }
}

/// Every optimizer, each with a clip, a decay, or none.
fn optimizers() -> Vec<(&'static str, OptimizerDesc)> {
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

/// The strategies that sharding can be combined with.
fn with(name: &str) -> DistributedStrategy {
    let strategy = DistributedStrategy::new();
    let amp = AmpConfig::default().with_init_loss_scaling(256.0);
    match name {
        "plain" => strategy,
        "amp" => strategy.use_amp(amp),
        "bf16" => strategy.use_amp(amp.with_use_pure_bf16(true)),
        "recompute" => strategy.use_recompute(["fc_0.tmp_2", "fc_1.tmp_2"]),
        "fp16" => strategy.with_fp16_allreduce(true),
        "unfused" => strategy.with_fuse_all_reduce_ops(false),
        "lars" => strategy.use_lars(LarsConfig::default().with_lars_coeff(0.1)),
        "lamb" => strategy.use_lamb(LambConfig::default()),
        "sum" => {
            let scale = fleet_strategy::GradientScaleConfig::default().with_scale_strategy("sum");
            strategy.with_gradient_scale_configs(scale)
        }
        other => panic!("no strategy {other}"),
    }
}

#[test]
fn every_optimizer_computes_the_same_bits() {
    for (name, optimizer) in optimizers() {
        for strategy in ["plain", "amp"] {
            check_bits(&format!("{name}, {strategy}"), mlp, &optimizer, &with(strategy));
        }
    }
}

#[test]
fn every_strategy_computes_the_same_bits() {
    let clipped: OptimizerDesc =
        Momentum::new(0.1, 0.9).grad_clip(GradClip::GlobalNorm(0.1)).into();
    for name in ["bf16", "recompute", "fp16", "unfused", "lars", "sum"] {
        check_bits(name, mlp, &clipped, &with(name));
    }
    let adam = Adam::new(0.01).grad_clip(GradClip::GlobalNorm(0.1)).into();
    check_bits("lamb", mlp, &adam, &with("lamb"));
}

fn all_close(what: &str, ranks: &[Trained], plain: &[Trained]) {
    assert_close(&union(ranks), &union(plain), 1e-6, what);
    let all = union(ranks);
    for own in ranks {
        assert!(parameters(&own.kept).iter().all(|(name, value)| all[name] == *value), "{what}");
    }
}

/// Two groups of two ranks add in another order than four ranks.
#[test]
fn groups_are_data_parallel() {
    for (name, optimizer) in optimizers() {
        for stage in STAGES {
            let configs = configs(stage).with_sharding_degree(2).with_dp_degree(2);
            let strategy = DistributedStrategy::new().use_sharding(configs);
            let ranks = train(mlp, &optimizer, &strategy, 4, STEPS, &[]);
            let plain = train(mlp, &optimizer, &DistributedStrategy::new(), 4, STEPS, &[]);
            all_close(&format!("{name}, stage {stage}"), &ranks, &plain);
            for rank in [0, 1] {
                assert!(ranks[rank].kept == ranks[rank + 2].kept, "{name}: copies are equal");
            }
        }
    }
}

/// Stage 1 merges on every rank, which gives the same bits. Owners merge sums, which adds in
/// another order, and have accumulators of their own parameters only.
#[test]
fn gradients_are_merged() {
    let merge = DistributedStrategy::new().use_gradient_merge(2);
    let optimizer: OptimizerDesc = Adam::new(0.01).grad_clip(GradClip::GlobalNorm(0.1)).into();
    let acc = ShardingConfig::default().with_gradient_merge_acc_step(2);
    for count in [2, 3, 4] {
        let plain = train(mlp, &optimizer, &merge, count, STEPS, &[]);
        let ranks = train(mlp, &optimizer, &sharded(merge.clone(), 1), count, STEPS, &[]);
        for (own, plain) in ranks.iter().zip(&plain) {
            assert!(own.kept.iter().all(|(name, value)| plain.kept[name] == *value));
        }
        for strategy in [
            sharded(merge.clone(), 2),
            sharded(merge.clone(), 3),
            sharded(merge.clone(), 0),
            DistributedStrategy::new().use_sharding(acc.clone().with_stage(1)),
            DistributedStrategy::new().use_sharding(acc.clone().with_stage(2)),
        ] {
            let ranks = train(mlp, &optimizer, &strategy, count, STEPS - 1, &[]);
            let plain = train(mlp, &optimizer, &merge, count, STEPS - 1, &[]);
            all_close("merged at owners", &ranks, &plain);
            let merged = |it: &Trained| {
                it.kept.keys().filter(|name| name.ends_with("@GradientMerge")).count()
            };
            assert_eq!(ranks.iter().map(merged).sum::<usize>(), 6, "each has one accumulator");
        }
    }
}

#[test]
fn what_cannot_be_combined_is_refused() {
    let check = |strategy: DistributedStrategy, part: &str| {
        let error = rewritten(mlp, &momentum(), &strategy, Ranks::new(0, 2)).unwrap_err();
        assert!(error.to_string().contains(part), "{error}");
    };
    check(stage(1).with_localsgd(true), "conflicts with localsgd");
    check(stage(1).with_adaptive_localsgd(true), "conflicts with adaptive_localsgd");
    check(stage(1).with_dgc(true), "conflicts with dgc");
    let both = ShardingConfig::default().with_stage(2).with_gradient_merge_acc_step(2);
    let both = DistributedStrategy::new().use_sharding(both).use_gradient_merge(2);
    check(both, "gradient_merge_acc_step: conflicts with gradient_merge");
}

/// Checkpoints divide state by this list.
#[test]
fn optimizer_state_is_known_to_have_an_owner() {
    let groups = configs(1).with_sharding_degree(2).with_hybrid_dp(true);
    let strategies = [
        stage(1),
        DistributedStrategy::new().use_sharding(groups),
        with("amp").use_sharding(ShardingConfig::default().with_stage(2)),
        with("amp").use_sharding(configs(0)),
    ];
    for strategy in strategies {
        let (programs, _) = rewritten(mlp, &momentum(), &strategy, Ranks::new(1, 4)).unwrap();
        let mut expected = velocities(&programs.main);
        if strategy.sharding_configs().stage.is_none() {
            expected.extend(programs.main.parameters().map(|(_, var)| var.name.as_str()));
        }
        expected.sort_unstable();
        let local = local_state(&programs.main);
        assert!(local.iter().all(|var| var.spread == Spread::Owner), "{local:?}");
        assert_eq!(local.iter().map(|var| &*var.name).collect::<Vec<_>>(), expected);
    }
}

/// Eight layers of 256 KiB.
fn deep(net: &Net) -> fleet_ir::VarId {
    let x = net.data("x", [-1, 6], DType::F32);
    let y = net.data("y", [-1, 1], DType::F32);
    let first = x.fc(Fc::new(256).act(Act::Tanh));
    let hidden = (0..8).fold(first, |x, _| x.fc(Fc::new(256).act(Act::Tanh)));
    hidden.fc(1).mse_loss(y, Reduction::Mean).id()
}

const KIB: usize = 1024;
const LAYER_BYTES: usize = 256 * KIB;
/// Biases, and the numbers that every rank has.
const SMALL_BYTES: usize = 16 * KIB;

/// Returns the bytes of state and of temporaries of each rank.
fn memory(optimizer: &OptimizerDesc, strategy: &DistributedStrategy, count: usize) -> Vec<usize> {
    let ranks = local::run(count, |rank, world| {
        let (programs, plan) = rewritten(deep, optimizer, strategy, Ranks::new(rank, count))?;
        let executor = Executor::new(ExecOptions::threads(1));
        let mut executor = executor.services(services(world, &plan, rank));
        let mut scope = Scope::new();
        executor.run(&programs.startup, &mut scope, &[], &[])?;
        let (x, y) = batch(0, rank, count)?;
        let feeds = [("x", DType::F32, *x.shape()), ("y", DType::F32, *y.shape())];
        let summary = executor.plan(&programs.main, &scope, &feeds, &[])?;
        executor.run(&programs.main, &mut scope, &[("x", &x), ("y", &y)], &[])?;
        Ok(summary.persistable_bytes + summary.arena_bytes)
    });
    ranks.into_iter().map(Result::unwrap).collect()
}

fn plain_stages(stages: i32, pipeline: PipelineConfig) -> DistributedStrategy {
    let hybrid = HybridConfig::default().with_pp_degree(stages);
    DistributedStrategy::new().use_pipeline(pipeline).with_hybrid_configs(hybrid)
}

/// The memory that `fleet rewrite --cost` prints is that of a rank that trains: the plan of the
/// rewritten program without ranks is the executor's, and the scope has as many bytes.
#[test]
fn memory_is_predicted() {
    let layers = HybridConfig::default().with_mp_degree(2);
    let divided: Network = |net| {
        let x = net.data("x", [-1, 6], DType::F32);
        let y = net.data("y", [-1, 1], DType::F32);
        let wide = x.fc(Fc::new(256).act(Act::Tanh).split(Split::Columns));
        let narrow = wide.fc(Fc::new(12).act(Act::Tanh).split(Split::Rows));
        narrow.fc(1).mse_loss(y, Reduction::Mean).id()
    };
    let strategies = [
        DistributedStrategy::new(),
        stage(1),
        stage(2),
        stage(3),
        stage(1).use_gradient_merge(2),
        DistributedStrategy::new().use_sharding(ShardingConfig::default()),
    ];
    let of_layers = DistributedStrategy::new().with_hybrid_configs(layers);
    let jobs = strategies.map(|strategy| (deep as Network, strategy, 2));
    let pipelines = [1, 2, 3].map(|divided| {
        let pipeline = PipelineConfig::default().with_accumulate_steps(3);
        (deep as Network, sharded(plain_stages(2, pipeline), divided), 4)
    });
    for (network, strategy, count) in
        jobs.into_iter().chain([(divided, of_layers, 2)]).chain(pipelines)
    {
        local::run(count, |rank, world| {
            let ranks = Ranks::new(rank, count);
            let (programs, plan) = rewritten(network, &momentum(), &strategy, ranks)?;
            // Ranks that share layers have the same batch.
            let (x, y) = batch(0, 0, 2)?;
            let feeds = [("x", DType::F32, *x.shape()), ("y", DType::F32, *y.shape())];
            let options = ExecOptions { device: Device::Null, ..ExecOptions::threads(1) };
            let none = Scope::new();
            let predicted = Executor::new(options).plan(&programs.main, &none, &feeds, &[])?;
            let executor = Executor::new(ExecOptions::threads(1));
            let mut executor = executor.services(services(world, &plan, rank));
            let mut scope = Scope::new();
            executor.run(&programs.startup, &mut scope, &[], &[])?;
            executor.run(&programs.main, &mut scope, &[("x", &x), ("y", &y)], &[])?;
            let planned = executor.plan(&programs.main, &scope, &feeds, &[])?;
            let memory = |it: &PlanSummary| (it.persistable_bytes, it.arena_bytes, it.feed_bytes);
            assert_eq!(memory(&planned), memory(&predicted), "{}", plan.chain_text());
            let kept = programs.main.vars().map(|(_, var)| var).filter(|var| var.persistable);
            let bytes = kept
                .filter(|var| scope.contains(&var.name))
                .map(|var| scope.tensor(&var.name).map(|tensor| tensor.as_bytes().len()));
            let bytes: usize = bytes.sum::<Result<usize>>()?;
            assert_eq!(bytes, predicted.persistable_bytes, "{}", plan.chain_text());
            Ok(())
        })
        .into_iter()
        .for_each(|rank| rank.unwrap());
    }
}

/// Of a model of 9 segments, a rank holds a quarter, two segments and a parameter.
#[test]
fn memory_is_divided() {
    let adam: OptimizerDesc = Adam::new(0.01).into();
    let whole = memory(&adam, &DistributedStrategy::new(), 1)[0];
    let plain = DistributedStrategy::new();
    let amp = with("bf16");
    for strategy in [plain.clone(), amp] {
        let segments = ShardingConfig::default().with_segment_broadcast_MB(0.25);
        for rank in memory(&adam, &strategy.use_sharding(segments), 4) {
            let limit = whole / 4 + 2 * LAYER_BYTES + LAYER_BYTES + SMALL_BYTES;
            assert!(rank <= limit, "{} KiB of {} KiB", rank / KIB, limit / KIB);
        }
    }
    // Optimizer state is divided by stage 1.
    let state = 2 * 8 * LAYER_BYTES;
    for rank in memory(&adam, &sharded(plain, 1), 4) {
        let limit = whole - state + state / 4 + 2 * LAYER_BYTES;
        assert!(rank <= limit, "{} KiB of {} KiB", rank / KIB, limit / KIB);
    }
}
