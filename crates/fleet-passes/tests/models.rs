//! Effects of the executor's rewrites on whole models: the remaining ops and the chosen layouts.

use fleet_ir::{Program, VarId};
use fleet_nn::models::{
    BertConfig, GptConfig, ResNetConfig, WideDeepConfig, bert_tokens, gpt, resnet, wide_deep,
};
use fleet_nn::prelude::*;
use fleet_ops::Registry;
use fleet_passes::{BuildOptions, optimize};
use fleet_strategy::{DistributedStrategy, Ranks, minimize};
use std::collections::BTreeMap;

fn counts(program: &Program) -> BTreeMap<&'static str, usize> {
    let mut counts = BTreeMap::new();
    for (_, op) in program.root_ops() {
        *counts.entry(op.name()).or_default() += 1;
    }
    counts
}

fn optimized(program: &Program, keep: &[VarId], options: &BuildOptions) -> Program {
    let done = optimize(program, Registry::standard(), keep, options).unwrap();
    fleet_ops::verify::verify(&done, Registry::standard()).unwrap();
    done
}

fn resnet50() -> Program {
    let net = Net::new();
    let model = resnet(&net, &ResNetConfig { size: 64, ..ResNetConfig::new(50) });
    let rule = Momentum::new(0.1, 0.9).weight_decay(Regularizer::L2(1e-4));
    net.minimize(model.loss, rule).unwrap();
    net.build().unwrap().main
}

#[test]
fn resnet_keeps_images_channels_last_and_filters_packed() {
    let program = resnet50();
    let done = optimized(&program, &[], &BuildOptions::default());
    let ops = counts(&done);
    assert_eq!(ops["conv2d"], 53);
    assert_eq!(ops["conv2d_grad"], 53);
    assert_eq!(ops["fused_batch_norm_act"], 33);
    assert_eq!(ops["fused_bn_add_activation"], 16);
    assert_eq!(ops["batch_norm"], 4);
    assert_eq!(ops["transpose2"], 1, "the image that is fed, and nothing else");
    assert_eq!(ops["fused_momentum"], 1);
    assert!(!ops.contains_key("relu") && !ops.contains_key("relu_grad"));
    // The gradients of an identity shortcut are added in place.
    assert!(ops.get("sum").copied().unwrap_or(0) <= 1, "{ops:?}");
    for (_, op) in done.root_ops().filter(|(_, op)| op.name().starts_with("conv2d")) {
        assert_eq!(op.attr_str("data_format"), "NHWC");
        let filter = done.var(op.input("Filter")[0]);
        assert_eq!(filter.layout.to_string(), "filter64", "{}", filter.name);
    }
    let velocity = done.var_named("res2a_branch2a_weights_velocity_0").unwrap();
    assert_eq!(done.var(velocity).layout.to_string(), "filter64");
    let convs = done.root_ops().filter(|(_, op)| op.name() == "conv2d");
    assert!(convs.into_iter().all(|(_, op)| op.output("Stats").len() == 1));
}

#[test]
fn every_switch_does_one_thing() {
    let program = resnet50();
    let none = counts(&optimized(&program, &[], &BuildOptions::none()));
    assert_eq!((none["batch_norm"], none["relu"], none["momentum"]), (53, 49, 161));
    let with = |set: fn(&mut BuildOptions)| {
        let mut options = BuildOptions::none();
        set(&mut options);
        counts(&optimized(&program, &[], &options))
    };
    let act = with(|options| options.fuse_bn_act_ops = true);
    assert_eq!((act["fused_batch_norm_act"], act["relu"]), (33, 16));
    let add = with(|options| options.fuse_bn_add_act_ops = true);
    assert_eq!((add["fused_bn_add_activation"], add["relu"]), (16, 33));
    let sums = with(|options| options.fuse_elewise_add_act_ops = true);
    assert_eq!((sums["fused_elemwise_activation"], sums["fused_gemm_epilogue"]), (16, 1));
    let one = with(|options| options.fuse_all_optimizer_ops = true);
    assert_eq!((one["fused_momentum"], one.get("momentum")), (1, None));
    // This network has nothing for it; others in this file do.
    assert_eq!(with(|options| options.enable_auto_fusion = true), none);
    let addto = with(|options| {
        options.fuse_bn_add_act_ops = true;
        options.enable_addto = true;
    });
    let sums = |ops: &BTreeMap<&str, usize>| ops.get("sum").copied().unwrap_or(0);
    assert!(sums(&addto) < sums(&add), "{} sums, {} without", sums(&addto), sums(&add));
    let layout = with(|options| options.choose_layout = true);
    assert_eq!(layout["transpose2"], 1);
}

