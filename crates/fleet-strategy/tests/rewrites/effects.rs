//! Checks the marks of the schema. A field marked as ignored changes nothing, and a field marked as
//! refused is refused. A field without a mark changes the programs, the rings or the execution.

use crate::world::{Network, mlp, rewritten};
use fleet_nn::prelude::*;
use fleet_passes::BuildOptions;
use fleet_strategy::servers::{self, Place};
use fleet_strategy::{DistributedStrategy, Field, Item, Kind, Ranks, Shape, Value, build_options};

/// A network with batch norm.
fn normalised(net: &Net) -> fleet_ir::VarId {
    let x = net.data("x", [-1, 6], DType::F32);
    let y = net.data("y", [-1, 1], DType::F32);
    let hidden = x.fc(Fc::new(256).act(Act::Tanh)).batch_norm(BatchNorm::new());
    hidden.fc(Fc::new(256).act(Act::Tanh)).fc(1).mse_loss(y, Reduction::Mean).id()
}

/// A network with layers that ranks may divide.
fn divisible(net: &Net) -> fleet_ir::VarId {
    let x = net.data("x", [-1, 4, 6], DType::F32);
    let wide = x.linear(Linear::new(8).split(Split::Columns));
    wide.linear(Linear::new(8).split(Split::Rows)).mean().id()
}

/// A network with classes that ranks may divide.
fn classified(net: &Net) -> fleet_ir::VarId {
    let x = net.data("x", [-1, 6], DType::F32);
    let label = net.data("label", [-1, 1], DType::I64);
    x.fc(8).class_loss(label, ClassLoss::softmax(10)).id()
}

/// A layer of four megabytes between two small ones.
fn wide(net: &Net) -> fleet_ir::VarId {
    let x = net.data("x", [-1, 6], DType::F32);
    x.fc(Fc::new(1024).act(Act::Tanh)).fc(Fc::new(1024).act(Act::Tanh)).fc(1).mean().id()
}

/// A network with an op that is on no list of mixed precision.
fn unlisted(net: &Net) -> fleet_ir::VarId {
    let x = net.data("x", [-1, 6], DType::F32);
    let region = net.fp16_guard();
    let hidden = x.fc(8).abs();
    drop(region);
    hidden.abs().fc(1).mean().id()
}

/// Returns a network on which a field has an effect.
fn network(path: &str) -> Network {
    if path == "hybrid_configs.split_classes" {
        return classified;
    }
    match path.split('.').next().unwrap_or_default() {
        "dgc" | "dgc_configs" | "sync_batch_norm" => normalised,
        "fuse_grad_size_in_MB" => wide,
        "amp_configs" => unlisted,
        "hybrid_configs" | "tensor_parallel" | "tensor_parallel_configs" => divisible,
        _ => mlp,
    }
}

/// Returns the optimizer to which a field applies.
pub fn rule(path: &str) -> OptimizerDesc {
    match path.split('.').next().unwrap_or_default() {
        "lamb" | "lamb_configs" => Adam::new(0.1).into(),
        "a_sync" | "a_sync_configs" => Sgd::new(0.1).into(),
        _ => Momentum::new(0.1, 0.9).into(),
    }
}

/// Returns everything that depends on a strategy.
fn outcome(path: &str, strategy: &DistributedStrategy) -> Result<String, String> {
    if path.starts_with("a_sync") {
        return on_servers(path, strategy);
    }
    let ranks = Ranks::new(0, 8).per_node(4);
    let (programs, plan) = rewritten(network(path), &rule(path), strategy, ranks)
        .map_err(|error| error.to_string())?;
    let build = build_options(strategy.build_strategy(), BuildOptions::default());
    let execution = strategy.execution_strategy();
    let execution = [
        execution.num_threads,
        execution.num_iteration_per_drop_scope,
        execution.num_iteration_per_run,
    ];
    let (startup, main, rings) = (programs.startup, programs.main, plan.rings);
    Ok(format!("{startup}\n{main}\n{rings:?}\n{build:?}\n{execution:?}"))
}

/// The same for a worker of parameter servers.
fn on_servers(path: &str, strategy: &DistributedStrategy) -> Result<String, String> {
    let net = Net::new();
    let rows = net.data("ids", [-1, 3], DType::I64).embedding(Embedding::new(100, 4).sparse());
    let loss = rows.flatten(1).fc(1).mean().id();
    let place = Place { worker: 0, worker_count: 2, server_count: 2, half_async: false };
    let plan = net.rewrite_with(|programs, registry| {
        servers::minimize(programs, registry, loss, &rule(path), None, strategy, place)
    });
    let plan = plan.map_err(|error| error.to_string())?;
    let programs = net.build().map_err(|error| error.to_string())?;
    let (startup, main) = (programs.startup, programs.main);
    Ok(format!("{startup}\n{main}\n{:?}\n{:?}", plan.exchange, plan.tables))
}

