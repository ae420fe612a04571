//! CSV files by the names of their columns.
//!
//! Sketch: a field of a table has four to 15 bytes. One or two loads of eight bytes find its end
//! and, for a category, give the words that are hashed; numbers are parsed as in MultiSlot lines.
//! All other fields (quoted, longer, with blanks, not ASCII, missing) take the slow path, which
//! copies a field only to remove its quotes. Measured by `data/columns_load`.

use super::cells::Cells;
use super::format::CsvHeader;
use super::hash::{WORD, hash_of_word, hash_of_words};
use super::{ColumnKind, category_hash};
use crate::block::{Block, Column, Values};
use crate::lines::{LineError, LineFormat};
use crate::multislot::{float, integer, load_word};
use crate::slot::Schema;
use fleet_base::{Error, Result, text};
use std::ops::Range;
use std::sync::Arc;

/// Parses the lines of one file.
#[derive(Clone)]
pub(super) struct CsvLines {
    cells: Cells,
    separator: u8,
    /// Eight times the separator.
    separators: u64,
    /// Whether the separator could be a part of a number, so that only the slow path is right.
    is_part: bool,
    /// Whether the next line has the names of the columns.
    header_due: bool,
    header: CsvHeader,
    /// For each column of the file, its place among those to be read.
    places: Vec<Option<usize>>,
    /// The quote that the last line did not close.
    open_quote: Option<usize>,
    /// A field without its quotes.
    field: Vec<u8>,
}

impl CsvLines {
    /// Returns a format of lines with this separator and these names.
    pub fn new(cells: &Cells, separator: u8, header: &CsvHeader) -> Result<CsvLines> {
        if matches!(separator, b'"' | b'\n' | b'\r') || !separator.is_ascii() {
            return Err(Error::invalid("invalid separator of CSV fields")
                .expected("a character like ',', ';' or a tab")
                .got(format!("{:?}", char::from(separator))));
        }
        let places = match header {
            CsvHeader::Names(names) => cells.places(names)?,
            CsvHeader::FirstLine | CsvHeader::Numbered => Vec::new(),
        };
        Ok(CsvLines {
            cells: cells.clone(),
            separator,
            separators: u64::from_le_bytes([separator; 8]),
            is_part: separator.is_ascii_alphanumeric() || b"+-.".contains(&separator),
            header_due: !matches!(header, CsvHeader::Names(_)),
            header: header.clone(),
            places,
            open_quote: None,
            field: Vec::new(),
        })
    }

    /// Takes the names of the columns from the first line. Returns whether the line has only names.
    fn start(&mut self, line: &[u8]) -> Result<bool, LineError> {
        if memchr::memchr(b'\r', line).is_some() && !line.contains(&b'"') {
            let error = Error::invalid("lines end with carriage returns only")
                .expected("newlines (LF), also after carriage returns (CRLF)")
                .help("convert the file: tr '\\r' '\\n' < FILE > NEW_FILE");
            return Err(LineError { at: 0, error });
        }
        let mut names = self.names(line)?;
        let is_header = self.header == CsvHeader::FirstLine;
        if !is_header {
            names = numbered(names.len());
        }
        let places = self.cells.places(&names);
        self.places = places.map_err(|error| LineError { at: 0, error })?;
        Ok(is_header)
    }

    /// Returns the names in a header.
    pub fn names(&mut self, line: &[u8]) -> Result<Vec<String>, LineError> {
        let mut names = Vec::new();
        let mut at = 0;
        while at <= line.len() {
            let (field, next) = self.field(line, at)?;
            let text = self.field_text(line, field);
            names.push(String::from_utf8_lossy(text).trim().to_string());
            at = next;
        }
        Ok(names)
    }

    /// Returns the field at `at` and the start of the next one, which is past the end of the line
    /// after the last field. The range is empty if the text is in `self.field`.
    fn field(
        &mut self,
        line: &[u8],
        at: usize,
    ) -> Result<(Option<Range<usize>>, usize), LineError> {
        if line.get(at) != Some(&b'"') {
            let length = memchr::memchr(self.separator, &line[at..]);
            let end = length.map_or(line.len(), |length| at + length);
            return Ok((Some(at..end), end + 1));
        }
        self.field.clear();
        let mut from = at + 1;
        loop {
            let Some(quote) = memchr::memchr(b'"', &line[from..]) else {
                self.open_quote = Some(at);
                return Err(LineError::new(at, "quoted field has no closing quote"));
            };
            self.field.extend_from_slice(&line[from..from + quote]);
            from += quote + 1;
            match line.get(from) {
                Some(b'"') => self.field.push(b'"'),
                None => return Ok((None, from + 1)),
                Some(byte) if *byte == self.separator => return Ok((None, from + 1)),
                Some(_) => {
                    let error = Error::invalid("text after a closing quote")
                        .expected("a separator, or two quotes for a quote in the field");
                    return Err(LineError { at: from, error });
                }
            }
            from += 1;
        }
    }

