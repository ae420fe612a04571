//! Embeddings with sparse gradients, and tables with their own rule, with every strategy: ranks
//! that share a batch get the same results as one rank with the whole batch.

use crate::world::{Network, STEPS, assert_close, parameters, rewritten, train};
use fleet_nn::prelude::*;
use fleet_strategy::{
    AdaptiveLocalSgdConfig, AmpConfig, DgcConfig, DistributedStrategy, LambConfig, LarsConfig,
    LocalSgdConfig, Ranks, Spread, Verdict, local_state,
};
use std::collections::BTreeMap;

/// A network of three layers on rows of a table and numbers.
fn network(net: &Net, embedding: Embedding) -> fleet_ir::VarId {
    let x = net.data("x", [-1, 6], DType::F32);
    let y = net.data("y", [-1, 1], DType::F32);
    let ids = (x * 3.0 + 3.5).cast(DType::I64);
    let rows = ids.embedding(embedding.weight("table.w_0")).flatten(1);
    let hidden = net.concat(&[rows, x], 1).fc(Fc::new(16).act(Act::Tanh));
    let hidden = hidden.batch_norm(BatchNorm::new()).fc(Fc::new(8).act(Act::Tanh));
    hidden.fc(1).mse_loss(y, Reduction::Mean).id()
}

fn sparse(net: &Net) -> fleet_ir::VarId {
    network(net, Embedding::new(8, 8).sparse())
}

fn dense(net: &Net) -> fleet_ir::VarId {
    network(net, Embedding::new(8, 8))
}

fn merging(k_steps: i32, avg: bool) -> DistributedStrategy {
    let mut strategy = DistributedStrategy::new().use_gradient_merge(k_steps);
    let configs = strategy.gradient_merge_configs().clone().with_avg(avg);
    strategy.gradient_merge_configs = Some(configs);
    strategy
}

/// Returns strategies with the name to expect in the chain, and a tolerance for rounding.
fn strategies() -> Vec<(&'static str, DistributedStrategy, f32)> {
    // Statistics of a batch must be those of the whole batch.
    let plain = || DistributedStrategy::new().with_sync_batch_norm(true);
    let amp = || AmpConfig::default().with_init_loss_scaling(64.0);
    let levels = plain().with_use_hierarchical_allreduce(true);
    let dgc = DgcConfig::default().with_rampup_begin_step(100);
    let apart = LocalSgdConfig::default().with_begin_step(100);
    let adaptive = AdaptiveLocalSgdConfig::default().with_begin_step(100);
    vec![
        ("RawProgram", plain(), 1e-5),
        ("RawProgram", plain().with_fuse_all_reduce_ops(false).with_nccl_comm_num(2), 1e-5),
        ("RawProgram", levels.with_hierarchical_allreduce_inter_nranks(2), 1e-5),
        ("AMP", plain().use_amp(amp()), 1e-2),
        ("AMP", plain().use_amp(amp().with_use_pure_fp16(true)), 1e-2),
        ("AMP", plain().use_amp(amp().with_use_pure_bf16(true)), 6e-2),
        ("Recompute", plain().use_recompute(["fc_0.tmp_2", "fc_1.tmp_2"]), 1e-5),
        ("Lars", plain().use_lars(LarsConfig::default().with_lars_coeff(0.1)), 1e-5),
        ("Lamb", plain().use_lamb(LambConfig::default()), 1e-3),
        ("FP16AllReduce", plain().with_fp16_allreduce(true), 5e-3),
        ("DGC", plain().use_dgc(dgc), 1e-5),
        ("LocalSGD", plain().use_localsgd(apart), 1e-4),
        ("AdaptiveLocalSGD", plain().use_adaptive_localsgd(adaptive), 1e-4),
        ("GradientMerge", plain().use_gradient_merge(2), 1e-5),
        ("GradientMerge", plain().use_amp(amp()).use_gradient_merge(2), 1e-2),
    ]
}