/// Returns a value other than the default.
pub fn another(field: &Field) -> Value {
    let value = match (field.kind, field.default_item()) {
        (Kind::Bool, Some(Item::Bool(value))) => Value::Bool(!value),
        (Kind::Int32, Some(Item::Int32(value))) => Value::Int(i128::from(value.max(0)) + 2),
        (Kind::Float, Some(Item::Float(value))) => Value::from(f64::from(value) * 0.5 + 0.01),
        (Kind::Enum(shape), _) => Value::from(shape.values[1].0),
        _ => Value::from("x"),
    };
    match field.repeated {
        true => Value::List(vec![value]),
        false => value,
    }
}

#[derive(Clone, Copy, PartialEq)]
pub enum Mark {
    None,
    Ignored,
    Refused,
}

/// A field with its path, and its own mark or that of an enclosing field.
pub struct Case {
    pub path: String,
    pub field: &'static Field,
    pub mark: Mark,
}

/// Collects every scalar field of the strategy and its messages.
pub fn cases(shape: &'static Shape, path: &str, around: Mark, found: &mut Vec<Case>) {
    for field in shape.fields {
        let path =
            if path.is_empty() { field.name.to_string() } else { format!("{path}.{}", field.name) };
        let mark = match (around, field.refused, field.ignored) {
            (Mark::None, Some(_), _) => Mark::Refused,
            (Mark::None, None, Some(_)) => Mark::Ignored,
            _ => around,
        };
        match field.kind {
            Kind::Message(inner) if !field.repeated => cases(inner(), &path, mark, found),
            Kind::Message(_) => assert!(
                mark != Mark::None || ELSEWHERE.contains(&path.as_str()),
                "{path} has neither a mark nor a test"
            ),
            _ => found.push(Case { path, field, mark }),
        }
    }
}

fn all(mark: Mark) -> Vec<Case> {
    let mut found = Vec::new();
    cases(DistributedStrategy::describe(), "", Mark::None, &mut found);
    found.retain(|case| case.mark == mark);
    found
}

/// Fields without an effect on programs. `crates/fleet/tests/servers.rs` tests those of
/// `a_sync_configs` with the traffic of a worker, and `crates/fleet/tests/tables/hdfs.rs` those of
/// `fs_client_param` with saves. `servers.rs` beside this file tests tables.
const ELSEWHERE: [&str; 1] = ["downpour_table_param"];

fn is_elsewhere(path: &str) -> bool {
    path.starts_with("a_sync_configs.") && path != "a_sync_configs.k_steps"
        || path.starts_with("fs_client_param.")
        || ELSEWHERE.contains(&path)
}

#[test]
fn what_is_marked_changes_nothing() {
    let base = DistributedStrategy::new();
    for Case { path, field, .. } in all(Mark::Ignored) {
        let before = outcome(&path, &base).unwrap();
        let mut strategy = base.clone();
        if strategy.set_strictly(&path, another(field)).is_err() {
            continue; // a text with few allowed values, which the check reports
        }
        let problems = fleet_strategy::check(&strategy);
        // True is the behaviour in any case, and is assigned in every object of its kind.
        let silent = path == "build_strategy.fuse_broadcast_ops";
        assert!(
            silent || problems.iter().any(|it| it.message.contains("no effect")),
            "{path}: {problems:?}"
        );
        match outcome(&path, &strategy) {
            Ok(after) => assert!(after == before, "{path} is marked, and has an effect"),
            Err(error) => assert!(!error.contains("internal"), "{path}: {error}"),
        }
    }
}

/// With their switch on, these fields are refused with a reason. Without it they do nothing, and
/// the check reports this.
#[test]
fn what_is_marked_as_refused_is_refused() {
    for Case { path, field, .. } in all(Mark::Refused) {
        let (message, is_setting) = match path.split_once('.') {
            Some((message, _)) if message != "hybrid_configs" => (message, true),
            _ => ("", false),
        };
        let mut strategy = DistributedStrategy::new();
        if is_setting {
            strategy.set_strictly(&path, another(field)).unwrap_or_default();
            let problems = fleet_strategy::check(&strategy);
            let said = problems.iter().any(|it| it.message.contains("has no effect"));
            assert!(strategy.is_empty() || said, "{path}: {problems:?}");
            let switch = message.strip_suffix("_configs").unwrap();
            strategy.set_strictly(switch, true).unwrap();
        } else {
            strategy.set_strictly(&path, another(field)).unwrap();
        }
        let told =
            fleet_strategy::check(&strategy).iter().any(|it| it.message.contains("not supported"));
        assert!(told, "{path}: the check says nothing");
        let error = outcome(&path, &strategy).expect_err(&path);
        let is_wrong = fleet_strategy::check(&strategy).iter().any(|it| it.is_error());
        assert!(is_wrong || error.contains("not supported"), "{path}: {error}");
    }
}