    fn field_text<'a>(&'a self, line: &'a [u8], field: Option<Range<usize>>) -> &'a [u8] {
        field.map_or(&self.field, |range| &line[range])
    }

    /// Reads the field at `at` into a column if it is a plain one, and returns the start of the
    /// next field.
    #[inline(always)]
    fn plain_field(
        &self,
        index: usize,
        text: &[u8],
        at: usize,
        length: usize,
        column: &mut Column,
    ) -> Option<usize> {
        let ends = |end: usize| end == length || (end < length && text[end] == self.separator);
        match (&self.cells.columns[index].kind, &mut column.values) {
            (ColumnKind::Category, Values::Ids(ids)) => {
                let (hash, next) = self.plain_word(text, at, length)?;
                ids.push(hash as i64);
                column.end_row();
                Some(next)
            }
            (ColumnKind::Number, Values::Floats(floats)) => {
                let (value, end) = float(text, at).filter(|(_, end)| ends(*end))?;
                let missing = self.cells.missing.is_number_mark(value);
                floats.push(if missing { f32::NAN } else { value });
                Some(end + 1)
            }
            (ColumnKind::Row { rows }, Values::Ids(ids)) if self.cells.observer.is_none() => {
                let (value, end) = integer(text, at).filter(|(_, end)| ends(*end))?;
                let is_row = u64::try_from(value).is_ok_and(|row| row < *rows);
                if !is_row || self.cells.missing.is_mark(&text[at..end]) {
                    return None;
                }
                ids.push(value + 1);
                column.end_row();
                Some(end + 1)
            }
            (ColumnKind::Time, Values::Ids(ids)) => {
                let (value, end) = integer(text, at).filter(|(_, end)| ends(*end))?;
                if self.cells.missing.is_mark(&text[at..end]) {
                    return None;
                }
                ids.push(value);
                column.end_row();
                Some(end + 1)
            }
            _ => None,
        }
    }

    /// Returns the hash of a word of ASCII without quotes and blanks around it, and the start of
    /// the next field.
    #[inline(always)]
    fn plain_word(&self, text: &[u8], at: usize, length: usize) -> Option<(u64, usize)> {
        let word = load_word(text, at);
        let size = (first_zero_byte(word ^ self.separators)).min(length - at);
        if size >= WORD {
            return self.long_word(text, at, length);
        }
        if size == 0 {
            return None;
        }
        let word = word & (u64::MAX >> (64 - 8 * size));
        let first = word & 0xff;
        let last = word >> (8 * (size - 1));
        let blank_or_quote = first <= u64::from(b'"') || last <= u64::from(b' ');
        if blank_or_quote || word & NOT_ASCII != 0 {
            return None;
        }
        if !self.is_value(&text[at..at + size]) {
            return None;
        }
        Some((hash_of_word(word, size), at + size + 1))
    }

    /// Returns the end of a field without quotes of less than eight bytes.
    #[inline(always)]
    fn end_of_short(&self, text: &[u8], at: usize, length: usize) -> Option<usize> {
        let word = load_word(text, at);
        let size = first_zero_byte(word ^ self.separators).min(length - at);
        (size < 8 && word & 0xff != u64::from(b'"')).then_some(at + size)
    }

    /// Like [`CsvLines::plain_word`], for words of eight bytes or more.
    #[inline(never)]
    fn long_word(&self, text: &[u8], at: usize, length: usize) -> Option<(u64, usize)> {
        let (first, next) = (load_word(text, at), load_word(text, at + WORD));
        let size = first_zero_byte(next ^ self.separators).min(length - at - WORD);
        if size == WORD {
            return self.longer_word(text, at, length);
        }
        // A shift by all 64 bits, of a word without bytes, would not be one.
        let next = if size == 0 { 0 } else { next & (u64::MAX >> (64 - 8 * size)) };
        let last = if size == 0 { first >> 56 } else { next >> (8 * (size - 1)) };
        let blank_or_quote = first & 0xff <= u64::from(b'"') || last <= u64::from(b' ');
        let word = &text[at..at + WORD + size];
        if blank_or_quote || (first | next) & NOT_ASCII != 0 || !self.is_value(word) {
            return None;
        }
        let hash = match size {
            0 => hash_of_word(first, WORD),
            _ => hash_of_words(first, next, word.len()),
        };
        Some((hash, at + word.len() + 1))
    }

