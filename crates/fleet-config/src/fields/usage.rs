//! Settings that have no effect, and settings that are not supported.

use super::walk;
use crate::problem::Problem;
use crate::reflect::{Field, Item, Kind, Reflect};
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
                    .all(|slot| matches!(slot.first(), None | Some(Item::Text(""))))
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
