//! MultiSlot lines whose slots are columns: a count and that many values for each.

use super::cells::Cells;
use crate::block::Block;
use crate::lines::{LineError, LineFormat};
use crate::multislot::integer;
use crate::slot::Schema;
use fleet_base::{Error, Result, text};
use std::sync::Arc;

/// Parses lines of a file whose columns have these names, in this order.
#[derive(Clone)]
pub(super) struct MultiSlotRows {
    cells: Cells,
    names: Arc<[String]>,
    /// For each column of the file, its place among those to be read.
    places: Vec<Option<usize>>,
}

impl MultiSlotRows {
    pub fn new(cells: &Cells, names: &[String]) -> Result<MultiSlotRows> {
        let places = cells.places(names)?;
        Ok(MultiSlotRows { cells: cells.clone(), names: names.into(), places })
    }

    #[cold]
    fn wrong_count(&self, place: usize, at: usize, word: Option<&[u8]>) -> LineError {
        let name = &self.names[place];
        let error = match word {
            None => Error::invalid(format!("line ends before column '{name}'"))
                .expected(text::counted(self.names.len(), "column"))
                .got(place),
            Some(_) => Error::invalid(format!("column '{name}' does not start with a count"))
                .expected("a number of values, 1 or more"),
        };
        LineError { at, error }
    }
}

impl LineFormat for MultiSlotRows {
    fn schema(&self) -> &Arc<Schema> {
        &self.cells.schema
    }

    fn parse(&mut self, text: &[u8], length: usize, block: &mut Block) -> Result<bool, LineError> {
        let line = &text[..length];
        let mut words = Words { line, at: 0 };
        if words.peek().is_none() {
            return Ok(false);
        }
        for (place, index) in self.places.iter().enumerate() {
            let (at, word) = words.next().unzip();
            let at = at.unwrap_or(line.len());
            let count = word.and_then(|word| {
                let (count, end) = integer(word, 0)?;
                (end == word.len() && count > 0).then_some(count)
            });
            let Some(count) = count else { return Err(self.wrong_count(place, at, word)) };
            let start = index.map_or(0, |index| block.columns[index].values.len());
            for read in 0..count {
                let Some((at, word)) = words.next() else {
                    let name = &self.names[place];
                    let error = Error::invalid(format!("line ends in column '{name}'"))
                        .expected(text::counted(count as usize, "value"))
                        .got(read);
                    return Err(LineError { at: line.len(), error });
                };
                if let Some(index) = index {
                    let values = &mut block.columns[*index].values;
                    let pushed = self.cells.push_text(*index, word, values);
                    pushed.map_err(|error| LineError { at, error })?;
                }
            }
            if let Some(index) = index {
                let ended = self.cells.end_row(*index, start, &mut block.columns[*index]);
                ended.map_err(|error| LineError { at, error })?;
            }
        }
        if let Some((at, _)) = words.next() {
            return Err(LineError::new(at, "line has more values than its columns"));
        }
        block.seal();
        Ok(true)
    }
}

/// The words of a line between blanks, with their places.
struct Words<'a> {
    line: &'a [u8],
    at: usize,
}

impl<'a> Words<'a> {
    /// Returns the next byte of a word, without taking it.
    fn peek(&mut self) -> Option<u8> {
        let rest = &self.line[self.at..];
        self.at += rest.iter().take_while(|byte| byte.is_ascii_whitespace()).count();
        self.line.get(self.at).copied()
    }
}

impl<'a> Iterator for Words<'a> {
    type Item = (usize, &'a [u8]);

    fn next(&mut self) -> Option<(usize, &'a [u8])> {
        self.peek()?;
        let (at, rest) = (self.at, &self.line[self.at..]);
        let length = rest.iter().take_while(|byte| !byte.is_ascii_whitespace()).count();
        self.at += length;
        Some((at, &rest[..length]))
    }
}
