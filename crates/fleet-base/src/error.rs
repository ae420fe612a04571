//! The one error type of Fleet, classified by who is at fault.
//!
//! An error reads as one sentence with the expected and the actual value, followed by the places
//! where it happened, innermost first. Messages are lower case and have no final dot. Every part
//! may contain text from files and peers, so printing escapes control characters. In parts that are
//! one line, printing escapes line ends too.
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
//!     "input X of mul has the wrong width: expected 13, got 12\n  \
//!      at op 3 mul(X: %x, Y: %w) at src/model.rs:10"
//! );
//! ```

use crate::text::{printable, printable_line};
use std::fmt;
use std::io;
use std::sync::Arc;

/// A result whose error is an [`Error`] unless stated otherwise.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Class of an error: who is at fault, and therefore what can be done about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// The caller is at fault: an argument, a program, a file. Retrying does not help.
    Invalid,
    /// Legal, but not supported by Fleet (here).
    Unsupported,
    /// A peer or the machine is at fault, possibly for a short time. Retrying may help.
    Unavailable,
    /// A limit was reached: memory, disk, a queue.
    Exhausted,
    /// A value became NaN or infinite while the program ran, and the user enabled the check.
    Numeric,
    /// Fleet is at fault: a broken invariant. Please report it.
    Internal,
}

/// A condition that callers distinguish, finer than [`ErrorKind`]. Code never decides by the text
/// of a message: a condition that needs a decision gets a code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorCode {
    /// The peer closed the connection.
    ConnectionClosed,
    /// The connection broke: reset, timed out, or failed otherwise.
    ConnectionLost,
    /// A wait in a store reached its deadline before all keys were set.
    KeysMissing,
    /// Ranks wait for each other in different collective calls.
    Deadlock,
    /// No connection was made: nothing listens there, or the host cannot be reached.
    NotConnected,
}

/// An error with the expected and the actual value, and where it happened.
#[derive(Clone)]
pub struct Error(Box<Inner>);

#[derive(Clone)]
struct Inner {
    kind: ErrorKind,
    code: Option<ErrorCode>,
    message: String,
    expected: Option<String>,
    got: Option<String>,
    help: Option<String>,
    places: Vec<String>,
    /// Source files and lines of the user that the message or a place already names.
    lines: Vec<String>,
    culprit: Option<usize>,
    source: Option<Arc<dyn std::error::Error + Send + Sync>>,
}

/// Compares everything except the source, which has no equality.
impl PartialEq for Error {
    fn eq(&self, other: &Error) -> bool {
        let parts = |error: &Error| {
            let it = &error.0;
            let texts = [&it.expected, &it.got, &it.help].map(Clone::clone);
            (it.kind, it.code, it.message.clone(), texts, it.places.clone(), it.culprit)
        };
        parts(self) == parts(other)
    }
}

impl Eq for Error {}

