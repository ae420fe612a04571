//! The schema of job files: tables and fields with their types, limits, defaults and descriptions.
//!
//! [`JOB`] is the only list of fields. The reader (`file/`), the JSON schema for editors
//! (`json.rs`) and the tables of the documentation (`docs.rs`) follow from it.

mod docs;
mod job;
mod json;

pub use docs::markdown;
pub use job::{JOB, VERSION};
pub use json::json_schema;

/// A table of the job file.
pub struct Table {
    /// Fields in the order of the documentation.
    pub fields: &'static [Field],
}

impl Table {
    /// Returns the field of this name.
    pub fn field(&self, name: &str) -> Option<&'static Field> {
        self.fields.iter().find(|field| field.name == name)
    }

    /// Iterates over the names of the fields.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.fields.iter().map(|field| field.name)
    }
}

/// A field of a table.
pub struct Field {
    /// Name of the field.
    pub name: &'static str,
    /// Type and limits of its value.
    pub kind: Kind,
    /// Whether the table is invalid without it.
    pub is_required: bool,
    /// Value that is used without it, as text for the documentation; empty for none.
    pub default: &'static str,
    /// Description, one sentence without a final dot.
    pub about: &'static str,
}

/// Type of a value.
pub enum Kind {
    /// Any text.
    Text,
    /// `true` or `false`.
    Bool,
    /// An integer in a range.
    Int(i64, i64),
    /// A number in a range.
    Number(f64, f64),
    /// One of some words, each with its description.
    Choice(&'static [(&'static str, &'static str)]),
    /// A list of values of one kind; the minimum of its length.
    List(&'static Kind, usize),
    /// A table with known fields.
    Table(&'static Table),
    /// A table whose keys are names of the user, with values of one kind.
    Map(&'static Kind),
    /// A value of any kind, which a rule checks.
    Any,
    /// A value of the first kind that fits.
    Either(&'static [Kind]),
}

impl Kind {
    /// Describes the valid values, for errors and the documentation.
    pub fn expected(&self) -> String {
        match self {
            Kind::Text => "text".to_string(),
            Kind::Bool => "true or false".to_string(),
            Kind::Int(min, i64::MAX) => format!("an integer >= {min}"),
            Kind::Int(min, max) => format!("an integer from {min} to {max}"),
            Kind::Number(min, max) => match (min.is_finite(), max.is_finite()) {
                (false, false) => "a number".to_string(),
                (true, false) => format!("a number >= {min}"),
                _ => format!("a number from {min} to {max}"),
            },
            Kind::Choice(choices) => {
                let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
                format!("one of {}", names.join(", "))
            }
            Kind::List(item, _) => format!("a list, each of it {}", item.expected()),
            Kind::Table(_) => "a table".to_string(),
            Kind::Map(_) => "a table of names".to_string(),
            Kind::Any => "a value".to_string(),
            Kind::Either(kinds) => {
                let all: Vec<String> = kinds.iter().map(Kind::expected).collect();
                all.join(", or ")
            }
        }
    }
}
