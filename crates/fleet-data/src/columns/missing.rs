//! Texts that stand for a missing value.

use fleet_base::{Error, Result};
use std::sync::Arc;

/// Marks of missing values besides the empty text.
#[derive(Clone, Debug, Default)]
pub(super) struct Missing {
    /// Bit n: a mark has n bytes, or more in the highest bit.
    lengths: u64,
    marks: Arc<[Box<[u8]>]>,
    /// The marks that are numbers.
    numbers: Arc<[f32]>,
}

impl Missing {
    pub fn new<S: AsRef<str>>(marks: impl IntoIterator<Item = S>) -> Result<Missing> {
        let marks = marks.into_iter().map(|mark| Box::from(mark.as_ref().trim().as_bytes()));
        let marks: Arc<[Box<[u8]>]> = marks.collect();
        if marks.len() > MARKS_MAX {
            return Err(Error::invalid("too many marks of missing values")
                .expected(format!("at most {MARKS_MAX}"))
                .got(marks.len()));
        }
        let lengths = marks.iter().fold(0, |bits, mark| bits | length_bit(mark));
        let numbers = marks.iter().filter_map(|mark| crate::multislot::whole_float(mark)).collect();
        Ok(Missing { lengths, marks, numbers })
    }

    /// Returns whether a text stands for a missing value.
    #[inline]
    pub fn is_mark(&self, text: &[u8]) -> bool {
        text.is_empty() || (self.lengths & length_bit(text) != 0 && self.is_listed(text))
    }

    /// Returns whether a number stands for a missing value.
    #[inline]
    pub fn is_number_mark(&self, value: f32) -> bool {
        !self.numbers.is_empty() && self.numbers.contains(&value)
    }

    fn is_listed(&self, text: &[u8]) -> bool {
        self.marks.iter().any(|mark| **mark == *text)
    }
}

#[inline]
fn length_bit(text: &[u8]) -> u64 {
    1 << text.len().min(63)
}

/// Limit of the marks, which are compared one after the other.
const MARKS_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_texts_or_numbers() {
        let missing = Missing::new(["?", " NA ", "-999"]).unwrap();
        for mark in ["", "?", "NA", "-999"] {
            assert!(missing.is_mark(mark.as_bytes()), "{mark}");
        }
        for text in ["x", "na", "-999.0", "?!"] {
            assert!(!missing.is_mark(text.as_bytes()), "{text}");
        }
        assert!(missing.is_number_mark(-999.0) && !missing.is_number_mark(0.0));
        assert!(Missing::new(vec!["x"; 65]).is_err());
    }
}