/// Returns the strategy with the switches that a message needs.
pub fn switched_on(strategy: DistributedStrategy, path: &str) -> DistributedStrategy {
    if path == "hybrid_configs.sharding_degree" {
        return strategy.with_sharding(true);
    }
    match path.split_once('.').map_or("", |(message, _)| message) {
        "" | "build_strategy" | "execution_strategy" | "gradient_scale_configs" => strategy,
        "hybrid_configs" | "a_sync_configs" | "fs_client_param" => strategy,
        "amp_configs" => strategy.with_amp(true),
        "gradient_merge_configs" => strategy.use_gradient_merge(2),
        "localsgd_configs" => strategy.with_localsgd(true),
        "adaptive_localsgd_configs" => strategy.with_adaptive_localsgd(true),
        "dgc_configs" => strategy.with_dgc(true),
        "lars_configs" => strategy.with_lars(true),
        "lamb_configs" => strategy.with_lamb(true),
        "sharding_configs" => strategy.with_sharding(true),
        "pipeline_configs" => strategy.with_pipeline(true),
        "tensor_parallel_configs" => strategy.with_tensor_parallel(true),
        "recompute_configs" => strategy.use_recompute(["fc_0.tmp_2", "fc_1.tmp_2"]),
        other => panic!("{other} has neither a mark nor a test"),
    }
}

const ANCHORED: &str = concat!(
    "sharding=true sharding_configs={\"sharding_segment_strategy\":\"segment_anchors\",",
    "\"segment_anchors\":[\"fc_0.tmp_2\"]}"
);
const ANCHORED_LATER: &str = concat!(
    "sharding=true sharding_configs={\"sharding_segment_strategy\":\"segment_anchors\",",
    "\"segment_anchors\":[\"fc_1.tmp_2\"]}"
);

const PARTS: &str = r#"tensor_parallel=true tensor_parallel_configs={"tensor_parallel_degree":2}"#;

