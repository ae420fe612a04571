//! Records from lines of text: the loop that all line formats share, with errors that name file,
//! line and column, and the choice between failing and skipping.

use crate::block::Block;
use crate::slot::Schema;
use fleet_base::{Error, Result, text};
use std::io::Read;
use std::sync::Arc;

/// A format in which a line is a record.
pub trait LineFormat: Send {
    fn schema(&self) -> &Arc<Schema>;

    /// Appends the record of the line `text[..length]` to the block, or nothing and `false` when
    /// the line holds none. `text` may go on behind the line (with its newline), so that words can
    /// be loaded past its end; what is there says nothing. After an error the caller drops what was
    /// appended.
    fn parse(&mut self, text: &[u8], length: usize, block: &mut Block) -> Result<bool, LineError>;
}

impl LineFormat for Box<dyn LineFormat> {
    fn schema(&self) -> &Arc<Schema> {
        self.as_ref().schema()
    }

    fn parse(&mut self, text: &[u8], length: usize, block: &mut Block) -> Result<bool, LineError> {
        self.as_mut().parse(text, length, block)
    }
}

/// What is wrong with a line, and at which byte.
#[derive(Debug)]
pub struct LineError {
    pub at: usize,
    pub error: Error,
}

impl LineError {
    #[cold]
    pub fn new(at: usize, message: impl Into<String>) -> LineError {
        LineError { at, error: Error::invalid(message) }
    }
}

/// What happens to a line that cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum OnError {
    #[default]
    Fail,
    /// Skip it and count it; more than `lines_max` in one file fail after all.
    Skip { lines_max: u64 },
}

/// Lines that were skipped, and why the first one was.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Skipped {
    pub lines: u64,
    pub first: Option<Error>,
}

impl Skipped {
    pub(crate) fn add(&mut self, other: &Skipped) {
        self.lines += other.lines;
        if self.first.is_none() {
            self.first = other.first.clone();
        }
    }
}

/// Where records come from, a piece at a time.
pub trait RecordReader: Send {
    fn schema(&self) -> &Arc<Schema>;

    /// Appends up to `rows_max` records; 0 is the end.
    fn read(&mut self, rows_max: usize, block: &mut Block) -> Result<usize>;

    /// What has been skipped so far.
    fn skipped(&self) -> Skipped {
        Skipped::default()
    }
}

/// Reads records of a line format from bytes.
pub struct LineReader<R, F> {
    from: R,
    format: F,
    /// What errors call the source: a file's path.
    name: String,
    on_error: OnError,
    skipped: Skipped,
    buffer: Vec<u8>,
    /// The bytes of the buffer that are not parsed yet.
    start: usize,
    end: usize,
    /// How many of these hold no newline.
    searched: usize,
    begun: bool,
    ended: bool,
    line: u64,
}

impl<R: Read + Send, F: LineFormat> LineReader<R, F> {
    /// Reads `from`; errors call it `name`.
    pub fn new(from: R, name: impl Into<String>, format: F) -> LineReader<R, F> {
        LineReader {
            from,
            format,
            name: name.into(),
            on_error: OnError::Fail,
            skipped: Skipped::default(),
            buffer: Vec::new(),
            start: 0,
            end: 0,
            searched: 0,
            begun: false,
            ended: false,
            line: 0,
        }
    }

    /// Skips bad lines rather than failing.
    ///
    /// ```
    /// use fleet_data::{Block, LineReader, MultiSlot, OnError, Schema, Slot};
    /// let schema = Schema::new([Slot::dense_ids("id", [1])])?;
    /// let mut reader = LineReader::new(&b"1 7\noops\n1 8\n"[..], "f", MultiSlot::new(&schema))
    ///     .on_error(OnError::Skip { lines_max: 10 });
    /// let mut block = Block::new(&schema);
    /// assert_eq!(reader.read(100, &mut block)?, 2);
    /// assert_eq!(reader.skipped().lines, 1);
    /// # Ok::<(), fleet_base::Error>(())
    /// ```
    pub fn on_error(mut self, on_error: OnError) -> Self {
        self.on_error = on_error;
        self
    }

    /// Counts lines from here on: what was read before this reader, a header for example.
    pub fn lines_before(mut self, lines: u64) -> Self {
        self.line = lines;
        self
    }

    pub fn skipped(&self) -> &Skipped {
        &self.skipped
    }

