//! Program text, without hardware, at 2, 8 and 1,024 ranks.

use crate::world::{mlp, rewritten};
use fleet_ir::{OpRole, Program};
use fleet_nn::models::{ResNetConfig, resnet};
use fleet_nn::prelude::*;
use fleet_strategy::{DistributedStrategy, LocalSgdConfig, Ranks, cost};

fn momentum() -> OptimizerDesc {
    Momentum::new(0.1, 0.9).into()
}

/// Returns the names of a block's ops in order; for collectives also the number of variables in
/// slot X and the ring.
fn ops(program: &Program, block: fleet_ir::BlockId) -> Vec<String> {
    program
        .block_ops(block)
        .map(|(_, op)| match op.name().starts_with("c_") {
            true => {
                format!("{} x{} ring {}", op.name(), op.input("X").len(), op.attr_int("ring_id"))
            }
            false => op.name().to_string(),
        })
        .collect()
}

fn communication(program: &Program) -> Vec<String> {
    program
        .block_ids()
        .flat_map(|block| ops(program, block))
        .filter(|name| name.starts_with("c_"))
        .collect()
}

#[test]
fn data_parallel() {
    for ranks in [2, 8, 1024] {
        let (programs, plan) =
            rewritten(mlp, &momentum(), &DistributedStrategy::new(), Ranks::new(1, ranks)).unwrap();
        assert_eq!(
            communication(&programs.startup),
            ["c_comm_init x0 ring 0", "c_broadcast x6 ring 0", "c_sync_comm_stream x6 ring 0"]
        );
        assert_eq!(communication(&programs.main), ["c_allreduce_sum x6 ring 0"]);
        assert_eq!(plan.rings.len(), 1);
        assert_eq!(plan.rings[0].members().collect::<Vec<_>>(), (0..ranks).collect::<Vec<_>>());
        let reduce =
            programs.main.root_ops().find(|(_, op)| op.name() == "c_allreduce_sum").unwrap();
        assert_eq!(reduce.1.attr_int("nranks"), ranks as i64);
        // The gradient of the loss is scaled to the rank's share.
        let share = programs
            .main
            .root_ops()
            .find(|(_, op)| op.name() == "scale" && op.role == OpRole::BACKWARD.with_loss());
        assert_eq!(share.unwrap().1.attr_float("scale"), 1.0 / ranks as f64);
    }
}

/// Each all-reduce directly follows the op that makes the last gradient of its bucket.
#[test]
fn sums_start_as_early_as_they_can() {
    let strategy = DistributedStrategy::new().with_fuse_all_reduce_ops(false).with_nccl_comm_num(2);
    let (programs, plan) = rewritten(mlp, &momentum(), &strategy, Ranks::new(0, 2)).unwrap();
    let list: Vec<_> = programs.main.root_ops().map(|(_, op)| op).collect();
    let mut rings = Vec::new();
    for (at, op) in list.iter().enumerate().filter(|(_, op)| op.name() == "c_allreduce_sum") {
        let grad = op.input("X")[0];
        let before = list[..at].iter().rev().find(|op| op.name() != "c_allreduce_sum").unwrap();
        assert!(before.all_outputs().any(|var| var == grad));
        rings.push(op.attr_int("ring_id"));
    }
    assert_eq!(rings, [0, 1, 0, 1, 0, 1]);
    assert_eq!(plan.notes, ["all-reduce ops before and after fusion: 6 -> 6"]);
}

#[test]
fn hierarchical() {
    let strategy = DistributedStrategy::new().with_use_hierarchical_allreduce(true);
    let at = |rank: usize| {
        rewritten(mlp, &momentum(), &strategy, Ranks::new(rank, 16).per_node(8)).unwrap()
    };
    let (leader, plan) = at(8);
    assert_eq!(
        communication(&leader.main),
        ["c_reduce_sum x6 ring 1", "c_allreduce_sum x6 ring 2", "c_broadcast x6 ring 1"]
    );
    assert_eq!(plan.rings[1].members().collect::<Vec<_>>(), (8..16).collect::<Vec<_>>());
    assert_eq!(plan.rings[2].members().collect::<Vec<_>>(), [0, 8]);
    let (other, plan) = at(9);
    assert_eq!(communication(&other.main), ["c_reduce_sum x6 ring 1", "c_broadcast x6 ring 1"]);
    assert_eq!(plan.rings.len(), 2);
    // If groups do not divide the ranks, the sum is flat, and a note says so.
    let odd = strategy.clone().with_hierarchical_allreduce_inter_nranks(5);
    let (flat, plan) = rewritten(mlp, &momentum(), &odd, Ranks::new(0, 16)).unwrap();
    assert_eq!(communication(&flat.main), ["c_allreduce_sum x6 ring 0"]);
    assert!(plan.notes[0].contains("has no effect"), "{:?}", plan.notes);
}

