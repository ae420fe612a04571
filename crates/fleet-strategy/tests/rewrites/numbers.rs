//! Results of training on several ranks, compared with one rank on the whole batch or a closed
//! form.

use crate::world::{
    Network, STEPS, Trained, assert_close, batch, mlp, parameters, rewritten, services, train,
    train_at, train_rank,
};
use fleet_exec::{Device, ExecOptions, Executor, Scope};
use fleet_nn::optimizer::{Optimizer, Rule};
use fleet_nn::prelude::*;
use fleet_passes::BuildOptions;
use fleet_strategy::{
    AdaptiveLocalSgdConfig, AmpConfig, DistributedStrategy, LambConfig, LarsConfig, LocalSgdConfig,
    Ranks,
};
use fleet_testkit::local::{self, World};

/// Trains one rank, with these fusions.
fn train_as(build: BuildOptions, network: Network, strategy: &DistributedStrategy) -> Trained {
    let options = ExecOptions { build, ..ExecOptions::threads(1) };
    let world = World::default();
    train_rank(options, network, &momentum(), strategy, Ranks::new(0, 1), &world, STEPS, &[])
        .expect("it trains")
}

fn momentum() -> OptimizerDesc {
    Momentum::new(0.1, 0.9).into()
}

/// Checks that every rank gets the same result as one rank with the whole batches.
fn check_equal(
    what: &str,
    optimizer: &OptimizerDesc,
    strategy: &DistributedStrategy,
    tolerance: f32,
) {
    let alone = train(mlp, optimizer, &strategy.clone(), 1, STEPS, &[]);
    for count in [2, 3, 4] {
        let ranks = train(mlp, optimizer, strategy, count, STEPS, &[]);
        for (rank, trained) in ranks.iter().enumerate() {
            let what = format!("{what}, rank {rank} of {count}");
            assert_close(&trained.kept, &alone[0].kept, tolerance, &what);
            assert_eq!(parameters(&trained.kept), parameters(&ranks[0].kept), "{what}");
        }
    }
}

#[test]
fn data_parallel_is_one_rank_on_the_whole_batch() {
    let plain = DistributedStrategy::new();
    check_equal("plain", &momentum(), &plain, 1e-6);
    check_equal("adam", &Adam::new(0.01).into(), &plain, 1e-5);
    let unfused = plain.clone().with_fuse_all_reduce_ops(false).with_nccl_comm_num(3);
    check_equal("unfused, three rings", &momentum(), &unfused, 1e-6);
    let clipped: OptimizerDesc = Momentum::new(0.1, 0.9)
        .grad_clip(GradClip::GlobalNorm(0.1))
        .weight_decay(Regularizer::L2(0.01))
        .into();
    check_equal("clip and decay", &clipped, &plain, 1e-6);
}

/// `sync_nccl_allreduce` changes the lane of the sums, not the results.
#[test]
fn sums_in_the_compute_lane_are_sums() {
    let unfused = DistributedStrategy::new().with_fuse_all_reduce_ops(false).with_nccl_comm_num(2);
    let waiting = unfused.clone().with_sync_nccl_allreduce(true);
    check_equal("sums in the compute lane", &momentum(), &waiting, 1e-6);
    let rows = waiting.clone().use_gradient_merge(2);
    check_equal("sums in the compute lane, merged", &momentum(), &rows, 1e-6);
    let beside = |strategy: &DistributedStrategy| -> Vec<bool> {
        let ranks = local::run(2, |rank, world| {
            let ranks = Ranks::new(rank, 2);
            let (programs, plan) = rewritten(mlp, &momentum(), strategy, ranks)?;
            let options = ExecOptions { profile: true, ..ExecOptions::threads(1) };
            let mut executor = Executor::new(options).services(services(world, &plan, rank));
            let mut scope = Scope::new();
            executor.run(&programs.startup, &mut scope, &[], &[])?;
            let (x, y) = batch(0, rank, 2)?;
            executor.run(&programs.main, &mut scope, &[("x", &x), ("y", &y)], &[])?;
            let spans = executor.trace().spans;
            let sums = spans.iter().filter(|span| span.op.contains("sum"));
            Ok(sums.map(|span| span.lane != 0).collect())
        });
        ranks.into_iter().next().unwrap().unwrap()
    };
    assert_eq!(beside(&unfused), [true; 6]);
    assert_eq!(beside(&waiting), [false; 6]);
}

