//! Allowed values of single fields.

use super::{AssignedValue, walk};
use crate::form::number::float32;
use crate::problem::Problem;
use crate::reflect::Item;
use crate::schema::DistributedStrategy;
use crate::value::Value;
use std::ops::Bound::{self, Excluded, Included, Unbounded};

enum Allowed {
    Range(Bound<f64>, Bound<f64>),
    OneOf(&'static [&'static str]),
}

use Allowed::{OneOf, Range};

const AT_LEAST_0: Allowed = Range(Included(0.0), Unbounded);
const AT_LEAST_1: Allowed = Range(Included(1.0), Unbounded);
const ABOVE_0: Allowed = Range(Excluded(0.0), Unbounded);
/// A nonzero share.
const SHARE: Allowed = Range(Excluded(0.0), Included(1.0));
const UNDER_1: Allowed = Range(Included(0.0), Excluded(1.0));

/// Message, field, allowed values, reason, and help.
type Rule = (&'static str, &'static str, Allowed, &'static str, &'static str);

const COUNT: &str = "it is a count of at least one";
const NOT_NEGATIVE: &str = "it cannot be negative";

/// Fields without a rule may have any finite value.
#[rustfmt::skip]
const RULES: &[Rule] = &[
    ("DistributedStrategy", "nccl_comm_num", AT_LEAST_1, "gradients need a communicator", "1 on one machine, 2 on several"),
    ("DistributedStrategy", "hierarchical_allreduce_inter_nranks", AT_LEAST_1, COUNT, "the number of workers on one machine"),
    ("DistributedStrategy", "fuse_grad_size_in_MB", AT_LEAST_1, "a bucket cannot be empty", "32, or fuse_all_reduce_ops false for no buckets"),
    ("DistributedStrategy", "fuse_grad_size_in_TFLOPS", AT_LEAST_1, "it limits the layers whose gradients share a bucket", "50"),
    ("DistributedStrategy", "fuse_grad_size_in_num", AT_LEAST_1, "a bucket cannot be empty", "8"),
    ("DistributedStrategy", "last_comm_group_size_MB", ABOVE_0, "the last bucket cannot be empty", "1"),
    ("DistributedStrategy", "fp16_allreduce_dtype", OneOf(&["float16", "bfloat16"]), "these are the 16-bit floats", "bfloat16 where gradients may be large or tiny, float16 for more digits"),
    ("DistributedStrategy", "conv_workspace_size_limit", AT_LEAST_0, NOT_NEGATIVE, "512"),
    ("RecomputeConfig", "checkpoint_shape", AT_LEAST_1, "it is the shape of a tensor", "the shape with the batch size in place of -1"),
    ("AMPConfig", "init_loss_scaling", ABOVE_0, "gradients are divided by it", "32768"),
    ("AMPConfig", "incr_every_n_steps", AT_LEAST_1, COUNT, "1000"),
    ("AMPConfig", "decr_every_n_nan_or_inf", AT_LEAST_1, COUNT, "2"),
    ("AMPConfig", "incr_ratio", Range(Excluded(1.0), Unbounded), "the loss scaling factor must grow by it", "2"),
    ("AMPConfig", "decr_ratio", Range(Excluded(0.0), Excluded(1.0)), "the loss scaling factor must shrink by it", "0.5"),
    ("LocalSGDConfig", "k_steps", AT_LEAST_1, COUNT, "2 or 4"),
    ("LocalSGDConfig", "begin_step", AT_LEAST_0, NOT_NEGATIVE, "the number of steps for warming up"),
    ("AdaptiveLocalSGDConfig", "init_k_steps", AT_LEAST_1, COUNT, "1"),
    ("AdaptiveLocalSGDConfig", "begin_step", AT_LEAST_0, NOT_NEGATIVE, "the number of steps for warming up"),
    ("GradientMergeConfig", "k_steps", AT_LEAST_1, COUNT, "the batch you want divided by the batch that fits"),
    ("DGCConfig", "rampup_begin_step", AT_LEAST_0, NOT_NEGATIVE, "0, or the number of steps for warming up"),
    ("DGCConfig", "rampup_step", AT_LEAST_1, COUNT, "1"),
    ("DGCConfig", "sparsity", UNDER_1, "it is the fraction of the gradient that is not sent", "0.999"),
    ("LarsConfig", "lars_coeff", ABOVE_0, "it multiplies the learning rate", "0.001"),
    ("LarsConfig", "lars_weight_decay", AT_LEAST_0, "weights would grow", "0.0005"),
    ("LarsConfig", "epsilon", AT_LEAST_0, "it keeps a divisor away from zero", "0 or 1e-8"),
    ("LambConfig", "lamb_weight_decay", AT_LEAST_0, "weights would grow", "0.01"),
    ("PipelineConfig", "micro_batch_size", AT_LEAST_1, COUNT, "the batch size divided by accumulate_steps"),
    ("PipelineConfig", "accumulate_steps", AT_LEAST_1, COUNT, "at least the number of stages, which keeps all of them busy"),
    ("PipelineConfig", "schedule_mode", OneOf(&["1F1B", "F-then-B"]), "these are the schedules", "1F1B, which needs less memory"),
    ("ShardingConfig", "sharding_segment_strategy", OneOf(&["segment_broadcast_MB", "segment_anchors"]), "segments are cut by bytes or at named variables", "segment_broadcast_MB"),
    ("ShardingConfig", "segment_broadcast_MB", ABOVE_0, "a segment cannot be empty", "32"),
    ("ShardingConfig", "sharding_degree", AT_LEAST_1, COUNT, "the number of workers that hold one copy together"),
    ("ShardingConfig", "mp_degree", AT_LEAST_1, COUNT, "1"),
    ("ShardingConfig", "dp_degree", AT_LEAST_1, COUNT, "1"),
    ("ShardingConfig", "pp_degree", AT_LEAST_1, COUNT, "1"),
    ("ShardingConfig", "gradient_merge_acc_step", AT_LEAST_1, COUNT, "1"),
    ("ShardingConfig", "stage", Range(Included(1.0), Included(3.0)), "1 divides the optimizer state, 2 gradients too, 3 parameters too", "1"),
    ("HybridConfig", "dp_degree", Range(Included(-1.0), Unbounded), "-1 means the number that the other degrees leave", "-1"),
    ("HybridConfig", "mp_degree", AT_LEAST_1, COUNT, "1"),
    ("HybridConfig", "pp_degree", AT_LEAST_1, COUNT, "1"),
    ("HybridConfig", "sharding_degree", AT_LEAST_1, COUNT, "1"),
    ("HybridConfig", "sep_degree", AT_LEAST_1, COUNT, "1"),
    ("HybridConfig", "order", OneOf(&["dp", "pp", "sharding", "sep", "mp"]), "these are the axes of the grid", "dp, pp, sharding, sep, mp"),
    ("MpConfig", "sync_mode", OneOf(&["broadcast", "average"]), "these are the ways to synchronise parameters", "broadcast"),
    ("DygraphShardingConfig", "accumulate_steps", AT_LEAST_1, COUNT, "1"),
    ("TensorParallelConfig", "tensor_parallel_degree", AT_LEAST_1, COUNT, "1"),
    ("GradientScaleConfig", "scale_strategy", OneOf(&["avg", "sum", "customized"]), "these are the ways to combine gradients", "avg"),
    ("QatConfig", "weight_bits", Range(Included(1.0), Included(16.0)), "wider numbers are not quantised", "8"),
    ("QatConfig", "activation_bits", Range(Included(1.0), Included(16.0)), "wider numbers are not quantised", "8"),
    ("BuildStrategy", "reduce_strategy", Range(Included(0.0), Included(1.0)), "0 is all-reduce, 1 is reduce and broadcast", "0"),
    ("ExecutionStrategy", "num_threads", AT_LEAST_0, "0 means the number of cores", "0"),
    ("ExecutionStrategy", "num_iteration_per_drop_scope", AT_LEAST_1, COUNT, "10"),
    ("ExecutionStrategy", "num_iteration_per_run", AT_LEAST_1, COUNT, "1"),
    ("AsyncConfig", "k_steps", Range(Included(-1.0), Unbounded), "0 exchanges in every step, more selects GEO, -1 means no parameter server", "0"),
    ("AsyncConfig", "max_merge_var_num", AT_LEAST_1, COUNT, "the number of threads that compute"),
    ("AsyncConfig", "send_queue_size", AT_LEAST_1, "the queue needs room for gradients", "16"),
    ("AsyncConfig", "min_send_grad_num_before_recv", AT_LEAST_1, COUNT, "1"),
    ("AsyncConfig", "thread_pool_size", AT_LEAST_1, "at least one thread must send", "1"),
    ("AsyncConfig", "send_wait_times", AT_LEAST_0, NOT_NEGATIVE, "1"),
    ("AsyncConfig", "lr_decay_steps", AT_LEAST_1, COUNT, "10"),
    ("AsyncConfig", "use_ps_gpu", Range(Included(0.0), Included(1.0)), "it is 0 or 1", "0"),
    ("AsyncConfig", "heter_worker_device_guard", OneOf(&["cpu", "gpu", "xpu", "npu"]), "it is the device label of ops on heterogeneous workers", "cpu"),
    ("AsyncConfig", "non_finite", OneOf(&["refuse", "count", "clip"]), "these are the ways to handle NaN and infinity", "refuse"),
    ("AsyncConfig", "non_finite_limit", ABOVE_0, "every gradient is clamped to it", "10"),
    ("TableParameter", "shard_num", AT_LEAST_1, COUNT, "1000"),
    ("TableParameter", "sparse_table_cache_rate", SHARE, "it is the fraction of rows that are cached", "0.00055"),
    ("TableParameter", "sparse_table_cache_file_num", AT_LEAST_1, COUNT, "16"),
    ("TableParameter", "shard_merge_rate", SHARE, "it is a fraction of the shards", "1"),
    ("TableAccessorParameter", "fea_dim", AT_LEAST_1, COUNT, "embedx_dim + 3"),
    ("TableAccessorParameter", "embedx_dim", AT_LEAST_1, COUNT, "8"),
    ("CtrAccessorParameter", "nonclk_coeff", AT_LEAST_0, "a show without click would count against the row", "0.1"),
    ("CtrAccessorParameter", "click_coeff", AT_LEAST_0, "a click would count against the row", "1"),
    ("CtrAccessorParameter", "base_threshold", AT_LEAST_0, "scores are not negative", "1.5"),
    ("CtrAccessorParameter", "delta_threshold", AT_LEAST_0, "scores are not negative", "0.25"),
    ("CtrAccessorParameter", "delta_keep_days", AT_LEAST_0, NOT_NEGATIVE, "16"),
    ("CtrAccessorParameter", "show_click_decay_rate", SHARE, "shows and clicks must not grow without new events", "0.98"),
    ("CtrAccessorParameter", "delete_threshold", AT_LEAST_0, "scores are not negative", "0.8"),
    ("CtrAccessorParameter", "delete_after_unseen_days", AT_LEAST_0, NOT_NEGATIVE, "30"),
    ("CtrAccessorParameter", "ssd_unseenday_threshold", AT_LEAST_0, NOT_NEGATIVE, "1"),
    ("SparseNaiveSGDRuleParameter", "learning_rate", ABOVE_0, "the table would not train", "0.05"),
    ("SparseNaiveSGDRuleParameter", "initial_range", AT_LEAST_0, "rows are drawn from minus this to this", "0.0001"),
    ("SparseAdagradSGDRuleParameter", "learning_rate", ABOVE_0, "the table would not train", "0.05"),
    ("SparseAdagradSGDRuleParameter", "initial_range", AT_LEAST_0, "rows are drawn from minus this to this", "0.0001"),
    ("SparseAdagradSGDRuleParameter", "initial_g2sum", AT_LEAST_0, "its square root divides the gradient", "3"),
    ("SparseAdamSGDParameter", "learning_rate", ABOVE_0, "the table would not train", "0.001"),
    ("SparseAdamSGDParameter", "initial_range", AT_LEAST_0, "rows are drawn from minus this to this", "0.0001"),
    ("SparseAdamSGDParameter", "beta1_decay_rate", UNDER_1, "an average must decay", "0.9"),
    ("SparseAdamSGDParameter", "beta2_decay_rate", UNDER_1, "an average must decay", "0.999"),
    ("SparseAdamSGDParameter", "ada_epsilon", ABOVE_0, "it keeps a divisor away from zero", "1e-8"),
    ("GraphSGDParameter", "feature_learning_rate", ABOVE_0, "features would not train", "0.05"),
];

