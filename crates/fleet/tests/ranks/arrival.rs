//! Updates of parameters that overlap with the all-reduce of gradients give the same bits as
//! updates after it.

use crate::launch::{assert_success, run_with};
use crate::strategies::{feed, state};
use fleet::prelude::*;
use fleet::strategy::{BuildStrategy, DistributedStrategy, ShardingConfig};

const STEPS: u64 = 4;

const RULES: [&str; 4] = ["sgd", "momentum", "adam", "adamw"];

/// Causes that delay updates until after the backward pass, and how many of two buckets still
/// update on arrival.
const DELAYED: [(&str, usize); 4] = [("mixed", 1), ("clip", 0), ("value_clip", 0), ("amp", 0)];

/// Beginnings of names of jobs whose ranks divide the state of training, with this stage.
const SHARDING: [(&str, i32); 3] = [("stage1 ", 1), ("stage2 ", 2), ("stage3 ", 3)];

/// Returns the stage and the rule that a name asks for.
fn stage(name: &str) -> (Option<i32>, &str) {
    let prefix = SHARDING.iter().find_map(|(it, stage)| Some((*stage, name.strip_prefix(it)?)));
    prefix.map_or((None, name), |(stage, rule)| (Some(stage), rule))
}

fn rule(name: &str) -> OptimizerDesc {
    // The rate changes during training: its schedule runs before the sums.
    let rate = || LrSchedule::piecewise([2], [0.05, 0.01]);
    match name {
        "sgd" => Sgd::new(rate()).into(),
        "momentum" => Momentum::new(rate(), 0.9).weight_decay(Regularizer::L2(1e-3)).into(),
        "adam" => Adam::new(rate()).into(),
        "adamw" => AdamW::new(rate()).into(),
        "clip" => Momentum::new(rate(), 0.9).grad_clip(GradClip::GlobalNorm(0.01)).into(),
        "value_clip" => {
            Momentum::new(rate(), 0.9).grad_clip(GradClip::Value { min: -1e-3, max: 1e-3 }).into()
        }
        _ => Momentum::new(rate(), 0.9).into(),
    }
}

/// Opens a session with buckets of several megabytes: more than one chunk on any transport.
fn session(fleet: &Fleet, name: &str, on_arrival: bool) -> Result<Session> {
    let (stage, name) = stage(name);
    let net = Net::new();
    net.set_seed(5);
    let (x, y) = (net.data("x", [-1, 6], DType::F32), net.data("y", [-1, 1], DType::F32));
    let first = match name {
        // Makes a bucket with two update rules.
        "mixed" => Fc::new(1031).weight(ParamAttr::new().learning_rate(0.5)),
        _ => Fc::new(1031),
    };
    let hidden = x.fc(first.act(Act::Tanh)).fc(Fc::new(1024).act(Act::Tanh));
    let loss = hidden.fc(1).mse_loss(y, Reduction::Mean);
    let waits = BuildStrategy::default().with_enable_backward_optimizer_op_deps(!on_arrival);
    let mut strategy = DistributedStrategy::new()
        .with_fuse_grad_size_in_MB(3)
        .with_amp(name == "amp")
        .with_build_strategy(waits);
    if let Some(stage) = stage {
        strategy = strategy.use_sharding(ShardingConfig::default().with_stage(stage));
    }
    let job = fleet.distributed_optimizer(rule(name), &strategy).minimize(&net, loss)?;
    fleet.session(net.build()?, &job, ExecOptions::threads(1))
}

/// Returns the number of buckets whose updates are one op with their sums, and of other updates.
fn fused_updates(
    session: &mut Session,
    (x, y): (&Tensor, &Tensor),
    fetch: &[&str],
) -> Result<[usize; 2]> {
    let metas = [("x", x.dtype(), *x.shape()), ("y", y.dtype(), *y.shape())];
    let Session { programs, scope, executor, .. } = session;
    let plan = executor.planned_program(&programs.main, scope, &metas, fetch)?;
    let names: Vec<&str> = plan.root_ops().map(|(_, op)| op.name()).collect();
    let count = |before: &str| {
        let names = names.iter().filter_map(|name| name.strip_prefix(before));
        names.filter(|name| RULES.iter().any(|rule| name.ends_with(rule))).count()
    };
    let fused = count("sum_then_");
    Ok([fused, count("") - fused])
}

/// Runs in a rank process.
pub fn compare(fleet: &Fleet, name: &str) -> Result<()> {
    let mut sessions = [session(fleet, name, true)?, session(fleet, name, false)?];
    let (x, y) = feed(&sessions[0], fleet, 0)?;
    if stage(name).0.is_some() {
        let [early, late] = &mut sessions;
        let [fused, rest] = fused_updates(early, (&x, &y), &[])?;
        assert!(fused > 0 && rest == 0, "{name}: {fused} fused, {rest} not");
        assert_eq!(fused_updates(late, (&x, &y), &[])?[0], 0);
        return compare_states(fleet, name, sessions);
    }
    let free = DELAYED.iter().find(|(held, _)| *held == name).map_or(2, |(_, free)| *free);
    // If a sum is fetched, its bucket is summed by a separate op.
    for (fetch, expected) in [(&[][..], [free, 0]), (&["fc_0.w_0@GRAD"][..], [free.min(1), 0])] {
        let fused: Vec<usize> = sessions
            .iter_mut()
            .map(|it| Ok(fused_updates(it, (&x, &y), fetch)?[0]))
            .collect::<Result<_>>()?;
        assert_eq!(fused, expected, "{name}: buckets that update on arrival, with {fetch:?}");
    }
    compare_states(fleet, name, sessions)
}

/// Trains both sessions and compares all that they have, bit for bit.
fn compare_states(fleet: &Fleet, name: &str, mut sessions: [Session; 2]) -> Result<()> {
    for number in 0..STEPS {
        let (x, y) = feed(&sessions[0], fleet, number)?;
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
            assert_success(&run_with("update on arrival", ranks, name, &environment));
        }
    }
    // This many ranks exchange results through slots of their own.
    assert_success(&run_with("update on arrival", 5, "momentum", &[("FLEET_SHARED_MEMORY", "1")]));
}

/// Owners of divided state update their parameters on arrival too.
#[test]
fn owners_update_on_arrival() {
    for rule in RULES {
        let name = format!("stage1 {rule}");
        assert_success(&run_with("update on arrival", 2, &name, &[("FLEET_SHARED_MEMORY", "1")]));
    }
    for (name, ranks, shared) in
        [("stage2 adam", 3, "1"), ("stage3 momentum", 2, "1"), ("stage1 momentum", 2, "0")]
    {
        let environment = [("FLEET_SHARED_MEMORY", shared)];
        assert_success(&run_with("update on arrival", ranks, name, &environment));
    }
}

/// With several rules in a bucket, clips or mixed precision, updates that cannot run early wait,
/// and give the same bits.
#[test]
fn updates_that_must_wait_do() {
    for (name, _) in DELAYED {
        assert_success(&run_with("update on arrival", 2, name, &[("FLEET_SHARED_MEMORY", "1")]));
    }
}
