//! Parameters that move while the sum of their gradients comes in are those that move afterwards.

use crate::launch::{all_well, run_with};
use crate::strategies::{feed, state};
use fleet::Fleet;
use fleet::prelude::*;
use fleet::strategy::DistributedStrategy;

const STEPS: u64 = 4;

const RULES: [&str; 4] = ["sgd", "momentum", "adam", "adamw"];

fn rule(name: &str) -> OptimizerDesc {
    // The rate changes on the way: its schedule goes in front of the sums.
    let rate = || LrSchedule::piecewise([2], [0.05, 0.01]);
    match name {
        "sgd" => Sgd::new(rate()).into(),
        "momentum" => Momentum::new(rate(), 0.9).weight_decay(Regularizer::L2(1e-3)).into(),
        "adam" => Adam::new(rate()).into(),
        _ => AdamW::new(rate()).into(),
    }
}

/// Buckets of several megabytes: more than one chunk, whatever carries them.
fn session(fleet: &Fleet, rule: OptimizerDesc, on_arrival: bool) -> Result<Session> {
    let net = Net::new();
    net.set_seed(5);
    let (x, y) = (net.data("x", [-1, 6], DType::F32), net.data("y", [-1, 1], DType::F32));
    let hidden = x.fc(Fc::new(1031).act(Act::Tanh)).fc(Fc::new(1024).act(Act::Tanh));
    let loss = hidden.fc(1).mse_loss(y, Reduction::Mean);
    let strategy = DistributedStrategy::new().with_fuse_grad_size_in_MB(3);
    let job = fleet.distributed_optimizer(rule, &strategy).minimize(&net, loss)?;
    let build = BuildOptions { update_on_arrival: on_arrival, ..BuildOptions::default() };
    let options = ExecOptions { build, ..ExecOptions::threads(1) };
    fleet.session(net.build()?, &job, options)
}

/// In a started rank.
pub fn compare(fleet: &Fleet, name: &str) -> Result<()> {
    let mut sessions = [session(fleet, rule(name), true)?, session(fleet, rule(name), false)?];
    let (x, y) = feed(fleet, 0)?;
    let fused: Vec<usize> = sessions
        .iter_mut()
        .map(|it| {
            let metas = [("x", x.dtype(), *x.shape()), ("y", y.dtype(), *y.shape())];
            let Session { programs, scope, executor, .. } = it;
            let plan = executor.planned_program(&programs.main, scope, &metas, &[])?;
            Ok(plan.root_ops().filter(|(_, op)| op.name() == format!("allreduce_{name}")).count())
        })
        .collect::<Result<_>>()?;
    assert_eq!(fused, [2, 0], "{name}: buckets that update on arrival");
    for number in 0..STEPS {
        let (x, y) = feed(fleet, number)?;
        for session in &mut sessions {
            session.run(&[("x", &x), ("y", &y)], &[])?;
        }
    }
    let [one, other] = &sessions;
    for ((a_name, a), (b_name, b)) in state(one).iter().zip(&state(other)) {
        assert_eq!(a_name, b_name);
        assert!(a == b, "{name}: {a_name} on rank {}", fleet.worker_index());
    }
    fleet.finish()
}

#[test]
fn updates_on_arrival_are_those_behind_to_the_bit() {
    for name in RULES {
        for (ranks, shared) in [(2, "1"), (3, "1"), (2, "0")] {
            let environment = [("FLEET_SHARED_MEMORY", shared)];
            all_well(&run_with("update on arrival", ranks, name, &environment));
        }
    }
}
