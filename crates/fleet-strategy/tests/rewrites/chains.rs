//! Chains: which strategies apply together, in which order, and which are refused.

use crate::world::{mlp, rewritten};
use fleet_nn::prelude::*;
use fleet_strategy::{
    AdaptiveLocalSgdConfig, AmpConfig, Cluster, DistributedStrategy, GradientScaleConfig,
    HybridConfig, LambConfig, LarsConfig, LocalSgdConfig, Origin, Ranks, Rates, StrategyId,
    Verdict,
};

/// Converts text such as `amp+recompute` to a strategy.
fn switches(text: &str) -> DistributedStrategy {
    let mut strategy = DistributedStrategy::new();
    for switch in text.split('+').filter(|switch| !switch.is_empty()) {
        strategy = match switch {
            "amp" => strategy.use_amp(AmpConfig::default()),
            "recompute" => strategy.use_recompute(["fc_0.tmp_2"]),
            "gm" => strategy.use_gradient_merge(2),
            "lars" => strategy.use_lars(LarsConfig::default()),
            "lamb" => strategy.use_lamb(LambConfig::default()),
            "localsgd" => strategy.use_localsgd(LocalSgdConfig::default()),
            "adaptive" => strategy.use_adaptive_localsgd(AdaptiveLocalSgdConfig::default()),
            "fp16" => strategy.with_fp16_allreduce(true),
            "dgc" => strategy.with_dgc(true),
            "sharding" => strategy.with_sharding(true),
            "pipeline" => strategy.with_pipeline(true),
            other => panic!("no switch {other}"),
        };
    }
    strategy
}

fn optimizer(name: &str) -> OptimizerDesc {
    match name {
        "sgd" => Sgd::new(0.1).into(),
        "adam" => Adam::new(0.1).into(),
        _ => Momentum::new(0.1, 0.9).into(),
    }
}

fn check_with(text: &str, rule: &str, ranks: usize, expected: &str) {
    let found = rewritten(mlp, &optimizer(rule), &switches(text), Ranks::new(0, ranks));
    match (found, expected.strip_prefix("error: ")) {
        (Ok((_, plan)), None) => assert_eq!(plan.chain_text(), expected, "{text}, {rule}"),
        (Err(error), Some(part)) => {
            assert!(error.to_string().contains(part), "{text}: {error}");
        }
        (Ok((_, plan)), Some(_)) => panic!("{text} works: {}", plan.chain_text()),
        (Err(error), None) => panic!("{text}: {error}"),
    }
}

fn check(text: &str, expected: &str) {
    check_with(text, "momentum", 2, expected);
}

#[test]
fn documented_chains() {
    check("", "RawProgram -> momentum");
    check("amp", "RawProgram -> AMP -> momentum");
    check("recompute", "RawProgram -> Recompute -> momentum");
    check("gm", "RawProgram -> GradientMerge -> momentum");
    check("lars", "RawProgram -> Lars -> lars_momentum");
    check("localsgd", "RawProgram -> LocalSGD -> momentum");
    check_with("lamb", "adam", 2, "RawProgram -> Lamb -> lamb");
    check("amp+recompute", "RawProgram -> AMP -> Recompute -> momentum");
    check("amp+recompute+lars", "RawProgram -> AMP -> Recompute -> Lars -> lars_momentum");
    check("amp+gm+recompute", "RawProgram -> GradientMerge -> AMP -> Recompute -> momentum");
    check("recompute+gm+lars", "RawProgram -> GradientMerge -> Recompute -> Lars -> lars_momentum");
    check_with("lamb+recompute+amp", "adam", 2, "RawProgram -> AMP -> Recompute -> Lamb -> lamb");
    check("dgc", "RawProgram -> DGC -> momentum");
    check("dgc+recompute", "RawProgram -> Recompute -> DGC -> momentum");
    check("sharding", "Sharding -> momentum");
    check("sharding+amp+recompute+lars", "Sharding -> AMP -> Recompute -> Lars -> lars_momentum");
    check("localsgd+amp", "RawProgram -> LocalSGD -> AMP -> momentum");
    check("pipeline", "Pipeline -> momentum");
    check("pipeline+amp", "Pipeline -> AMP -> momentum");
}

/// The documented implementation silently drops these combinations; here they work.
#[test]
fn combinations_that_were_dropped() {
    check("adaptive", "RawProgram -> AdaptiveLocalSGD -> momentum");
    check("fp16", "RawProgram -> FP16AllReduce -> momentum");
    check("fp16+gm", "RawProgram -> FP16AllReduce -> GradientMerge -> momentum");
    check("fp16+amp", "RawProgram -> FP16AllReduce -> AMP -> momentum");
    check(
        "fp16+recompute+lars",
        "RawProgram -> FP16AllReduce -> Recompute -> Lars -> lars_momentum",
    );
    check("fp16+localsgd", "RawProgram -> LocalSGD -> momentum");
    check("pipeline+amp+recompute+lars", "Pipeline -> AMP -> Recompute -> Lars -> lars_momentum");
}

