//! What the schema says of effects is true: a field that is marked as without effect changes nothing,
//! and one that is not changes the programs, the rings or how they are run.

use crate::world::{mlp, rewritten};
use fleet_nn::prelude::*;
use fleet_passes::BuildOptions;
use fleet_strategy::{DistributedStrategy, Field, Item, Kind, Ranks, Shape, Value};

/// Wide layers, one of which is normalised over the batch.
fn normalised(net: &Net) -> fleet_ir::VarId {
    let x = net.data("x", [-1, 6], DType::F32);
    let y = net.data("y", [-1, 1], DType::F32);
    let hidden = x.fc(Fc::new(256).act(Act::Tanh)).batch_norm(BatchNorm::new());
    hidden.fc(Fc::new(256).act(Act::Tanh)).fc(1).mse_loss(y, Reduction::Mean).id()
}

/// Everything that follows from a strategy.
fn outcome(strategy: &DistributedStrategy, rule: &OptimizerDesc) -> Result<String, String> {
    let ranks = Ranks::new(0, 8).per_node(4);
    let network = if strategy.dgc() || strategy.sync_batch_norm() { normalised } else { mlp };
    let (programs, plan) =
        rewritten(network, rule, strategy, ranks).map_err(|error| error.to_string())?;
    let build = strategy.build_strategy().build_options(BuildOptions::default());
    let execution = strategy.execution_strategy();
    let execution = [
        execution.num_threads,
        execution.num_iteration_per_drop_scope,
        execution.num_iteration_per_run,
    ];
    let (startup, main, rings) = (programs.startup, programs.main, plan.rings);
    Ok(format!("{startup}\n{main}\n{rings:?}\n{build:?}\n{execution:?}"))
}

/// Another value than the default.
fn another(field: &Field) -> Value {
    match (field.kind, field.default_item()) {
        (Kind::Bool, Some(Item::Bool(value))) => Value::Bool(!value),
        (Kind::Int32, Some(Item::Int32(value))) => Value::Int(i128::from(value.max(0)) + 2),
        (Kind::Float, Some(Item::Float(value))) => Value::from(f64::from(value) * 0.5 + 0.01),
        (Kind::Enum(shape), _) => Value::from(shape.values[1].0),
        _ => Value::from("x"),
    }
}

fn is_scalar(field: &Field) -> bool {
    !field.repeated && !matches!(field.kind, Kind::Message(_))
}

