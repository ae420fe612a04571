//! One column: counts of its values, and the kind that follows from them.

use super::distinct::Distinct;
use crate::category_hash;
use crate::columns::{ColumnKind, ColumnSpec, time_of_text};
use fleet_base::text;
use std::collections::HashMap;
use std::collections::hash_map::Entry;

/// The kind that the values of a column seem to have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InferredKind {
    /// Numbers, of which some are not integers.
    Number,
    /// Integers.
    Integer,
    /// Words.
    Category,
    /// Lists of words, in files that have lists, or as text with this separator.
    Categories {
        /// Text between two words.
        separator: Option<String>,
    },
    /// Lists of numbers.
    Numbers {
        /// Text between two numbers.
        separator: Option<String>,
    },
    /// Dates, times, or integers that are seconds since 1970.
    Time,
    /// The same value in every row.
    Constant,
    /// No values.
    AllMissing,
}

/// The values of a column in the rows that were read.
#[derive(Clone, Debug, PartialEq)]
pub struct ColumnSummary {
    /// Name of the column.
    pub name: String,
    /// The kind that the values seem to have.
    pub kind: InferredKind,
    /// Rows without a value.
    pub missing: u64,
    /// Values of all rows; for lists, those in them.
    pub values: u64,
    /// Number of distinct values.
    pub distinct: u64,
    /// Whether the number of distinct values is exact, not an estimate.
    pub is_distinct_exact: bool,
    /// Smallest, largest and mean number, if there are numbers.
    pub numbers: Option<NumberSummary>,
    /// Values of the longest list.
    pub longest: usize,
    /// The most frequent values, with their counts.
    pub top: Vec<(String, u64)>,
    /// Values that seem to stand for a missing value.
    pub missing_marks: Vec<String>,
    /// Whether integers seem to be ids: names like `user_id`.
    pub is_id: bool,
}

/// The numbers of a column.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NumberSummary {
    /// Values that are numbers.
    pub count: u64,
    /// The smallest number.
    pub min: f64,
    /// The largest number.
    pub max: f64,
    /// The mean of the numbers.
    pub mean: f64,
}

impl ColumnSummary {
    /// Returns a column to read such values.
    pub fn spec(&self) -> ColumnSpec {
        let kind = match &self.kind {
            InferredKind::Integer if self.is_id => ColumnKind::Category,
            InferredKind::Number | InferredKind::Integer => ColumnKind::Number,
            InferredKind::Category | InferredKind::AllMissing => ColumnKind::Category,
            InferredKind::Categories { separator } => {
                ColumnKind::Categories { separator: separator.clone() }
            }
            InferredKind::Numbers { separator } => {
                ColumnKind::Numbers { separator: separator.clone() }
            }
            InferredKind::Time => ColumnKind::Time,
            InferredKind::Constant if self.numbers.is_some() => ColumnKind::Number,
            InferredKind::Constant => ColumnKind::Category,
        };
        ColumnSpec::new(&self.name, kind)
    }

    /// Returns what is unusual about the column.
    pub(super) fn finding(&self) -> Option<String> {
        let name = &self.name;
        match &self.kind {
            InferredKind::AllMissing => Some(format!("column '{name}' has no values")),
            InferredKind::Constant => {
                let value = self.top.first().map_or("", |(value, _)| value.as_str());
                Some(format!("column '{name}' is constant: '{}'", text::printable_line(value)))
            }
            _ if !self.missing_marks.is_empty() => {
                let marks: Vec<String> =
                    self.missing_marks.iter().map(|mark| format!("'{mark}'")).collect();
                let marks = marks.join(", ");
                Some(format!("column '{name}' has {marks}, perhaps for missing values"))
            }
            _ => None,
        }
    }
}

/// Counts of a column's values.
#[derive(Clone, Debug, Default)]
pub(super) struct ColumnStats {
    rows: u64,
    missing: u64,
    longest: usize,
    values: u64,
    /// Counts of the first distinct values.
    counts: HashMap<u64, Counted>,
    /// Texts of the current block that are not counted yet.
    seen: HashMap<u64, Counted>,
    /// Whether there were more distinct values than are counted.
    is_full: bool,
    distinct: Distinct,
    numbers: Numbers,
    integers: u64,
    times: u64,
    separators: [Separated; SEPARATORS.len()],
}

#[derive(Clone, Debug)]
struct Counted {
    text: Box<str>,
    count: u64,
    class: Class,
}

