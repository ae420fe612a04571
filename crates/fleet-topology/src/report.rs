//! Reports of a process to its launcher, in the file that `FLEET_REPORT` names.
//!
//! Exit codes do not show which of several failed workers caused the others to fail, whether a
//! process that exits with code 0 had done its part, nor whether a failed server could do better
//! at its next start. Processes that use Fleet write this into the file; the launcher reads it.

use std::fmt;

/// The last report of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProcessReport {
    /// A server which no worker can reach yet.
    Starting,
    /// A worker takes part in the job, and the others need it.
    Joined,
    /// A server answers workers. They refuse a restarted one that is not durable.
    Serving { is_durable: bool },
    /// The job is done, and the server writes its last snapshot.
    Leaving,
    /// The process has done its part: the others do not need it any more.
    Finished,
    /// Its part of the job has failed.
    Failed {
        /// The worker that caused it, where the error says so.
        culprit: Option<usize>,
        /// Another start would end with the same error.
        is_final: bool,
        /// It is a server that has answered workers.
        has_served: bool,
        message: String,
    },
}

impl ProcessReport {
    /// Reads a report; `None` for a text that no process of this version wrote.
    ///
    /// ```
    /// use fleet_topology::ProcessReport;
    /// let report = ProcessReport::Failed {
    ///     culprit: Some(1),
    ///     is_final: true,
    ///     has_served: false,
    ///     message: "rank 1 died".into(),
    /// };
    /// assert_eq!(ProcessReport::parse(&report.to_string()), Some(report));
    /// let report = ProcessReport::Serving { is_durable: true };
    /// assert_eq!(ProcessReport::parse(&report.to_string()), Some(report));
    /// assert_eq!(ProcessReport::parse("joined"), Some(ProcessReport::Joined));
    /// assert_eq!(ProcessReport::parse(""), None);
    /// ```
    pub fn parse(text: &str) -> Option<ProcessReport> {
        if let Some(report) = PLAIN.iter().find(|report| report.to_string() == text) {
            return Some(report.clone());
        }
        let (line, message) = text.split_once('\n')?;
        let mut words = line.strip_prefix(FAILED)?.split(' ');
        let culprit = match words.next()? {
            UNKNOWN => None,
            rank => Some(rank.parse().ok()?),
        };
        let is_final = flag(words.next()?, FINAL)?;
        let has_served = flag(words.next()?, SERVED)?;
        Some(ProcessReport::Failed { culprit, is_final, has_served, message: message.to_string() })
    }
}

impl fmt::Display for ProcessReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (culprit, is_final, has_served, message) = match self {
            ProcessReport::Starting => return f.write_str("starting"),
            ProcessReport::Joined => return f.write_str("joined"),
            ProcessReport::Serving { is_durable: false } => return f.write_str("serving"),
            ProcessReport::Serving { is_durable: true } => return f.write_str("serving durable"),
            ProcessReport::Leaving => return f.write_str("leaving"),
            ProcessReport::Finished => return f.write_str("finished"),
            ProcessReport::Failed { culprit, is_final, has_served, message } => {
                (culprit, *is_final, *has_served, message)
            }
        };
        let culprit = culprit.map_or(UNKNOWN.to_string(), |rank| rank.to_string());
        let is_final = if is_final { FINAL } else { UNKNOWN };
        let has_served = if has_served { SERVED } else { UNKNOWN };
        write!(f, "{FAILED}{culprit} {is_final} {has_served}\n{message}")
    }
}

/// `Some(true)` for the word, `Some(false)` for its absence.
fn flag(text: &str, word: &str) -> Option<bool> {
    (text == word || text == UNKNOWN).then_some(text == word)
}

/// Reports without a message.
const PLAIN: &[ProcessReport] = &[
    ProcessReport::Starting,
    ProcessReport::Joined,
    ProcessReport::Serving { is_durable: false },
    ProcessReport::Serving { is_durable: true },
    ProcessReport::Leaving,
    ProcessReport::Finished,
];
const FAILED: &str = "failed ";
const FINAL: &str = "final";
const SERVED: &str = "served";
/// In place of the rank of a culprit, or of a word that does not apply.
const UNKNOWN: &str = "-";
