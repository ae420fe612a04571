//! Writes columns as lines.

use crate::block::Block;
use crate::slot::Schema;
use fleet_base::{Error, Result};
use std::io::Write;
use std::sync::Arc;

/// Writes records as MultiSlot lines; floats get the fewest digits that parse to the same value.
///
/// ```
/// use fleet_data::{Block, MultiSlotWriter, Schema, Slot};
/// let schema = Schema::new([Slot::ragged_ids("words"), Slot::dense_floats("x", [2])])?;
/// let mut block = Block::new(&schema);
/// block.push_ids(0, &[7, -1])?;
/// block.push_floats(1, &[0.25, 3.0])?;
/// block.end_record()?;
/// let mut text = Vec::new();
/// MultiSlotWriter::new(&schema).write(&block, &mut text)?;
/// assert_eq!(text, b"2 7 18446744073709551615 2 0.25 3\n");
/// # Ok::<(), fleet_base::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct MultiSlotWriter {
    schema: Arc<Schema>,
    line: Vec<u8>,
}

impl MultiSlotWriter {
    /// Returns a writer of lines with these slots, in this order.
    pub fn new(schema: &Arc<Schema>) -> MultiSlotWriter {
        MultiSlotWriter { schema: Arc::clone(schema), line: Vec::new() }
    }

    /// Writes all records of a block. An empty slot or a number that is not finite is an error,
    /// because no reader accepts it.
    pub fn write(&mut self, block: &Block, out: &mut impl Write) -> Result<()> {
        for row in 0..block.len() {
            self.line.clear();
            self.append(block, row).map_err(|error| error.at(format!("record {row}")))?;
            out.write_all(&self.line).map_err(|error| {
                Error::unavailable(format!("cannot write records: {error}"))
                    .at(format!("record {row}"))
            })?;
        }
        Ok(())
    }

    fn append(&mut self, block: &Block, row: usize) -> Result<()> {
        let line = &mut self.line;
        if let Some(id) = block.record_id(row) {
            if id.is_empty() || id.iter().any(|byte| byte.is_ascii_whitespace()) {
                return Err(Error::invalid("record id is not a single word")
                    .got(format!("'{}'", String::from_utf8_lossy(id))));
            }
            line.extend_from_slice(b"1 ");
            line.extend_from_slice(id);
            line.push(b' ');
        }
        for (index, slot) in self.schema.slots().iter().enumerate() {
            let column = block.column(index);
            let count = column.range(row).len();
            if count == 0 {
                return Err(Error::invalid(format!("slot '{}' is empty", slot.name))
                    .help("pad an empty slot, with 0 for example"));
            }
            number(line, count);
            for id in column.ids(row).unwrap_or_default() {
                number(line, *id as u64);
            }
            for float in column.floats(row).unwrap_or_default() {
                if !float.is_finite() {
                    return Err(Error::invalid(format!(
                        "slot '{}' has a number that is not finite",
                        slot.name
                    ))
                    .got(float));
                }
                number(line, *float);
            }
        }
        if let Some(last) = line.last_mut() {
            *last = b'\n';
        }
        Ok(())
    }
}

fn number(line: &mut Vec<u8>, value: impl std::fmt::Display) {
    // Writing to a vector cannot fail.
    let _ = write!(line, "{value} ");
}