fn optimizer(strategy: &DistributedStrategy, rows: Option<OptimizerDesc>) -> OptimizerDesc {
    let mut desc: OptimizerDesc = match strategy.lamb() {
        true => Adam::new(0.01).into(),
        false => Momentum::new(0.05, 0.9).into(),
    };
    desc.rows = rows.map(Box::new);
    desc
}

fn check(name: &str, strategy: &DistributedStrategy, tolerance: f32, rows: Option<OptimizerDesc>) {
    let (network, optimizer): (Network, _) = (sparse, optimizer(strategy, rows));
    let alone = train(network, &optimizer, strategy, 1, STEPS, &[]);
    for count in [2, 3, 4] {
        let what = format!("{name}, {count} ranks, rows by {:?}", optimizer.rows);
        let (_, plan) = rewritten(network, &optimizer, strategy, Ranks::new(0, count)).unwrap();
        assert!(plan.chain.contains(&name), "{what}: {:?}", plan.chain);
        let dropped = plan.decisions.iter().find(|it| it.verdict == Verdict::Dropped);
        assert_eq!(dropped, None, "{what}");
        let ranks = train(network, &optimizer, strategy, count, STEPS, &[]);
        for rank in &ranks {
            let (one, whole) = (parameters(&rank.kept), parameters(&alone[0].kept));
            assert_close(&one, &whole, tolerance, &what);
            assert_eq!(one, parameters(&ranks[0].kept), "{what}");
        }
    }
}

#[test]
fn ranks_share_a_table() {
    for (name, strategy, tolerance) in strategies() {
        // LARS and LAMB use norms of the whole table. The velocity of a row changes on ranks that
        // have seen the row, and without communication fewer ranks have.
        let apart = strategy.localsgd() || strategy.adaptive_localsgd();
        if !strategy.lars() && !strategy.lamb() && !apart {
            check(name, &strategy, tolerance, None);
        }
    }
}

#[test]
fn ranks_share_a_table_with_a_rule_of_its_own() {
    for (name, strategy, tolerance) in strategies() {
        check(name, &strategy, tolerance, Some(Sgd::new(0.5).into()));
    }
}

/// SGD does not change rows without a gradient, so merged rows make the updates of a merged dense
/// gradient.
#[test]
fn merged_rows_are_a_merged_gradient() {
    let sgd: OptimizerDesc = Sgd::new(0.1).into();
    for (k, avg, count) in [(2, true, 1), (3, true, 2), (3, false, 2)] {
        let strategy = merging(k, avg);
        let rows = train(sparse, &sgd, &strategy, count, STEPS, &[]);
        let all = train(dense, &sgd, &strategy, count, STEPS, &[]);
        for (rows, all) in rows.iter().zip(&all) {
            let (rows, all) = (parameters(&rows.kept), parameters(&all.kept));
            assert_close(&rows, &all, 1e-6, &format!("{k} steps, {count} ranks"));
        }
    }
}

/// The update of a table gets sparse rows: rows that no step has read are not decayed. A rank's
/// accumulator is its share of a sum.
#[test]
fn a_merged_table_is_updated_by_rows() {
    let decaying: OptimizerDesc = Sgd::new(0.1).weight_decay(Regularizer::L2(0.1)).into();
    let (start, trained) = (0, STEPS);
    let tables = [start, trained].map(|steps| {
        let ranks = train(sparse, &decaying, &merging(2, true), 2, steps, &[]);
        ranks[1].kept["table.w_0"].clone()
    });
    let moved: Vec<bool> =
        tables[0].chunks(8).zip(tables[1].chunks(8)).map(|(a, b)| a != b).collect();
    assert_eq!(moved, [true, true, true, true, true, true, true, false]);

    let (programs, plan) =
        rewritten(sparse, &decaying, &merging(2, true), Ranks::new(0, 2)).unwrap();
    let note = "gradient merge: dense accumulators of 1 table take 256 B";
    assert!(plan.notes.iter().any(|it| it == note), "{:?}", plan.notes);
    let local = local_state(&programs.main);
    let sum = local.iter().find(|var| var.name == "table.w_0@GRAD@GradientMerge").unwrap();
    assert_eq!(sum.spread, Spread::Share);
}

