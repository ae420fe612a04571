//! Lists that contradict themselves or each other.

use super::walk;
use crate::problem::Problem;
use crate::reflect::{Item, Reflect};
use crate::schema::DistributedStrategy;
use std::collections::{BTreeMap, HashSet};

pub fn check(strategy: &DistributedStrategy, problems: &mut Vec<Problem>) {
    repeated_names(strategy, problems);
    places(strategy, problems);
    bounds(strategy, problems);
    axes(strategy, problems);
    tables(strategy, problems);
}

/// Reports duplicate and empty names in lists. Loading a file twice causes duplicates.
fn repeated_names(strategy: &DistributedStrategy, problems: &mut Vec<Problem>) {
    let mut seen_names = HashSet::new();
    walk(strategy, "", &mut |seen| {
        let Item::Text(name) = seen.item else { return };
        if !seen.field.repeated || seen.field.name == "order" {
            return;
        }
        let list = seen.path.split('[').next().unwrap_or_default().to_string();
        if name.is_empty() {
            let problem = Problem::error(&*seen.path, "empty name")
                .why("an empty name matches every name or none")
                .help("remove it");
            problems.push(problem);
        } else if !seen_names.insert((list, name)) {
            let problem = Problem::warning(&*seen.path, format!("duplicate name '{name}'"))
                .why("lists grow when a strategy is loaded or assigned again")
                .help("start from a new strategy");
            problems.push(problem);
        }
    });
}

/// Reports tables that are on both lists of their places.
fn places(strategy: &DistributedStrategy, problems: &mut Vec<Problem>) {
    let trainer = strategy.trainer_desc_configs();
    for (index, name) in trainer.remote_sparse.iter().enumerate() {
        if trainer.local_sparse.contains(name) {
            let path = format!("trainer_desc_configs.remote_sparse[{index}]");
            let message = format!("'{name}' is in both local_sparse and remote_sparse");
            let problem = Problem::error(path, message)
                .why("a table is either on the worker or on the servers")
                .help("remove it from one of the lists");
            problems.push(problem);
        }
    }
}

/// Reports `weight_bounds` that are not the minimum and the maximum weight.
fn bounds(strategy: &DistributedStrategy, problems: &mut Vec<Problem>) {
    let mut lists: BTreeMap<String, Vec<f32>> = BTreeMap::new();
    walk(strategy, "", &mut |seen| {
        if let (Item::Float(value), "weight_bounds") = (seen.item, seen.field.name) {
            let list = seen.path[..seen.path.rfind('[').unwrap_or(0)].to_string();
            lists.entry(list).or_default().push(value);
        }
    });
    for (path, bounds) in lists {
        if bounds.len() != 2 || bounds[0] > bounds[1] {
            let problem =
                Problem::error(path, format!("expected a minimum and a maximum, got {bounds:?}"))
                    .why("they are the minimum and the maximum weight")
                    .help("use [-10, 10]");
            problems.push(problem);
        }
    }
}

fn axes(strategy: &DistributedStrategy, problems: &mut Vec<Problem>) {
    let order = &strategy.hybrid_configs().order;
    for (index, axis) in order.iter().enumerate() {
        if order[..index].contains(axis) {
            let path = format!("hybrid_configs.order[{index}]");
            let problem = Problem::error(path, format!("duplicate axis {axis}"))
                .why("each axis of the grid occurs once")
                .help("use dp, pp, sharding, sep, mp");
            problems.push(problem);
        }
    }
    if !order.is_empty() && order.len() < 5 {
        let problem = Problem::error(
            "hybrid_configs.order",
            format!("expected five axes, got {}", order.len()),
        )
        .why("each axis of the grid occurs once, including axes of degree 1")
        .help("list dp, pp, sharding, sep, mp in the order you want");
        problems.push(problem);
    }
}

/// Reports tables with the same name or number, and tables without settings.
fn tables(strategy: &DistributedStrategy, problems: &mut Vec<Problem>) {
    let tables = &strategy.downpour_table_param;
    let mut names = HashSet::new();
    let mut ids = HashSet::new();
    for (index, table) in tables.iter().enumerate() {
        let path = |field: &str| format!("downpour_table_param[{index}].{field}");
        let named = table.table_name.as_ref().is_none_or(|name| names.insert(name));
        if !named {
            let message = format!("duplicate table name '{}'", table.table_name());
            let problem = Problem::error(path("table_name"), message)
                .why("a table is identified by its name")
                .help("start from a new strategy, or rename one");
            problems.push(problem);
        }
        if table.table_id.is_some_and(|id| !ids.insert(id)) {
            let message = format!("duplicate table number {}", table.table_id());
            let problem = Problem::error(path("table_id"), message)
                .why("a table is addressed by its number")
                .help("remove the numbers");
            problems.push(problem);
        }
        if table.shape().fields.iter().all(|field| table.slot(field.number).count() == 0) {
            let path = format!("downpour_table_param[{index}]");
            problems.push(
                Problem::error(path, "the table has no settings")
                    .why("a table needs at least one setting")
                    .help("remove it"),
            );
        }
    }
}
