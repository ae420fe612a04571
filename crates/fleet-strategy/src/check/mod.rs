//! Checks of a strategy that need neither program nor cluster: values out of range (`ranges.rs`),
//! lists that contradict themselves (`lists.rs`), and settings that conflict or have no effect
//! (`combinations.rs`).

mod combinations;
mod lists;
mod ranges;

use crate::form::document::join;
use crate::problem::{Problem, all_in_one};
use crate::reflect::{Field, Item, Kind, Reflect, Shape};
use crate::schema::DistributedStrategy;
use fleet_base::Result;

impl DistributedStrategy {
    /// Returns all errors and all settings without effect, errors first.
    ///
    /// ```
    /// # use fleet_strategy::{AmpConfig, DistributedStrategy};
    /// let amp = AmpConfig::default().with_decr_ratio(1.5);
    /// let problems = DistributedStrategy::new().use_amp(amp).check();
    /// assert_eq!(problems[0].path, "amp_configs.decr_ratio");
    /// assert_eq!(problems[0].message, "expected more than 0 and less than 1, got 1.5");
    /// ```
    pub fn check(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        ranges::check(self, &mut problems);
        lists::check(self, &mut problems);
        combinations::check(self, &mut problems);
        problems.sort_by_key(|problem| problem.severity);
        problems
    }

    /// Returns the warnings of [`check`](Self::check), or all its errors as one.
    pub fn validate(&self) -> Result<Vec<Problem>> {
        all_in_one(self.check())
    }
}

/// An assigned value and its path.
struct AssignedValue<'a> {
    shape: &'static Shape,
    field: &'static Field,
    path: String,
    item: Item<'a>,
}

/// Passes every assigned value to `visit`, each message before its content.
fn walk<'a>(message: &'a dyn Reflect, path: &str, visit: &mut dyn FnMut(&AssignedValue<'a>)) {
    let shape = message.shape();
    for field in shape.fields {
        let slot = message.slot(field.number);
        for index in 0..slot.count() {
            let mut path = join(path, field.name);
            if field.repeated {
                path += &format!("[{index}]");
            }
            let seen = AssignedValue { shape, field, path, item: slot.item(index) };
            visit(&seen);
            if let Item::Message(nested) = seen.item {
                walk(nested, &seen.path, visit);
            }
        }
    }
}

/// Returns the value assigned at a path as the text forms write it; `None` for a message.
pub(crate) fn value_at(strategy: &DistributedStrategy, path: &str) -> Option<String> {
    let mut value = None;
    walk(strategy, "", &mut |seen| {
        if seen.path == path {
            value = to_text(seen.field.kind, seen.item);
        }
    });
    value
}

fn to_text(kind: Kind, item: Item<'_>) -> Option<String> {
    Some(match (item, kind) {
        (Item::Bool(value), _) => value.to_string(),
        (Item::Int32(value), Kind::Enum(shape)) => shape.name_of(value)?.to_string(),
        (Item::Int32(value), _) => value.to_string(),
        (Item::Uint32(value), _) => value.to_string(),
        (Item::Uint64(value), _) => value.to_string(),
        (Item::Float(value), _) => value.to_string(),
        (Item::Double(value), _) => value.to_string(),
        (Item::Text(value), _) => format!("{value:?}"),
        (Item::Message(_), _) => return None,
    })
}