impl Error {
    /// Returns an error. `message` says what is wrong, in lower case and without a final dot.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Error(Box::new(Inner {
            kind,
            code: None,
            message: message.into(),
            expected: None,
            got: None,
            help: None,
            places: Vec::new(),
            lines: Vec::new(),
            culprit: None,
            source: None,
        }))
    }

    /// Returns an error of kind [`ErrorKind::Invalid`].
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Invalid, message)
    }

    /// Returns an error of kind [`ErrorKind::Unsupported`].
    pub fn unsupported(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Unsupported, message)
    }

    /// Returns an error of kind [`ErrorKind::Unavailable`].
    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Unavailable, message)
    }

    /// Returns an error of kind [`ErrorKind::Exhausted`].
    pub fn exhausted(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Exhausted, message)
    }

    /// Returns an error of kind [`ErrorKind::Numeric`].
    pub fn numeric(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Numeric, message)
    }

    /// Returns an error of kind [`ErrorKind::Internal`].
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Internal, message)
    }

    /// An error for a failed system call on `path`. Missing permission or a missing file is the
    /// user's fault ([`ErrorKind::Invalid`]); a full disk is a limit ([`ErrorKind::Exhausted`]).
    pub fn io(action: &str, path: &std::path::Path, error: &std::io::Error) -> Self {
        use std::io::ErrorKind as Io;
        let kind = kind_of(error);
        let hint = match error.kind() {
            Io::FileTooLarge => " (file size limit: see ulimit -f and the file system)",
            _ => "",
        };
        let text = format!("cannot {action} {}: {error}{hint}", path.display());
        Self::new(kind, text).caused(copy(error))
    }

    /// Attaches the underlying error of a library or the system, for [`std::error::Error::source`].
    /// The message must include the source's text, because sources are not printed.
    ///
    /// ```
    /// use std::error::Error as _;
    /// let error = fleet_base::Error::from("many".parse::<u64>().unwrap_err());
    /// assert!(error.source().is_some_and(|source| source.is::<std::num::ParseIntError>()));
    /// ```
    pub fn caused(mut self, source: impl std::error::Error + Send + Sync + 'static) -> Self {
        self.0.source = Some(Arc::new(source));
        self
    }

    /// Sets the condition that callers decide by.
    pub fn with_code(mut self, code: ErrorCode) -> Self {
        self.0.code = Some(code);
        self
    }

    /// The condition, for errors that callers have to distinguish.
    ///
    /// ```
    /// use fleet_base::{Error, ErrorCode};
    /// let error = Error::unavailable("2 of 3 keys are missing").with_code(ErrorCode::KeysMissing);
    /// assert_eq!(error.at("rank 1").code(), Some(ErrorCode::KeysMissing));
    /// ```
    pub fn code(&self) -> Option<ErrorCode> {
        self.0.code
    }

    /// Adds the value that was expected.
    pub fn expected(mut self, what: impl fmt::Display) -> Self {
        self.0.expected = Some(what.to_string());
        self
    }

    /// Adds the value that was found instead of the expected one.
    pub fn got(mut self, what: impl fmt::Display) -> Self {
        self.0.got = Some(what.to_string());
        self
    }

    /// Adds advice on how to fix the error.
    pub fn help(mut self, what: impl fmt::Display) -> Self {
        self.0.help = Some(what.to_string());
        self
    }

    /// Like [`Error::help`], but keeps a help that the error already has.
    pub fn or_help(self, what: impl fmt::Display) -> Self {
        if self.0.help.is_some() { self } else { self.help(what) }
    }

    /// Adds a place, innermost first: an op, a variable, a file and line, a rank. A place that the
    /// error already has, also as the file of a line, is not repeated, so that each caller can name
    /// the file that it reads.
    ///
    /// ```
    /// let error = fleet_base::Error::invalid("not a number").at("s3://day/part:3");
    /// let error = error.at("s3://day/part").at("data.train").at("data.train");
    /// assert_eq!(error.places(), ["s3://day/part:3", "data.train"]);
    /// ```
    pub fn at(mut self, place: impl fmt::Display) -> Self {
        let place = place.to_string();
        let names = |known: &String| {
            let rest = known.strip_prefix(&place);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with([':', ',']))
        };
        if !self.0.places.iter().any(names) {
            self.0.places.push(place);
        }
        self
    }

    /// Adds a source file or line of the user as a place, unless the error already names it.
    ///
    /// ```
    /// use fleet_base::Error;
    /// let error = Error::invalid("src/model.rs:3: no such op").naming("src/model.rs:3");
    /// let error = error.at_line("src/model.rs:3").at_line("src/main.rs:9");
    /// assert_eq!(error.to_string(), "src/model.rs:3: no such op\n  at src/main.rs:9");
    /// ```
    pub fn at_line(self, line: &str) -> Self {
        match self.0.lines.iter().any(|named| named == line) {
            true => self,
            false => self.at(line).naming(line),
        }
    }

    /// Replaces a text in all parts, such as the path of a copy by that of the original.
    ///
    /// ```
    /// let error = fleet_base::Error::invalid("copy/part is damaged").at("copy");
    /// let error = error.replacing("copy", "hdfs://host/save");
    /// let text = "hdfs://host/save/part is damaged\n  at hdfs://host/save";
    /// assert_eq!(error.to_string(), text);
    /// ```
    pub fn replacing(mut self, from: &str, to: &str) -> Self {
        let inner = &mut *self.0;
        let texts = [&mut inner.expected, &mut inner.got, &mut inner.help].into_iter().flatten();
        for text in texts.chain([&mut inner.message]).chain(&mut inner.places) {
            *text = text.replace(from, to);
        }
        self
    }

    /// Records that the message or a place names this source file or line of the user.
    pub fn naming(mut self, line: &str) -> Self {
        self.0.lines.push(line.to_string());
        self
    }

    /// Sets the rank of the job (or the worker) whose failure this error reports. A process that
    /// fails with such an error is not the cause of the job's failure.
    ///
    /// ```
    /// let error = fleet_base::Error::unavailable("rank 3 died").caused_by(3);
    /// assert_eq!(error.at("all_reduce").culprit(), Some(3));
    /// ```
    pub fn caused_by(mut self, rank: usize) -> Self {
        self.0.culprit = Some(rank);
        self
    }

    /// The rank whose failure this error reports, if known.
    pub fn culprit(&self) -> Option<usize> {
        self.0.culprit
    }

    /// Returns the class of the error.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Returns the message alone, without expected and actual value, help and places.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// The expected value, the actual one, and the help.
    pub fn details(&self) -> [Option<&str>; 3] {
        [&self.0.expected, &self.0.got, &self.0.help].map(|text| text.as_deref())
    }

    /// Returns where the error happened, innermost place first.
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
        // Messages and help may have several lines on purpose. Every other part is one line.
        write!(f, "{}", printable(&inner.message))?;
        let [expected, got] =
            [&inner.expected, &inner.got].map(|text| text.as_deref().map(printable_line));
        match (expected, got) {
            (Some(expected), Some(got)) => write!(f, ": expected {expected}, got {got}")?,
            (Some(expected), None) => write!(f, ": expected {expected}")?,
            (None, Some(got)) => write!(f, ": got {got}")?,
            (None, None) => {}
        }
        for place in &inner.places {
            write!(f, "\n  at {}", printable_line(place))?;
        }
        if let Some(help) = &inner.help {
            write!(f, "\n  help: {}", printable(help))?;
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {self}", self.0.kind)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source.as_deref().map(|source| source as &(dyn std::error::Error + 'static))
    }
}