/// The possible kinds of one text.
#[derive(Clone, Copy, Debug, Default)]
struct Class {
    number: Option<f64>,
    is_integer: bool,
    is_time: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct Numbers {
    count: u64,
    min: f64,
    max: f64,
    sum: f64,
}

/// Texts with a separator, and their pieces.
#[derive(Clone, Debug, Default)]
struct Separated {
    texts: u64,
    pieces: u64,
    numbers: u64,
    distinct: Option<Box<Distinct>>,
}

impl ColumnStats {
    /// Gets a text that the parser has seen, perhaps in a row that turns out to be bad.
    pub fn see(&mut self, hash: u64, text: &[u8]) {
        if !self.counts.contains_key(&hash) && !self.seen.contains_key(&hash) {
            let short = &text[..text.len().min(TEXT_BYTES_MAX)];
            let text = String::from_utf8_lossy(short).into();
            self.seen.insert(hash, Counted { text, count: 0, class: Class::of(short) });
        }
    }

    /// Adds a row of these values, whose texts have been seen.
    pub fn add_row(&mut self, hashes: &[i64]) {
        self.rows += 1;
        self.missing += u64::from(hashes.is_empty());
        self.longest = self.longest.max(hashes.len());
        hashes.iter().for_each(|hash| self.add(*hash as u64));
    }

    /// Forgets the texts that are not counted one by one.
    pub fn end_block(&mut self) {
        self.seen.clear();
    }

    fn add(&mut self, hash: u64) {
        self.values += 1;
        let has_room = self.counts.len() < COUNTED_MAX;
        let counted = match self.counts.entry(hash) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(vacant) => {
                self.distinct.add(hash);
                self.is_full |= !has_room;
                match has_room {
                    true => match self.seen.remove(&hash) {
                        Some(seen) => vacant.insert(seen),
                        None => return,
                    },
                    false => match self.seen.get_mut(&hash) {
                        Some(seen) => seen,
                        None => return,
                    },
                }
            }
        };
        counted.count += 1;
        let class = counted.class;
        if let Some(number) = class.number {
            self.numbers.add(number);
        }
        self.integers += u64::from(class.is_integer);
        self.times += u64::from(class.is_time);
        if class.number.is_none() && !class.is_time {
            for (separator, counts) in SEPARATORS.iter().zip(&mut self.separators) {
                counts.add(*separator, counted.text.as_bytes());
            }
        }
    }

    /// Returns the summary of a column in `rows` rows, of which some may be of files without it.
    pub fn summary(self, name: String, rows: u64, top_max: usize) -> ColumnSummary {
        let missing_marks = self.missing_marks();
        let is_distinct_exact = !self.is_full;
        let distinct = match is_distinct_exact {
            true => self.counts.len() as u64,
            false => self.distinct.count().max(COUNTED_MAX as u64),
        };
        let kind = self.kind(&name, distinct, &missing_marks);
        let numbers = self.numbers.summary();
        let mut top: Vec<(String, u64)> =
            self.counts.into_values().map(|it| (it.text.into_string(), it.count)).collect();
        // Ties are in the order of the texts, so that the same files give the same survey.
        top.sort_unstable_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        top.truncate(top_max);
        ColumnSummary {
            is_id: is_id_name(&name),
            name,
            kind,
            missing: self.missing + rows.saturating_sub(self.rows),
            values: self.values,
            distinct,
            is_distinct_exact,
            numbers,
            longest: self.longest,
            top,
            missing_marks,
        }
    }

    fn kind(&self, name: &str, distinct: u64, marks: &[String]) -> InferredKind {
        let marked = |counted: &&Counted| marks.iter().any(|mark| **mark == *counted.text);
        let marked: u64 = self.counts.values().filter(marked).map(|it| it.count).sum();
        let values = self.values - marked;
        let is_list = self.longest > 1;
        let numbers = self.numbers.count;
        if values == 0 {
            return InferredKind::AllMissing;
        }
        if is_list {
            return match numbers == values && self.integers < values {
                true => InferredKind::Numbers { separator: None },
                false => InferredKind::Categories { separator: None },
            };
        }
        if distinct == 1 && self.missing == 0 {
            return InferredKind::Constant;
        }
        if self.times == values {
            return InferredKind::Time;
        }
        if numbers == values {
            let is_integer = self.integers == values;
            return match is_integer && self.numbers.are_seconds() && is_time_name(name) {
                true => InferredKind::Time,
                false if is_integer => InferredKind::Integer,
                false => InferredKind::Number,
            };
        }
        for (separator, counts) in SEPARATORS.iter().zip(&self.separators) {
            if counts.are_lists(values, distinct) {
                let separator = Some(char::from(*separator).to_string());
                return match counts.numbers == counts.pieces {
                    true => InferredKind::Numbers { separator },
                    false => InferredKind::Categories { separator },
                };
            }
        }
        InferredKind::Category
    }

