//! Optimizers with a rule of another crate: with every strategy that works with any rule, an own
//! op makes the updates of the built-in one.

use crate::world::{self, STEPS, Trained, assert_close, batch, mlp, parameters, services};
use fleet_base::{Error, Result};
use fleet_exec::{ExecOptions, Executor, Scope};
use fleet_ir::{AttrKind, OpSpec, one, required};
use fleet_nn::optimizer::{Attr, Optimizer, State, UpdateRule};
use fleet_nn::prelude::*;
use fleet_ops::{Grad, Kernel, OpDef, OpTraits, Registry};
use fleet_strategy::servers::{self, Place};
use fleet_strategy::{
    AmpConfig, DistributedStrategy, LambConfig, LarsConfig, LocalSgdConfig, Ranks, Verdict,
    minimize,
};
use fleet_testkit::local;
use std::sync::LazyLock;

/// Momentum, without the optional slots and attributes of built-in updates.
static OWN: OpDef = OpDef {
    spec: OpSpec {
        name: "own_momentum",
        inputs: &[one("Param"), one("Grad"), one("LearningRate"), one("Velocity")],
        outputs: &[one("ParamOut"), one("VelocityOut")],
        attrs: &[required("decay", AttrKind::Float)],
    },
    infer: |i| {
        let param = i.input("Param")?;
        for slot in ["Grad", "Velocity"] {
            i.check_dtype(slot, &[DType::F32])?;
            i.check_shape(slot, param.shape)?;
        }
        i.push("ParamOut", param);
        i.push("VelocityOut", param);
        Ok(())
    },
    grad: Grad::None,
    cpu: |p| {
        let decay = p.op.attr_float("decay") as f32;
        Ok(Kernel::infallible(move |k| {
            let (grad, rate) = (k.input::<f32>(1), k.input::<f32>(2)[0]);
            let (param, velocity) = (k.updated::<f32>(0, 0), k.updated::<f32>(1, 3));
            for ((param, velocity), grad) in param.iter_mut().zip(velocity).zip(grad) {
                *velocity = decay * *velocity + grad;
                *param -= rate * *velocity;
            }
        }))
    },
    traits: OpTraits {
        state: &[("ParamOut", "Param"), ("VelocityOut", "Velocity")],
        ..OpTraits::plain()
    },
};

static REGISTRY: LazyLock<Registry> = LazyLock::new(|| Registry::with(&[&OWN]));

#[derive(Debug)]
struct OwnMomentum {
    decay: f64,
}

impl UpdateRule for OwnMomentum {
    fn op(&self) -> &'static str {
        OWN.spec.name
    }

    fn state(&self) -> Vec<State> {
        vec![State::each("velocity", "Velocity")]
    }

    fn attrs(&self, _: &str) -> Vec<(&'static str, Attr)> {
        vec![("decay", self.decay.into())]
    }
}

/// A network with a lower rate and another decay for one layer each.
fn network(net: &Net) -> fleet_ir::VarId {
    let (x, y) = (net.data("x", [-1, 6], DType::F32), net.data("y", [-1, 1], DType::F32));
    let slow = ParamAttr::new().learning_rate(0.1);
    let sparse = ParamAttr::new().regularizer(Regularizer::L1(0.05));
    let hidden = x.fc(Fc::new(8).act(Act::Tanh).weight(slow));
    let hidden = hidden.fc(Fc::new(8).act(Act::Tanh).weight(sparse));
    hidden.fc(1).mse_loss(y, Reduction::Mean).id()
}

fn settled<R>(optimizer: Optimizer<R>) -> OptimizerDesc
where
    OptimizerDesc: From<Optimizer<R>>,
{
    optimizer.weight_decay(Regularizer::L2(0.01)).grad_clip(GradClip::GlobalNorm(0.1)).into()
}

fn own() -> OptimizerDesc {
    settled(Optimizer::custom(OwnMomentum { decay: 0.9 }, 0.1))
}

/// Trains one rank with the own op.
fn train_own(
    strategy: &DistributedStrategy,
    steps: usize,
    ranks: Ranks,
    world: &local::World,
) -> Result<Trained> {
    let net = Net::with_registry(&REGISTRY);
    net.set_seed(7);
    let loss = network(&net);
    let optimizer = own();
    let plan = net.rewrite_with(|programs, registry| {
        minimize(programs, registry, loss, &optimizer, strategy, ranks)
    })?;
    let programs = net.build()?;
    let executor = Executor::with_registry(ExecOptions::threads(1), &REGISTRY);
    let mut executor = executor.services(services(world, &plan, ranks.rank));
    let mut scope = Scope::new();
    executor.run(&programs.startup, &mut scope, &[], &[])?;
    for step in 0..steps {
        let (x, y) = batch(step, ranks.rank, ranks.count)?;
        executor.run(&programs.main, &mut scope, &[("x", &x), ("y", &y)], &[])?;
    }
    Trained::of(&scope, Vec::new())
}

