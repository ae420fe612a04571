//! The label: what a raw value means to the task.

use crate::job::{ColumnKind, ColumnPart, TaskKind};
use fleet_base::Error;
use fleet_data::{Column, category_hash};
use serde::{Deserialize, Serialize};

/// The label of a task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Label {
    /// The column.
    pub column: String,
    /// Meaning of its values.
    pub meaning: Meaning,
    /// The numbers of the label in ascending order, if the model learns their order, too.
    #[serde(default)]
    pub levels: Vec<f32>,
    /// The number from which on a regression's label counts as 1 in an AUC.
    #[serde(default)]
    pub at_least: Option<f32>,
}

/// Meaning of the values of a label.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Meaning {
    /// This category is 1, all others are 0.
    Category {
        /// Hash of the category.
        hash: u64,
    },
    /// This number is 1; the others are 0.
    Equal(f32),
    /// Numbers from this on are 1.
    AtLeast(f32),
    /// 0 or 1 themselves.
    ZeroOne,
    /// Classes, by their texts.
    Classes(Vec<String>),
    /// A number; mean and deviation over the training rows, by which the model's output is scaled.
    Number {
        /// Mean of the label.
        mean: f32,
        /// Standard deviation of the label.
        deviation: f32,
    },
    /// Relevance, 0 or more.
    Grade,
    /// 1 in each row: the job has no label.
    Always,
}

/// A label that cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadLabel {
    /// The value is missing or NaN.
    Missing,
    /// The value is neither 0 nor 1.
    NotZeroOne,
    /// The value is none of the classes.
    UnknownClass,
    /// The grade is negative or too large.
    NotGrade,
    /// The column of the group is empty.
    NoGroup,
    /// The user or the item is missing.
    NoChoice,
    /// The user did not choose the item. This is no fault: the row is left out silently.
    NotChosen,
}

/// A row whose label cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadRow {
    /// The fault.
    pub fault: BadLabel,
    /// Which one of several labels has it.
    pub label: usize,
}

impl BadRow {
    /// Adds the label that has the fault to an error, if there are several.
    pub fn named(self, error: Error, names: &[impl AsRef<str>]) -> Error {
        match names.get(self.label).filter(|_| names.len() > 1) {
            Some(name) => error.at(format!("columns.{}", name.as_ref())),
            None => error,
        }
    }
}

impl From<BadLabel> for BadRow {
    fn from(fault: BadLabel) -> BadRow {
        BadRow { fault, label: 0 }
    }
}

impl BadLabel {
    /// Describes the fault.
    pub fn text(self) -> &'static str {
        match self {
            BadLabel::Missing => "the label is missing",
            BadLabel::NotZeroOne => "the label is neither 0 nor 1",
            BadLabel::UnknownClass => "the label is none of the classes",
            BadLabel::NotGrade => "the label is no grade from 0 to 64",
            BadLabel::NoGroup => "the row has no group",
            BadLabel::NoChoice => "the row has no user or no item",
            BadLabel::NotChosen => "the item was not chosen",
        }
    }

    /// Suggests a fix.
    pub fn help(self) -> &'static str {
        match self {
            BadLabel::Missing | BadLabel::NoGroup | BadLabel::NoChoice | BadLabel::NotChosen => {
                "remove the row, or skip such rows with data.bad_rows.at_most"
            }
            BadLabel::NotZeroOne => {
                "say which values are 1: positive = VALUE or at_least = NUMBER at the column"
            }
            BadLabel::UnknownClass => {
                "add the value to classes, or skip such rows with data.bad_rows.at_most"
            }
            BadLabel::NotGrade => {
                "use small grades, such as 0 to 4: the gain of a grade is 2^grade - 1"
            }
        }
    }
}

/// Largest grade: its gain, `2^grade`, stays far from the limits of a float.
const GRADE_MAX: f32 = 64.0;

