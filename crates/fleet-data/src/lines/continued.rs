//! Records that cannot be read from their first line: those that continue on other lines, and bad
//! ones.
//!
//! After a bad record the reader resumes at the line after its first one. So a stray quote costs
//! one line, not all lines up to the next quote.

use super::{LineError, LineFormat, LineReader, at_line};
use crate::block::Block;
use fleet_base::{Result, text};
use std::io::Read;

impl<R: Read + Send, F: LineFormat> LineReader<R, F> {
    /// Reads the record whose first line, of this length, gave an error: over several lines, or as
    /// a bad one.
    #[cold]
    pub(super) fn recover(
        &mut self,
        first: usize,
        mut wrong: LineError,
        block: &mut Block,
    ) -> Result<()> {
        let mut length = first;
        block.rollback();
        while let Some(quote) = self.format.open_quote() {
            let Some(longer) = self.continued(quote)? else {
                let limit = text::bytes(CONTINUED_BYTES_MAX as u64);
                wrong.error = wrong.error.expected(format!("a closing quote within {limit}"));
                break;
            };
            length = longer;
            match self.format.parse(&self.buffer[self.start..self.end], length, block) {
                Ok(_) => {
                    self.line += newlines(&self.buffer[self.start..][..length]);
                    self.advance(length);
                    return Ok(());
                }
                Err(error) => wrong = error,
            }
            block.rollback();
        }
        let record = &self.buffer[self.start..][..length];
        let before = &record[..wrong.at.min(length)];
        let line_start = memchr::memrchr(b'\n', before).map_or(0, |at| at + 1);
        let line = self.line + newlines(before);
        wrong.at -= line_start.min(wrong.at);
        let rest = &record[line_start..];
        let rest = &rest[..memchr::memchr(b'\n', rest).unwrap_or(rest.len())];
        let error = at_line(wrong, rest, &self.name, line);
        match &self.bad_rows {
            _ if self.format.is_fatal() => return Err(error),
            Some(bad_rows) => bad_rows.add(&mut self.skipped, error, &record[..first])?,
            None => self.skipped.count(self.on_error, "line", error)?,
        }
        self.advance(first);
        Ok(())
    }

    /// Returns the length of the record in which the quote at this offset is closed, up to the end
    /// of the line with the closing quote. Returns `None` if the quote is not closed in reach.
    fn continued(&mut self, quote: usize) -> Result<Option<usize>> {
        let Some(closed) = self.closing_quote(quote + 1)? else { return Ok(None) };
        let mut at = closed;
        loop {
            let window = &self.buffer[self.start..self.end];
            match memchr::memchr(b'\n', &window[at..]) {
                Some(found) => return Ok(Some(at + found)),
                None if self.ended => return Ok(Some(window.len())),
                None if window.len() > CONTINUED_BYTES_MAX => return Ok(None),
                None => at = window.len(),
            }
            self.fill()?;
        }
    }

    /// Returns the offset after the closing quote of the field whose text is at `at`.
    fn closing_quote(&mut self, mut at: usize) -> Result<Option<usize>> {
        loop {
            let window = &self.buffer[self.start..self.end];
            let found = memchr::memchr(b'"', &window[at.min(window.len())..]);
            let Some(found) = found else {
                at = at.max(window.len());
                if self.ended || at > CONTINUED_BYTES_MAX {
                    return Ok(None);
                }
                self.fill()?;
                continue;
            };
            at += found + 1;
            if at == window.len() && !self.ended {
                self.fill()?;
            }
            // Two quotes stand for one in the text.
            match self.buffer[self.start..self.end].get(at) {
                Some(b'"') => at += 1,
                _ => return Ok(Some(at)),
            }
        }
    }
}

fn newlines(text: &[u8]) -> u64 {
    memchr::memchr_iter(b'\n', text).count() as u64
}

/// Limit of a record on several lines. A missing quote in a large file is then found after a
/// megabyte; no table has longer texts in a field.
const CONTINUED_BYTES_MAX: usize = 1 << 20;