/// Every scalar field with its path, in the strategy and in its messages.
fn scalars(
    shape: &'static Shape,
    path: &str,
    of_ignored: bool,
    found: &mut Vec<(String, &'static Field, bool)>,
) {
    for field in shape.fields {
        let path =
            if path.is_empty() { field.name.to_string() } else { format!("{path}.{}", field.name) };
        let ignored = of_ignored || field.ignored.is_some();
        match field.kind {
            Kind::Message(inner) if !field.repeated => scalars(inner(), &path, ignored, found),
            _ if is_scalar(field) => found.push((path, field, ignored)),
            _ => {}
        }
    }
}

fn all_scalars() -> Vec<(String, &'static Field, bool)> {
    let mut found = Vec::new();
    scalars(DistributedStrategy::describe(), "", false, &mut found);
    found
}

#[test]
fn what_is_marked_changes_nothing() {
    let rule: OptimizerDesc = Momentum::new(0.1, 0.9).into();
    let base = DistributedStrategy::new();
    let before = outcome(&base, &rule).unwrap();
    for (path, field, _) in all_scalars().into_iter().filter(|(.., ignored)| *ignored) {
        let mut strategy = base.clone();
        if strategy.set_strictly(&path, another(field)).is_err() {
            continue; // a text with only a few values, which the check names
        }
        let problems = strategy.check();
        // True is what is done, and what every object of its kind says.
        let silent = path == "build_strategy.fuse_broadcast_ops";
        assert!(
            silent || problems.iter().any(|it| it.message.contains("no effect")),
            "{path}: {problems:?}"
        );
        match outcome(&strategy, &rule) {
            Ok(after) => assert!(after == before, "{path} is marked, and has an effect"),
            Err(error) => assert!(!error.contains("internal"), "{path}: {error}"),
        }
    }
}

/// What must be on for a message to count, and the optimizer that it wants.
fn switched_on(path: &str) -> Option<(DistributedStrategy, OptimizerDesc)> {
    let strategy = DistributedStrategy::new();
    let momentum = || Momentum::new(0.1, 0.9).into();
    let message = path.split_once('.').map_or("", |(message, _)| message);
    Some(match message {
        "" | "build_strategy" | "execution_strategy" | "gradient_scale_configs" => {
            (strategy, momentum())
        }
        "amp_configs" => (strategy.with_amp(true), momentum()),
        "gradient_merge_configs" => (strategy.use_gradient_merge(2), momentum()),
        "localsgd_configs" => (strategy.with_localsgd(true), momentum()),
        "adaptive_localsgd_configs" => (strategy.with_adaptive_localsgd(true), momentum()),
        "dgc_configs" => (strategy.with_dgc(true), momentum()),
        "lars_configs" => (strategy.with_lars(true), momentum()),
        "lamb_configs" => (strategy.with_lamb(true), Adam::new(0.1).into()),
        // Parameter servers, and what is refused.
        _ => return None,
    })
}

/// Fields that need more than a switch; the value in brackets says what.
const NEED_MORE: &[(&str, &str)] = &[
    ("a_sync", "servers"),
    ("auto", "costs: tested with the chains"),
    ("lamb", "Adam"),
    ("recompute", "checkpoints"),
    ("gradient_merge", "two steps"),
    ("use_hierarchical_allreduce", "two levels follow from the ranks: set below"),
    ("hierarchical_allreduce_inter_nranks", "use_hierarchical_allreduce"),
    ("last_comm_group_size_MB", "more than a megabyte"),
    ("fuse_grad_size_in_MB", "more than a megabyte"),
    ("fuse_grad_size_in_TFLOPS", "many layers"),
    ("fuse_grad_size_in_num", "many parameters"),
    ("amp_configs.use_pure_fp16", "an op on no list"),
    ("amp_configs.use_fp16_guard", "use_pure_fp16"),
    ("amp_configs.decr_ratio", "refused where it would grow"),
    ("sharding", "refused"),
    ("pipeline", "refused"),
];

#[test]
fn what_is_not_marked_changes_something() {
    for (path, field, _) in all_scalars().into_iter().filter(|(.., ignored)| !ignored) {
        let Some((base, rule)) = switched_on(&path) else { continue };
        if NEED_MORE.iter().any(|(name, _)| *name == path) {
            continue;
        }
        let mut strategy = base.clone();
        let value = another(field);
        if strategy.set_strictly(&path, value.clone()).is_err() {
            continue;
        }
        let mut base = base;
        if path.starts_with("build_strategy.") {
            // What holds when nothing is assigned is the executor's to say.
            let default = value != Value::Bool(true);
            base.set_strictly(&path, default).unwrap();
        }
        let (before, after) = (outcome(&base, &rule).unwrap(), outcome(&strategy, &rule));
        match after {
            Ok(after) => assert!(after != before, "{path} = {value:?} changes nothing"),
            // Out of range, or refused with a reason: that is an effect, too.
            Err(error) => assert!(!error.is_empty()),
        }
    }
}

/// Those that need more than a switch.
#[test]
fn what_needs_more_changes_something_with_it() {
    let differ = |one: &str, other: &str| {
        let read = |text: &str| {
            let mut strategy = DistributedStrategy::new();
            for part in text.split_whitespace() {
                let (path, value) = part.split_once('=').unwrap();
                strategy.set_strictly(path, Value::read(value)).unwrap();
            }
            outcome(&strategy, &Momentum::new(0.1, 0.9).into()).unwrap()
        };
        assert!(read(one) != read(other), "{one} and {other} come to the same");
    };
    let two_levels = "use_hierarchical_allreduce=true hierarchical_allreduce_inter_nranks=4";
    differ("use_hierarchical_allreduce=false", two_levels);
    differ(two_levels, "use_hierarchical_allreduce=true hierarchical_allreduce_inter_nranks=2");
    differ("gradient_merge=false", "gradient_merge=true gradient_merge_configs={\"k_steps\":2}");
    differ(
        "recompute=false",
        "recompute=true recompute_configs={\"checkpoints\":[\"fc_0.tmp_2\"]}",
    );
    differ("fuse_grad_size_in_TFLOPS=50.0", "fuse_grad_size_in_TFLOPS=2.0");
    differ("fuse_grad_size_in_num=2", "fuse_grad_size_in_num=4");
    differ("last_comm_group_size_MB=1", "last_comm_group_size_MB=0.0001");
}