    /// Like [`CsvLines::plain_word`], for words of 16 bytes or more.
    #[inline(never)]
    fn longer_word(&self, text: &[u8], at: usize, length: usize) -> Option<(u64, usize)> {
        let rest = &text[at..length];
        let word = &rest[..memchr::memchr(self.separator, rest).unwrap_or(rest.len())];
        let (first, last) = (*word.first()?, *word.last()?);
        let is_plain = first > b'"' && last > b' ' && word.is_ascii();
        if !is_plain || !self.is_value(word) {
            return None;
        }
        Some((category_hash(word), at + word.len() + 1))
    }

    /// Returns whether a word is neither missing nor observed.
    #[inline(always)]
    fn is_value(&self, word: &[u8]) -> bool {
        !self.cells.missing.is_mark(word) && self.cells.observer.is_none()
    }

    /// Reads the field at `at` into a column, and returns the start of the next field.
    #[inline(never)]
    fn any_field(
        &mut self,
        index: usize,
        line: &[u8],
        at: usize,
        column: &mut Column,
    ) -> Result<usize, LineError> {
        let (field, next) = self.field(line, at)?;
        let text = self.field_text(line, field);
        let pushed = self.any_text(index, text, column);
        pushed.map_err(|error| LineError { at, error })?;
        Ok(next)
    }

    fn any_text(&self, index: usize, text: &[u8], column: &mut Column) -> Result<()> {
        self.cells.push_text(index, text, &mut column.values)?;
        column.end_row();
        Ok(())
    }

    #[cold]
    fn wrong_count(&self, line: &[u8], read: usize, at: usize) -> LineError {
        let columns = text::counted(self.places.len(), "column");
        let error = match read < self.places.len() {
            true => Error::invalid("line has too few columns").expected(columns).got(read),
            false => Error::invalid("line has too many columns").expected(columns),
        };
        LineError { at: at.min(line.len()), error }
    }
}

impl LineFormat for CsvLines {
    fn schema(&self) -> &Arc<Schema> {
        &self.cells.schema
    }

    fn parse(&mut self, text: &[u8], length: usize, block: &mut Block) -> Result<bool, LineError> {
        self.open_quote = None;
        let line = text[..length].strip_suffix(b"\r").unwrap_or(&text[..length]);
        if line.is_empty() {
            return Ok(false);
        }
        if self.header_due {
            let is_header = self.start(line)?;
            self.header_due = false;
            if is_header {
                return Ok(false);
            }
        }
        let mut at = 0;
        for place in 0..self.places.len() {
            if at > line.len() {
                return Err(self.wrong_count(line, place, at));
            }
            let Some(index) = self.places[place] else {
                at = match self.end_of_short(text, at, line.len()) {
                    Some(end) => end + 1,
                    None => self.field(line, at)?.1,
                };
                continue;
            };
            let column = &mut block.columns[index];
            let plain = match self.is_part {
                false => self.plain_field(index, text, at, line.len(), column),
                true => None,
            };
            at = match plain {
                Some(next) => next,
                None => self.any_field(index, line, at, column)?,
            };
        }
        if at <= line.len() {
            return Err(self.wrong_count(line, self.places.len(), at));
        }
        block.seal();
        Ok(true)
    }

    fn open_quote(&self) -> Option<usize> {
        self.open_quote
    }

    fn is_fatal(&self) -> bool {
        self.header_due
    }
}

/// Returns the names of the columns of a file without names.
pub(super) fn numbered(count: usize) -> Vec<String> {
    (1..=count).map(|at| format!("column_{at}")).collect()
}

/// Returns the place of the first byte of a word that is 0, or 8.
#[inline(always)]
fn first_zero_byte(word: u64) -> usize {
    // A borrow reaches only bytes after one that is already 0.
    let zero = word.wrapping_sub(ONES) & !word & NOT_ASCII;
    zero.trailing_zeros() as usize / 8
}

const ONES: u64 = 0x0101_0101_0101_0101;
const NOT_ASCII: u64 = 0x8080_8080_8080_8080;
