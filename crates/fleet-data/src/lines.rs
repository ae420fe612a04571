//! Records from lines of text: the loop shared by all line formats, with errors that name file,
//! line and column, and the choice between failing and skipping bad lines. A record is one line,
//! or several if a quoted field continues on the next line (`lines/continued.rs`).

mod continued;

pub use crate::skipped::{OnError, Skipped};

use crate::bad_rows::BadRows;
use crate::block::Block;
use crate::slot::Schema;
use fleet_base::{Error, Result, text};
use std::io::Read;
use std::sync::Arc;

/// A format with one record per line.
pub trait LineFormat: Send {
    /// Returns the slots of a record.
    fn schema(&self) -> &Arc<Schema>;

    /// Appends the record of the line `text[..length]` to the block; returns `false` if the line
    /// holds no record. `text` may extend past the line (with its newline), so that whole words can
    /// be loaded past its end; the bytes there must be ignored. After an error, the caller drops
    /// the values appended.
    fn parse(&mut self, text: &[u8], length: usize, block: &mut Block) -> Result<bool, LineError>;

    /// Returns the offset of the quote that is not closed, after [`LineFormat::parse`] has failed
    /// on such a line. The reader then parses the line again with those that follow, up to the one
    /// with the closing quote.
    fn open_quote(&self) -> Option<usize> {
        None
    }

    /// Returns whether the last error concerns the whole file, such as its header, so that the line
    /// cannot be skipped.
    fn is_fatal(&self) -> bool {
        false
    }
}

impl LineFormat for Box<dyn LineFormat> {
    fn schema(&self) -> &Arc<Schema> {
        self.as_ref().schema()
    }

    fn parse(&mut self, text: &[u8], length: usize, block: &mut Block) -> Result<bool, LineError> {
        self.as_mut().parse(text, length, block)
    }

    fn open_quote(&self) -> Option<usize> {
        self.as_ref().open_quote()
    }

    fn is_fatal(&self) -> bool {
        self.as_ref().is_fatal()
    }
}

/// An error in a line, and the byte where it is.
#[derive(Debug)]
pub struct LineError {
    /// Offset of the byte in the line.
    pub at: usize,
    /// The error, without file and line.
    pub error: Error,
}

impl LineError {
    /// Returns an error at a byte of the line. The reader adds file, line and column.
    #[cold]
    pub fn new(at: usize, message: impl Into<String>) -> LineError {
        LineError { at, error: Error::invalid(message) }
    }
}

/// A source of records, read in pieces.
pub trait RecordReader: Send {
    /// Returns the slots of the records.
    fn schema(&self) -> &Arc<Schema>;

    /// Appends up to `rows_max` records and returns their number; 0 means the end.
    fn read(&mut self, rows_max: usize, block: &mut Block) -> Result<usize>;

    /// Returns the lines skipped so far.
    fn skipped(&self) -> Skipped {
        Skipped::default()
    }
}

/// Reads records of a line format from bytes.
pub struct LineReader<R, F> {
    from: R,
    format: F,
    /// Name of the source in errors, usually a file's path.
    name: String,
    on_error: OnError,
    /// Limits over all files, which take the place of `on_error`.
    bad_rows: Option<BadRows>,
    skipped: Skipped,
    buffer: Vec<u8>,
    /// Start and end of the unparsed bytes in the buffer.
    start: usize,
    end: usize,
    /// Number of these bytes already known to hold no newline.
    searched: usize,
    begun: bool,
    ended: bool,
    line: u64,
}

impl<R: Read + Send, F: LineFormat> LineReader<R, F> {
    /// Creates a reader of `from`; errors call it `name`.
    pub fn new(from: R, name: impl Into<String>, format: F) -> LineReader<R, F> {
        LineReader {
            from,
            format,
            name: name.into(),
            on_error: OnError::Fail,
            bad_rows: None,
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

    /// Sets whether bad lines are skipped.
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

    /// Sets limits for bad lines over all files of a pass.
    pub fn bad_rows(mut self, bad_rows: BadRows) -> Self {
        self.bad_rows = Some(bad_rows);
        self
    }

    /// Returns the lines skipped so far.
    pub fn skipped(&self) -> &Skipped {
        &self.skipped
    }

    /// Appends up to `rows_max` records to the block and returns their number; 0 means the end.
    pub fn read(&mut self, rows_max: usize, block: &mut Block) -> Result<usize> {
        let first = block.len();
        let mut unchecked = CHECK_BYTES;
        while block.len() - first < rows_max {
            let Some(mut length) = self.next_line()? else { break };
            if !std::mem::replace(&mut self.begun, true) {
                length -= self.skip_byte_order_mark(length)?;
            }
            unchecked += length;
            if unchecked >= CHECK_BYTES {
                // A value takes at least two bytes of text.
                if !block.has_room_for((CHECK_BYTES + LINE_BYTES_MAX) / 2) {
                    return Err(Error::exhausted("block is full")
                        .help("read fewer records at once")
                        .at(format!("{}:{}", self.name, self.line + 1)));
                }
                unchecked = 0;
            }
            self.line += 1;
            let line = &self.buffer[self.start..self.end];
            match self.format.parse(line, length, block) {
                Ok(_) => self.advance(length),
                Err(wrong) => self.recover(length, wrong, block)?,
            }
        }
        let rows = block.len() - first;
        if let Some(bad_rows) = &self.bad_rows {
            bad_rows.add_good(rows as u64, &self.skipped)?;
        }
        Ok(rows)
    }

    /// Moves past a record and its newline.
    fn advance(&mut self, length: usize) {
        self.start = (self.start + length + 1).min(self.end);
    }

    /// Skips the byte order mark at the start of a file, and returns its length.
    fn skip_byte_order_mark(&mut self, length: usize) -> Result<usize> {
        let line = &self.buffer[self.start..][..length];
        if line.starts_with(b"\xff\xfe") || line.starts_with(b"\xfe\xff") {
            return Err(Error::invalid("file is UTF-16")
                .expected("UTF-8")
                .help("convert it: iconv -f UTF-16 -t UTF-8 FILE > NEW_FILE")
                .at(&self.name));
        }
        let skipped = match line.starts_with(BYTE_ORDER_MARK) {
            true => BYTE_ORDER_MARK.len(),
            false => 0,
        };
        self.start += skipped;
        Ok(skipped)
    }

    /// Returns the length of the line at `start`, without its newline; reads more input if needed.
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
                    .help("check that the file is text with line ends, and the format")
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

/// Adds the position and an excerpt of the line to an error.
#[cold]
fn at_line(wrong: LineError, line: &[u8], name: &str, number: u64) -> Error {
    let at = wrong.at.min(line.len());
    let place = format!("{name}:{number}:{}", at + 1);
    match excerpt(&line[at..]) {
        None => wrong.error.at(place),
        Some(excerpt) => wrong.error.at(format!("{place}, at '{excerpt}'")),
    }
}

/// Returns the start of the offending text, with unprintable bytes replaced.
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

/// Byte order mark, which some editors and spreadsheets write at the start of a file.
const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();
/// Bytes read at once: large enough that system calls cost nothing, small enough for the L2 cache.
const BUFFER_BYTES: usize = 1 << 18;
/// Limit of a line's length; a record of a million ids has 10 MB of text.
const LINE_BYTES_MAX: usize = 64 << 20;
/// Bytes of text between two checks of a block's limit.
const CHECK_BYTES: usize = 1 << 30;
/// Bytes of a line that an error shows.
const EXCERPT_BYTES: usize = 40;
