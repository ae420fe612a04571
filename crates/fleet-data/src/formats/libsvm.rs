//! The libsvm format: `label [qid:n] index:value ..`; indices that are not listed have the value 0.

use crate::block::Block;
use crate::lines::{LineError, LineFormat};
use crate::multislot::{whole_float, whole_integer};
use crate::slot::{Schema, Slot};
use fleet_base::Result;
use std::sync::Arc;

/// Reads libsvm lines into the slots `label` (a float), `index` and `value` (ragged), and `qid` if
/// requested.
///
/// ```
/// use fleet_data::{Block, LibSvm, LineReader};
/// let libsvm = LibSvm::new(false)?;
/// let mut block = Block::new(libsvm.schema());
/// let text = &b"-1 3:0.5 17:2 # a comment\n+1\n"[..];
/// assert_eq!(LineReader::new(text, "a1a", libsvm).read(10, &mut block)?, 2);
/// assert_eq!(block.column(0).floats(0), Some(&[-1.0][..]));
/// assert_eq!(block.column(1).ids(0), Some(&[3, 17][..]));
/// assert_eq!(block.column(2).floats(1), Some(&[][..]));
/// # Ok::<(), fleet_base::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct LibSvm {
    schema: Arc<Schema>,
    with_qid: bool,
}

impl LibSvm {
    /// Creates a format; with `with_qid`, every line has a query id after its label.
    pub fn new(with_qid: bool) -> Result<LibSvm> {
        let mut slots = vec![
            Slot::dense_floats("label", [1]),
            Slot::ragged_ids("index"),
            Slot::ragged_floats("value"),
        ];
        slots.extend(with_qid.then(|| Slot::dense_ids("qid", [1])));
        Ok(LibSvm { schema: Schema::new(slots)?, with_qid })
    }

    /// Returns the slots of a record.
    pub fn schema(&self) -> &Arc<Schema> {
        &self.schema
    }

    fn record(&self, line: &[u8], block: &mut Block) -> Result<bool, LineError> {
        let words = line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
        let mut last = None;
        let mut count = 0;
        for word in words {
            let at = word.as_ptr() as usize - line.as_ptr() as usize;
            let wrong = |what: &str| LineError::new(at, what);
            let pushed = if count == 0 {
                let label = whole_float(word.strip_prefix(b"+").unwrap_or(word));
                let label = label.ok_or_else(|| wrong("line does not start with a label"))?;
                block.push_floats(0, &[label])
            } else if count == 1 && self.with_qid {
                let qid = word.strip_prefix(b"qid:").and_then(whole_integer);
                block.push_ids(3, &[qid.ok_or_else(|| wrong("line has no qid after its label"))?])
            } else {
                let colon = memchr::memchr(b':', word).unwrap_or(word.len());
                let index = whole_integer(&word[..colon]).filter(|index| *index >= 0);
                let value = word.get(colon + 1..).and_then(whole_float);
                let (Some(index), Some(value)) = (index, value) else {
                    return Err(wrong("expected index:value"));
                };
                if last.is_some_and(|last| index <= last) {
                    return Err(wrong("indices are not ascending"));
                }
                last = Some(index);
                block.push_ids(1, &[index]).and_then(|()| block.push_floats(2, &[value]))
            };
            pushed.map_err(|error| LineError { at, error })?;
            count += 1;
        }
        if count > 0 {
            block.end_record().map_err(|error| LineError { at: line.len(), error })?;
        }
        Ok(count > 0)
    }
}

impl LineFormat for LibSvm {
    fn schema(&self) -> &Arc<Schema> {
        &self.schema
    }

    fn parse(&mut self, text: &[u8], length: usize, block: &mut Block) -> Result<bool, LineError> {
        let end = memchr::memchr(b'#', &text[..length]).unwrap_or(length);
        self.record(&text[..end], block)
    }
}
