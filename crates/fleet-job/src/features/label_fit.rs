//! Counts of a label's values over the training rows.

use super::label::{BadLabel, Label, Meaning};
use fleet_data::Block;

/// A label, and what the training rows show about it.
pub struct LabelFit {
    pub label: Label,
    /// Place of the column; `None` if the job has no label.
    at: Option<usize>,
    class_hashes: Vec<u64>,
    /// Rows by value, of a binary or multi_class task.
    classes: Vec<u64>,
    /// Count, mean and sum of squared differences of numbers.
    moments: (u64, f64, f64),
    /// Values of the first rows, for findings.
    pub first: Vec<f32>,
}

impl LabelFit {
    /// Begins to count the values of a column.
    pub fn new(label: Label, at: Option<usize>) -> LabelFit {
        LabelFit {
            at,
            class_hashes: label.class_hashes(),
            classes: vec![0; label.scores().max(2)],
            moments: (0, 0.0, 0.0),
            first: Vec::new(),
            label,
        }
    }

    /// Returns the value of a row.
    pub fn value(&self, block: &Block, row: usize) -> Result<f32, BadLabel> {
        match self.at {
            Some(at) => self.label.value(&self.class_hashes, block.column(at), row),
            None => Ok(1.0),
        }
    }

    /// Counts a value.
    pub fn add(&mut self, value: f32) {
        if let Meaning::Number { .. } | Meaning::Grade = self.label.meaning {
            let (count, mean, squares) = &mut self.moments;
            *count += 1;
            let difference = f64::from(value) - *mean;
            *mean += difference / *count as f64;
            *squares += difference * (f64::from(value) - *mean);
        } else if let Some(count) = self.classes.get_mut(value as usize) {
            *count += 1;
        }
    }

    /// Returns whether all rows have the same value.
    pub fn is_constant(&self) -> bool {
        match self.label.meaning {
            Meaning::Number { .. } | Meaning::Grade => self.moments.2 == 0.0,
            _ => self.classes.iter().filter(|count| **count > 0).count() < 2,
        }
    }

    /// Returns the label with the scale of its numbers.
    pub fn finish(self) -> Label {
        let mut label = self.label;
        if let Meaning::Number { mean, deviation } = &mut label.meaning {
            let (count, found, squares) = self.moments;
            *mean = found as f32;
            let found = (squares / count.max(1) as f64).sqrt() as f32;
            *deviation = if found > 0.0 { found } else { 1.0 };
        }
        label
    }
}