/// `sync_nccl_allreduce` moves the communication of gradients to the compute lane if it is assigned
/// true, and only then.
#[test]
fn sums_in_the_compute_lane() {
    let base = DistributedStrategy::new().with_fuse_all_reduce_ops(false);
    let levels = base.clone().with_use_hierarchical_allreduce(true);
    for (strategy, ops) in [(base, 6), (levels, 18)] {
        let moved = |strategy: &DistributedStrategy| {
            let ranks = Ranks::new(0, 8).per_node(4);
            let (programs, plan) = rewritten(mlp, &momentum(), strategy, ranks).unwrap();
            let ops = programs.main.root_ops().filter(|(_, op)| op.name().starts_with("c_"));
            let moved = ops.filter(|(_, op)| op.attr_bool("use_calc_stream")).count();
            (moved, plan.notes.iter().any(|note| note.contains("without overlap")))
        };
        assert_eq!(moved(&strategy), (0, false));
        assert_eq!(moved(&strategy.clone().with_sync_nccl_allreduce(false)), (0, false));
        assert_eq!(moved(&strategy.clone().with_sync_nccl_allreduce(true)), (ops, true));
    }
}

#[test]
fn gradient_merge_talks_in_its_blocks() {
    let strategy = DistributedStrategy::new().use_gradient_merge(4);
    for ranks in [2, 8, 1024] {
        let (programs, _) = rewritten(mlp, &momentum(), &strategy, Ranks::new(0, ranks)).unwrap();
        let main = &programs.main;
        let root = ops(main, Program::ROOT);
        assert!(!root.iter().any(|name| name.starts_with("c_") || name == "momentum"), "{root:?}");
        assert_eq!(root[..3], ["increment", "elementwise_mod", "equal"]);
        // Each accumulator is divided once it is complete; the bucket is sent after its last one.
        let parts: Vec<Vec<String>> =
            main.block_ids().skip(1).map(|block| ops(main, block)).collect();
        let mut expected: Vec<Vec<&str>> = vec![vec!["scale"]; 7];
        expected[0] = [["momentum"; 6], ["fill_constant"; 6]].concat();
        expected.iter_mut().last().unwrap().push("c_allreduce_sum x6 ring 0");
        let sends = |part: &Vec<String>| part.iter().any(|name| name.starts_with("c_"));
        assert_eq!(parts.iter().filter(|part| sends(part)).count(), 1);
        let mut sorted = parts.clone();
        sorted[1..].sort_by_key(sends);
        assert_eq!(sorted, expected);
        let cost = cost::cost(main);
        assert!(cost.always.is_empty());
        assert_eq!(cost.sometimes[&0].calls, 1);
    }
}

#[test]
fn local_sgd_sends_no_gradients() {
    let strategy =
        DistributedStrategy::new().use_localsgd(LocalSgdConfig::default().with_k_steps(4));
    for ranks in [2, 8, 1024] {
        let (programs, _) = rewritten(mlp, &momentum(), &strategy, Ranks::new(0, ranks)).unwrap();
        let root = ops(&programs.main, Program::ROOT);
        assert!(!root.iter().any(|name| name.starts_with("c_")), "{root:?}");
        assert_eq!(communication(&programs.main), ["c_allreduce_sum x6 ring 0"]);
        assert_eq!(root[0], "increment");
        assert!(programs.startup.find_var("fc_0.w_0@SNAPSHOT").is_some());
    }
}

/// The documented output: 161 gradients of ResNet-50 in 5 buckets, and in 6 of half the size; the
/// rewrite for 1,024 ranks is fast.
#[test]
fn resnet_50() {
    // Flowers, as in the documents: 102 classes.
    let network =
        |net: &Net| resnet(net, &ResNetConfig { classes: 102, ..ResNetConfig::new(50) }).loss.id();
    let line = |strategy: &DistributedStrategy| {
        let (_, plan) = rewritten(network, &momentum(), strategy, Ranks::new(7, 1024)).unwrap();
        let fused = |note: &&String| note.starts_with("all-reduce ops");
        plan.notes.iter().find(fused).unwrap().clone()
    };
    let strategy = DistributedStrategy::new();
    assert_eq!(line(&strategy), "all-reduce ops before and after fusion: 161 -> 5");
    let half = strategy.with_fuse_grad_size_in_MB(16);
    assert_eq!(line(&half), "all-reduce ops before and after fusion: 161 -> 6");
    // Gradients of weights and of batch norm differ in their types.
    let mixed = DistributedStrategy::new().with_amp(true);
    assert_eq!(line(&mixed), "all-reduce ops before and after fusion: 161 -> 8");
    let counted = DistributedStrategy::new().with_fuse_grad_size_in_num(8);
    assert_eq!(line(&counted), "all-reduce ops before and after fusion: 161 -> 21");
}

