//! Columns of tables by name, out of files of any format. All formats give the same records for the
//! same values: a [`ColumnFiles`] reads CSV, JSON lines, Parquet, TFRecord and others into blocks
//! with a slot for each [`ColumnSpec`].
//!
//! * `cells.rs`: how the value of a column fills its slot; the same for all formats.
//! * `csv.rs`, `json.rs`, ..: a format each, which finds the values of the columns.
//! * `files.rs`: files, compressed or not, and the choice of the format.
//! * `requests.rs`: the same columns out of requests to a server.

mod cells;
mod csv;
mod files;
mod format;
mod hash;
mod json;
mod listing;
mod missing;
mod multi_slot;
mod names;
#[cfg(feature = "parquet")]
mod parquet;
mod requests;
mod texts;
#[cfg(feature = "tfrecord")]
mod tf_record;
mod time;

pub use files::ColumnFiles;
pub use format::{CsvHeader, DataFormat};
pub use hash::category_hash;
pub(crate) use listing::column_names;
pub use requests::{FurtherValues, RequestColumn, RequestError, RequestRows};
pub use texts::{TextDictionary, TextObserver};
pub(crate) use time::parse as time_of_text;

use crate::slot::{Schema, Slot};
use fleet_base::Result;
use std::sync::Arc;

/// Meaning of a column's values, and the slot that they fill.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ColumnKind {
    /// A number: a dense float, NaN if it is missing. `true` and `false` are 1 and 0.
    Number,
    /// A word: its [`category_hash`] as a ragged id; no id if it is missing. The word of an integer
    /// are its decimal digits.
    Category,
    /// An integer from 0 to below a limit, such as the row of a table: increased by 1, as a ragged
    /// id; no id if it is missing. Like hashes, these ids are never 0.
    Row {
        /// The limit.
        rows: u64,
    },
    /// Any number of words, such as a list or a sequence: the ids of their hashes, in order. Text
    /// is split at the separator; without one it is a single word.
    Categories {
        /// Text between two words.
        separator: Option<String>,
    },
    /// Any number of numbers: ragged floats, in order. Text is split at the separator.
    Numbers {
        /// Text between two numbers.
        separator: Option<String>,
    },
    /// A time: the seconds since 1970 in UTC as a ragged id; no id if it is missing. Values are
    /// integers (such seconds), texts of ISO 8601 or times of Parquet.
    Time,
}

/// A column to be read, by its name in the files.
///
/// The name of a field within others is joined by dots: `user.age` is the field `age` of the object
/// `user` in JSON, and of the structure `user` in Parquet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ColumnSpec {
    /// Name of the column, and of its slot.
    pub name: String,
    /// Meaning of the values.
    pub kind: ColumnKind,
}

impl ColumnSpec {
    /// Returns a column.
    pub fn new(name: impl Into<String>, kind: ColumnKind) -> ColumnSpec {
        ColumnSpec { name: name.into(), kind }
    }

    /// Returns a column of numbers.
    pub fn number(name: impl Into<String>) -> ColumnSpec {
        ColumnSpec::new(name, ColumnKind::Number)
    }

    /// Returns a column of words.
    pub fn category(name: impl Into<String>) -> ColumnSpec {
        ColumnSpec::new(name, ColumnKind::Category)
    }

    /// Returns a column of integers from 0 to below `rows`.
    pub fn row(name: impl Into<String>, rows: u64) -> ColumnSpec {
        ColumnSpec::new(name, ColumnKind::Row { rows })
    }

    /// Returns a column of lists of words, with a separator for texts; an empty one is none.
    pub fn categories(name: impl Into<String>, separator: impl Into<String>) -> ColumnSpec {
        ColumnSpec::new(name, ColumnKind::Categories { separator: given(separator.into()) })
    }

    /// Returns a column of lists of numbers, with a separator for texts; an empty one is none.
    pub fn numbers(name: impl Into<String>, separator: impl Into<String>) -> ColumnSpec {
        ColumnSpec::new(name, ColumnKind::Numbers { separator: given(separator.into()) })
    }

    /// Returns a column of times.
    pub fn time(name: impl Into<String>) -> ColumnSpec {
        ColumnSpec::new(name, ColumnKind::Time)
    }

    /// Returns the slot that the column fills.
    ///
    /// ```
    /// use fleet_data::{ColumnSpec, Slot};
    /// assert_eq!(ColumnSpec::number("age").slot(), Slot::dense_floats("age", [1]));
    /// assert_eq!(ColumnSpec::category("city").slot(), Slot::ragged_ids("city"));
    /// assert_eq!(ColumnSpec::numbers("x", "").slot(), Slot::ragged_floats("x"));
    /// ```
    pub fn slot(&self) -> Slot {
        match self.kind {
            ColumnKind::Number => Slot::dense_floats(&self.name, [1]),
            ColumnKind::Numbers { .. } => Slot::ragged_floats(&self.name),
            ColumnKind::Category
            | ColumnKind::Row { .. }
            | ColumnKind::Categories { .. }
            | ColumnKind::Time => Slot::ragged_ids(&self.name),
        }
    }
}

/// Returns the seconds since 1970 of a date or time in the form of ISO 8601, as columns of times
/// have them.
///
/// ```
/// assert_eq!(fleet_data::parse_time("1970-01-02T00:00:05Z"), Some(86_405));
/// assert_eq!(fleet_data::parse_time("yesterday"), None);
/// ```
pub fn parse_time(text: &str) -> Option<i64> {
    time::parse(text.trim().as_bytes())
}

fn given(separator: String) -> Option<String> {
    if separator.is_empty() { None } else { Some(separator) }
}

/// Returns the schema of some columns, in their order.
fn schema_of(columns: &[ColumnSpec]) -> Result<Arc<Schema>> {
    Schema::new(columns.iter().map(ColumnSpec::slot))
}