#[test]
fn an_own_rule_is_the_built_in_one() {
    let built_in = settled(Momentum::new(0.1, 0.9));
    let plain = DistributedStrategy::new;
    let strategies = [
        (plain(), 1e-6),
        (plain().use_amp(AmpConfig::default().with_init_loss_scaling(64.0)), 1e-4),
        (plain().use_amp(constant(64.0)), 1e-4),
        (plain().use_amp(constant(64.0)).use_gradient_merge(2), 1e-4),
        (plain().use_gradient_merge(2), 1e-6),
        (plain().use_recompute(["fc_0.tmp_2"]), 1e-6),
        (plain().with_fp16_allreduce(true), 1e-6),
    ];
    for (strategy, tolerance) in strategies {
        for count in [1, 2] {
            let expected = world::train(network, &built_in, &strategy, count, STEPS, &[]);
            let found = local::run(count, |rank, world| {
                train_own(&strategy, STEPS, Ranks::new(rank, count), world)
            });
            for (found, expected) in found.into_iter().zip(&expected) {
                let found = parameters(&found.expect("every rank trains").kept);
                let what = format!("{count} ranks, {strategy:?}");
                assert_close(&found, &parameters(&expected.kept), tolerance, &what);
            }
        }
    }
}

/// Returns a constant loss scale.
fn constant(scale: f32) -> AmpConfig {
    AmpConfig::default().with_init_loss_scaling(scale).with_use_dynamic_loss_scaling(false)
}

/// With a constant loss scale, a step that overflows changes neither parameters nor state, although
/// the op cannot skip an update.
#[test]
fn an_overflow_changes_nothing_under_an_own_rule() {
    let plain = DistributedStrategy::new().use_amp(constant(1e9));
    for (strategy, skipped) in [(plain.clone(), STEPS), (plain.use_gradient_merge(2), STEPS / 2)] {
        let train = |steps: usize| {
            let ranks = local::run(2, |rank, world| {
                train_own(&strategy, steps, Ranks::new(rank, 2), world)
            });
            ranks.into_iter().map(|rank| rank.expect("every rank trains").kept)
        };
        let learnt = |mut kept: std::collections::BTreeMap<String, Vec<f32>>| {
            kept.retain(|name, _| name.starts_with("fc_") && !name.ends_with("@GradientMerge"));
            assert!(kept.contains_key("fc_0.w_0") && kept.contains_key("fc_0.w_0_velocity_0"));
            kept
        };
        for (start, end) in train(0).zip(train(STEPS)) {
            assert_eq!(end["skipped_steps_0"], [skipped as f32]);
            assert_eq!(learnt(end), learnt(start));
        }
    }
}

/// Strategies that need a certain rule leave an own one alone, and servers refuse it by name.
#[test]
fn strategies_of_certain_rules_do_not_apply() {
    let plain = DistributedStrategy::new;
    let strategies = [
        (plain().use_lars(LarsConfig::default()), "LARS requires Momentum, got own_momentum"),
        (plain().use_lamb(LambConfig::default()), "LAMB requires Adam, got own_momentum"),
        (plain().use_localsgd(LocalSgdConfig::default()), "but the optimizer is own_momentum"),
    ];
    for (strategy, reason) in strategies {
        let net = Net::with_registry(&REGISTRY);
        let loss = mlp(&net);
        let minimized = net.rewrite_with(|programs, registry| {
            minimize(programs, registry, loss, &own(), &strategy, Ranks::new(0, 2))
        });
        let decisions = minimized.unwrap().decisions;
        let dropped = decisions.iter().find(|it| it.verdict == Verdict::Dropped).unwrap();
        assert!(dropped.reason.contains(reason), "{dropped}");
    }
    let place = Place { worker: 0, worker_count: 1, server_count: 1, half_async: false };
    for strategy in [plain().with_a_sync(true), plain().use_geo(8)] {
        let error: Error = {
            let net = Net::with_registry(&REGISTRY);
            let loss = mlp(&net);
            let rewrite = net.rewrite_with(|programs, registry| {
                servers::minimize(programs, registry, loss, &own(), None, &strategy, place)
            });
            rewrite.map(drop).unwrap_err()
        };
        assert!(error.to_string().contains("own_momentum"), "{error}");
    }
}

#[test]
fn own_rules_compare_by_op_and_text() {
    let other = settled(Optimizer::custom(OwnMomentum { decay: 0.8 }, 0.1));
    assert_eq!(own(), own());
    assert_ne!(own(), other);
    assert_eq!(own().rule.op(), "own_momentum");
}
