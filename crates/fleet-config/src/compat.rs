//! Names that are used in documents but not in the schema: aliases, and attributes of the 1.x
//! interface.

use crate::problem::Problem;
use crate::schema::{BuildStrategy, ExecutionStrategy};
use std::borrow::Cow;

/// The field that another name stands for.
pub struct Alias {
    /// Path relative to the message in which the name was used.
    pub path: Cow<'static, str>,
    /// Whether the name belongs to the 1.x interface, so that its use is reported.
    old: bool,
}

impl Alias {
    /// Returns a warning that names the field, for names of the 1.x interface.
    pub fn notice(&self, path: &str) -> Option<Problem> {
        let notice = || {
            Problem::warning(path, format!("interpreted as {}", self.path))
                .why("this is the name of the 1.x interface")
                .help(format!("use {}", self.path))
        };
        self.old.then(notice)
    }
}

/// Aliases in documents: message, alias, name in the schema.
const ALIASES: [(&str, &str, &str); 5] = [
    ("DistributedStrategy", "_fuse_grad_size_in_TFLOPS", "fuse_grad_size_in_TFLOPS"),
    // The number of micro-batches in a batch, not their size.
    ("PipelineConfig", "micro_batch", "accumulate_steps"),
    ("ShardingConfig", "fuse_broadcast_MB", "segment_broadcast_MB"),
    ("ShardingConfig", "sharding_group_size", "sharding_degree"),
    ("BuildStrategy", "fuse_ewise_add_act_ops", "fuse_elewise_add_act_ops"),
];

/// Attributes of the 1.x strategy. In addition, it had the fields of the build and execution
/// strategies as its own attributes.
const V1_ATTRIBUTES: [(&str, &str); 6] = [
    ("thread_num", "execution_strategy.num_threads"),
    ("exec_strategy", "execution_strategy"),
    ("BuildStrategy", "build_strategy"),
    ("use_local_sgd", "localsgd"),
    ("local_sgd_is_warm_steps", "localsgd_configs.begin_step"),
    ("local_sgd_steps", "localsgd_configs.k_steps"),
];

/// Returns the field that `name`, which is not a field of this message type, stands for.
pub fn renamed(message: &str, name: &str) -> Option<Alias> {
    let alias = |(place, alias, field): &(&str, &str, &'static str)| {
        (*place == message && *alias == name).then_some(Cow::Borrowed(*field))
    };
    if let Some(path) = ALIASES.iter().find_map(alias) {
        return Some(Alias { path, old: false });
    }
    if message != "DistributedStrategy" {
        return None;
    }
    let old =
        V1_ATTRIBUTES.iter().find(|(old, _)| *old == name).map(|(_, path)| Cow::Borrowed(*path));
    let inside = || match name {
        _ if BuildStrategy::describe().field(name).is_some() => {
            Some(Cow::Owned(format!("build_strategy.{name}")))
        }
        _ if ExecutionStrategy::describe().field(name).is_some() => {
            Some(Cow::Owned(format!("execution_strategy.{name}")))
        }
        _ => None,
    };
    old.or_else(inside).map(|path| Alias { path, old: true })
}

/// Returns all alternative names and the fields they stand for, for documentation.
pub fn all() -> impl Iterator<Item = (&'static str, &'static str, &'static str)> {
    let old = V1_ATTRIBUTES.iter().map(|(name, path)| ("DistributedStrategy", *name, *path));
    ALIASES.iter().copied().chain(old)
}
