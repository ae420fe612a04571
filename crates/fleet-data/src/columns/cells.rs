//! How values fill the slots of columns, for all formats: text, integers, floats and booleans
//! become floats, hashes or times.

use super::missing::Missing;
use super::texts::TextObserver;
use super::{ColumnKind, ColumnSpec, schema_of, time};
use crate::block::{Column, Values};
use crate::category_hash;
use crate::generator::float_text;
use crate::multislot::{whole_float, whole_integer};
use crate::slot::Schema;
use fleet_base::{Error, Result, text};
use std::sync::Arc;

/// The columns to be read, and what they have in common.
#[derive(Clone)]
pub(super) struct Cells {
    pub columns: Arc<[ColumnSpec]>,
    pub schema: Arc<Schema>,
    pub missing: Missing,
    pub observer: Option<Arc<dyn TextObserver>>,
}

/// A value of a file that is not text.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(
    not(all(feature = "parquet", feature = "tfrecord")),
    allow(dead_code, reason = "formats of text have booleans only")
)]
pub(super) enum Scalar {
    Bool(bool),
    Int(i64),
    Float(f64),
    /// A 32-bit float, whose shortest text differs from that of the same 64-bit float.
    Float32(f32),
}

impl Cells {
    pub fn new(columns: impl IntoIterator<Item = ColumnSpec>) -> Result<Cells> {
        let columns: Arc<[ColumnSpec]> = columns.into_iter().collect();
        let schema = schema_of(&columns)?;
        Ok(Cells { columns, schema, missing: Missing::default(), observer: None })
    }

    /// Returns the place of each of a file's columns among those to be read. Fails if one of these
    /// is not in the file or twice.
    pub fn places<S: AsRef<str>>(&self, names: &[S]) -> Result<Vec<Option<usize>>> {
        let mut places = vec![None; names.len()];
        for (index, column) in self.columns.iter().enumerate() {
            let mut found = names.iter().enumerate().filter(|(_, it)| it.as_ref() == column.name);
            let Some((at, _)) = found.next() else { return Err(absent(&column.name, names)) };
            if found.next().is_some() {
                return Err(Error::invalid(format!("file has two columns '{}'", column.name))
                    .help("rename one of them in the file"));
            }
            places[at] = Some(index);
        }
        Ok(places)
    }

