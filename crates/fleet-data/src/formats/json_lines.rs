//! JSON lines: one object per record, whose keys are slots.

use super::hash_bucket;
use crate::block::Block;
use crate::lines::{LineError, LineFormat};
use crate::slot::{Schema, SlotKind};
use fleet_base::Error;
use serde_json::Value;
use std::sync::Arc;

/// Reads objects. Numbers, booleans and (nested) lists of them fill the slot with the name of their
/// key; text is hashed if a number of buckets is set. Other keys are ignored. A missing key, or
/// null, leaves a ragged slot empty and is an error for a dense one.
///
/// ```
/// use fleet_data::{Block, JsonLines, LineReader, Schema, Slot};
/// let schema = Schema::new([Slot::ragged_ids("words"), Slot::dense_floats("x", [2, 2])])?;
/// let mut block = Block::new(&schema);
/// let text = r#"{"words": ["red", 5], "x": [[1, 2], [3, 4.5]], "note": null}"#;
/// let format = JsonLines::new(&schema).hash_text(1000);
/// assert_eq!(LineReader::new(text.as_bytes(), "a.jsonl", format).read(10, &mut block)?, 1);
/// assert_eq!(block.column(0).ids(0).unwrap()[1], 5);
/// assert_eq!(block.column(1).floats(0), Some(&[1.0, 2.0, 3.0, 4.5][..]));
/// # Ok::<(), fleet_base::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct JsonLines {
    schema: Arc<Schema>,
    buckets: Option<u64>,
}

impl JsonLines {
    /// Returns a format whose objects have the slots as keys. Text in slots of ids is an error.
    pub fn new(schema: &Arc<Schema>) -> JsonLines {
        JsonLines { schema: Arc::clone(schema), buckets: None }
    }

    /// Hashes text in slots of ids into `buckets` ids.
    pub fn hash_text(mut self, buckets: u64) -> JsonLines {
        self.buckets = Some(buckets);
        self
    }

    fn push(&self, slot: usize, value: &Value, block: &mut Block) -> Result<(), Error> {
        let (name, kind) = (&self.schema.slots()[slot].name, self.schema.slots()[slot].kind);
        let wrong = || {
            let expected = if kind == SlotKind::Ids { "64-bit integers" } else { "32-bit floats" };
            Error::invalid(format!("slot '{name}' has a value of the wrong type"))
                .expected(expected)
                .got(value)
        };
        match (value, kind) {
            (Value::Null, _) => Ok(()),
            (Value::Array(list), _) => list.iter().try_for_each(|it| self.push(slot, it, block)),
            (Value::Bool(it), SlotKind::Ids) => block.push_ids(slot, &[i64::from(*it)]),
            (Value::Bool(it), SlotKind::Floats) => {
                block.push_floats(slot, &[f32::from(u8::from(*it))])
            }
            (Value::Number(it), SlotKind::Ids) => {
                let id = it.as_i64().or(it.as_u64().map(|it| it as i64));
                block.push_ids(slot, &[id.ok_or_else(wrong)?])
            }
            (Value::Number(it), SlotKind::Floats) => {
                let float = it.as_f64().map(|it| it as f32).filter(|it| it.is_finite());
                block.push_floats(slot, &[float.ok_or_else(wrong)?])
            }
            (Value::String(text), SlotKind::Ids) => {
                let buckets = self.buckets.ok_or_else(|| {
                    wrong().help("use JsonLines::hash_text to hash text into ids")
                })?;
                block.push_ids(
                    slot,
                    &[hash_bucket(name.as_bytes(), text.as_bytes(), buckets) as i64],
                )
            }
            _ => Err(wrong()),
        }
    }
}

impl LineFormat for JsonLines {
    fn schema(&self) -> &Arc<Schema> {
        &self.schema
    }

    fn parse(&mut self, text: &[u8], length: usize, block: &mut Block) -> Result<bool, LineError> {
        let line = &text[..length];
        if line.iter().all(u8::is_ascii_whitespace) {
            return Ok(false);
        }
        let value: Value = serde_json::from_slice(line).map_err(|error| {
            // The parser's line number is relative to its input, which is this one line.
            let message = error.to_string();
            let message = message.split(" at line ").next().unwrap_or_default();
            LineError::new(
                error.column().saturating_sub(1),
                format!("line is not valid JSON: {message}"),
            )
        })?;
        let Value::Object(fields) = &value else {
            return Err(LineError::new(0, "line is not a JSON object"));
        };
        let at_start = |error: Error| LineError { at: 0, error };
        for (slot, it) in self.schema.slots().iter().enumerate() {
            match fields.get(&it.name) {
                Some(value) => self.push(slot, value, block).map_err(at_start)?,
                None if it.width().is_none() => {}
                None => {
                    let keys = fields.keys().map(String::as_str);
                    let hint = fleet_base::text::did_you_mean(&it.name, keys);
                    return Err(LineError::new(
                        0,
                        format!("object has no key '{}'{hint}", it.name),
                    ));
                }
            }
        }
        block.end_record().map_err(at_start)?;
        Ok(true)
    }
}