pub fn check(strategy: &DistributedStrategy, problems: &mut Vec<Problem>) {
    walk(strategy, "", &mut |seen| problems.extend(problem(seen)));
}

fn problem(seen: &AssignedValue<'_>) -> Option<Problem> {
    let rule = RULES.iter().find(|rule| (rule.0, rule.1) == (seen.shape.name, seen.field.name));
    let text = match seen.item {
        Item::Float(value) => float32(value),
        item => Value::of(seen.field.kind, item).to_string(),
    };
    let Some((.., allowed, why, help)) = rule else {
        let not_finite = number(seen.item).is_some_and(|value| !value.is_finite());
        let message = format!("expected a finite number, got {text}");
        return not_finite.then(|| Problem::error(&*seen.path, message));
    };
    if fits(allowed, seen.item) {
        return None;
    }
    let message = format!("expected {}, got {text}", describe(allowed));
    Some(Problem::error(&*seen.path, message).why(*why).help(format!("use {help}")))
}

fn number(item: Item<'_>) -> Option<f64> {
    match item {
        Item::Int32(value) => Some(value.into()),
        Item::Uint32(value) => Some(value.into()),
        Item::Uint64(value) => Some(value as f64),
        Item::Float(value) => Some(value.into()),
        Item::Double(value) => Some(value),
        Item::Bool(_) | Item::Text(_) | Item::Message(_) => None,
    }
}