#[test]
fn hierarchical_sums_are_sums() {
    let strategy = DistributedStrategy::new().with_use_hierarchical_allreduce(true);
    let alone = train(mlp, &momentum(), &strategy, 1, STEPS, &[]);
    for trained in train_at(mlp, &momentum(), &strategy, 4, 2, STEPS, &[]) {
        assert_close(&trained.kept, &alone[0].kept, 1e-6, "two groups of two");
    }
}

#[test]
fn strategies_over_ranks_are_strategies_alone() {
    let merge = DistributedStrategy::new().use_gradient_merge(3);
    check_equal("gradient merge", &momentum(), &merge, 1e-6);
    let recompute = DistributedStrategy::new().use_recompute(["fc_0.tmp_2", "fc_1.tmp_2"]);
    check_equal("recompute", &momentum(), &recompute, 1e-6);
    let lars = LarsConfig::default().with_lars_coeff(0.1);
    check_equal("lars", &momentum(), &DistributedStrategy::new().use_lars(lars), 1e-5);
    let lamb = DistributedStrategy::new().use_lamb(LambConfig::default());
    check_equal("lamb", &Adam::new(0.01).into(), &lamb, 1e-4);
    let both = recompute.use_gradient_merge(2);
    check_equal("gradient merge and recompute", &momentum(), &both, 1e-6);
}

/// Gradients rounded to half precision give close but different results.
#[test]
fn fp16_allreduce_rounds() {
    let plain = train(mlp, &momentum(), &DistributedStrategy::new(), 2, STEPS, &[]);
    let strategy = DistributedStrategy::new().with_fp16_allreduce(true);
    let rounded = train(mlp, &momentum(), &strategy, 2, STEPS, &[]);
    assert_close(&rounded[0].kept, &plain[0].kept, 2e-3, "rounded gradients");
    assert_ne!(parameters(&rounded[0].kept), parameters(&plain[0].kept));
    assert_eq!(parameters(&rounded[0].kept), parameters(&rounded[1].kept));
}

/// Each rank's gradient is rounded, the sum is rounded once, and the update uses that sum, in both
/// 16-bit formats.
#[test]
fn what_travels_is_rounded_and_nothing_else_is() {
    const RATE: f32 = 0.5;
    type Rounding = fn(f32) -> f32;
    let forms: [(&str, Rounding); 2] = [
        ("float16", |value| fleet_tensor::f16::from_f32(value).to_f32()),
        ("bfloat16", |value| fleet_tensor::bf16::from_f32(value).to_f32()),
    ];
    let sgd = Sgd::new(f64::from(RATE)).into();
    for (name, rounded) in forms {
        let half = DistributedStrategy::new().with_fp16_allreduce(true);
        let strategy = half.with_fp16_allreduce_dtype(name);
        let fetch = ["fc_0.w_0", "fc_0.w_0@GRAD"];
        let ranks = train(mlp, &sgd, &strategy, 2, 2, &fetch);
        let of = |rank: usize, step: usize| {
            let both = &ranks[rank].fetched[step];
            both.split_at(both.len() / 2)
        };
        let ((before, _), (after, own), (_, other)) = (of(0, 0), of(0, 1), of(1, 1));
        let mut error_max = 0.0f32;
        for at in 0..after.len() {
            let sum = rounded(rounded(own[at]) + rounded(other[at]));
            let expected = before[at] - RATE * sum;
            assert!((after[at] - expected).abs() <= 1e-7, "{name}: {} {expected}", after[at]);
            error_max = error_max.max((sum - own[at] - other[at]).abs());
        }
        assert!(error_max > 1e-5, "{name}: {error_max} is what rounding changes");
    }
}

/// k steps on parts of a batch are one step on the whole batch, so merged training is correct.
#[test]
fn gradient_merge_updates_in_every_kth_step() {
    let strategy = DistributedStrategy::new().use_gradient_merge(3);
    let fetch = ["fc_0.w_0"];
    let steps = &train(mlp, &momentum(), &strategy, 2, 7, &fetch)[0].fetched;
    let moved: Vec<bool> = steps.windows(2).map(|pair| pair[0] != pair[1]).collect();
    assert_eq!(moved, [false, true, false, false, true, false]);
}

