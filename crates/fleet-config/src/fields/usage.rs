//! Settings that have no effect, and settings that are not supported.

use super::{AssignedValue, to_text, walk};
use crate::form::{HIDDEN, PASSWORD};
use crate::problem::Problem;
use crate::reflect::{Field, Item, JobKind, Kind, Reflect};
use crate::schema::DistributedStrategy;

pub fn check(strategy: &DistributedStrategy, problems: &mut Vec<Problem>) {
    switched_off(strategy, problems);
    ignored(strategy, problems);
    refused(strategy, problems);
}

/// Reports settings whose switch is off.
fn switched_off(strategy: &DistributedStrategy, problems: &mut Vec<Problem>) {
    let fields = strategy.shape().fields;
    for configs in fields.iter().filter(|field| field.is_message()) {
        let Some(name) = configs.name.strip_suffix("_configs") else { continue };
        let Some(switch) = fields.iter().find(|field| field.name == name) else { continue };
        let assigned = |field: &Field| strategy.slot(field.number).count() > 0;
        // `a_sync_configs` determines the mode of a parameter server whether `a_sync` is assigned
        // or not.
        if name == "a_sync" || configs.ignored.is_some() || !assigned(configs) {
            continue;
        }
        // More than one stage turns the pipeline on.
        let sharding = strategy.sharding().then(|| strategy.sharding_configs().pp_degree());
        let stages = strategy.hybrid_configs().pp_degree().max(sharding.unwrap_or(1));
        if name == "pipeline" && stages > 1 {
            continue;
        }
        if !matches!(strategy.slot(switch.number).first(), Some(Item::Bool(true))) {
            let problem = Problem::warning(configs.name, format!("has no effect: {name} is off"))
                .why("settings apply only when their switch is on")
                .help(format!("set {name} to true, or remove {}", configs.name));
            problems.push(problem);
        }
    }
}

/// Reports fields that are accepted for compatibility with files, but are not supported.
fn refused(strategy: &DistributedStrategy, problems: &mut Vec<Problem>) {
    walk(strategy, "", &mut |seen| {
        let Some(why) = seen.field.refused else { return };
        let message = match (seen.item, seen.field.default_item()) {
            (Item::Bool(value), Some(Item::Bool(default))) if value != default => {
                "is not supported".to_string()
            }
            (Item::Int32(value), Some(Item::Int32(default))) if value > default => {
                format!("{value} is not supported")
            }
            // A message has no effect without its switch.
            _ => return,
        };
        problems.push(Problem::error(&*seen.path, message).why(why).help("remove it"));
    });
}

/// Reports fields that are accepted for compatibility with files, and have no effect.
fn ignored(strategy: &DistributedStrategy, problems: &mut Vec<Problem>) {
    walk(strategy, "", &mut |seen| {
        let Some(why) = seen.field.ignored else { return };
        // A list is reported only once.
        if is_later_item(seen) {
            return;
        }
        let changes_nothing = match seen.item {
            // Done in any case.
            Item::Bool(true) if seen.field.name == "fuse_broadcast_ops" => true,
            // A message with no commands converts nothing.
            Item::Message(message) if seen.field.name == "table_accessor_save_param" => {
                let fields = message.shape().fields.iter();
                let texts = fields.filter(|field| matches!(field.kind, Kind::Text));
                texts
                    .map(|field| message.slot(field.number))
                    .all(|slot| matches!(slot.first(), None | Some(Item::Text(""))))
            }
            _ => is_default(seen),
        };
        if !changes_nothing {
            let path = seen.path.trim_end_matches("[0]");
            let problem = Problem::warning(path, "is stored, but has no effect");
            problems.push(problem.why(why).help("remove it"));
        }
    });
}

/// Returns whether the value is in a list and not its first.
fn is_later_item(seen: &AssignedValue<'_>) -> bool {
    seen.path.ends_with(']') && !seen.path.ends_with("[0]")
}

/// Returns whether the assigned value is the default of a field that is not a list.
fn is_default(seen: &AssignedValue<'_>) -> bool {
    if seen.field.repeated {
        return false;
    }
    match (seen.item, seen.field.default_item()) {
        (Item::Bool(value), Some(Item::Bool(default))) => value == default,
        (Item::Int32(value), Some(Item::Int32(default))) => value == default,
        (Item::Uint32(value), Some(Item::Uint32(default))) => value == default,
        (Item::Uint64(value), Some(Item::Uint64(default))) => value == default,
        (Item::Float(value), Some(Item::Float(default))) => value == default,
        (Item::Double(value), Some(Item::Double(default))) => value == default,
        (Item::Text(value), Some(Item::Text(default))) => value == default,
        _ => false,
    }
}

impl DistributedStrategy {
    /// Returns a warning for each assigned field that has an effect only in jobs of the other kind.
    ///
    /// ```
    /// # use fleet_config::{DistributedStrategy, JobKind};
    /// let strategy = DistributedStrategy::new().with_nccl_comm_num(2);
    /// assert!(strategy.check_for(JobKind::Collective).is_empty());
    /// let warnings = strategy.check_for(JobKind::Servers);
    /// assert_eq!(warnings[0].message, "has no effect in a job with parameter servers");
    /// ```
    pub fn check_for(&self, job: JobKind) -> Vec<Problem> {
        let (jobs, help) = match job {
            JobKind::Collective => {
                ("a collective job", "start the job with parameter servers, or remove it")
            }
            JobKind::Servers => ("a job with parameter servers", "remove it"),
        };
        let mut problems = Vec::new();
        walk(self, "", &mut |seen| {
            let Some((only, why)) = seen.field.only else { return };
            let is_told = match seen.field.name {
                // True is the default, but its assignment has an effect of its own.
                "a_sync" | "sync_nccl_allreduce" => false,
                // Its assignment assigns the configs, too.
                "a_sync_configs" => self.a_sync.is_some(),
                _ => is_default(seen) || is_later_item(seen),
            };
            if only != job && !is_told {
                let path = seen.path.trim_end_matches("[0]");
                let problem = Problem::warning(path, format!("has no effect in {jobs}"));
                problems.push(problem.why(why).help(help));
            }
        });
        problems
    }

    /// Returns the paths of the assigned fields whose values are not their defaults, without
    /// messages, and their values as text. A list is one field, with its first item. Passwords are
    /// not shown.
    ///
    /// ```
    /// # use fleet_config::{AmpConfig, DistributedStrategy};
    /// let amp = AmpConfig::default().with_decr_ratio(0.5).with_incr_ratio(2.0);
    /// let changed = DistributedStrategy::new().with_amp_configs(amp).changed_fields();
    /// assert_eq!(changed, [("amp_configs.decr_ratio".to_string(), "0.5".to_string())]);
    /// ```
    pub fn changed_fields(&self) -> Vec<(String, String)> {
        let mut found = Vec::new();
        walk(self, "", &mut |seen| {
            let Some(text) = to_text(seen.field.kind, seen.item) else { return };
            let text = if seen.field.name == PASSWORD { HIDDEN.to_string() } else { text };
            if !is_later_item(seen) && !is_default(seen) {
                found.push((seen.path.trim_end_matches("[0]").to_string(), text));
            }
        });
        found
    }
}
