//! Lines and records that are skipped because they cannot be read, up to a limit for each file.

use fleet_base::{Error, Result};

/// Reaction to a line that cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum OnError {
    /// Fail at the first such line.
    #[default]
    Fail,
    /// Skip and count the line; more than `lines_max` skipped lines in one file are an error.
    Skip {
        /// Number of lines in one file that may be skipped.
        lines_max: u64,
    },
}

/// Number of skipped lines, and the error of the first one.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Skipped {
    /// Number of skipped lines.
    pub lines: u64,
    /// The error of the first of them, with file, line and column.
    pub first: Option<Error>,
}

impl Skipped {
    /// Counts a line or record (`what`) with an error, or fails if it must not be skipped.
    pub(crate) fn count(&mut self, on_error: OnError, what: &str, error: Error) -> Result<()> {
        let OnError::Skip { lines_max } = on_error else { return Err(error) };
        self.lines += 1;
        if self.lines > lines_max {
            let help = format!("{lines_max} bad {what}s were skipped before this one");
            return Err(error.help(help));
        }
        self.first.get_or_insert(error);
        Ok(())
    }

    pub(crate) fn add(&mut self, other: &Skipped) {
        self.lines += other.lines;
        if self.first.is_none() {
            self.first = other.first.clone();
        }
    }
}