/// k is 4, from step 3: ranks have the same parameters after steps 1, 2, 3, 7, 11, 15.
#[test]
fn local_sgd_meets_when_it_should() {
    let configs = LocalSgdConfig::default().with_k_steps(4).with_begin_step(3);
    let strategy = DistributedStrategy::new().use_localsgd(configs);
    let ranks = train(mlp, &momentum(), &strategy, 3, 16, &["fc_0.w_0"]);
    let met: Vec<usize> = (1..=16)
        .filter(|step| {
            let held = |trained: &Trained| trained.fetched[step - 1].clone();
            ranks.iter().all(|trained| close(&held(trained), &held(&ranks[0])))
        })
        .collect();
    assert_eq!(met, [1, 2, 3, 7, 11, 15]);
}

fn close(a: &[f32], b: &[f32]) -> bool {
    a.iter().zip(b).all(|(x, y)| (x - y).abs() < 1e-6)
}

/// With SGD, averaging parameters in every step is averaging gradients.
#[test]
fn local_sgd_of_every_step_is_data_parallel() {
    let sgd: OptimizerDesc = Sgd::new(0.1).into();
    let strategy = DistributedStrategy::new().use_localsgd(LocalSgdConfig::default());
    let alone = train(mlp, &sgd, &DistributedStrategy::new(), 1, STEPS, &[]);
    for trained in train(mlp, &sgd, &strategy, 3, STEPS, &[]) {
        let both = (parameters(&trained.kept), parameters(&alone[0].kept));
        assert_close(&both.0, &both.1, 1e-5, "averaged parameters");
    }
}

/// The interval follows the closed form of the loss that all ranks saw.
#[test]
fn adaptive_local_sgd_follows_the_loss() {
    let configs = AdaptiveLocalSgdConfig::default().with_init_k_steps(4).with_begin_step(2);
    let strategy = DistributedStrategy::new().use_adaptive_localsgd(configs);
    let sgd: OptimizerDesc = Sgd::new(0.05).into();
    let fetch = ["avg_loss_0", "k_steps", "last_step"];
    let ranks = train(mlp, &sgd, &strategy, 2, 12, &fetch);
    assert_eq!(ranks[0].fetched, ranks[1].fetched);
    let first = ranks[0].fetched[0][0];
    let mut expected = 4.0;
    let mut last = 0.0;
    for (at, seen) in ranks[0].fetched.iter().enumerate() {
        let step = at as f32 + 1.0;
        if step <= 2.0 || step - last == expected {
            last = step;
            if step > 2.0 {
                expected = (seen[0] / first * 4.0).sqrt().ceil().clamp(1.0, 16.0);
            }
        }
        assert_eq!((seen[1], seen[2]), (expected, last), "step {step}");
    }
}

/// Recomputed training is bit-identical, also with dropout and with automatic checkpoints.
#[test]
fn recompute_changes_no_bit() {
    fn network(net: &Net) -> fleet_ir::VarId {
        let x = net.data("x", [-1, 6], DType::F32);
        let y = net.data("y", [-1, 1], DType::F32);
        let hidden = x.fc(Fc::new(8).act(Act::Tanh)).dropout(0.3).batch_norm(BatchNorm::new());
        let hidden = hidden.fc(Fc::new(8).act(Act::Tanh)).dropout(0.3);
        hidden.fc(Fc::new(8).act(Act::Relu)).fc(1).mse_loss(y, Reduction::Mean).id()
    }
    let plain = train(network, &momentum(), &DistributedStrategy::new(), 1, STEPS, &[]);
    let bits = train_as(BuildOptions::none(), network, &DistributedStrategy::new());
    for checkpoints in [vec!["fc_0.tmp_2", "fc_1.tmp_2"], vec![]] {
        let strategy = DistributedStrategy::new().use_recompute(checkpoints);
        let again = train_as(BuildOptions::none(), network, &strategy);
        assert_eq!(again.kept, bits.kept);
        // Fusions find other patterns, so rounding differs.
        let again = train(network, &momentum(), &strategy, 1, STEPS, &[]);
        assert_close(&again[0].kept, &plain[0].kept, 1e-5, "recompute");
    }
}

