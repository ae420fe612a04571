//! CSV files: fields between separators, quoted if they contain a separator, with or without a
//! header.

use super::hash_bucket;
use crate::block::{Block, Values};
use crate::lines::{LineError, LineFormat};
use crate::multislot::{float, integer, whole_float, whole_integer};
use crate::slot::{Schema, Slot, SlotKind};
use fleet_base::{Error, Result};
use std::sync::Arc;

/// Use of a column.
#[derive(Clone, Debug, PartialEq)]
pub enum CsvColumn {
    /// No use.
    Skip,
    /// A number for a slot of floats; an empty field is 0.
    Float(String),
    /// An integer for a slot of ids.
    Id(String),
    /// Any text, hashed into this many ids.
    Hash(String, u64),
}

/// Reads CSV files. Columns that name the same slot fill it side by side.
///
/// ```
/// use fleet_data::{Block, Csv, CsvColumn, LineReader};
/// let text = "age,height,city,click\n30,1.75,\"Paris, 4e\",1\n";
/// let csv = Csv::new([
///     ("age", CsvColumn::Float("person".into())),
///     ("height", CsvColumn::Float("person".into())),
///     ("city", CsvColumn::Hash("city".into(), 1000)),
///     ("click", CsvColumn::Id("label".into())),
/// ])?.with_header();
/// let mut block = Block::new(csv.schema());
/// assert_eq!(LineReader::new(text.as_bytes(), "people.csv", csv).read(10, &mut block)?, 1);
/// assert_eq!(block.column(0).floats(0), Some(&[30.0, 1.75][..]));
/// assert_eq!(block.column(2).ids(0), Some(&[1][..]));
/// # Ok::<(), fleet_base::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Csv {
    schema: Arc<Schema>,
    columns: Vec<(String, CsvColumn, usize)>,
    separator: u8,
    /// Whether the next line is a header that must be compared with the names.
    header_due: bool,
    /// The current field without its quotes.
    field: Vec<u8>,
}

impl Csv {
    /// Creates a format from the names and uses of all columns, in order.
    pub fn new<S: Into<String>>(columns: impl IntoIterator<Item = (S, CsvColumn)>) -> Result<Csv> {
        let mut widths: Vec<(String, SlotKind, usize)> = Vec::new();
        let mut resolved = Vec::new();
        for (name, column) in columns {
            let (slot, kind) = match &column {
                CsvColumn::Skip => {
                    resolved.push((name.into(), column, 0));
                    continue;
                }
                CsvColumn::Float(slot) => (slot, SlotKind::Floats),
                CsvColumn::Id(slot) | CsvColumn::Hash(slot, _) => (slot, SlotKind::Ids),
            };
            let found = widths.iter().position(|(known, ..)| known == slot);
            let index = found.unwrap_or(widths.len());
            if found.is_none() {
                widths.push((slot.clone(), kind, 0));
            }
            if widths[index].1 != kind {
                return Err(Error::invalid(format!("slot '{slot}' mixes ids and floats")));
            }
            widths[index].2 += 1;
            resolved.push((name.into(), column, index));
        }
        let slots = widths.into_iter().map(|(name, kind, width)| {
            Slot::new(name, kind, crate::slot::SlotForm::Dense(vec![width]))
        });
        Ok(Csv {
            schema: Schema::new(slots)?,
            columns: resolved,
            separator: b',',
            header_due: false,
            field: Vec::new(),
        })
    }

    /// Returns the slots of the columns that have one.
    pub fn schema(&self) -> &Arc<Schema> {
        &self.schema
    }

    /// Expects a header: the first line of every file must hold the given names.
    pub fn with_header(mut self) -> Csv {
        self.header_due = true;
        self
    }

    /// Sets another separator than the comma.
    pub fn separator(mut self, separator: u8) -> Csv {
        self.separator = separator;
        self
    }