/// Communication costs that can be checked by hand.
#[test]
fn costs() {
    let (programs, _) =
        rewritten(mlp, &momentum(), &DistributedStrategy::new(), Ranks::new(0, 4)).unwrap();
    let cost = cost::cost(&programs.main);
    let parameters = 6 * 8 + 8 + 8 * 8 + 8 + 8 + 1;
    let ring = cost.always[&0];
    assert_eq!((ring.calls, ring.messages), (1, 6.0));
    assert_eq!(ring.bytes, 2.0 * 0.75 * 4.0 * f64::from(parameters));
    let half = DistributedStrategy::new().with_fp16_allreduce(true);
    let (programs, _) = rewritten(mlp, &momentum(), &half, Ranks::new(0, 4)).unwrap();
    assert_eq!(cost::cost(&programs.main).always[&0].bytes, ring.bytes / 2.0);
    // A sum over four ranks of two doubles per channel and a count, forward and backward.
    fn normed(net: &Net) -> fleet_ir::VarId {
        net.data("x", [-1, 6], DType::F32).fc(8).batch_norm(BatchNorm::new()).mean().id()
    }
    let sync = DistributedStrategy::new().with_sync_batch_norm(true);
    let (programs, plan) = rewritten(normed, &momentum(), &sync, Ranks::new(0, 4)).unwrap();
    let ring = plan.rings.iter().find(|ring| ring.label == "batch norm").unwrap();
    let statistics = cost::cost(&programs.main).always[&ring.id];
    assert_eq!((statistics.calls, statistics.messages), (2, 12.0));
    assert_eq!(statistics.bytes, 2.0 * 1.5 * 8.0 * f64::from(1 + 2 * 8));
}

/// All pairs reach all ranks; with many ranks this exceeds a sum.
#[test]
fn dgc_says_when_sums_are_smaller() {
    fn wide(net: &Net) -> fleet_ir::VarId {
        net.data("x", [-1, 64], DType::F32).fc(512).mean().id()
    }
    let notes = |ranks: usize| {
        let strategy = DistributedStrategy::new().with_dgc(true);
        rewritten(wide, &momentum(), &strategy, Ranks::new(0, ranks)).unwrap().1.notes
    };
    let told =
        |ranks: usize| notes(ranks).iter().any(|note| note.contains("sums would be smaller"));
    assert!(!told(900) && told(2000), "{:?}", notes(2000));
}

/// In a step with an update, gradients of the last layers are sent while those of the first layers
/// are still being computed.
#[test]
fn gradient_merge_sends_beside_the_backward_pass() {
    let strategy = DistributedStrategy::new()
        .use_gradient_merge(2)
        .with_fp16_allreduce(true)
        .with_fuse_all_reduce_ops(false);
    let (programs, _) = rewritten(mlp, &momentum(), &strategy, Ranks::new(0, 2)).unwrap();
    let main = &programs.main;
    let order: Vec<&str> = main
        .root_ops()
        .flat_map(|(_, op)| match op.sub_block() {
            Some(block) => main.block_ops(block).map(|(_, op)| op.name()).collect(),
            None => vec![op.name()],
        })
        .collect();
    let first = |name: &str| order.iter().position(|op| *op == name).unwrap();
    let last = |name: &str| order.iter().rposition(|op| *op == name).unwrap();
    assert!(first("c_allreduce_sum") < last("mul_grad"), "{order:?}");
    assert_eq!(order.iter().filter(|op| **op == "c_allreduce_sum").count(), 6);
}

/// The text of a rewritten program parses to the same program.
#[test]
fn text_round_trip() {
    let strategy = DistributedStrategy::new().use_gradient_merge(2).with_fp16_allreduce(true);
    let (programs, _) = rewritten(mlp, &momentum(), &strategy, Ranks::new(0, 8)).unwrap();
    for program in [&programs.main, &programs.startup] {
        let text = program.to_string();
        let again = Program::parse(&text, fleet_ops::Registry::standard()).unwrap();
        assert_eq!(again.to_string(), text);
    }
}