/// Fields that need more than a switch: pairs of strategies that differ in them.
#[rustfmt::skip]
const PAIRS: &[(&str, &str, &str)] = &[
    ("recompute", "", r#"recompute=true recompute_configs={"checkpoints":["fc_1.tmp_2"]}"#),
    ("recompute_configs.checkpoints",
        r#"recompute=true recompute_configs={"checkpoints":["fc_0.tmp_2"]}"#,
        r#"recompute=true recompute_configs={"checkpoints":["fc_1.tmp_2"]}"#),
    ("gradient_merge", "", r#"gradient_merge=true gradient_merge_configs={"k_steps":2}"#),
    ("use_hierarchical_allreduce", "hierarchical_allreduce_inter_nranks=4",
        "hierarchical_allreduce_inter_nranks=4 use_hierarchical_allreduce=true"),
    ("sync_nccl_allreduce", "sync_nccl_allreduce=false", "sync_nccl_allreduce=true"),
    ("hierarchical_allreduce_inter_nranks",
        "use_hierarchical_allreduce=true hierarchical_allreduce_inter_nranks=4",
        "use_hierarchical_allreduce=true hierarchical_allreduce_inter_nranks=2"),
    ("fuse_grad_size_in_MB", "fuse_grad_size_in_MB=32", "fuse_grad_size_in_MB=1"),
    ("fuse_grad_size_in_TFLOPS", "fuse_grad_size_in_TFLOPS=50.0", "fuse_grad_size_in_TFLOPS=2.0"),
    ("fuse_grad_size_in_num", "fuse_grad_size_in_num=2", "fuse_grad_size_in_num=4"),
    ("last_comm_group_size_MB", "last_comm_group_size_MB=1", "last_comm_group_size_MB=0.0001"),
    ("amp_configs.decr_ratio", "amp=true", r#"amp=true amp_configs={"decr_ratio":0.5}"#),
    ("amp_configs.use_fp16_guard", r#"amp=true amp_configs={"use_pure_fp16":true}"#,
        r#"amp=true amp_configs={"use_pure_fp16":true,"use_fp16_guard":false}"#),
    ("amp_configs.custom_white_list", "amp=true",
        r#"amp=true amp_configs={"custom_white_list":["mean"]}"#),
    ("amp_configs.custom_black_list", "amp=true",
        r#"amp=true amp_configs={"custom_black_list":["mul"]}"#),
    ("amp_configs.custom_black_varnames", "amp=true",
        r#"amp=true amp_configs={"custom_black_varnames":["fc_1.w_0"]}"#),
    ("dgc_configs.sparsity", "dgc=true", r#"dgc=true dgc_configs={"sparsity":[0.5]}"#),
    ("lars_configs.exclude_from_weight_decay", "lars=true",
        r#"lars=true lars_configs={"exclude_from_weight_decay":["fc_0"]}"#),
    ("lamb_configs.exclude_from_weight_decay", "lamb=true",
        r#"lamb=true lamb_configs={"exclude_from_weight_decay":["fc_0.w_0"]}"#),
    ("fp16_allreduce_dtype", "fp16_allreduce=true",
        "fp16_allreduce=true fp16_allreduce_dtype=bfloat16"),
    ("tensor_parallel", "", PARTS),
    ("tensor_parallel_configs.tensor_parallel_degree", "", PARTS),
    ("hybrid_configs.mp_degree", "", r#"hybrid_configs={"mp_degree":2}"#),
    ("hybrid_configs.mp_split_sequence", r#"hybrid_configs={"mp_degree":2}"#,
        r#"hybrid_configs={"mp_degree":2,"mp_split_sequence":true}"#),
    ("sharding_configs.hybrid_dp", "sharding=true",
        r#"sharding=true sharding_configs={"sharding_degree":4,"hybrid_dp":true}"#),
    ("sharding_configs.stage", "sharding=true", r#"sharding=true sharding_configs={"stage":1}"#),
    ("sharding_configs.sharding_segment_strategy", "sharding=true",
        ANCHORED),
    ("sharding_configs.segment_anchors",
        ANCHORED,
        ANCHORED_LATER),
    ("sharding_configs.segment_broadcast_MB", "sharding=true",
        r#"sharding=true sharding_configs={"segment_broadcast_MB":0.0001}"#),
    ("pipeline_configs.schedule_mode",
        r#"pipeline=true pipeline_configs={"accumulate_steps":16}"#,
        r#"pipeline=true pipeline_configs={"accumulate_steps":16,"schedule_mode":"F-then-B"}"#),
    ("gradient_scale_configs.scale_strategy", "",
        r#"gradient_scale_configs={"scale_strategy":"sum"}"#),
];

#[test]
fn what_is_not_marked_changes_something() {
    for Case { path, field, .. } in all(Mark::None) {
        if is_elsewhere(&path) || PAIRS.iter().any(|(name, ..)| *name == path) {
            continue;
        }
        let mut base = switched_on(DistributedStrategy::new(), &path);
        let value = another(field);
        let mut strategy = base.clone();
        strategy.set_strictly(&path, value.clone()).unwrap_or_else(|error| panic!("{error}"));
        if let (true, Value::Bool(value)) = (path.starts_with("build_strategy."), &value) {
            // The executor decides the behaviour of unassigned fields, so the base assigns the
            // opposite value.
            base.set_strictly(&path, !value).unwrap();
        }
        let before = outcome(&path, &base).unwrap();
        match outcome(&path, &strategy) {
            Ok(after) => assert!(after != before, "{path} = {value:?} changes nothing"),
            // A refusal with a reason is an effect, too.
            Err(error) => {
                let is_refused = ["invalid strategy", "is not supported"]
                    .iter()
                    .any(|part| error.contains(part));
                assert!(is_refused, "{path} = {value:?}: {error}")
            }
        }
    }
}

/// Fields that need more than a switch.
#[test]
fn what_needs_more_changes_something_with_it() {
    let unmarked = all(Mark::None);
    for (path, one, other) in PAIRS {
        assert!(unmarked.iter().any(|case| case.path == *path), "{path} is no field without mark");
        let follows = |text: &str| {
            let mut strategy = DistributedStrategy::new();
            for part in text.split_whitespace() {
                let (path, value) = part.split_once('=').unwrap();
                strategy.set_strictly(path, Value::read(value)).unwrap();
            }
            outcome(path, &strategy)
        };
        let (before, after) = (follows(one).unwrap(), follows(other));
        match after {
            Ok(after) => assert!(after != before, "{path}: {one} and {other} come to the same"),
            Err(error) => assert!(error.contains("invalid strategy"), "{path}: {error}"),
        }
    }
}
