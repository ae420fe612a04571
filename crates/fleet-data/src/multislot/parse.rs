//! Parses lines into columns. Sketch: a line of a click log (13 floats, 26 ids, a label) has 235
//! bytes and 81 numbers, so 500 MB/s leaves 5.8 ns for each number. A number costs one load, about
//! eight operations on a word and one predictable branch (`number.rs`). Measured: see docs/data.md.

use super::number;
use crate::block::{Block, Values};
use crate::lines::{LineError, LineFormat};
use crate::slot::{Schema, Slot, SlotKind};
use fleet_base::Error;
use std::sync::Arc;

/// Parses MultiSlot lines of a schema.
///
/// ```
/// use fleet_data::{LineReader, MultiSlot, Block, Schema, Slot};
/// let schema = Schema::new([Slot::ragged_ids("words"), Slot::dense_ids("label", [1])])?;
/// let mut block = Block::new(&schema);
/// let text = b"3 1926 8 17 1 1\n1 5 1 0\n";
/// let mut reader = LineReader::new(&text[..], "example", MultiSlot::new(&schema));
/// assert_eq!(reader.read(100, &mut block)?, 2);
/// assert_eq!(block.column(0).ids(0), Some(&[1926, 8, 17][..]));
/// assert_eq!(block.column(1).ids(1), Some(&[0][..]));
/// # Ok::<(), fleet_base::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct MultiSlot {
    schema: Arc<Schema>,
    /// The width of each slot, stored contiguously.
    widths: Vec<Option<usize>>,
}

impl MultiSlot {
    /// Returns a format whose lines have these slots, in this order.
    pub fn new(schema: &Arc<Schema>) -> MultiSlot {
        let widths = schema.slots().iter().map(Slot::width).collect();
        MultiSlot { schema: Arc::clone(schema), widths }
    }
}

impl LineFormat for MultiSlot {
    fn schema(&self) -> &Arc<Schema> {
        &self.schema
    }

    fn parse(&mut self, text: &[u8], length: usize, block: &mut Block) -> Result<bool, LineError> {
        let mut at = skip_blanks(text, 0, length);
        if at == length {
            return Ok(false);
        }
        if self.schema.has_record_ids() {
            at = record_id(text, at, length, block)?;
        }
        let columns = block.columns.iter_mut();
        for (index, (&width, column)) in self.widths.iter().zip(columns).enumerate() {
            let slot = || &self.schema.slots()[index];
            let (count, next) = match text[at..length] {
                // Nearly every count has one digit.
                [digit @ b'1'..=b'9', b' ', ..] => (usize::from(digit - b'0'), at + 2),
                _ => count(text, at, length, slot())?,
            };
            if width.is_some_and(|width| width != count) {
                return Err(wrong_count(at, slot(), count));
            }
            at = match &mut column.values {
                Values::Ids(ids) => self::ids(text, next, length, count, ids),
                Values::Floats(floats) => self::floats(text, next, length, count, floats),
            }
            .map_err(|stop| wrong_value(length, slot(), count, stop))?;
            column.end_row();
        }
        if at < length {
            return Err(LineError::new(at, "line has more values than its slots"));
        }
        block.seal();
        Ok(true)
    }
}

/// Position of a value that cannot be read, and the number of values read before it.
struct ParseStop {
    at: usize,
    read: usize,
}

#[inline(always)]
fn ids(
    text: &[u8],
    mut at: usize,
    length: usize,
    count: usize,
    ids: &mut Vec<i64>,
) -> Result<usize, ParseStop> {
    ids.reserve(count);
    if count == 1
        && let Some((value, end)) = number::integer(text, at)
        && let Some(next) = separator(text, end, length)
    {
        ids.push(value);
        return Ok(next);
    }
    for read in 0..count {
        let stop = ParseStop { at, read };
        let Some((value, end)) = number::integer(text, at) else { return Err(stop) };
        let Some(next) = separator(text, end, length) else { return Err(stop) };
        ids.push(value);
        at = next;
    }
    Ok(at)
}