    /// Copies the field at `at` to `self.field`, and returns the start of the next one; after the
    /// last field, this is past the end of the line.
    fn take_field(&mut self, line: &[u8], at: usize) -> Result<usize, LineError> {
        self.field.clear();
        let Some((b'"', _)) = line[at..].split_first() else {
            let rest = &line[at..];
            let end = memchr::memchr(self.separator, rest).unwrap_or(rest.len());
            self.field.extend_from_slice(&rest[..end]);
            return Ok(at + end + 1);
        };
        let mut from = at + 1;
        loop {
            let Some(quote) = memchr::memchr(b'"', &line[from..]) else {
                return Err(LineError::new(at, "quoted field has no closing quote on its line"));
            };
            self.field.extend_from_slice(&line[from..from + quote]);
            from += quote + 1;
            match line.get(from) {
                Some(b'"') => self.field.push(b'"'),
                None => return Ok(from + 1),
                Some(byte) if *byte == self.separator => return Ok(from + 1),
                Some(_) => return Err(LineError::new(from, "text after a closing quote")),
            }
            from += 1;
        }
    }

    /// Fast path: reads an unquoted number between separators, and returns the start of the next
    /// field. Returns `None` for all other fields (quoted, with blanks, empty or wrong), which take
    /// the slow path.
    #[inline(always)]
    fn plain_number(
        &self,
        column: usize,
        text: &[u8],
        at: usize,
        length: usize,
        block: &mut Block,
    ) -> Option<usize> {
        let (_, use_, slot) = &self.columns[column];
        let ends = |end: usize| end == length || (end < length && text[end] == self.separator);
        match (use_, &mut block.columns[*slot].values) {
            (CsvColumn::Float(_), Values::Floats(floats)) => {
                let (value, end) = float(text, at).filter(|(_, end)| ends(*end))?;
                floats.push(value);
                Some(end + 1)
            }
            (CsvColumn::Id(_), Values::Ids(ids)) => {
                let (value, end) = integer(text, at).filter(|(_, end)| ends(*end))?;
                ids.push(value);
                Some(end + 1)
            }
            _ => None,
        }
    }

    fn push(&self, column: usize, block: &mut Block) -> Result<(), String> {
        let (name, use_, slot) = &self.columns[column];
        let field = self.field.as_slice();
        let outcome = match use_ {
            CsvColumn::Skip => Ok(()),
            CsvColumn::Float(_) if field.is_empty() => block.push_floats(*slot, &[0.0]),
            CsvColumn::Float(_) => match whole_float(field) {
                Some(value) => block.push_floats(*slot, &[value]),
                None => return Err(format!("column '{name}' is not a finite 32-bit float")),
            },
            CsvColumn::Id(_) => match whole_integer(field) {
                Some(value) => block.push_ids(*slot, &[value]),
                None => return Err(format!("column '{name}' is not a 64-bit integer")),
            },
            CsvColumn::Hash(_, buckets) => {
                block.push_ids(*slot, &[hash_bucket(name.as_bytes(), field, *buckets) as i64])
            }
        };
        outcome.map_err(|error| error.message().to_string())
    }
}

impl LineFormat for Csv {
    fn schema(&self) -> &Arc<Schema> {
        &self.schema
    }

    fn parse(&mut self, text: &[u8], length: usize, block: &mut Block) -> Result<bool, LineError> {
        let line = text[..length].strip_suffix(b"\r").unwrap_or(&text[..length]);
        if line.is_empty() {
            return Ok(false);
        }
        let header = std::mem::take(&mut self.header_due);
        // If the separator could be a part of a number, only the slow path separates fields
        // correctly.
        let is_part = self.separator.is_ascii_alphanumeric() || b"+-.".contains(&self.separator);
        let is_plain = !header && !is_part;
        let mut at = 0;
        for column in 0..self.columns.len() {
            if at > line.len() {
                let error = Error::invalid("line has too few columns");
                let error = error.expected(self.columns.len()).got(column);
                return Err(LineError { at: line.len(), error });
            }
            if is_plain && let Some(next) = self.plain_number(column, text, at, line.len(), block) {
                at = next;
                continue;
            }
            let next = self.take_field(line, at)?;
            if header {
                let name = &self.columns[column].0;
                if self.field != name.as_bytes() {
                    let error = Error::invalid(format!("column {} has the wrong name", column + 1));
                    let got = String::from_utf8_lossy(&self.field);
                    return Err(LineError { at, error: error.expected(name).got(got) });
                }
            } else {
                self.push(column, block).map_err(|message| LineError::new(at, message))?;
            }
            at = next;
        }
        if at <= line.len() {
            let message = format!("line has more than {} columns", self.columns.len());
            return Err(LineError::new(at, message));
        }
        if header {
            return Ok(false);
        }
        block.end_record().map_err(|error| LineError { at: 0, error })?;
        Ok(true)
    }
}