fn fits(allowed: &Allowed, item: Item<'_>) -> bool {
    match (allowed, item) {
        (OneOf(known), Item::Text(text)) => known.contains(&text),
        (Range(low, high), item) => number(item).is_some_and(|value| {
            use std::ops::RangeBounds;
            value.is_finite() && (*low, *high).contains(&value)
        }),
        _ => false,
    }
}

fn describe(allowed: &Allowed) -> String {
    let (low, high) = match allowed {
        OneOf(known) => return format!("one of {}", known.join(", ")),
        Range(low, high) => (low, high),
    };
    match (low, high) {
        (Included(low), Included(high)) => format!("{low} to {high}"),
        (Excluded(low), Included(high)) => format!("more than {low} and at most {high}"),
        (Included(low), Excluded(high)) => format!("at least {low} and less than {high}"),
        (Excluded(low), Excluded(high)) => format!("more than {low} and less than {high}"),
        (Included(low), Unbounded) => format!("at least {low}"),
        (Excluded(low), Unbounded) => format!("more than {low}"),
        (Unbounded, Included(high)) => format!("at most {high}"),
        (Unbounded, Excluded(high)) => format!("less than {high}"),
        (Unbounded, Unbounded) => "a finite number".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reflect::{Kind, Reflect, Scalar, Shape};

    fn find(shape: &'static Shape, name: &str) -> Option<&'static Shape> {
        if shape.name == name {
            return Some(shape);
        }
        shape.fields.iter().find_map(|field| match field.kind {
            Kind::Message(nested) => find(nested(), name),
            _ => None,
        })
    }

    #[test]
    fn rules_are_about_fields_and_hold_for_their_defaults() {
        for (message, field, allowed, why, help) in RULES {
            let shape = find(DistributedStrategy::describe(), message).expect(message);
            let field = shape.field(field).expect(field);
            assert!(!why.is_empty() && !help.is_empty());
            if let Some(item) = field.default_item().filter(|_| !field.repeated) {
                assert!(fits(allowed, item), "{message}.{}", field.name);
            }
        }
    }

    /// Returns the first path from the strategy to a message, as field numbers.
    fn way(shape: &'static Shape, name: &str) -> Option<Vec<u32>> {
        if shape.name == name {
            return Some(Vec::new());
        }
        shape.fields.iter().find_map(|field| match field.kind {
            Kind::Message(nested) => {
                let rest = way(nested(), name)?;
                Some(std::iter::once(field.number).chain(rest).collect())
            }
            _ => None,
        })
    }

    /// Returns a value that a rule does not allow.
    fn wrong(kind: Kind, allowed: &Allowed) -> Scalar {
        let value = match allowed {
            OneOf(_) => return Scalar::Text("no such".into()),
            Range(Included(low), _) => low - 1.0,
            Range(Excluded(low), _) => *low,
            Range(Unbounded, Included(high) | Excluded(high)) => high + 1.0,
            Range(Unbounded, Unbounded) => f64::NAN,
        };
        match kind {
            Kind::Int32 => Scalar::Int32(value as i32),
            Kind::Uint32 => Scalar::Uint32(value as u32),
            Kind::Uint64 => Scalar::Uint64(value as u64),
            Kind::Float => Scalar::Float(value as f32),
            _ => Scalar::Double(value),
        }
    }

    /// Every rule reports the field's path, the allowed values, the reason, and help.
    #[test]
    fn every_rule_is_told() {
        for (message, name, allowed, why, help) in RULES {
            let root = DistributedStrategy::describe();
            let field = find(root, message).and_then(|shape| shape.field(name)).expect(name);
            let mut strategy = DistributedStrategy::new();
            let mut at: &mut dyn Reflect = &mut strategy;
            for number in way(root, message).expect(message) {
                at = at.slot_mut(number).open().expect("a message");
            }
            assert!(at.slot_mut(field.number).put(wrong(field.kind, allowed)), "{message}.{name}");
            let problems = strategy.check_fields();
            let reported = problems.iter().find(|it| {
                it.is_error() && it.path.trim_end_matches("[0]").ends_with(name) && it.why == *why
            });
            let reported = reported.unwrap_or_else(|| panic!("{message}.{name}: {problems:?}"));
            let expected = format!("expected {}, got ", describe(allowed));
            assert!(
                reported.message.starts_with(&expected) && reported.help == format!("use {help}"),
                "{reported}"
            );
        }
    }
}