/// The gradient of a bias reads only the shape of the product that the bias was added to, so the
/// products of an MLP with checkpoints behind its activations are not recomputed.
#[test]
fn recompute_runs_no_unread_product() {
    let strategy = DistributedStrategy::new().use_recompute(["fc_0.tmp_2", "fc_1.tmp_2"]);
    let (programs, plan) = rewritten(mlp, &momentum(), &strategy, Ranks::new(0, 1)).unwrap();
    let products = programs.main.root_ops().filter(|(_, op)| op.name() == "mul").count();
    assert_eq!(products, 3, "{}", programs.main);
    let note = "recompute: 0 ops are recomputed, checkpoints fc_0.tmp_2, fc_1.tmp_2";
    assert!(plan.notes.iter().any(|it| it == note), "{:?}", plan.notes);
    // A checkpoint behind the second layer only: the first activation needs its product again.
    let strategy = DistributedStrategy::new().use_recompute(["fc_1.tmp_2"]);
    let (programs, _) = rewritten(mlp, &momentum(), &strategy, Ranks::new(0, 1)).unwrap();
    let again = programs.main.root_ops().filter(|(_, op)| op.role.is_backward());
    let again: Vec<&str> =
        again.map(|(_, op)| op.name()).filter(|name| !name.ends_with("_grad")).collect();
    let run = |name: &str| again.iter().filter(|it| **it == name).count();
    assert_eq!((run("mul"), run("elementwise_add"), run("tanh")), (1, 1, 1), "{again:?}");
}