    /// Returns the values that seem to stand for missing ones: the usual marks, and the only text
    /// among numbers.
    fn missing_marks(&self) -> Vec<String> {
        let usual = |counted: &&Counted| MARKS.contains(&&*counted.text);
        let mut marks: Vec<String> =
            self.counts.values().filter(usual).map(|it| it.text.to_string()).collect();
        let texts = self.values - self.numbers.count;
        if texts > 0 && texts * NUMBERS_PER_TEXT <= self.numbers.count {
            let is_text = |counted: &&Counted| counted.class.number.is_none();
            let mut others = self.counts.values().filter(is_text);
            if let (Some(only), None) = (others.next(), others.next())
                && only.count == texts
                && !marks.contains(&only.text.to_string())
            {
                marks.push(only.text.to_string());
            }
        }
        marks.sort_unstable();
        marks
    }
}

impl Class {
    fn of(text: &[u8]) -> Class {
        let number = std::str::from_utf8(text).ok().and_then(|text| text.parse::<f64>().ok());
        let number = number.filter(|number| number.is_finite());
        let digits = text.strip_prefix(b"-").unwrap_or(text);
        let is_integer = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
        Class { number, is_integer, is_time: number.is_none() && time_of_text(text).is_some() }
    }
}

impl Numbers {
    fn add(&mut self, number: f64) {
        let first = self.count == 0;
        self.min = if first { number } else { self.min.min(number) };
        self.max = if first { number } else { self.max.max(number) };
        self.sum += number;
        self.count += 1;
    }

    fn summary(&self) -> Option<NumberSummary> {
        let Numbers { count, min, max, sum } = *self;
        (count > 0).then(|| NumberSummary { count, min, max, mean: sum / count as f64 })
    }

    /// Returns whether the numbers may be seconds since 1970: between 1980 and 2100.
    fn are_seconds(&self) -> bool {
        self.min > 3.15e8 && self.max < 4.1e9
    }
}

impl Separated {
    fn add(&mut self, separator: u8, text: &[u8]) {
        let count = memchr::memchr_iter(separator, text).count();
        if count > 0 {
            self.texts += 1;
        }
        let distinct = self.distinct.get_or_insert_with(Box::default);
        for piece in text.split(|byte| *byte == separator) {
            let piece = piece.trim_ascii();
            self.pieces += 1;
            self.numbers += u64::from(crate::multislot::whole_float(piece).is_some());
            distinct.add(category_hash(piece));
        }
    }

    /// Returns whether texts are lists: a fifth has a separator, and the pieces are fewer than the
    /// texts that consist of them.
    fn are_lists(&self, values: u64, distinct: u64) -> bool {
        let Some(pieces) = &self.distinct else { return false };
        self.texts * 5 >= values && pieces.count() < distinct
    }
}

/// Returns whether the last word of a name says that the values are ids: `user_id`, `movieId`.
fn is_id_name(name: &str) -> bool {
    let lower = name.to_ascii_lowercase();
    let last = lower.rsplit(|char: char| !char.is_ascii_alphanumeric()).next().unwrap_or_default();
    ID_WORDS.contains(&last) || name.ends_with("Id") || name.ends_with("ID")
}

fn is_time_name(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    let parts = ["time", "date", "stamp", "created", "updated"];
    parts.iter().any(|part| name.contains(part)) || name == "ts" || name.ends_with("_at")
}

/// Distinct values that are counted one by one; with forty columns they take 80 MB.
const COUNTED_MAX: usize = 20_000;
/// Bytes of a text that are kept to be shown.
const TEXT_BYTES_MAX: usize = 200;
/// Numbers for each other text of a column of numbers with a mark for missing ones.
const NUMBERS_PER_TEXT: u64 = 4;
/// Bytes that may separate the values of a list.
const SEPARATORS: [u8; 3] = [b'|', b';', b','];
/// Last words of names of ids.
const ID_WORDS: [&str; 6] = ["id", "ids", "code", "zip", "zipcode", "postcode"];
/// Usual marks of missing values.
const MARKS: [&str; 13] =
    ["?", "NA", "N/A", "n/a", "NULL", "null", "None", "none", "nan", "NaN", "-", "\\N", "#N/A"];
