//! Which rows are for training, validation and test.
//!
//! The part of a row is a function of the job's seed and of the row: its file's name and number, a
//! value, or its time. It does not depend on the number of workers or threads.

use crate::features::mixed;
use crate::job::{DataPart, Split};
use crate::raw::RawNames;
use fleet_base::Result;
use fleet_data::{Block, category_hash};
use std::path::Path;

/// A part of the rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Rows that the model is trained on.
    Train,
    /// Rows that measure it meanwhile.
    Validation,
    /// Rows that measure the finished model.
    Test,
}

/// Decides the part of each row of the training files.
#[derive(Clone, Debug)]
pub struct RowPlan {
    seed: u64,
    test: Option<Rule>,
    validation: Option<Rule>,
}

#[derive(Clone, Debug)]
enum Rule {
    /// Rows whose random number is in a range.
    Random { from: f64, to: f64 },
    /// Rows whose value's random number is in a range.
    Hash { at: usize, from: f64, to: f64 },
    /// Rows from a time on.
    From { at: usize, seconds: i64 },
}

impl RowPlan {
    /// Returns the plan of a job. `times` are the sorted times of all rows, if a part is the newest
    /// share of them.
    pub fn new(data: &DataPart, raw: &RawNames, seed: u64, times: &[i64]) -> Result<RowPlan> {
        let test = rule(data.test.as_ref(), None, raw, times)?;
        let validation = rule(data.validation.as_ref(), data.test.as_ref(), raw, times)?;
        Ok(RowPlan { seed, test, validation })
    }

    /// Returns whether all rows are for training.
    pub fn is_whole(&self) -> bool {
        self.test.is_none() && self.validation.is_none()
    }

    /// Returns the part of a row: number `number` of a file with this key.
    pub fn part(&self, file: u64, number: u64, block: &Block, row: usize) -> Part {
        let has = |rule: &Option<Rule>| {
            rule.as_ref().is_some_and(|it| it.has(self.seed, file, number, block, row))
        };
        if has(&self.test) {
            Part::Test
        } else if has(&self.validation) {
            Part::Validation
        } else {
            Part::Train
        }
    }
}

/// Returns the column of times by which the newest rows are found, if any.
pub fn newest_column(data: &DataPart) -> Option<&str> {
    let splits = [&data.test, &data.validation];
    splits.into_iter().flatten().find_map(|split| match split {
        Split::Newest { column, .. } => Some(column.as_str()),
        _ => None,
    })
}

/// Returns the key of a file: its name without folders, so that moved data is divided as before.
pub fn file_key(path: &Path) -> u64 {
    category_hash(path.file_name().unwrap_or_default().as_encoded_bytes())
}

/// Returns the rule of a part. Parts of the same kind are beside each other: `other` was taken
/// before.
fn rule(
    split: Option<&Split>,
    other: Option<&Split>,
    raw: &RawNames,
    times: &[i64],
) -> Result<Option<Rule>> {
    Ok(match split {
        None | Some(Split::Files(_)) => None,
        Some(Split::Random(share)) => {
            let from = match other {
                Some(Split::Random(taken)) => *taken,
                _ => 0.0,
            };
            Some(Rule::Random { from, to: from + share })
        }
        Some(Split::Hash { column, share }) => {
            let from = match other {
                Some(Split::Hash { column: same, share }) if same == column => *share,
                _ => 0.0,
            };
            Some(Rule::Hash { at: raw.index(column)?, from, to: from + share })
        }
        Some(Split::After { column, seconds }) => {
            Some(Rule::From { at: raw.index(column)?, seconds: *seconds })
        }
        Some(Split::Newest { column, share }) => {
            let taken = match other {
                Some(Split::Newest { share, .. }) => *share,
                Some(Split::After { seconds, .. }) => {
                    let newer = times.len() - times.partition_point(|time| time < seconds);
                    newer as f64 / times.len().max(1) as f64
                }
                _ => 0.0,
            };
            let older = ((1.0 - share - taken) * times.len() as f64).round() as usize;
            let seconds = times.get(older).copied().unwrap_or(i64::MAX);
            Some(Rule::From { at: raw.index(column)?, seconds })
        }
    })
}

impl Rule {
    fn has(&self, seed: u64, file: u64, number: u64, block: &Block, row: usize) -> bool {
        let first = |at: usize| block.column(at).ids(row).and_then(|ids| ids.first()).copied();
        match self {
            Rule::Random { from, to } => {
                let value = unit(mixed(file ^ mixed(seed)) ^ number.wrapping_mul(ODD));
                (*from..*to).contains(&value)
            }
            Rule::Hash { at, from, to } => {
                let value = unit(first(*at).unwrap_or(0) as u64 ^ mixed(seed ^ ODD));
                (*from..*to).contains(&value)
            }
            Rule::From { at, seconds } => first(*at).is_some_and(|time| time >= *seconds),
        }
    }
}

/// An odd number with as many ones as zeros: the golden ratio.
const ODD: u64 = 0x9e37_79b9_7f4a_7c15;

/// Returns a number from 0 to below 1 that follows from a word.
fn unit(word: u64) -> f64 {
    (mixed(mixed(word)) >> 11) as f64 / (1u64 << 53) as f64
}