#[test]
fn refusals() {
    check("adaptive+localsgd", "error: adaptive_localsgd: conflicts with localsgd");
    check("gm+localsgd", "error: localsgd: conflicts with gradient_merge");
    check("dgc+amp", "error: dgc conflicts with amp");
    check("dgc+lars", "error: dgc conflicts with lars");
    check("dgc+fp16", "error: dgc conflicts with fp16_allreduce");
    check("dgc+gm", "error: dgc conflicts with gradient_merge");
    check(
        "pipeline+sharding",
        "error: 2 ranks could be stages, or share state: set hybrid_configs",
    );
    check("pipeline+gm", "error: pipeline: conflicts with gradient_merge");
    let overlap =
        AmpConfig::default().with_custom_white_list(["mul"]).with_custom_black_list(["mul"]);
    let strategy = DistributedStrategy::new().use_amp(overlap);
    let error = rewritten(mlp, &optimizer("sgd"), &strategy, Ranks::new(0, 2)).unwrap_err();
    let expected = "'mul' is in both custom_white_list and custom_black_list";
    assert!(error.to_string().contains(expected), "{error}");
}

/// `auto` chooses by costs and gives reasons, but only if nothing else is assigned.
#[test]
fn auto() {
    let auto = DistributedStrategy::new().with_auto(true);
    let sgd = optimizer("sgd");
    let (_, plan) = rewritten(mlp, &sgd, &auto, Ranks::new(0, 8).per_node(4)).unwrap();
    let reasons: Vec<&str> = plan
        .decisions
        .iter()
        .filter(|decision| decision.strategy == StrategyId::Auto)
        .flat_map(|decision| decision.reason.lines())
        .collect();
    assert!(reasons.iter().any(|reason| reason.starts_with("2 machines")), "{reasons:?}");
    assert!(plan.rings.iter().any(|ring| ring.label.starts_with("leaders")), "{:?}", plan.rings);
    let (_, plan) = rewritten(mlp, &sgd, &auto.with_nccl_comm_num(1), Ranks::new(0, 8)).unwrap();
    assert_eq!(plan.decisions[0].verdict, Verdict::Idle);
    assert_eq!(plan.rings.len(), 1);
}

/// The choices of `auto` depend on the speeds of machines, and are the same on every rank.
#[test]
fn auto_weighs_the_network_against_the_work() {
    let auto = DistributedStrategy::new().with_auto(true);
    let reasons = |network: f64, flops: f64| {
        let rates = Rates {
            flops_per_second: flops,
            memory_bytes_per_second: flops,
            network_bytes_per_second: Some(network),
            batch: Some(1000),
            origin: Origin::Given,
        };
        let on = Cluster { ranks: Ranks::new(1, 2), rates, layout: None };
        let (_, plan) = rewritten(mlp, &optimizer("sgd"), &auto, on).unwrap();
        let said = plan.decisions.iter().find(|it| it.strategy == StrategyId::Auto).unwrap();
        (plan.chain_text(), said.reason.clone())
    };
    let (chain, said) = reasons(1e9, 1e9);
    assert_eq!(chain, "RawProgram -> sgd");
    assert!(said.contains("137 parameters; a step of 1000 samples"), "{said}");
    assert!(said.contains("(given)") && said.contains("sent in full precision"), "{said}");
    let (chain, said) = reasons(1e3, 1e12);
    assert_eq!(chain, "RawProgram -> FP16AllReduce -> sgd");
    assert!(said.contains("of each step would be exposed communication"), "{said}");
}

/// All errors of a strategy are reported at once, before any rewrite; warnings are part of the
/// plan.
#[test]
fn the_strategy_is_checked_first() {
    let amp = AmpConfig::default().with_decr_ratio(1.5).with_incr_every_n_steps(0);
    let strategy = DistributedStrategy::new().use_amp(amp).with_nccl_comm_num(0);
    let error = rewritten(mlp, &optimizer("sgd"), &strategy, Ranks::new(0, 2)).unwrap_err();
    let said = error.to_string();
    assert!(said.contains("the strategy has 3 errors"), "{said}");
    for path in ["amp_configs.decr_ratio", "amp_configs.incr_every_n_steps", "nccl_comm_num"] {
        assert!(said.contains(path), "{said}");
    }
    let strategy = DistributedStrategy::new().with_elastic(true);
    let (_, plan) = rewritten(mlp, &optimizer("sgd"), &strategy, Ranks::new(0, 2)).unwrap();
    assert_eq!(plan.warnings.len(), 1, "{:?}", plan.warnings);
}

