//! Checks of fields: values out of range (`ranges.rs`), lists that contradict themselves
//! (`lists.rs`), and settings that have no effect or are not supported (`usage.rs`).

mod lists;
mod ranges;
mod usage;

use crate::form::document::join;
use crate::problem::Problem;
use crate::reflect::{Field, Item, Kind, Reflect};
use crate::schema::DistributedStrategy;
use crate::value::{Value, effective};

impl DistributedStrategy {
    /// Returns the problems of single fields and lists, and the settings without effect. Conflicts
    /// of strategies are not among them: strategies declare them.
    ///
    /// ```
    /// # use fleet_config::{AmpConfig, DistributedStrategy};
    /// let amp = AmpConfig::default().with_decr_ratio(1.5);
    /// let problems = DistributedStrategy::new().use_amp(amp).check_fields();
    /// assert_eq!(problems[0].path, "amp_configs.decr_ratio");
    /// assert_eq!(problems[0].message, "expected more than 0 and less than 1, got 1.5");
    /// ```
    pub fn check_fields(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        ranges::check(self, &mut problems);
        lists::check(self, &mut problems);
        usage::check(self, &mut problems);
        problems
    }

    /// Returns whether a switch is on.
    pub fn is_on(&self, switch: &str) -> bool {
        let field = Self::describe().field(switch);
        field.is_some_and(|field| effective(self, field) == Value::Bool(true))
    }
}

/// An assigned value and its path.
struct AssignedValue<'a> {
    field: &'static Field,
    path: String,
    item: Item<'a>,
}

/// Passes every assigned value to `visit`, each message before its content.
fn walk<'a>(message: &'a dyn Reflect, path: &str, visit: &mut dyn FnMut(&AssignedValue<'a>)) {
    for field in message.shape().fields {
        for (index, item) in message.slot(field.number).items().enumerate() {
            let mut path = join(path, field.name);
            if field.repeated {
                path += &format!("[{index}]");
            }
            let seen = AssignedValue { field, path, item };
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
