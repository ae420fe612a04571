//! Reports of a process to its launcher, in the file that `FLEET_REPORT` names.
//!
//! Exit codes do not tell the launcher which of several failed workers caused the failure of the
//! others. Nor do they tell whether a process that exits with code 0 had finished its work, or
//! whether restarting a failed server can help. Processes that use Fleet write this to the file.

use std::fmt;

/// The last report of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProcessReport {
    /// A server that no worker can reach yet.
    Starting,
    /// A worker that takes part in the job and that the other workers need.
    Joined,
    /// A server that answers workers. Workers reject a restarted server that is not durable.
    Serving {
        /// Whether the server keeps its tables on disk.
        is_durable: bool,
    },
    /// A server that writes its last snapshot, because the job is finished.
    Leaving,
    /// A process that has finished its work; the others no longer need it.
    Finished,
    /// A process that has failed.
    Failed {
        /// Rank of the worker that caused the failure, if the error names it.
        culprit: Option<usize>,
        /// Whether a restart would end with the same error.
        is_final: bool,
        /// Whether the process is a server that has answered workers.
        has_served: bool,
        /// The error.
        message: String,
    },
}

impl ProcessReport {
    /// Parses a report; `None` for a text that no process of this version writes.
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

/// `Some(true)` for the word, `Some(false)` for the placeholder, `None` for any other text.
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
/// Placeholder for an unknown culprit, or for a word that does not apply.
const UNKNOWN: &str = "-";