    /// Appends up to `rows_max` records to the block; 0 is the end.
    pub fn read(&mut self, rows_max: usize, block: &mut Block) -> Result<usize> {
        let first = block.len();
        let mut unchecked = CHECK_BYTES;
        while block.len() - first < rows_max {
            let Some(mut length) = self.next_line()? else { break };
            if !std::mem::replace(&mut self.begun, true) {
                let marked = self.buffer[self.start..][..length].starts_with(BYTE_ORDER_MARK);
                let skipped = if marked { BYTE_ORDER_MARK.len() } else { 0 };
                self.start += skipped;
                length -= skipped;
            }
            unchecked += length;
            if unchecked >= CHECK_BYTES {
                // A value takes at least two bytes of text.
                if !block.takes((CHECK_BYTES + LINE_BYTES_MAX) / 2) {
                    return Err(Error::exhausted("a block takes no more records")
                        .help("read fewer records at once")
                        .at(format!("{}:{}", self.name, self.line + 1)));
                }
                unchecked = 0;
            }
            let line = &self.buffer[self.start..self.end];
            self.line += 1;
            let outcome = self.format.parse(line, length, block);
            self.start = (self.start + length + 1).min(self.end);
            if let Err(wrong) = outcome {
                block.rollback();
                let from = self.end - line.len();
                let line = &self.buffer[from..from + length];
                let error = at_line(wrong, line, &self.name, self.line);
                self.bad_line(error)?;
            }
        }
        Ok(block.len() - first)
    }

    fn bad_line(&mut self, error: Error) -> Result<()> {
        let OnError::Skip { lines_max } = self.on_error else { return Err(error) };
        self.skipped.lines += 1;
        if self.skipped.lines > lines_max {
            return Err(error.help(format!("{lines_max} bad lines were skipped before this one")));
        }
        if self.skipped.first.is_none() {
            self.skipped.first = Some(error);
        }
        Ok(())
    }

    /// The length of the line at `start`, without its newline; reads on when it is not there yet.
    fn next_line(&mut self) -> Result<Option<usize>> {
        loop {
            let window = &self.buffer[self.start..self.end];
            if let Some(found) = memchr::memchr(b'\n', &window[self.searched..]) {
                let length = self.searched + found;
                self.searched = 0;
                return Ok(Some(length));
            }
            self.searched = window.len();
            if self.ended {
                let length = window.len();
                self.searched = 0;
                return Ok(if length == 0 { None } else { Some(length) });
            }
            self.fill()?;
        }
    }

    fn fill(&mut self) -> Result<()> {
        if self.start > 0 {
            self.buffer.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        if self.end == self.buffer.len() {
            if self.end >= LINE_BYTES_MAX {
                return Err(Error::exhausted("line is too long")
                    .expected(format!("at most {}", text::bytes(LINE_BYTES_MAX as u64)))
                    .at(format!("{}:{}", self.name, self.line + 1)));
            }
            let bytes = (2 * self.buffer.len()).clamp(BUFFER_BYTES, LINE_BYTES_MAX);
            self.buffer.resize(bytes, 0);
        }
        let count = loop {
            match self.from.read(&mut self.buffer[self.end..]) {
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => {
                    return Err(Error::unavailable(format!("cannot read {}: {error}", self.name))
                        .at(format!("{}:{}", self.name, self.line + 1)));
                }
                Ok(count) => break count,
            }
        };
        self.end += count;
        self.ended = count == 0;
        Ok(())
    }
}

impl<R: Read + Send, F: LineFormat> RecordReader for LineReader<R, F> {
    fn schema(&self) -> &Arc<Schema> {
        self.format.schema()
    }

    fn read(&mut self, rows_max: usize, block: &mut Block) -> Result<usize> {
        LineReader::read(self, rows_max, block)
    }

    fn skipped(&self) -> Skipped {
        self.skipped.clone()
    }
}

/// Adds the place and the text there.
#[cold]
fn at_line(wrong: LineError, line: &[u8], name: &str, number: u64) -> Error {
    let at = wrong.at.min(line.len());
    let place = format!("{name}:{number}:{}", at + 1);
    match excerpt(&line[at..]) {
        None => wrong.error.at(place),
        Some(excerpt) => wrong.error.at(format!("{place}, at '{excerpt}'")),
    }
}

/// The start of the offending text, readable whatever bytes it has.
fn excerpt(rest: &[u8]) -> Option<String> {
    let short = &rest[..rest.len().min(EXCERPT_BYTES)];
    let mut shown: String = String::from_utf8_lossy(short)
        .trim_end_matches(['\r', '\n', ' ', '\u{fffd}'])
        .chars()
        .map(|c| if c.is_control() && c != '\t' { '\u{fffd}' } else { c })
        .collect();
    if shown.is_empty() {
        return None;
    }
    if rest.len() > EXCERPT_BYTES {
        shown.push_str("..");
    }
    Some(shown)
}

/// What some editors and spreadsheets put in front of a text.
const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();
/// Read at once: large enough that system calls cost nothing, small enough for the second cache.
const BUFFER_BYTES: usize = 1 << 18;
/// A record of a million ids has 10 MB of text.
const LINE_BYTES_MAX: usize = 64 << 20;
/// How much text may pass between two checks of a block's limit.
const CHECK_BYTES: usize = 1 << 30;
/// What an error shows of a line.
const EXCERPT_BYTES: usize = 40;