/// A relu is fused into the depthwise convolution after it, forward and backward, unless another op
/// reads its output.
#[test]
fn relus_go_into_depthwise_convolutions() {
    let net = Net::new();
    let apart = || Conv2d::new(8, 3).groups(8).padding(1);
    let x = net.data("x", [-1, 3, 8, 8], DType::F32).conv2d(Conv2d::new(8, 1));
    let first = x.relu().conv2d(apart());
    let shared = first.relu();
    net.minimize((shared.conv2d(apart()) + shared).mean(), Sgd::new(0.1)).unwrap();
    let program = net.build().unwrap().main;
    let with = |on: bool, keep: &[VarId]| {
        let options = BuildOptions { fuse_relu_depthwise_conv: on, ..BuildOptions::none() };
        let done = optimized(&program, keep, &options);
        let ops = counts(&done);
        let is_fused = |name: &str| {
            let ops = done.root_ops().filter(|(_, op)| op.name() == name);
            ops.filter(|(_, op)| op.attr_bool("fuse_relu_before_depthwise_conv")).count()
        };
        let fused = (is_fused("depthwise_conv2d"), is_fused("depthwise_conv2d_grad"));
        let count = |name| ops.get(name).copied().unwrap_or(0);
        (fused, (count("relu"), count("relu_grad")))
    };
    assert_eq!(with(false, &[]), ((0, 0), (2, 2)));
    assert_eq!(with(true, &[]), ((1, 1), (1, 1)));
    // A fetched variable is still computed.
    let clipped =
        program.root_ops().find(|(_, op)| op.name() == "relu").unwrap().1.output("Out")[0];
    assert_eq!(with(true, &[clipped]), ((0, 0), (2, 2)));
}

#[test]
fn what_is_fetched_is_still_made() {
    let program = resnet50();
    let inner = program.var_named("bn2a_branch2a.output.1.tmp_2");
    let wanted: Vec<VarId> = program
        .root_ops()
        .filter(|(_, op)| op.name() == "batch_norm")
        .take(2)
        .map(|(_, op)| op.output("Y")[0])
        .chain(inner.ok())
        .collect();
    let done = optimized(&program, &wanted, &BuildOptions::default());
    for var in wanted {
        let made = done.root_ops().any(|(_, op)| op.all_outputs().any(|out| out == var));
        assert!(made, "{}", program.var_name(var));
    }
    assert!(counts(&done)["batch_norm"] >= 5);
}

/// Updates that run in only some steps are also fused into one sweep.
#[test]
fn updates_under_a_condition_are_one_sweep() {
    let net = Net::new();
    let loss = resnet(&net, &ResNetConfig { size: 64, ..ResNetConfig::new(18) }).loss.id();
    let strategy = DistributedStrategy::new().use_gradient_merge(4);
    let optimizer = Momentum::new(0.1, 0.9).into();
    let plan = net
        .rewrite_with(|programs, registry| {
            minimize(programs, registry, loss, &optimizer, &strategy, Ranks::new(0, 1))
        })
        .unwrap();
    let program = net.build().unwrap().main;
    let in_blocks = |program: &Program, name: &str| -> usize {
        let blocks = program.block_ids().filter(|block| *block != Program::ROOT);
        blocks.map(|it| program.block_ops(it).filter(|(_, op)| op.name() == name).count()).sum()
    };
    assert_eq!(in_blocks(&program, "momentum"), plan.params_grads.len());
    let done = optimized(&program, &[], &BuildOptions::default());
    assert_eq!((in_blocks(&done, "momentum"), in_blocks(&done, "fused_momentum")), (0, 1));
    assert!(!counts(&done).contains_key("fused_momentum"));
}

