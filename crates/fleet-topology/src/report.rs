//! What a worker tells its launcher about itself, in the file that `FLEET_REPORT` names.
//!
//! The launcher cannot see from exit codes alone which of several failed workers caused the others
//! to fail, nor whether a worker that exits with code 0 had done its part. Workers that use Fleet
//! write both into this file; the launcher reads it when a worker ends.

use std::fmt;

/// The last thing that a worker has reported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WorkerReport {
    /// It takes part in the job, and the others need it.
    Joined,
    /// It has done its part: the others do not need it any more.
    Finished,
    /// Its part of the job has failed.
    Failed {
        /// The worker that caused it, where the error says so.
        culprit: Option<usize>,
        message: String,
    },
}

impl WorkerReport {
    /// Reads a report; `None` for a text that no worker of this version wrote.
    ///
    /// ```
    /// use fleet_topology::WorkerReport;
    /// let report = WorkerReport::Failed { culprit: Some(1), message: "rank 1 died".into() };
    /// assert_eq!(WorkerReport::parse(&report.to_string()), Some(report));
    /// assert_eq!(WorkerReport::parse("joined"), Some(WorkerReport::Joined));
    /// assert_eq!(WorkerReport::parse(""), None);
    /// ```
    pub fn parse(text: &str) -> Option<WorkerReport> {
        match text {
            JOINED => return Some(WorkerReport::Joined),
            FINISHED => return Some(WorkerReport::Finished),
            _ => {}
        }
        let (culprit, message) = text.strip_prefix(FAILED)?.split_once('\n')?;
        let culprit = match culprit {
            UNKNOWN => None,
            rank => Some(rank.parse().ok()?),
        };
        Some(WorkerReport::Failed { culprit, message: message.to_string() })
    }
}

impl fmt::Display for WorkerReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WorkerReport::Joined => f.write_str(JOINED),
            WorkerReport::Finished => f.write_str(FINISHED),
            WorkerReport::Failed { culprit: Some(rank), message } => {
                write!(f, "{FAILED}{rank}\n{message}")
            }
            WorkerReport::Failed { culprit: None, message } => {
                write!(f, "{FAILED}{UNKNOWN}\n{message}")
            }
        }
    }
}

const JOINED: &str = "joined";
const FINISHED: &str = "finished";
const FAILED: &str = "failed ";
/// In place of the rank of a culprit.
const UNKNOWN: &str = "-";
