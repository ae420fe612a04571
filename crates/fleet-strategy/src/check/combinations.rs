//! Settings that conflict with each other, and settings without effect. The compiler checks
//! conflicts that depend on the program or the cluster.

use super::walk;
use crate::problem::Problem;
use crate::reflect::{Field, Item, Kind, Reflect};
use crate::schema::DistributedStrategy;

pub fn check(strategy: &DistributedStrategy, problems: &mut Vec<Problem>) {
    exclusive(strategy, problems);
    contradictions(strategy, problems);
    incomplete(strategy, problems);
    idle(strategy, problems);
    auto(strategy, problems);
    switched_off(strategy, problems);
    ignored(strategy, problems);
    refused(strategy, problems);
}

/// Reports pairs of switches that exclude each other.
fn exclusive(strategy: &DistributedStrategy, problems: &mut Vec<Problem>) {
    let amp = strategy.amp_configs();
    let pairs = [
        (
            ("lars", strategy.lars()),
            ("lamb", strategy.lamb()),
            "LARS replaces a Momentum optimizer and LAMB an Adam optimizer; there is one optimizer",
        ),
        (
            ("localsgd", strategy.localsgd()),
            ("adaptive_localsgd", strategy.adaptive_localsgd()),
            "both set when workers average",
        ),
        (
            ("amp_configs.use_pure_fp16", amp.use_pure_fp16()),
            ("amp_configs.use_pure_bf16", amp.use_pure_bf16()),
            "parameters have a single type",
        ),
    ];
    for ((one, one_on), (other, other_on), why) in pairs {
        if one_on && other_on {
            let problem = Problem::error(other, format!("conflicts with {one}"));
            problems.push(problem.why(why).help(format!("choose {one} or {other}")));
        }
    }
}

/// Reports values that contradict each other.
fn contradictions(strategy: &DistributedStrategy, problems: &mut Vec<Problem>) {
    let k_steps = strategy.a_sync_configs().k_steps();
    if !strategy.a_sync() && k_steps > 0 {
        let message = format!("expected 0 without a_sync, got {k_steps}");
        let problem = Problem::error("a_sync_configs.k_steps", message)
            .why("a synchronous parameter server exchanges in every step; more steps are GEO")
            .help("set a_sync to true for GEO, or k_steps to 0");
        problems.push(problem);
    }
    let merged = strategy.gradient_merge_configs().k_steps();
    let sharded = strategy.sharding_configs().gradient_merge_acc_step();
    let both_on = strategy.gradient_merge() && strategy.sharding();
    if both_on && merged > 1 && sharded > 1 && merged != sharded {
        let path = "sharding_configs.gradient_merge_acc_step";
        let message =
            format!("expected {merged} as in gradient_merge_configs.k_steps, got {sharded}");
        let problem = Problem::error(path, message)
            .why("both set how many steps make one update")
            .help("remove gradient_merge_acc_step");
        problems.push(problem);
    }
    if strategy.fuse_all_reduce_ops()
        && strategy.last_comm_group_size_MB() > strategy.fuse_grad_size_in_MB() as f32
    {
        let message = format!(
            "expected at most fuse_grad_size_in_MB, which is {}, got {}",
            strategy.fuse_grad_size_in_MB(),
            strategy.last_comm_group_size_MB()
        );
        let problem = Problem::warning("last_comm_group_size_MB", message)
            .why("communication of the last bucket is exposed, so it should be the smallest")
            .help("use 1");
        problems.push(problem);
    }
}

/// Reports switches whose required settings are missing.
fn incomplete(strategy: &DistributedStrategy, problems: &mut Vec<Problem>) {
    let recompute = strategy.recompute_configs();
    if strategy.recompute() && recompute.checkpoints.is_empty() {
        let problem = Problem::warning("recompute_configs.checkpoints", "no checkpoints")
            .why("they are chosen automatically by the square-root rule")
            .help("list the variables between the layers to choose them yourself");
        problems.push(problem);
    }
    let sharding = strategy.sharding_configs();
    let by_anchors = sharding.sharding_segment_strategy() == "segment_anchors";
    if strategy.sharding() && by_anchors && sharding.segment_anchors.is_empty() {
        let problem = Problem::error("sharding_configs.segment_anchors", "no anchors")
            .why("segments end at the anchors")
            .help("list variables, or set sharding_segment_strategy to segment_broadcast_MB");
        problems.push(problem);
    }
}