/// Returns the update ops by parameter.
fn updates(optimizer: &OptimizerDesc, strategy: &DistributedStrategy) -> BTreeMap<String, String> {
    let (programs, _) = rewritten(sparse, optimizer, strategy, Ranks::new(0, 2)).unwrap();
    let main = &programs.main;
    let ops = main.block_ids().flat_map(|block| main.block_ops(block)).map(|(_, op)| op);
    let updates = ops.filter(|op| op.spec.input_index("LearningRate").is_some());
    updates
        .map(|op| (main.var_name(op.input("Param")[0]).to_string(), op.name().to_string()))
        .collect()
}

/// The table keeps its own rule even if a strategy replaces the other one.
#[test]
fn strategies_leave_the_rule_of_rows_alone() {
    let rules = [("Lars", "lars_momentum"), ("Lamb", "lamb")];
    for (name, strategy, _) in strategies() {
        let optimizer = optimizer(&strategy, Some(Sgd::new(0.5).into()));
        let expected =
            rules.iter().find(|(it, _)| *it == name).map_or("momentum", |(_, rule)| rule);
        let updates = updates(&optimizer, &strategy);
        assert_eq!(updates.len(), 9, "{name}: {updates:?}");
        for (param, rule) in updates {
            let own = if param == "table.w_0" { "sgd" } else { expected };
            assert_eq!(rule, own, "{name}: {param}");
        }
    }
}

/// Each rule has its own rate, and both schedules count every step once.
#[test]
fn each_rule_has_its_own_rate() {
    let halved = |rate| LrSchedule::exponential(rate, 0.5);
    let optimizer = Momentum::new(halved(0.4), 0.9).rows(Sgd::new(halved(0.8)));
    for strategy in [DistributedStrategy::new(), DistributedStrategy::new().use_gradient_merge(2)] {
        let (programs, _) = rewritten(sparse, &optimizer, &strategy, Ranks::new(0, 2)).unwrap();
        let main = &programs.main;
        let rate = |rule: &str| {
            let mut ops = main.block_ids().flat_map(|block| main.block_ops(block));
            let (_, op) = ops.find(|(_, op)| op.name() == rule).unwrap();
            main.var_name(op.input("LearningRate")[0]).to_string()
        };
        let (rows, rest) = (rate("sgd"), rate("momentum"));
        let fetch = [rows.as_str(), rest.as_str()];
        let trained = train(sparse, &optimizer, &strategy, 2, 3, &fetch);
        assert_eq!(trained[0].fetched, [[0.8, 0.4], [0.4, 0.2], [0.2, 0.1]]);
    }
}

/// A rule for tables cannot choose parameters, and such a rule without tables is reported.
#[test]
fn a_rule_of_rows_says_nothing_else() {
    let plain = DistributedStrategy::new();
    let choosing = Momentum::new(0.1, 0.9).rows(Sgd::new(0.5).parameters(["table.w_0"]));
    let error = rewritten(sparse, &choosing, &plain, Ranks::new(0, 2)).unwrap_err().to_string();
    assert!(error.contains("cannot select parameters"), "{error}");
    let notes = |network: fn(&Net) -> fleet_ir::VarId| {
        let optimizer = Momentum::new(0.1, 0.9).rows(Sgd::new(0.5));
        rewritten(network, &optimizer, &plain, Ranks::new(0, 2)).unwrap().1.notes
    };
    assert!(notes(sparse).contains(&"1 embedding table is updated by sgd".to_string()));
    let none = "no parameter is an embedding table: sgd is not used".to_string();
    assert!(notes(crate::world::mlp).contains(&none));
    let adam = Momentum::new(0.1, 0.9).rows(Adam::new(0.1));
    let apart = plain.use_localsgd(LocalSgdConfig::default());
    let (_, plan) = rewritten(sparse, &adam, &apart, Ranks::new(0, 2)).unwrap();
    let dropped = plan.decisions.iter().find(|it| it.verdict == Verdict::Dropped).unwrap();
    assert!(dropped.reason.contains("the optimizer of embedding tables is adam"), "{dropped}");
}