impl Label {
    /// Returns the label of a job. The scale of numbers is unknown before the training rows are
    /// read.
    pub fn of(column: &ColumnPart, task: TaskKind) -> Label {
        let label = &column.label;
        let meaning = match task {
            TaskKind::Regression => Meaning::Number { mean: 0.0, deviation: 1.0 },
            TaskKind::MultiClass => Meaning::Classes(label.classes.clone()),
            TaskKind::Ranking
                if label.positive_text.is_none()
                    && label.positive_number.is_none()
                    && label.at_least.is_none() =>
            {
                Meaning::Grade
            }
            TaskKind::Binary | TaskKind::Ranking | TaskKind::Retrieval => {
                match (&label.positive_text, label.positive_number, label.at_least) {
                    (Some(text), ..) if column.kind == ColumnKind::Category => {
                        Meaning::Category { hash: category_hash(text.as_bytes()) }
                    }
                    (_, _, Some(least)) => Meaning::AtLeast(least as f32),
                    (_, Some(number), _) => Meaning::Equal(number as f32),
                    _ => Meaning::ZeroOne,
                }
            }
        };
        let mut levels: Vec<f32> = label.levels.iter().map(|level| *level as f32).collect();
        levels.sort_by(f32::total_cmp);
        let is_number = matches!(meaning, Meaning::Number { .. });
        let at_least = label.at_least.filter(|_| is_number).map(|least| least as f32);
        Label { column: column.name.clone(), meaning, levels, at_least }
    }

    /// Returns the label of a job without one.
    pub fn always() -> Label {
        Label {
            column: String::new(),
            meaning: Meaning::Always,
            levels: Vec::new(),
            at_least: None,
        }
    }

    /// Returns the number of scores of a row.
    pub fn scores(&self) -> usize {
        match &self.meaning {
            Meaning::Classes(classes) => classes.len(),
            _ => 1,
        }
    }

    /// Returns the levels without the lowest, which every number reaches, and without `at_least`.
    pub fn other_levels(&self) -> Vec<f32> {
        let others = self.levels.iter().skip(1).copied();
        others.filter(|level| self.meaning != Meaning::AtLeast(*level)).collect()
    }

    /// Returns the hashes of the classes.
    pub fn class_hashes(&self) -> Vec<u64> {
        match &self.meaning {
            Meaning::Classes(classes) => {
                classes.iter().map(|class| category_hash(class.as_bytes())).collect()
            }
            _ => Vec::new(),
        }
    }

    /// Returns the label of a row: 0 or 1, the number of a class, or a number.
    pub fn value(&self, classes: &[u64], column: &Column, row: usize) -> Result<f32, BadLabel> {
        if let Some(ids) = column.ids(row) {
            let Some(hash) = ids.first().map(|hash| *hash as u64) else {
                return Err(BadLabel::Missing);
            };
            return match &self.meaning {
                Meaning::Category { hash: positive } => Ok(f32::from(u8::from(hash == *positive))),
                _ => {
                    let class = classes.iter().position(|class| *class == hash);
                    class.map(|class| class as f32).ok_or(BadLabel::UnknownClass)
                }
            };
        }
        let value = column.floats(row).and_then(|values| values.first()).copied();
        let Some(value) = value.filter(|value| value.is_finite()) else {
            return Err(BadLabel::Missing);
        };
        let is = |truth: bool| Ok(f32::from(u8::from(truth)));
        match self.meaning {
            Meaning::Equal(positive) => is(value == positive),
            Meaning::AtLeast(least) => is(value >= least),
            Meaning::Number { .. } => Ok(value),
            Meaning::Grade if (0.0..=GRADE_MAX).contains(&value) => Ok(value),
            Meaning::Grade => Err(BadLabel::NotGrade),
            _ if value == 0.0 || value == 1.0 => Ok(value),
            _ => Err(BadLabel::NotZeroOne),
        }
    }
}