    /// Appends a text to the values of a column. Does not end the row.
    pub fn push_text(&self, index: usize, text: &[u8], values: &mut Values) -> Result<()> {
        let (column, text) = (&self.columns[index], text.trim_ascii());
        match (&column.kind, values) {
            (ColumnKind::Number, Values::Floats(floats)) => {
                floats.push(self.number(column, text)?);
            }
            (ColumnKind::Category, Values::Ids(ids)) if !self.missing.is_mark(text) => {
                ids.push(self.word(index, text)?);
            }
            (ColumnKind::Row { rows }, Values::Ids(ids)) if !self.missing.is_mark(text) => {
                let row = row_number(text).ok_or_else(|| wrong_row(column, *rows))?;
                ids.push(self.row(index, *rows, row)?);
            }
            (ColumnKind::Time, Values::Ids(ids)) if !self.missing.is_mark(text) => {
                ids.push(seconds(text).ok_or_else(|| wrong_time(column))?);
            }
            (ColumnKind::Categories { separator }, Values::Ids(ids)) => {
                for word in pieces(text, separator) {
                    if !self.missing.is_mark(word) {
                        ids.push(self.word(index, word)?);
                    }
                }
            }
            (ColumnKind::Numbers { separator }, Values::Floats(floats)) => {
                for word in pieces(text, separator) {
                    let number = self.number(column, word)?;
                    if !number.is_nan() {
                        floats.push(number);
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Appends a value of a number's type to the values of a column. Does not end the row.
    pub fn push(&self, index: usize, value: Scalar, values: &mut Values) -> Result<()> {
        let column = &self.columns[index];
        match (&column.kind, values) {
            (ColumnKind::Number | ColumnKind::Numbers { .. }, Values::Floats(floats)) => {
                let float = value.as_f32();
                if !float.is_finite() && !value.is_nan() {
                    return Err(wrong_number(column));
                }
                let missing = self.missing.is_number_mark(float);
                match column.kind {
                    ColumnKind::Number => floats.push(if missing { f32::NAN } else { float }),
                    _ if missing || float.is_nan() => {}
                    _ => floats.push(float),
                }
            }
            (ColumnKind::Row { rows }, Values::Ids(ids)) => match value {
                _ if value.is_nan() || self.missing.is_number_mark(value.as_f32()) => {}
                _ => {
                    let row = value.whole().ok_or_else(|| wrong_row(column, *rows))?;
                    ids.push(self.row(index, *rows, row)?);
                }
            },
            (ColumnKind::Time, Values::Ids(ids)) => match value {
                _ if value.is_nan() || self.missing.is_number_mark(value.as_f32()) => {}
                Scalar::Int(seconds) => ids.push(seconds),
                Scalar::Float(float) => {
                    ids.push(whole_seconds(float).ok_or_else(|| wrong_time(column))?);
                }
                _ => return Err(wrong_time(column)),
            },
            (_, Values::Ids(_)) if value.is_nan() => {}
            (_, Values::Ids(ids)) => {
                let mut buffer = [0; TEXT_BYTES_MAX];
                let text = value.text(&mut buffer);
                if !self.missing.is_mark(text) {
                    ids.push(self.word(index, text)?);
                }
            }
            (_, Values::Floats(_)) => {}
        }
        Ok(())
    }

    /// Appends a missing value: NaN where every row has a value, else nothing.
    pub fn push_missing(&self, index: usize, values: &mut Values) {
        if let (ColumnKind::Number, Values::Floats(floats)) = (&self.columns[index].kind, values) {
            floats.push(f32::NAN);
        }
    }

    /// Ends the row of a column after its values; `start` is their number before the row.
    pub fn end_row(&self, index: usize, start: usize, column: &mut Column) -> Result<()> {
        let (spec, count) = (&self.columns[index], column.values.len() - start);
        let is_single =
            !matches!(spec.kind, ColumnKind::Categories { .. } | ColumnKind::Numbers { .. });
        if is_single && count > 1 {
            return Err(Error::invalid(format!("column '{}' has a list of values", spec.name))
                .expected("one value")
                .got(count)
                .help("read the column as `categories` or `numbers`"));
        }
        if is_single && count == 0 {
            self.push_missing(index, &mut column.values);
        }
        column.end_row();
        Ok(())
    }

    /// Returns a number, or NaN if the text stands for a missing one.
    fn number(&self, column: &ColumnSpec, text: &[u8]) -> Result<f32> {
        if self.missing.is_mark(text) {
            return Ok(f32::NAN);
        }
        match whole_float(text) {
            Some(value) if self.missing.is_number_mark(value) => Ok(f32::NAN),
            Some(value) => Ok(value),
            None => match text {
                b"true" | b"True" | b"TRUE" => Ok(1.0),
                b"false" | b"False" | b"FALSE" => Ok(0.0),
                b"nan" | b"NaN" | b"NAN" | b"-nan" | b"null" | b"None" => Ok(f32::NAN),
                _ => Err(wrong_number(column)),
            },
        }
    }

    /// Returns the id of a row. Fails if there are not so many.
    fn row(&self, index: usize, rows: u64, row: i64) -> Result<i64> {
        if !u64::try_from(row).is_ok_and(|row| row < rows) {
            return Err(wrong_row(&self.columns[index], rows).got(row));
        }
        if let Some(observer) = &self.observer {
            observer.observe(index, row as u64 + 1, row.to_string().as_bytes());
        }
        Ok(row + 1)
    }

    /// Returns the hash of a word. Fails unless it is UTF-8.
    fn word(&self, index: usize, text: &[u8]) -> Result<i64> {
        if !text.is_ascii() && std::str::from_utf8(text).is_err() {
            let name = &self.columns[index].name;
            return Err(Error::invalid(format!("column '{name}' has text that is not UTF-8"))
                .help(
                    "convert the file: iconv -f latin1 -t UTF-8 FILE > NEW_FILE, with the \
                     encoding in which it was written",
                ));
        }
        let hash = category_hash(text);
        if let Some(observer) = &self.observer {
            observer.observe(index, hash, text);
        }
        Ok(hash as i64)
    }
}

impl Scalar {
    fn as_f32(self) -> f32 {
        match self {
            Scalar::Bool(value) => f32::from(u8::from(value)),
            Scalar::Int(value) => value as f32,
            Scalar::Float(value) => value as f32,
            Scalar::Float32(value) => value,
        }
    }

    /// Returns the value if it is a whole number.
    fn whole(self) -> Option<i64> {
        let of_float = |value: f64| {
            let is_whole = value.fract() == 0.0 && value.abs() < WHOLE_MAX;
            is_whole.then_some(value as i64)
        };
        match self {
            Scalar::Bool(_) => None,
            Scalar::Int(value) => Some(value),
            Scalar::Float(value) => of_float(value),
            Scalar::Float32(value) => of_float(f64::from(value)),
        }
    }

    fn is_nan(self) -> bool {
        match self {
            Scalar::Float(value) => value.is_nan(),
            Scalar::Float32(value) => value.is_nan(),
            Scalar::Bool(_) | Scalar::Int(_) => false,
        }
    }

    /// Writes the value as tables in text have it, and returns the text: `true`, `-7`, `1.0`,
    /// `1e-07`.
    fn text(self, buffer: &mut [u8; TEXT_BYTES_MAX]) -> &[u8] {
        match self {
            Scalar::Bool(true) => b"true",
            Scalar::Bool(false) => b"false",
            Scalar::Int(value) => integer_text(value, buffer),
            Scalar::Float(value) => copied(&float_text(value), buffer),
            Scalar::Float32(value) => copied(&float_text(value), buffer),
        }
    }
}

/// Writes the decimal digits of an integer to the end of the buffer, and returns them.
fn integer_text(value: i64, buffer: &mut [u8; TEXT_BYTES_MAX]) -> &[u8] {
    let (mut rest, mut at) = (value.unsigned_abs(), TEXT_BYTES_MAX);
    loop {
        at -= 1;
        buffer[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    if value < 0 {
        at -= 1;
        buffer[at] = b'-';
    }
    &buffer[at..]
}

fn copied<'a>(text: &str, buffer: &'a mut [u8; TEXT_BYTES_MAX]) -> &'a [u8] {
    let count = text.len().min(TEXT_BYTES_MAX);
    buffer[..count].copy_from_slice(&text.as_bytes()[..count]);
    &buffer[..count]
}

/// Splits a text at a separator, and drops blanks around the pieces.
fn pieces<'a>(text: &'a [u8], separator: &'a Option<String>) -> impl Iterator<Item = &'a [u8]> {
    let separator = separator.as_deref().unwrap_or_default().as_bytes();
    let mut rest = Some(text);
    std::iter::from_fn(move || {
        let whole = rest?;
        let found = match separator {
            [] => None,
            [byte] => memchr::memchr(*byte, whole),
            _ => memchr::memmem::find(whole, separator),
        };
        rest = found.map(|at| &whole[at + separator.len()..]);
        Some(whole[..found.unwrap_or(whole.len())].trim_ascii())
    })
}

/// Returns the integer of a text, which may have the form of a float, such as 2.0.
fn row_number(text: &[u8]) -> Option<i64> {
    let text = std::str::from_utf8(text).ok()?;
    text.parse().ok().or_else(|| Scalar::Float(text.parse().ok()?).whole())
}

/// Returns the seconds of a text: an integer, a date or a time.
fn seconds(text: &[u8]) -> Option<i64> {
    whole_integer(text).or_else(|| time::parse(text)).or_else(|| {
        let number: f64 = std::str::from_utf8(text).ok()?.parse().ok()?;
        whole_seconds(number)
    })
}

fn whole_seconds(seconds: f64) -> Option<i64> {
    (seconds.abs() < WHOLE_MAX).then_some(seconds.floor() as i64)
}

#[cold]
pub(super) fn absent<S: AsRef<str>>(name: &str, names: &[S]) -> Error {
    let hint = text::did_you_mean(name, names.iter().map(AsRef::as_ref));
    let shown: Vec<&str> = names.iter().take(NAMES_SHOWN).map(AsRef::as_ref).collect();
    let more = if names.len() > shown.len() { ", .." } else { "" };
    Error::invalid(format!("file has no column '{name}'{hint}")).got(format!(
        "{}: {}{more}",
        text::counted(names.len(), "column"),
        shown.join(", ")
    ))
}

#[cold]
pub(super) fn wrong_number(column: &ColumnSpec) -> Error {
    Error::invalid(format!("column '{}' is not a finite 32-bit float", column.name)).help(
        "add texts for missing values to the list of missing marks, or read the column as \
         `category`",
    )
}

#[cold]
fn wrong_row(column: &ColumnSpec, rows: u64) -> Error {
    let last = rows.saturating_sub(1);
    Error::invalid(format!("column '{}' is not the number of a row", column.name))
        .expected(format!("an integer from 0 to {last}"))
}

#[cold]
pub(super) fn wrong_time(column: &ColumnSpec) -> Error {
    Error::invalid(format!("column '{}' is not a time", column.name))
        .expected("seconds since 1970, or a date or time like 2024-03-01T12:30:05")
}

/// Digits of an integer with its sign, or of a float with its exponent.
const TEXT_BYTES_MAX: usize = 32;
/// Names that an error lists.
const NAMES_SHOWN: usize = 20;
/// Larger floats have no exact integer.
const WHOLE_MAX: f64 = (1u64 << 53) as f64;
