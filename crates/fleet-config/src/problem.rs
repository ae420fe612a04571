//! Problems of a strategy: position, message, reason and help.

use fleet_base::text::{printable, printable_line};
use fleet_base::{Error, Result};
use std::fmt;
use std::path::PathBuf;

/// Severity of a problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// The strategy cannot be used.
    Error,
    /// The strategy works, but perhaps not as intended.
    Warning,
}

/// A position in a file; line and column count from 1, columns in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// Line, from 1.
    pub line: u32,
    /// Column, from 1, in characters.
    pub column: u32,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.line, self.column)
    }
}

/// A problem of a strategy, or a notice about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Whether the strategy can be used nevertheless.
    pub severity: Severity,
    /// The field, such as `amp_configs.decr_ratio` or `dgc_configs.sparsity[1]`; empty for the
    /// whole strategy.
    pub path: String,
    /// Where the field was assigned, if it was read from a file.
    pub place: Option<Place>,
    /// The file with the problem, if one was read.
    pub file: Option<PathBuf>,
    /// The problem.
    pub message: String,
    /// Reason why it is a problem; empty if the message is enough.
    pub why: String,
    /// Suggested fix; empty if unknown.
    pub help: String,
}

impl Problem {
    /// Returns an error about a field; `path` is empty for the whole strategy.
    pub fn error(path: impl Into<String>, message: impl Into<String>) -> Problem {
        Problem {
            severity: Severity::Error,
            path: path.into(),
            place: None,
            file: None,
            message: message.into(),
            why: String::new(),
            help: String::new(),
        }
    }

    /// Returns a warning about a field.
    pub fn warning(path: impl Into<String>, message: impl Into<String>) -> Problem {
        Problem { severity: Severity::Warning, ..Problem::error(path, message) }
    }

    /// Sets the reason why it is a problem.
    pub fn why(mut self, why: impl Into<String>) -> Problem {
        self.why = why.into();
        self
    }

    /// Sets the suggested fix.
    pub fn help(mut self, help: impl Into<String>) -> Problem {
        self.help = help.into();
        self
    }

    /// Sets the position of the field in its file.
    pub fn at(mut self, place: Place) -> Problem {
        self.place = Some(place);
        self
    }

    /// Returns whether the strategy cannot be used.
    pub fn is_error(&self) -> bool {
        self.severity == Severity::Error
    }

    /// Returns file and position, if known.
    fn prefix(&self) -> String {
        let file = self.file.as_ref().map(|file| file.to_string_lossy());
        let file = file.map(|file| format!("{}:", printable_line(&file)));
        let place = self.place.map(|place| format!("{place}:"));
        match file.unwrap_or_default() + &place.unwrap_or_default() {
            prefix if prefix.is_empty() => prefix,
            prefix => prefix + " ",
        }
    }

    /// Returns field, message, reason and help.
    fn text(&self) -> String {
        let mut text = printable(&self.message).into_owned();
        if !self.path.is_empty() {
            text = format!("{}: {text}", printable_line(&self.path));
        }
        for (name, part) in [("why", &self.why), ("help", &self.help)] {
            if !part.is_empty() {
                text += &format!("\n  {name}: {}", printable(part));
            }
        }
        text
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let severity = match self.severity {
            Severity::Error => "error",
            Severity::Warning => "warning",
        };
        write!(f, "{}{severity}: {}", self.prefix(), self.text())
    }
}

/// Records in the error the files that its text names.
fn naming(problems: &[Problem], error: Error) -> Error {
    let files = problems.iter().filter_map(|problem| problem.file.as_ref());
    files.fold(error, |error, file| error.naming(&file.display().to_string()))
}

/// Returns the warnings among `problems`, or all its errors as one.
pub fn all_in_one(problems: Vec<Problem>) -> Result<Vec<Problem>> {
    let (errors, warnings): (Vec<Problem>, Vec<Problem>) =
        problems.into_iter().partition(Problem::is_error);
    match &errors[..] {
        [] => Ok(warnings),
        [only] => Err(naming(&errors, Error::invalid(format!("{}{}", only.prefix(), only.text())))),
        many => {
            let lines: String = many.iter().map(|problem| format!("\n{problem}")).collect();
            let text = format!("the strategy has {} errors{lines}", many.len());
            Err(naming(&errors, Error::invalid(text)))
        }
    }
}

/// Converts byte offsets of a text to lines and columns.
///
/// ```
/// let places = fleet_config::Places::new("a = 1\nb = 2");
/// assert_eq!((places.of(10).line, places.of(10).column), (2, 5));
/// ```
pub struct Places<'t> {
    text: &'t str,
    line_starts: Vec<usize>,
}

impl<'t> Places<'t> {
    /// Finds the lines of a text.
    pub fn new(text: &'t str) -> Places<'t> {
        let after = text.match_indices('\n').map(|(at, _)| at + 1);
        Places { text, line_starts: std::iter::once(0).chain(after).collect() }
    }

    /// Returns the place of a byte.
    pub fn of(&self, offset: usize) -> Place {
        let line = self.line_starts.partition_point(|start| *start <= offset);
        let before = self.text.get(self.line_starts[line - 1]..offset).unwrap_or_default();
        Place { line: line as u32, column: before.chars().count() as u32 + 1 }
    }
}
