//! The one error type of Fleet, classified by whose fault it is.
//!
//! An error reads as one sentence, what was expected and what came, then the places from the
//! inside out. Messages are lower case and have no final dot.
//!
//! ```
//! use fleet_base::{Error, ErrorKind};
//! let error = Error::invalid("input X of mul has the wrong width")
//!     .expected("13")
//!     .got("12")
//!     .at("op 3 mul(X: %x, Y: %w) at src/model.rs:10");
//! assert_eq!(error.kind(), ErrorKind::Invalid);
//! assert_eq!(
//!     error.to_string(),
//!     "input X of mul has the wrong width: expected 13, got 12\n  at op 3 mul(X: %x, Y: %w) at src/model.rs:10"
//! );
//! ```

use std::fmt;

pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Whose fault an error is, which is also what can be done about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// The caller's: an argument, a program, a file. Retrying changes nothing.
    Invalid,
    /// Legal, but not something Fleet does (here).
    Unsupported,
    /// A peer's or the machine's, for now. Retrying may help.
    Unavailable,
    /// A limit was reached: memory, disk, a queue.
    Exhausted,
    /// A number went wrong while the program ran (NaN, infinity), and the user asked to be told.
    Numeric,
    /// Ours: a broken invariant. Please report it.
    Internal,
}

/// An error with what was expected, what came, and where.
#[derive(Clone, PartialEq, Eq)]
pub struct Error(Box<Inner>);

#[derive(Clone, PartialEq, Eq)]
struct Inner {
    kind: ErrorKind,
    message: String,
    expected: Option<String>,
    got: Option<String>,
    help: Option<String>,
    places: Vec<String>,
    culprit: Option<usize>,
}

impl Error {
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Error(Box::new(Inner {
            kind,
            message: message.into(),
            expected: None,
            got: None,
            help: None,
            places: Vec::new(),
            culprit: None,
        }))
    }

    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Invalid, message)
    }

    pub fn unsupported(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Unsupported, message)
    }

    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Unavailable, message)
    }

    pub fn exhausted(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Exhausted, message)
    }

    pub fn numeric(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Numeric, message)
    }

    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Internal, message)
    }

    /// A failed system call on `path`; permission and absence are the user's, a full disk is a limit.
    pub fn io(action: &str, path: &std::path::Path, error: &std::io::Error) -> Self {
        use std::io::ErrorKind as Io;
        let kind = match error.kind() {
            Io::NotFound
            | Io::PermissionDenied
            | Io::AlreadyExists
            | Io::NotADirectory
            | Io::IsADirectory
            | Io::InvalidInput => ErrorKind::Invalid,
            Io::StorageFull | Io::OutOfMemory | Io::QuotaExceeded => ErrorKind::Exhausted,
            _ => ErrorKind::Unavailable,
        };
        Self::new(kind, format!("cannot {action} {}: {error}", path.display()))
    }

    pub fn expected(mut self, what: impl fmt::Display) -> Self {
        self.0.expected = Some(what.to_string());
        self
    }

    pub fn got(mut self, what: impl fmt::Display) -> Self {
        self.0.got = Some(what.to_string());
        self
    }

    /// What the reader can do about it.
    pub fn help(mut self, what: impl fmt::Display) -> Self {
        self.0.help = Some(what.to_string());
        self
    }

    /// Adds a place, innermost first: an op, a variable, a file and line, a rank.
    pub fn at(mut self, place: impl fmt::Display) -> Self {
        self.0.places.push(place.to_string());
        self
    }

    /// Names the rank of the job (or the worker) whose failure this error reports. Processes that
    /// fail with such an error are not the cause of the job's end.
    ///
    /// ```
    /// let error = fleet_base::Error::unavailable("rank 3 died").caused_by(3);
    /// assert_eq!(error.at("all_reduce").culprit(), Some(3));
    /// ```
    pub fn caused_by(mut self, rank: usize) -> Self {
        self.0.culprit = Some(rank);
        self
    }

    /// The rank whose failure this error reports, where that is known.
    pub fn culprit(&self) -> Option<usize> {
        self.0.culprit
    }

    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    pub fn message(&self) -> &str {
        &self.0.message
    }

    pub fn places(&self) -> &[String] {
        &self.0.places
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = &self.0;
        if inner.kind == ErrorKind::Internal {
            write!(f, "internal error (please report it): ")?;
        }
        write!(f, "{}", inner.message)?;
        match (&inner.expected, &inner.got) {
            (Some(expected), Some(got)) => write!(f, ": expected {expected}, got {got}")?,
            (Some(expected), None) => write!(f, ": expected {expected}")?,
            (None, Some(got)) => write!(f, ": got {got}")?,
            (None, None) => {}
        }
        for place in &inner.places {
            write!(f, "\n  at {place}")?;
        }
        if let Some(help) = &inner.help {
            write!(f, "\n  help: {help}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {self}", self.0.kind)
    }
}

impl std::error::Error for Error {}

/// ```
/// let steps: fleet_base::Result<u64> = "many".parse().map_err(fleet_base::Error::from);
/// assert!(steps.unwrap_err().to_string().contains("expected a whole number"));
/// ```
impl From<std::num::ParseIntError> for Error {
    fn from(error: std::num::ParseIntError) -> Error {
        Error::invalid("this is no number").expected("a whole number").got(error)
    }
}
