//! Settings of single parameters (rate, regulariser, clip, exclusion from decay) combined with
//! strategies: ranks that share a batch get the same results as one rank with the whole batch.

use crate::world::{Network, STEPS, assert_close, parameters, rewritten, train};
use fleet_nn::prelude::*;
use fleet_strategy::{AmpConfig, DistributedStrategy, LambConfig, LarsConfig, Ranks};
use std::collections::BTreeMap;

/// A network in which each layer has other settings.
fn ruled(net: &Net) -> fleet_ir::VarId {
    let x = net.data("x", [-1, 6], DType::F32);
    let y = net.data("y", [-1, 1], DType::F32);
    let slow = ParamAttr::new().learning_rate(0.1);
    let sparse = ParamAttr::new().regularizer(Regularizer::L1(0.05));
    let free = ParamAttr::new().need_clip(false);
    let frozen = ParamAttr::new().trainable(false);
    let hidden = x.fc(Fc::new(8).act(Act::Tanh).weight(slow).bias(free));
    let hidden = hidden.fc(Fc::new(8).act(Act::Tanh).weight(sparse));
    let hidden = hidden.fc(Fc::new(8).act(Act::Tanh).bias(frozen));
    hidden.fc(1).mse_loss(y, Reduction::Mean).id()
}

fn momentum(clip: Option<GradClip>) -> OptimizerDesc {
    let rule = Momentum::new(0.1, 0.9).weight_decay(Regularizer::L2(0.01));
    clip.into_iter().fold(rule, |rule, clip| rule.grad_clip(clip)).into()
}

fn adam(clip: Option<GradClip>) -> OptimizerDesc {
    let rule = Adam::new(0.02).weight_decay(Regularizer::L2(0.01));
    clip.into_iter().fold(rule, |rule, clip| rule.grad_clip(clip)).into()
}

const CLIPS: [Option<GradClip>; 4] = [
    None,
    Some(GradClip::Value { min: -0.02, max: 0.02 }),
    Some(GradClip::Norm(0.05)),
    Some(GradClip::GlobalNorm(0.05)),
];

fn strategies() -> Vec<(&'static str, DistributedStrategy, f32)> {
    let plain = DistributedStrategy::new;
    let amp = || AmpConfig::default().with_init_loss_scaling(64.0);
    let lars =
        LarsConfig::default().with_lars_coeff(0.1).with_exclude_from_weight_decay(["fc_1", ".b_"]);
    let lamb = LambConfig::default().with_exclude_from_weight_decay(["fc_1", ".b_0"]);
    vec![
        ("plain", plain(), 1e-5),
        ("unfused", plain().with_fuse_all_reduce_ops(false), 1e-5),
        ("gradient merge", plain().use_gradient_merge(2), 1e-5),
        ("fp16_allreduce", plain().with_fp16_allreduce(true), 5e-3),
        (
            "bf16_allreduce",
            plain().with_fp16_allreduce(true).with_fp16_allreduce_dtype("bfloat16"),
            3e-2,
        ),
        ("amp", plain().use_amp(amp()), 1e-2),
        ("amp, gradient merge", plain().use_amp(amp()).use_gradient_merge(2), 1e-2),
        ("recompute", plain().use_recompute(["fc_0.tmp_2", "fc_1.tmp_2"]), 1e-5),
        ("lars", plain().use_lars(lars.clone()), 1e-5),
        ("lars, gradient merge", plain().use_lars(lars).use_gradient_merge(2), 1e-5),
        ("lamb", plain().use_lamb(lamb.clone()), 1e-3),
        ("lamb, gradient merge", plain().use_lamb(lamb).use_gradient_merge(2), 1e-3),
    ]
}

#[test]
fn ranks_keep_the_rules_of_parameters() {
    for (name, strategy, tolerance) in strategies() {
        for clip in CLIPS {
            let optimizer = if strategy.lamb() { adam(clip) } else { momentum(clip) };
            let what = format!("{name}, clip {clip:?}");
            let alone = train(ruled, &optimizer, &strategy, 1, STEPS, &[]);
            for count in [2, 3] {
                let ranks = train(ruled, &optimizer, &strategy, count, STEPS, &[]);
                for rank in &ranks {
                    let (one, whole) = (parameters(&rank.kept), parameters(&alone[0].kept));
                    assert_close(&one, &whole, tolerance, &what);
                    assert_eq!(one, parameters(&ranks[0].kept), "{what}");
                }
            }
            moved(&what, &parameters(&alone[0].kept), &optimizer, &strategy);
        }
    }
}

/// Frozen parameters do not change, and all others do.
fn moved(
    what: &str,
    trained: &BTreeMap<String, Vec<f32>>,
    optimizer: &OptimizerDesc,
    strategy: &DistributedStrategy,
) {
    let start = train(ruled, optimizer, strategy, 1, 0, &[]);
    for (name, values) in trained {
        let frozen = name == "fc_2.b_0";
        assert_eq!(start[0].kept[name] == *values, frozen, "{what}: {name}");
    }
}