/// Returns who is at fault for a failed system call.
fn kind_of(error: &io::Error) -> ErrorKind {
    use std::io::ErrorKind as Io;
    match error.kind() {
        Io::NotFound
        | Io::PermissionDenied
        | Io::AlreadyExists
        | Io::NotADirectory
        | Io::IsADirectory
        | Io::InvalidInput => ErrorKind::Invalid,
        Io::StorageFull | Io::OutOfMemory | Io::QuotaExceeded | Io::FileTooLarge => {
            ErrorKind::Exhausted
        }
        _ => ErrorKind::Unavailable,
    }
}

/// For `?` in programs of users. It does not name the file: [`Error::io`] does.
///
/// ```
/// use fleet_base::{ErrorKind, Result};
/// fn read() -> Result<String> {
///     Ok(std::fs::read_to_string("/no such file")?)
/// }
/// let error = read().unwrap_err();
/// assert_eq!(error.kind(), ErrorKind::Invalid);
/// assert!(error.to_string().starts_with("No such file or directory"), "{error}");
/// ```
impl From<io::Error> for Error {
    fn from(error: io::Error) -> Error {
        Error::new(kind_of(&error), error.to_string()).caused(error)
    }
}

/// `io::Error` is not `Clone`. Returns the same system error, or the same kind with the same text.
fn copy(error: &io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(code) => io::Error::from_raw_os_error(code),
        None => io::Error::new(error.kind(), error.to_string()),
    }
}

/// ```
/// let steps: fleet_base::Result<u64> = "many".parse().map_err(fleet_base::Error::from);
/// assert!(steps.unwrap_err().to_string().contains("expected a whole number"));
/// ```
impl From<std::num::ParseIntError> for Error {
    fn from(error: std::num::ParseIntError) -> Error {
        Error::invalid("not a number").expected("a whole number").got(&error).caused(error)
    }
}

#[cfg(test)]
mod tests {
    use super::Error;

    #[test]
    fn control_characters_are_printed_as_escapes() {
        let error = Error::invalid("unknown key '\x1b[31mamp'\nbeside 'b\u{9b}'")
            .expected("a\r")
            .got("x\n  help: run this\x07")
            .at("folder\n/\x1b]0;title")
            .help("first\nsecond\x7f");
        let expected = "unknown key '\\u{1b}[31mamp'\nbeside 'b\\u{9b}': expected a\\r, \
             got x\\n  help: run this\\u{7}\n  at folder\\n/\\u{1b}]0;title\n  \
             help: first\nsecond\\u{7f}";
        assert_eq!(error.to_string(), expected);
        // Wrapping an error in another one does not escape its text twice.
        assert_eq!(Error::invalid(error.to_string()).to_string(), expected);
    }
}
