//! Criteo's click logs: a label, 13 integers and 26 words of hexadecimal digits, separated by tabs.
//! Any of the last 39 fields may be empty.
//!
//! Integers are scaled by the documented constants, (x - min) / difference; empty ones become 0.
//! Words are hashed, together with the number of their column, into a million buckets.

use super::hash_bucket;
use crate::block::Block;
use crate::lines::{LineError, LineFormat};
use crate::multislot::whole_integer;
use crate::slot::{Schema, Slot};
use fleet_base::{Error, Result};
use std::sync::Arc;

/// Mapping of words to ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum CriteoHash {
    /// A stable hash of the column's number and the word.
    #[default]
    Column,
    /// The word as a hexadecimal number, modulo the number of buckets; an empty word is 0.
    HexModulo,
}

/// Reads click logs into the slots `dense_input` (13 floats), `C1` to `C26` and `label`.
///
/// ```
/// use fleet_data::{Block, Criteo, LineReader};
/// let mut line = String::from("1\t2\t0");
/// (0..11).for_each(|_| line.push('\t')); // empty integers
/// (0..26).for_each(|_| line.push_str("\t68fd1e64"));
/// let criteo = Criteo::new()?;
/// let mut block = Block::new(criteo.schema());
/// assert_eq!(LineReader::new(line.as_bytes(), "day_0", criteo).read(10, &mut block)?, 1);
/// assert_eq!(block.column(0).floats(0).unwrap()[..3], [0.1, 3.0 / 603.0, 0.0]);
/// assert_eq!(block.column(27).ids(0), Some(&[1][..]));
/// # Ok::<(), fleet_base::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Criteo {
    schema: Arc<Schema>,
    buckets: u64,
    hash: CriteoHash,
}

impl Criteo {
    /// Uses 1,000,001 buckets and [`CriteoHash::Column`].
    pub fn new() -> Result<Criteo> {
        Self::with_hash(BUCKETS, CriteoHash::default())
    }

    /// Hashes words into `buckets` buckets, by the given function. Fails unless there are 1 to
    /// 2^62.
    pub fn with_hash(buckets: u64, hash: CriteoHash) -> Result<Criteo> {
        if buckets == 0 || buckets > 1 << 62 {
            return Err(Error::invalid("number of buckets is out of range").got(buckets));
        }
        let dense = Slot::dense_floats("dense_input", [INTEGERS]);
        let words = (1..=WORDS).map(|slot| Slot::dense_ids(format!("C{slot}"), [1]));
        let label = Slot::dense_ids("label", [1]);
        let schema = Schema::new(std::iter::once(dense).chain(words).chain([label]))?;
        Ok(Criteo { schema, buckets, hash })
    }

    /// Returns the slots: `dense_input`, `C1` to `C26` and `label`.
    pub fn schema(&self) -> &Arc<Schema> {
        &self.schema
    }

    fn word(&self, column: usize, word: &[u8]) -> Option<i64> {
        match self.hash {
            CriteoHash::Column => {
                let id = hash_bucket(column.to_string().as_bytes(), word, self.buckets);
                Some(id as i64)
            }
            CriteoHash::HexModulo => {
                let digits = std::str::from_utf8(word).ok()?;
                let plain = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
                let value =
                    if word.is_empty() { 0 } else { u64::from_str_radix(digits, 16).ok()? };
                plain.then_some((value % self.buckets) as i64)
            }
        }
    }
}

impl LineFormat for Criteo {
    fn schema(&self) -> &Arc<Schema> {
        &self.schema
    }

    fn parse(&mut self, text: &[u8], length: usize, block: &mut Block) -> Result<bool, LineError> {
        let line = &text[..length];
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.is_empty() {
            return Ok(false);
        }
        let mut at = 0;
        let mut label = 0;
        let mut count = 0;
        for (column, field) in line.split(|byte| *byte == b'\t').enumerate() {
            let wrong = |what: &str| LineError::new(at, format!("column {column} {what}"));
            let pushed = match column {
                0 => {
                    label = whole_integer(field)
                        .filter(|label| (0..2).contains(label))
                        .ok_or_else(|| wrong("is not a label (0 or 1)"))?;
                    Ok(())
                }
                1..=INTEGERS => {
                    let value = match field {
                        [] => 0.0,
                        _ => {
                            let x =
                                whole_integer(field).ok_or_else(|| wrong("is not an integer"))?;
                            (x as f64 - MIN[column - 1]) / DIFFERENCE[column - 1]
                        }
                    };
                    block.push_floats(0, &[value as f32])
                }
                _ if column <= INTEGERS + WORDS => {
                    let id = self.word(column, field);
                    let id = id.ok_or_else(|| wrong("is not a hexadecimal number"))?;
                    block.push_ids(column - INTEGERS, &[id])
                }
                _ => return Err(wrong("is unexpected: expected 40 columns")),
            };
            pushed.map_err(|error| LineError { at, error })?;
            at += field.len() + 1;
            count += 1;
        }
        if count != 1 + INTEGERS + WORDS {
            return Err(LineError {
                at: line.len(),
                error: Error::invalid("line of a click log has too few columns")
                    .expected(40)
                    .got(count),
            });
        }
        let ended = block.push_ids(1 + WORDS, &[label]).and_then(|()| block.end_record());
        ended.map_err(|error| LineError { at: 0, error })?;
        Ok(true)
    }
}

const INTEGERS: usize = 13;
const WORDS: usize = 26;
const BUCKETS: u64 = 1_000_001;
const MIN: [f64; INTEGERS] = [0., -3., 0., 0., 0., 0., 0., 0., 0., 0., 0., 0., 0.];
const DIFFERENCE: [f64; INTEGERS] =
    [20., 603., 100., 50., 64000., 500., 100., 50., 500., 10., 10., 10., 50.];