#[test]
fn a_fully_connected_layer_is_one_op_each_way() {
    let net = Net::new();
    let model = wide_deep(&net, &WideDeepConfig { auc: false, ..WideDeepConfig::criteo() });
    let (table, rest) = net.backward(model.loss).unwrap().partition(|name| name == "table");
    net.apply_gradients(Sgd::new(0.1), table).unwrap();
    net.apply_gradients(Adam::new(1e-3), rest).unwrap();
    let program = net.build().unwrap().main;
    let ops = counts(&optimized(&program, &[], &BuildOptions::default()));
    assert!(ops["fused_gemm_epilogue"] >= 4 && ops["fused_gemm_epilogue_grad"] >= 4, "{ops:?}");
    assert!(!ops.contains_key("relu") && !ops.contains_key("relu_grad"));
    assert_eq!(ops["fused_adam"], 1);
    // Looked-up rows are written into the first layer's input, and their gradient is read there.
    assert_eq!((ops["fused_embedding_concat"], ops["fused_embedding_concat_grad"]), (1, 1));
    let auto = BuildOptions { enable_auto_fusion: true, ..BuildOptions::none() };
    assert_eq!(counts(&optimized(&program, &[], &auto))["fused_embedding_concat"], 1);
    assert!(!ops.contains_key("concat") && !ops.contains_key("lookup_table_v2_grad"), "{ops:?}");
    // Each relu's gradient is applied where its incoming gradient is computed.
    let done = optimized(&program, &[], &BuildOptions::default());
    let grads = done.root_ops().filter(|(_, op)| op.name() == "fused_gemm_epilogue_grad");
    let (mut masks, mut sweeps) = (0, 0);
    for (_, op) in grads {
        masks += u32::from(op.attr_bool("x_is_relu"));
        sweeps += u32::from(op.attr_str("activation") == "relu");
    }
    assert_eq!((masks, sweeps), (3, 0));
    // Unless that gradient is fetched.
    let seen: Vec<VarId> = program.find_var("fc_1.tmp_2@GRAD").into_iter().collect();
    assert_eq!(seen.len(), 1);
    let done = optimized(&program, &seen, &BuildOptions::default());
    let masked = done
        .root_ops()
        .filter(|(_, op)| op.name() == "fused_gemm_epilogue_grad" && op.attr_bool("x_is_relu"));
    assert_eq!(masked.count(), 2);
    // The forward part alone fuses as well.
    let test = program.clone_for_test().unwrap();
    let logit = test.find_var(&test_target(&test)).unwrap();
    let ops = counts(&optimized(&test, &[logit], &BuildOptions::default()));
    assert!(ops["fused_gemm_epilogue"] >= 4 && !ops.contains_key("sgd"));
}

/// Returns the number of ops of a name with an input in a slot.
fn with_slot(program: &Program, name: &str, slot: &str) -> usize {
    program.root_ops().filter(|(_, op)| op.name() == name && !op.input(slot).is_empty()).count()
}

#[test]
fn residual_sums_go_into_the_norms() {
    let net = Net::new();
    let config = BertConfig { layers: 2, padded: false, dropout: 0.0, ..BertConfig::base() };
    let model = bert_tokens(&net, &config, 9);
    net.minimize(model.loss, Sgd::new(0.1)).unwrap();
    let program = net.build().unwrap().main;
    let done = optimized(&program, &[], &BuildOptions::default());
    // Fused: two sums per layer, and the last sum of the embeddings. Not fused: the sum of words
    // and positions, which have different shapes.
    assert_eq!(with_slot(&done, "layer_norm", "Residual"), 5);
    let auto = BuildOptions { enable_auto_fusion: true, ..BuildOptions::none() };
    let auto = optimized(&program, &[], &auto);
    assert_eq!(with_slot(&auto, "layer_norm", "Residual"), 5, "by its own switch alone");
    let without = BuildOptions { enable_auto_fusion: false, ..BuildOptions::default() };
    assert_eq!(with_slot(&optimized(&program, &[], &without), "layer_norm", "Residual"), 0);
    let plain = optimized(&program, &[], &BuildOptions::none());
    let sums = |program: &Program| counts(program).get("elementwise_add").copied().unwrap_or(0);
    assert_eq!(with_slot(&plain, "layer_norm", "Residual"), 0);
    assert!(sums(&done) + 5 <= sums(&plain));
}

#[test]
fn gradients_that_meet_at_a_norm_are_added_there() {
    let net = Net::new();
    let config = GptConfig { layers: 3, dropout: 0.0, ..GptConfig::small() };
    let model = gpt(&net, &config);
    net.minimize(model.loss, Sgd::new(0.1)).unwrap();
    let program = net.build().unwrap().main;
    let done = optimized(&program, &[], &BuildOptions::default());
    // Both norms of a layer have an input that also skips them.
    assert_eq!(with_slot(&done, "layer_norm_grad", "Skip"), 6);
    // The sum before a norm is also read by the next sum, and is still computed.
    assert_eq!(with_slot(&done, "layer_norm", "Residual"), 6);
    let options = BuildOptions { enable_addto: false, ..BuildOptions::default() };
    assert_eq!(with_slot(&optimized(&program, &[], &options), "layer_norm_grad", "Skip"), 0);
}

/// Returns the name of the last op's output.
fn test_target(program: &Program) -> String {
    let (_, op) = program.root_ops().next_back().unwrap();
    program.var_name(op.all_outputs().next().unwrap()).to_string()
}