/// Eight layers with dropout and batch norm, so that there are values to keep and to recompute.
fn deep(net: &Net) -> fleet_ir::VarId {
    let (x, y) = (net.data("x", [-1, 6], DType::F32), net.data("y", [-1, 1], DType::F32));
    fn layer(x: Var<'_>) -> Var<'_> {
        x.fc(Fc::new(64).act(Act::Tanh)).dropout(0.2).fc(64)
    }
    let hidden = layer(x).batch_norm(BatchNorm::new());
    layer(layer(layer(layer(hidden)))).fc(1).mse_loss(y, Reduction::Mean).id()
}

fn deep_checkpoints(offload: bool) -> DistributedStrategy {
    let names = ["fc_1.tmp_1", "fc_3.tmp_1", "fc_5.tmp_1", "fc_7.tmp_1"];
    let mut strategy = DistributedStrategy::new().use_recompute(names);
    let configs = strategy.recompute_configs().clone().with_enable_offload(offload);
    strategy.recompute_configs = Some(configs);
    strategy
}

/// Checkpoints stored in a file are restored unchanged, with the executor and the interpreter, with
/// and without lanes, and the arena becomes smaller.
#[test]
fn offload_changes_no_bit_and_frees_memory() {
    let bits = train_as(BuildOptions::none(), deep, &DistributedStrategy::new());
    let lanes = BuildOptions { enable_sequential_execution: false, ..BuildOptions::none() };
    let inplace = BuildOptions { enable_inplace: true, ..lanes.clone() };
    for build in [BuildOptions::none(), lanes, inplace] {
        let away = train_as(build, deep, &deep_checkpoints(true));
        assert!(away.kept == bits.kept);
    }
    let ranks = train(deep, &momentum(), &deep_checkpoints(true), 2, STEPS, &[]);
    let kept = train(deep, &momentum(), &deep_checkpoints(false), 2, STEPS, &[]);
    assert!(ranks[0].kept == kept[0].kept && ranks[1].kept == kept[1].kept);

    let planned = |strategy: &DistributedStrategy| {
        let (programs, plan) = rewritten(deep, &momentum(), strategy, Ranks::new(0, 1)).unwrap();
        let options = ExecOptions { device: Device::Null, ..ExecOptions::threads(1) };
        let (mut scope, mut executor) = (Scope::new(), Executor::new(ExecOptions::threads(1)));
        executor.run(&programs.startup, &mut scope, &[], &[]).unwrap();
        let feed = [("x", DType::F32, [4096, 6].into()), ("y", DType::F32, [4096, 1].into())];
        let summary = Executor::new(options).plan(&programs.main, &scope, &feed, &[]).unwrap();
        (summary, plan.notes)
    };
    let (all, _) = planned(&DistributedStrategy::new());
    let (again, _) = planned(&deep_checkpoints(false));
    let (away, notes) = planned(&deep_checkpoints(true));
    assert!(again.arena_bytes < all.arena_bytes * 3 / 4, "{all:?} {again:?}");
    let checkpoint = 4096 * 64 * 4;
    assert!(away.arena_bytes + checkpoint / 2 <= again.arena_bytes, "{again:?} {away:?}");
    assert_eq!((again.offload_bytes, away.offload_bytes), (0, 3 * checkpoint));
    assert!(notes.iter().any(|note| note.starts_with("offload: 3 checkpoints")), "{notes:?}");
}

/// Checkpoints are fetched one segment ahead: the last one when the backward pass begins, and each
/// other one at the first use of the next checkpoint.
#[test]
fn offloaded_checkpoints_are_fetched_ahead() {
    let strategy = deep_checkpoints(true);
    let (programs, _) = rewritten(deep, &momentum(), &strategy, Ranks::new(0, 1)).unwrap();
    let main = &programs.main;
    let mut seen = Vec::new();
    for (_, op) in main.root_ops() {
        match op.name() {
            "offload_store" => seen.push(format!("store {}", op.attr_int("slot"))),
            "offload_fetch" => seen.push(format!("fetch {}", op.attr_int("slot"))),
            _ => {
                let names = op.all_inputs().map(|var| main.var_name(var));
                for slot in names.filter_map(|name| name.split("@Fetch_").nth(1)) {
                    let used = format!("use {slot}");
                    if op.role.is_backward() && !seen.contains(&used) {
                        seen.push(used);
                    }
                }
            }
        }
    }
    let expected = [
        "store 0", "store 1", "store 2", "fetch 2", "fetch 1", "use 2", "fetch 0", "use 1", "use 0",
    ];
    assert_eq!(seen, expected);
}

/// Half precision stays close to single precision, on one rank and on two, and the scale follows
/// its schedule.
#[test]
fn amp_trains() {
    let plain = train(mlp, &momentum(), &DistributedStrategy::new(), 1, STEPS, &[]);
    let configs = AmpConfig::default().with_init_loss_scaling(1024.0).with_incr_every_n_steps(2);
    for count in [1, 2] {
        let strategy = DistributedStrategy::new().use_amp(configs.clone());
        let ranks = train(mlp, &momentum(), &strategy, count, STEPS, &["loss_scaling_0"]);
        let both = (parameters(&ranks[0].kept), parameters(&plain[0].kept));
        assert_close(&both.0, &both.1, 2e-2, "half precision");
        assert_ne!(both.0, both.1);
        let scales: Vec<f32> = ranks[0].fetched.iter().map(|seen| seen[0]).collect();
        assert_eq!(scales, [1024.0, 2048.0, 2048.0, 4096.0, 4096.0, 8192.0]);
    }
    let bf16 = DistributedStrategy::new().use_amp(AmpConfig::default().with_use_pure_bf16(true));
    let trained = train(mlp, &momentum(), &bf16, 2, STEPS, &[]);
    assert!(!trained[0].kept.contains_key("loss_scaling_0"));
    let both = (parameters(&trained[0].kept), parameters(&plain[0].kept));
    assert_close(&both.0, &both.1, 1e-1, "bfloat16");
}

/// With a scale that overflows, Adam skips updates, and the scale shrinks until it fits.
#[test]
fn amp_skips_steps_that_overflow() {
    let configs = AmpConfig::default()
        .with_init_loss_scaling(1e9)
        .with_decr_every_n_nan_or_inf(1)
        .with_decr_ratio(0.01);
    let strategy = DistributedStrategy::new().use_amp(configs);
    let adam: OptimizerDesc = Adam::new(0.01).into();
    let fetch = ["loss_scaling_0", "fc_0.w_0"];
    let ranks = train(mlp, &adam, &strategy, 2, 4, &fetch);
    assert_eq!(ranks[0].fetched, ranks[1].fetched);
    let seen = &ranks[0].fetched;
    assert_eq!(seen[0][0], 1e7);
    let start = train(mlp, &adam, &strategy, 2, 0, &[]);
    assert_eq!(seen[0][1..], start[0].kept["fc_0.w_0"], "nothing has moved");
    assert_ne!(seen[3][1..], seen[0][1..], "and then it has");
    assert_eq!(ranks[0].kept["fc_0.w_0_beta1_pow_acc_0"].len(), 1);
    assert_eq!(ranks[0].kept["skipped_steps_0"], [3.0]);
}

/// With a constant scale, a step that overflows changes nothing under any rule: no parameter, no
/// state, and no decay.
#[test]
fn a_constant_scale_skips_overflows_under_every_rule() {
    fn rules() -> Vec<OptimizerDesc> {
        fn decayed<R: Into<Rule>>(optimizer: Optimizer<R>) -> OptimizerDesc {
            optimizer.weight_decay(Regularizer::L2(0.1)).into()
        }
        vec![
            decayed(Sgd::new(0.1)),
            decayed(Momentum::new(0.1, 0.9)),
            decayed(Adam::new(0.1)),
            AdamW::new(0.1).into(),
            decayed(Adamax::new(0.1)),
            decayed(Adagrad::new(0.1)),
            decayed(Adadelta::new(0.1)),
            decayed(RmsProp::new(0.1)),
            LarsMomentum::new(0.1, 0.9).into(),
            Lamb::new(0.1).into(),
        ]
    }
    let with_scale = |scale: f32| {
        let configs = AmpConfig::default().with_init_loss_scaling(scale);
        DistributedStrategy::new().use_amp(configs.with_use_dynamic_loss_scaling(false))
    };
    for rule in rules() {
        let what = rule.rule.op();
        let without_count = |mut trained: Trained| {
            let skipped = trained.kept.remove("skipped_steps_0");
            (skipped, trained.kept)
        };
        let start = train(mlp, &rule, &with_scale(1e9), 2, 0, &[]);
        let (_, start) = without_count(start.into_iter().next().unwrap());
        for rank in train(mlp, &rule, &with_scale(1e9), 2, STEPS, &[]) {
            let (skipped, kept) = without_count(rank);
            assert_eq!(skipped, Some(vec![STEPS as f32]), "{what}");
            assert_eq!(kept, start, "{what}");
        }
        for rank in train(mlp, &rule, &with_scale(256.0), 2, STEPS, &[]) {
            let (skipped, kept) = without_count(rank);
            assert_eq!(skipped, Some(vec![0.0]), "{what}");
            assert_ne!(parameters(&kept), parameters(&start), "{what}");
        }
    }
}

/// Synchronous statistics equal those of the whole batch; others do not.
#[test]
fn sync_batch_norm_is_batch_norm_of_the_whole_batch() {
    fn network(net: &Net) -> fleet_ir::VarId {
        let x = net.data("x", [-1, 6], DType::F32);
        let y = net.data("y", [-1, 1], DType::F32);
        let hidden = x.fc(8).batch_norm(BatchNorm::new().act(Act::Relu));
        let hidden = hidden.fc(8).batch_norm(BatchNorm::new());
        hidden.fc(1).mse_loss(y, Reduction::Mean).id()
    }
    let strategy = DistributedStrategy::new().with_sync_batch_norm(true);
    let alone = train(network, &momentum(), &strategy, 1, STEPS, &[]);
    for count in [2, 3] {
        for trained in train(network, &momentum(), &strategy, count, STEPS, &[]) {
            assert_close(&trained.kept, &alone[0].kept, 2e-5, "synchronous");
        }
    }
    let apart = train(network, &momentum(), &DistributedStrategy::new(), 2, STEPS, &[]);
    assert_ne!(apart[0].kept["batch_norm_0.w_1"], apart[1].kept["batch_norm_0.w_1"]);
}

/// Rows of an embedding from several ranks are summed.
#[test]
fn sparse_gradients_are_gathered() {
    fn network(net: &Net) -> fleet_ir::VarId {
        let x = net.data("x", [-1, 6], DType::F32);
        let y = net.data("y", [-1, 1], DType::F32);
        let ids = (x * 3.0 + 3.5).cast(DType::I64);
        let rows = ids.embedding(Embedding::new(8, 8).sparse());
        rows.flatten(1).fc(1).mse_loss(y, Reduction::Mean).id()
    }
    let sgd: OptimizerDesc = Sgd::new(0.1).into();
    let strategy = DistributedStrategy::new();
    let alone = train(network, &sgd, &strategy, 1, STEPS, &[]);
    for trained in train(network, &sgd, &strategy, 3, STEPS, &[]) {
        assert_close(&trained.kept, &alone[0].kept, 1e-6, "sparse rows");
    }
}