/// Degrees of a grid that do not fit are refused.
#[test]
fn grids_are_refused() {
    let hybrid = |config| DistributedStrategy::new().with_hybrid_configs(config);
    let check = |strategy: DistributedStrategy, part: &str| {
        let error = rewritten(mlp, &optimizer("sgd"), &strategy, Ranks::new(0, 2)).unwrap_err();
        assert!(error.to_string().contains(part), "{error}");
    };
    check(
        hybrid(HybridConfig::default().with_mp_degree(2)),
        "no parameter of the program may be divided",
    );
    check(hybrid(HybridConfig::default().with_dp_degree(4)), "dp_degree is 4, but each of the 2");
    let fits = hybrid(HybridConfig::default().with_dp_degree(2));
    assert!(rewritten(mlp, &optimizer("sgd"), &fits, Ranks::new(0, 2)).is_ok());
}

/// A single switch that does not match the optimizer or the number of ranks is omitted with a
/// warning.
#[test]
fn left_out_with_a_warning() {
    let verdicts = |text: &str, rule: &str, ranks: usize| {
        let (_, plan) =
            rewritten(mlp, &optimizer(rule), &switches(text), Ranks::new(0, ranks)).unwrap();
        let found =
            plan.decisions.iter().map(|d| (d.strategy.name(), d.verdict)).collect::<Vec<_>>();
        (found, plan.chain_text())
    };
    let (found, chain) = verdicts("lars", "sgd", 2);
    assert_eq!(found[1], ("Lars", Verdict::Dropped));
    assert_eq!(chain, "RawProgram -> sgd");
    assert_eq!(verdicts("lamb", "momentum", 2).0[1], ("Lamb", Verdict::Dropped));
    assert_eq!(verdicts("dgc", "sgd", 2).0[1], ("DGC", Verdict::Dropped));
    assert_eq!(verdicts("localsgd", "adam", 2).0[1], ("LocalSGD", Verdict::Dropped));
    assert_eq!(verdicts("localsgd", "sgd", 1).0[1], ("LocalSGD", Verdict::Idle));
    assert_eq!(verdicts("lars+gm", "momentum", 1).1, "GradientMerge -> Lars -> lars_momentum");
    assert_eq!(verdicts("amp", "momentum", 1).1, "AMP -> momentum");
}

/// Ranks that train alone sum no gradients, and settings of the sum are warned about. With Adam,
/// localsgd is dropped, and the settings apply.
#[test]
fn settings_of_a_sum_that_is_not_made() {
    let scale = GradientScaleConfig::default().with_scale_strategy("sum");
    let strategy = switches("localsgd").with_gradient_scale_configs(scale);
    let strategy = strategy.with_use_hierarchical_allreduce(true);
    let warnings = |rule: &str| {
        let (_, plan) = rewritten(mlp, &optimizer(rule), &strategy, Ranks::new(0, 2)).unwrap();
        plan.warnings.into_iter().map(|it| it.path).collect::<Vec<_>>()
    };
    let fields = ["use_hierarchical_allreduce", "gradient_scale_configs.scale_strategy"];
    assert_eq!(warnings("momentum"), fields);
    assert_eq!(warnings("adam"), ["localsgd"]);
}

/// Changes of the requested settings are noted.
#[test]
fn what_is_done_otherwise_is_noted() {
    let notes = |strategy: &DistributedStrategy| {
        let (_, plan) = rewritten(mlp, &optimizer("sgd"), strategy, Ranks::new(0, 2)).unwrap();
        (plan.rings.len(), plan.notes)
    };
    let (rings, said) = notes(&DistributedStrategy::new().with_nccl_comm_num(20));
    let most = "nccl_comm_num is 20: limited to 8 communicators".to_string();
    assert!(rings == 8 && said.contains(&most), "{rings}, {said:?}");
    let (rings, said) = notes(&DistributedStrategy::new().with_use_hierarchical_allreduce(true));
    let flat = "use_hierarchical_allreduce has no effect: 2 ranks do not form several groups of 2";
    assert!(rings == 1 && said.contains(&flat.to_string()), "{rings}, {said:?}");
    let nesterov = Momentum::new(0.1, 0.9).use_nesterov(true).into();
    let lars = switches("lars");
    let (_, plan) = rewritten(mlp, &nesterov, &lars, Ranks::new(0, 2)).unwrap();
    let without = "lars: Nesterov is ignored, because LARS does not support it".to_string();
    assert!(plan.notes.contains(&without), "{:?}", plan.notes);
}