#[inline(always)]
fn floats(
    text: &[u8],
    mut at: usize,
    length: usize,
    count: usize,
    floats: &mut Vec<f32>,
) -> Result<usize, ParseStop> {
    floats.reserve(count);
    for read in 0..count {
        let stop = ParseStop { at, read };
        let Some((value, end)) = number::float(text, at) else { return Err(stop) };
        let Some(next) = separator(text, end, length) else { return Err(stop) };
        floats.push(value);
        at = next;
    }
    Ok(at)
}

/// Parses a count that is not a single digit, and reports errors in it.
#[cold]
fn count(text: &[u8], at: usize, length: usize, slot: &Slot) -> Result<(usize, usize), LineError> {
    let name = &slot.name;
    if at >= length {
        return Err(LineError::new(at, format!("line ends before slot '{name}'")));
    }
    let read = number::unsigned(text, at)
        .and_then(|(count, end)| Some((count, separator(text, end, length)?)));
    let Some((count, next)) = read else {
        return Err(LineError::new(at, format!("slot '{name}' does not start with a count")));
    };
    if count == 0 {
        let error = Error::invalid(format!("slot '{name}' has count 0"))
            .expected("at least 1 value")
            .help("pad an empty slot, with 0 for example");
        return Err(LineError { at, error });
    }
    // A value takes at least a digit and a blank. Checking this keeps a wrong count from reserving
    // memory.
    if count as usize > (length - next.min(length)).div_ceil(2) {
        let rest = text.get(next..length).unwrap_or_default();
        let words = rest.split(|byte| is_blank(*byte)).filter(|word| !word.is_empty()).count();
        return Err(wrong_value_count(at, slot, count, words));
    }
    Ok((count as usize, next))
}

#[cold]
fn wrong_value_count(at: usize, slot: &Slot, count: u64, words: usize) -> LineError {
    let values = |count: u64| format!("{count} value{}", if count == 1 { "" } else { "s" });
    let error = Error::invalid(format!("line ends in slot '{}'", slot.name))
        .expected(values(count))
        .got(values(words as u64));
    LineError { at, error }
}

#[cold]
fn wrong_count(at: usize, slot: &Slot, count: usize) -> LineError {
    let error = Error::invalid(format!("wrong count of dense slot '{}'", slot.name))
        .expected(slot.width().unwrap_or(0))
        .got(count);
    LineError { at, error }
}

#[cold]
fn wrong_value(length: usize, slot: &Slot, count: usize, stop: ParseStop) -> LineError {
    let (at, name) = (stop.at.min(length), &slot.name);
    if at == length {
        let message = format!("line ends after {} of {count} values of slot '{name}'", stop.read);
        return LineError::new(at, message);
    }
    let what = match slot.kind {
        SlotKind::Ids => "not a 64-bit integer",
        SlotKind::Floats => "not a finite 32-bit float",
    };
    let read = stop.read + 1;
    LineError::new(at, format!("value {read} of {count} of slot '{name}' is {what}"))
}

/// Reads the record's id: a count of 1 and a word.
fn record_id(text: &[u8], at: usize, length: usize, block: &mut Block) -> Result<usize, LineError> {
    let word = match &text[at..length] {
        [b'1', b' ' | b'\t', ..] => skip_blanks(text, at + 2, length),
        _ => return Err(LineError::new(at, "line does not start with a record id, '1 ID'")),
    };
    let long = text[word..length].iter().take_while(|byte| !is_blank(**byte)).count();
    if long == 0 {
        return Err(LineError::new(word, "line has no record id after its count"));
    }
    block.push_record_id(&text[word..word + long]);
    Ok(skip_blanks(text, word + long, length))
}

/// Returns the start of the next number after the blanks at `at`; `None` if there is no blank
/// before the end of the line.
#[inline(always)]
fn separator(text: &[u8], at: usize, length: usize) -> Option<usize> {
    if at >= length {
        return Some(length);
    }
    if text[at] == b' ' && text.get(at + 1).is_some_and(|next| *next > b' ') {
        return Some(at + 1);
    }
    let next = skip_blanks(text, at, length);
    if next > at { Some(next) } else { None }
}

#[inline]
fn skip_blanks(text: &[u8], mut at: usize, length: usize) -> usize {
    while at < length && is_blank(text[at]) {
        at += 1;
    }
    at
}

#[inline]
fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\r')
}