/// Reports values with which a switch has no effect.
fn idle(strategy: &DistributedStrategy, problems: &mut Vec<Problem>) {
    let mut warn = |path: &str, message: &str, why: &str, help: &str| {
        problems.push(Problem::warning(path, message).why(why).help(help));
    };
    if strategy.gradient_merge() && strategy.gradient_merge_configs().k_steps() == 1 {
        let path = "gradient_merge_configs.k_steps";
        warn(path, "gradient_merge has no effect", "one step makes one update", "use 2 or more");
    }
    if strategy.fp16_allreduce_dtype.is_some() && !strategy.fp16_allreduce() {
        warn(
            "fp16_allreduce_dtype",
            "has no effect without fp16_allreduce",
            "it selects the 16-bit type in which gradients are sent",
            "set fp16_allreduce to true, or remove this field",
        );
    }
    if !strategy.fuse_all_reduce_ops() {
        let sizes = [
            ("fuse_grad_size_in_MB", strategy.fuse_grad_size_in_MB.is_some()),
            ("fuse_grad_size_in_TFLOPS", strategy.fuse_grad_size_in_TFLOPS.is_some()),
            ("last_comm_group_size_MB", strategy.last_comm_group_size_MB.is_some()),
        ];
        for (path, _) in sizes.into_iter().filter(|(_, assigned)| *assigned) {
            let message = "has no effect without fuse_all_reduce_ops";
            let help = "set fuse_all_reduce_ops to true, or remove this field";
            warn(path, message, "it limits the size of buckets", help);
        }
    }
    let amp = strategy.amp_configs();
    if !amp.use_dynamic_loss_scaling() {
        let knobs = [
            ("incr_every_n_steps", amp.incr_every_n_steps.is_some()),
            ("decr_every_n_nan_or_inf", amp.decr_every_n_nan_or_inf.is_some()),
            ("incr_ratio", amp.incr_ratio.is_some()),
            ("decr_ratio", amp.decr_ratio.is_some()),
        ];
        for (name, _) in knobs.into_iter().filter(|(_, assigned)| *assigned) {
            warn(
                &format!("amp_configs.{name}"),
                "has no effect without use_dynamic_loss_scaling",
                "the loss scaling factor is constant",
                "set use_dynamic_loss_scaling to true, or remove this field",
            );
        }
    }
}

/// Reports `auto` beside other assigned fields, where it has no effect.
fn auto(strategy: &DistributedStrategy, problems: &mut Vec<Problem>) {
    let assigned = |field: &&Field| strategy.slot(field.number).count() > 0;
    let fields = strategy.shape().fields.iter().filter(assigned);
    let others: Vec<&str> = fields.map(|field| field.name).filter(|name| *name != "auto").collect();
    if strategy.auto() && !others.is_empty() {
        let problem =
            Problem::warning("auto", format!("has no effect beside {}", others.join(", ")))
                .why("auto chooses only where nothing else is assigned")
                .help("assign auto alone, or remove it");
        problems.push(problem);
    }
}

/// Reports settings whose switch is off.
fn switched_off(strategy: &DistributedStrategy, problems: &mut Vec<Problem>) {
    let fields = strategy.shape().fields;
    for configs in fields.iter().filter(|field| matches!(field.kind, Kind::Message(_))) {
        let Some(name) = configs.name.strip_suffix("_configs") else { continue };
        let Some(switch) = fields.iter().find(|field| field.name == name) else { continue };
        let assigned = |field: &Field| strategy.slot(field.number).count() > 0;
        // `a_sync_configs` determines the mode of a parameter server whether `a_sync` is assigned
        // or not.
        if name == "a_sync" || configs.ignored.is_some() || !assigned(configs) {
            continue;
        }
        let on =
            assigned(switch) && matches!(strategy.slot(switch.number).item(0), Item::Bool(true));
        if !on {
            let problem = Problem::warning(configs.name, format!("has no effect: {name} is off"))
                .why("settings apply only when their switch is on")
                .help(format!("set {name} to true, or remove {}", configs.name));
            problems.push(problem);
        }
    }
}

/// Reports fields that are accepted for compatibility with files, but are not supported yet.
fn refused(strategy: &DistributedStrategy, problems: &mut Vec<Problem>) {
    walk(strategy, "", &mut |seen| {
        let Some(why) = seen.field.refused else { return };
        let asked = match (seen.item, seen.field.default_item()) {
            (Item::Bool(value), Some(Item::Bool(default))) => value != default,
            (Item::Int32(value), Some(Item::Int32(default))) => value > default,
            // For fields of other types, the warning about their switch suffices.
            _ => false,
        };
        if asked {
            let message = "is not supported";
            problems.push(Problem::warning(&*seen.path, message).why(why).help("remove it"));
        }
    });
}

/// Reports fields that are accepted for compatibility with files, and have no effect.
fn ignored(strategy: &DistributedStrategy, problems: &mut Vec<Problem>) {
    walk(strategy, "", &mut |seen| {
        let Some(why) = seen.field.ignored else { return };
        // A list is reported only once.
        if seen.path.ends_with(']') && !seen.path.ends_with("[0]") {
            return;
        }
        let changes_nothing = match (seen.item, seen.field.default_item()) {
            // Assigned in every object of its kind, and done in any case.
            (Item::Bool(true), _) if seen.field.name == "fuse_broadcast_ops" => true,
            (Item::Bool(value), Some(Item::Bool(default))) => value == default,
            (Item::Int32(value), Some(Item::Int32(default))) => value == default,
            (Item::Uint32(value), Some(Item::Uint32(default))) => value == default,
            (Item::Float(value), Some(Item::Float(default))) => value == default,
            (Item::Double(value), Some(Item::Double(default))) => value == default,
            // A message with no commands converts nothing.
            (Item::Message(message), _) if seen.field.name == "table_accessor_save_param" => {
                let fields = message.shape().fields.iter();
                let texts = fields.filter(|field| matches!(field.kind, Kind::Text));
                texts
                    .map(|field| message.slot(field.number))
                    .all(|slot| slot.count() == 0 || matches!(slot.item(0), Item::Text("")))
            }
            (Item::Text(value), Some(Item::Text(default))) => value == default,
            (Item::Text(value), None) => value.is_empty(),
            _ => false,
        };
        if !changes_nothing {
            let path = seen.path.trim_end_matches("[0]");
            let problem = Problem::warning(path, "is stored, but has no effect");
            problems.push(problem.why(why).help("remove it"));
        }
    });
}
