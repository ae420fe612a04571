//! Features: what a model sees of a row. They are fitted once, over the training rows, and saved
//! with the model. Validation, `fleet predict` and serving apply the same value, so that the same
//! row has the same scores everywhere.
//!
//! [`Fit`] collects counts and moments; [`Features`] turns raw columns into slots; `number.rs`,
//! `ids.rs` and `label.rs` have one kind of feature each.

mod apply;
mod fit;
mod ids;
mod label;
mod label_fit;
mod number;
mod onnx;
mod save;

pub use apply::{
    Applied, INPUT_GROUP, INPUT_ITEM, INPUT_LABEL, INPUT_LEVELS, INPUT_LOG_FREQUENCY,
    INPUT_NUMBERS, INPUT_SCALES, INPUT_WEIGHT, SLOT_USER, Scratch, first_id, input_of_ids,
    input_of_several, slot_of_slice,
};
pub use fit::{Finding, Fit, is_fixed};
pub use ids::{Ids, Lookup, mixed};
pub use label::{BadLabel, BadRow, Label, Meaning};
pub use number::{Encoding, Number};
pub use save::{load, save};

use serde::{Deserialize, Serialize};

/// The fitted features of a model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Features {
    /// Numbers, in the order of the job file.
    pub numbers: Vec<Number>,
    /// Categories, then crosses, in the order of the job file.
    pub ids: Vec<Ids>,
    /// The label, the first one of several.
    pub label: Label,
    /// The other labels, in the order of the job file.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub other_labels: Vec<Label>,
    /// Column of the weight.
    pub weight: Option<String>,
    /// Groups of a ranking.
    #[serde(default)]
    pub group: Option<Group>,
    /// The choices of a retrieval.
    #[serde(default)]
    pub choices: Option<Choices>,
    /// Columns for whose values the report measures separately, with the texts of the values.
    pub slices: Vec<Slice>,
    /// Number of training rows.
    pub rows: u64,
}

/// Rows that are ranked together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Group {
    /// The column whose values name the groups.
    pub column: String,
    /// Places of a ranking that count.
    pub at: usize,
}

/// Rows that are choices of an item by a user.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Choices {
    /// The column whose values name the users.
    pub user: String,
    /// The column whose values name the items.
    pub item: String,
    /// Number of training rows of each item, in the order of its vocabulary.
    pub counts: Vec<u64>,
    /// Places of a ranking that count.
    pub at: usize,
}

/// A column for whose values the report measures separately.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Slice {
    /// The column.
    pub column: String,
    /// Hashes and texts of its most frequent values.
    pub values: Vec<(u64, String)>,
}

/// An embedding table, which all ids of one width share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableSize {
    /// Numbers per row.
    pub dim: i64,
    /// Number of rows.
    pub rows: i64,
}

impl Features {
    /// Returns the labels.
    pub fn labels(&self) -> impl Iterator<Item = &Label> {
        std::iter::once(&self.label).chain(&self.other_labels)
    }

    /// Returns whether a row has several labels.
    pub fn has_labels(&self) -> bool {
        !self.other_labels.is_empty()
    }

    /// Returns the names of several labels, in the order of the scores; none of a single one.
    pub fn label_names(&self) -> Vec<String> {
        let names = self.labels().map(|label| label.column.clone());
        names.filter(|_| self.has_labels()).collect()
    }

    /// Returns the number of scores of a row: one for each class, or for each label.
    pub fn scores(&self) -> usize {
        self.labels().map(Label::scores).sum()
    }

    /// Returns the number of values in the input of numbers: one for each number, and one for each
    /// that can be missing.
    pub fn number_width(&self) -> usize {
        let missing = self.numbers.iter().filter(|number| number.may_be_missing);
        self.numbers.len() + missing.count()
    }

    /// Returns the tables, one for each width of embeddings.
    pub fn tables(&self) -> Vec<TableSize> {
        let mut tables: Vec<TableSize> = Vec::new();
        for ids in &self.ids {
            match tables.iter_mut().find(|table| table.dim == ids.dim) {
                Some(table) => table.rows = table.rows.max(ids.end()),
                None => tables.push(TableSize { dim: ids.dim, rows: ids.end() }),
            }
        }
        tables
    }

    /// Returns the features with a single id that are looked up in the table of this width.
    pub fn single(&self, dim: i64) -> impl Iterator<Item = &Ids> {
        self.ids.iter().filter(move |ids| ids.dim == dim && !ids.is_several())
    }

    /// Returns the features with several ids.
    pub fn several(&self) -> impl Iterator<Item = &Ids> {
        self.ids.iter().filter(|ids| ids.is_several())
    }

    /// Places the features of each width one after the other in their table. Row 0 of a table is
    /// zero: it pads features with several ids.
    fn place(&mut self) {
        let mut ends: Vec<(i64, i64)> = Vec::new();
        for ids in self.ids.iter_mut().filter(|ids| ids.history_of.is_none()) {
            let at = match ends.iter().position(|(dim, _)| *dim == ids.dim) {
                Some(at) => at,
                None => {
                    ends.push((ids.dim, 1));
                    ends.len() - 1
                }
            };
            ids.base = ends[at].1;
            ends[at].1 = ids.end();
        }
        let places: Vec<(String, i64, i64)> =
            self.ids.iter().map(|ids| (ids.name.clone(), ids.dim, ids.base)).collect();
        for ids in &mut self.ids {
            let own = ids.history_of.as_ref();
            let source = own.and_then(|name| places.iter().find(|(known, ..)| known == name));
            if let Some((_, dim, base)) = source {
                (ids.dim, ids.base) = (*dim, *base);
            }
        }
    }

    /// Returns the feature whose values and rows a feature uses: itself, if it is no history.
    pub fn source_of<'f>(&'f self, ids: &'f Ids) -> &'f Ids {
        let name = ids.history_of.as_ref();
        name.and_then(|name| self.ids.iter().find(|other| other.name == *name)).unwrap_or(ids)
    }
}