/// Returns the decay of each parameter, as stated by its update op.
fn decays(network: Network, strategy: &DistributedStrategy, attr: &str) -> BTreeMap<String, f64> {
    let optimizer = if strategy.lamb() { adam(None) } else { momentum(None) };
    let (programs, _) = rewritten(network, &optimizer, strategy, Ranks::new(0, 2)).unwrap();
    let main = &programs.main;
    let ops = main.block_ids().flat_map(|block| main.block_ops(block));
    ops.filter(|(_, op)| ["lars_momentum", "lamb"].contains(&op.name()))
        .map(|(_, op)| (main.var_name(op.input("Param")[0]).to_string(), op.attr_float(attr)))
        .collect()
}

/// LARS and LAMB exclude names that contain a text.
#[test]
fn exclusions_go_by_names() {
    for (name, strategy, _) in strategies() {
        let (attr, excluded): (&str, fn(&str) -> bool) = match () {
            _ if strategy.lars() => {
                ("lars_weight_decay", |name| name.contains("fc_1") || name.contains(".b_"))
            }
            _ if strategy.lamb() => {
                ("weight_decay", |name| name.contains("fc_1") || name.contains(".b_0"))
            }
            _ => continue,
        };
        let decays = decays(ruled, &strategy, attr);
        assert_eq!(decays.len(), 7, "{name}: {decays:?}");
        for (param, decay) in &decays {
            assert_eq!(*decay == 0.0, excluded(param), "{name}: {param}: {decay}");
        }
    }
}

/// The names that the documents show exclude the normalization layers.
#[test]
fn documented_exclusions_take_effect() {
    fn normed(net: &Net) -> fleet_ir::VarId {
        let x = net.data("x", [-1, 6], DType::F32);
        let hidden = x.fc(8).layer_norm(LayerNorm::last()).fc(8).batch_norm(BatchNorm::new());
        hidden.fc(1).square().mean().id()
    }
    let decayed = |strategy: DistributedStrategy, attr: &str| -> Vec<String> {
        let decays = decays(normed, &strategy, attr);
        decays.into_iter().filter(|(_, decay)| *decay != 0.0).map(|(name, _)| name).collect()
    };
    let lamb = LambConfig::default().with_exclude_from_weight_decay(["layer_norm"]);
    let lamb = decayed(DistributedStrategy::new().use_lamb(lamb), "weight_decay");
    let linear = ["fc_0.b_0", "fc_0.w_0", "fc_1.b_0", "fc_1.w_0", "fc_2.b_0", "fc_2.w_0"];
    assert_eq!(lamb, [&["batch_norm_0.b_0", "batch_norm_0.w_0"][..], &linear].concat());
    let lars = LarsConfig::default().with_exclude_from_weight_decay(["batch_norm", ".b"]);
    let lars = decayed(DistributedStrategy::new().use_lars(lars), "lars_weight_decay");
    assert_eq!(lars, ["fc_0.w_0", "fc_1.w_0", "fc_2.w_0", "layer_norm_0.w_0"]);
}

/// Unmatched names are reported with the nearest match, but only where the setting has an effect.
#[test]
fn names_that_match_nothing_are_told() {
    let told = |strategy: &DistributedStrategy| -> Vec<String> {
        let optimizer = if strategy.lamb() { adam(None) } else { momentum(None) };
        let (_, plan) = rewritten(ruled, &optimizer, strategy, Ranks::new(0, 2)).unwrap();
        plan.warnings.iter().map(|it| format!("{}: {}", it.path, it.message)).collect()
    };
    let plain = DistributedStrategy::new;
    let amp = AmpConfig::default()
        .with_custom_white_list(["conv2d", "tahn"])
        .with_custom_black_list(["matmul_v3"])
        .with_custom_black_varnames(["fc_0.w_0", "fc_0.w_1"]);
    assert_eq!(
        told(&plain().use_amp(amp)),
        [
            "amp_configs.custom_white_list[0]: the program has no op of kind 'conv2d'",
            "amp_configs.custom_white_list[1]: the program has no op of kind 'tahn'; did you mean \
             'tanh'?",
            "amp_configs.custom_black_list[0]: the program has no op of kind 'matmul_v3'",
            "amp_configs.custom_black_varnames[1]: the program has no variable 'fc_0.w_1'; did \
             you mean \
             'fc_0.w_0'?",
        ]
    );
    let names = ["fc_1", "_norm_", ".b_0"];
    assert_eq!(
        told(&plain().use_lars(LarsConfig::default().with_exclude_from_weight_decay(names))),
        ["lars_configs.exclude_from_weight_decay[1]: no parameter has a name that contains \
             '_norm_'"]
    );
    assert_eq!(
        told(&plain().use_lamb(LambConfig::default().with_exclude_from_weight_decay(names))),
        ["lamb_configs.exclude_from_weight_decay[1]: no parameter has a name that contains \
             '_norm_'"]
    );
}
