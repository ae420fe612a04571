//! The data format: lines `x1 x2 : y`.

use fleet::data::{Block, LineError, LineFormat, Schema, Slot};
use fleet::prelude::*;
use std::sync::Arc;

/// Reads points into the inputs `x` and `y`.
#[derive(Clone)]
pub struct Points {
    schema: Arc<Schema>,
}

impl Points {
    pub fn new() -> Result<Points> {
        let slots = [Slot::dense_floats("x", [2]), Slot::dense_floats("y", [1])];
        Ok(Points { schema: Schema::new(slots)? })
    }
}

impl LineFormat for Points {
    fn schema(&self) -> &Arc<Schema> {
        &self.schema
    }

    fn parse(&mut self, text: &[u8], length: usize, block: &mut Block) -> Result<bool, LineError> {
        // Bytes after the line must be ignored.
        let line = std::str::from_utf8(&text[..length])
            .map_err(|error| LineError::new(error.valid_up_to(), "the line is not UTF-8"))?;
        if line.trim().is_empty() {
            return Ok(false);
        }
        let Some((x, y)) = line.split_once(':') else {
            return Err(LineError::new(0, "expected x1 x2 : y"));
        };
        for (slot, part) in [x, y].into_iter().enumerate() {
            for word in part.split_whitespace() {
                let at = word.as_ptr() as usize - line.as_ptr() as usize;
                let value: f32 = word
                    .parse()
                    .map_err(|error| LineError::new(at, format!("'{word}': {error}")))?;
                block.push_floats(slot, &[value]).map_err(|error| LineError { at, error })?;
            }
        }
        // Checks the number of values.
        block.end_record().map_err(|error| LineError { at: length, error })?;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fleet::data::{Csv, CsvColumn, LineReader};

    fn read(text: &'static str) -> Result<Block> {
        let points = Points::new()?;
        let mut block = Block::new(points.schema());
        LineReader::new(text.as_bytes(), "points", points).read(10, &mut block)?;
        Ok(block)
    }

    #[test]
    fn lines() -> Result<()> {
        let block = read("0.5 -1 : 2\n\n3 4 : 5\n")?;
        assert_eq!(block.len(), 2);
        assert_eq!(block.column(0).floats(1), Some(&[3.0, 4.0][..]));
        for wrong in ["1 2 3\n", "1 : 2\n", "1 two : 3\n"] {
            let error = read(wrong).map(drop).expect_err("the line is wrong").to_string();
            assert!(error.contains("points:1"), "{error}");
        }
        Ok(())
    }

    /// A CSV file with these columns has the same inputs.
    #[test]
    fn csv() -> Result<()> {
        let csv = Csv::new([
            ("a", CsvColumn::Float("x".into())),
            ("b", CsvColumn::Float("x".into())),
            ("target", CsvColumn::Float("y".into())),
        ])?
        .with_header();
        assert!(csv.schema() == Points::new()?.schema());
        Ok(())
    }
}
