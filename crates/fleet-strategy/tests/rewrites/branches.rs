//! Branches (`Net::cond`) with data parallelism: ranks may take different branches in the same
//! step, and every rank has all gradients in every step.

use crate::world::{STEPS, assert_close, mlp, parameters, rewritten, train};
use fleet_nn::prelude::*;
use fleet_strategy::{DistributedStrategy, Ranks};

/// Both branches compute the same function of the same parameters, plus zero times a parameter of
/// their own. One rank with the whole batch and several ranks with its parts thus learn the same,
/// whichever branches they take.
fn forked(net: &Net) -> fleet_ir::VarId {
    let x = net.data("x", [-1, 6], DType::F32);
    let y = net.data("y", [-1, 1], DType::F32);
    let hidden = x.fc(Fc::new(8).act(Act::Tanh));
    let same = || Fc::new(1).weight("same").no_bias();
    let holds = x.mean().greater_than(-0.05);
    let then = || hidden.fc(same()) + hidden.fc(1) * 0.0;
    let otherwise = || (hidden * 2.0).fc(same()) * 0.5 + (hidden * hidden).fc(1) * 0.0;
    net.cond(holds, then, otherwise).mse_loss(y, Reduction::Mean).id()
}

#[test]
fn ranks_may_take_different_branches() {
    let rule: OptimizerDesc = Momentum::new(0.1, 0.9).into();
    let strategies = [
        DistributedStrategy::new(),
        DistributedStrategy::new().with_fuse_all_reduce_ops(false),
        DistributedStrategy::new().with_nccl_comm_num(2).with_fuse_grad_size_in_num(1),
        DistributedStrategy::new().use_gradient_merge(2),
    ];
    for strategy in strategies {
        let alone = train(forked, &rule, &strategy, 1, STEPS, &[]);
        for count in [2, 3] {
            for rank in train(forked, &rule, &strategy, count, STEPS, &[]) {
                let what = format!("{count} ranks under {strategy:?}");
                let (one, many) = (parameters(&alone[0].kept), parameters(&rank.kept));
                assert_close(&one, &many, 1e-5, &what);
            }
        }
    }
}

/// Gradients of branches are summed like all others, after the ops that copy them out of the
/// branch.
#[test]
fn gradients_of_branches_are_all_reduced() {
    let rule: OptimizerDesc = Sgd::new(0.1).into();
    let strategy = DistributedStrategy::new().with_fuse_all_reduce_ops(false);
    let (programs, plan) = rewritten(forked, &rule, &strategy, Ranks::new(0, 2)).unwrap();
    let main = &programs.main;
    assert_eq!(plan.params_grads.len(), 7);
    let root: Vec<_> = main.root_ops().collect();
    let sums: Vec<usize> =
        (0..root.len()).filter(|at| root[*at].1.name() == "c_allreduce_sum").collect();
    assert_eq!(sums.len(), 7);
    for at in sums {
        let grad = root[at].1.input("X")[0];
        let writes = |id: fleet_ir::OpId| {
            let mut written = std::collections::HashSet::new();
            main.writes_of(id, &mut written);
            written.contains(&grad)
        };
        assert!(root[at + 1..].iter().all(|(id, _)| !writes(*id)), "written after it was summed");
    }
    assert!(rewritten(mlp, &rule, &strategy, Ranks::new(0, 2)).unwrap().0.main.block_count() == 1);
}

/// Strategies that handle only the root block refuse branches explicitly.
#[test]
fn what_cannot_take_branches_says_so() {
    let rule: OptimizerDesc = Sgd::new(0.1).into();
    let refused = |strategy: &DistributedStrategy| {
        rewritten(forked, &rule, strategy, Ranks::new(0, 2)).unwrap_err().to_string()
    };
    let amp = refused(&DistributedStrategy::new().with_amp(true));
    assert!(amp.contains("amp does not support the branches of a cond"), "{amp}");
    let again = refused(&DistributedStrategy::new().with_recompute(true));
    assert!(
        again.contains("recompute does not support programs with conditional blocks"),
        "{again}"
    );
    fn normalised(net: &Net) -> fleet_ir::VarId {
        let x = net.data("x", [-1, 6], DType::F32).fc(4);
        let holds = x.mean().less_than(0.0);
        net.cond(holds, || x.batch_norm(BatchNorm::new()), || x * 1.0).mean().id()
    }
    let synced = DistributedStrategy::new().with_sync_batch_norm(true);
    let error = rewritten(normalised, &rule, &synced, Ranks::new(0, 2)).unwrap_err().to_string();
    let expected = "sync_batch_norm does not support the branches of a cond";
    assert!(error.contains(expected), "{error}");
    rewritten(normalised, &rule, &synced, Ranks::new(0, 1)).unwrap();
}
