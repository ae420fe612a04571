//! This worker's reports to its launcher, in the file that `FLEET_REPORT` names.

use fleet_base::Error;
use fleet_topology::{Topology, WorkerReport};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

/// Writes reports; a clone writes to the same file. Without a launcher nothing is written.
#[derive(Clone, Default)]
pub(crate) struct Reporter(Option<Arc<File>>);

struct File {
    path: PathBuf,
    last: Mutex<Option<WorkerReport>>,
}

impl Reporter {
    pub(crate) fn new(topology: &Topology) -> Reporter {
        let file = topology.job().report.as_ref().filter(|_| topology.is_worker());
        Reporter(file.map(|path| Arc::new(File { path: path.into(), last: Mutex::default() })))
    }

    /// The others need this worker from now on.
    pub(crate) fn joined(&self) {
        self.write(|last| last.is_none(), || WorkerReport::Joined);
    }

    /// The others do not need this worker any more.
    pub(crate) fn finished(&self) {
        self.write(|_| true, || WorkerReport::Finished);
    }

    /// This worker's part of the job has failed. The first error counts: later ones follow from it.
    pub(crate) fn failed(&self, error: &Error) {
        let is_first =
            |last: &Option<WorkerReport>| matches!(last, None | Some(WorkerReport::Joined));
        self.write(is_first, || WorkerReport::Failed {
            culprit: error.culprit(),
            message: error.to_string(),
        });
    }

    /// The reason for what has failed, which is more than the error said.
    pub(crate) fn explained(&self, error: &Error) {
        self.write(
            |_| true,
            || WorkerReport::Failed { culprit: error.culprit(), message: error.to_string() },
        );
    }

    fn write(
        &self,
        may: impl FnOnce(&Option<WorkerReport>) -> bool,
        report: impl FnOnce() -> WorkerReport,
    ) {
        let Some(file) = &self.0 else { return };
        let mut last = file.last.lock().unwrap_or_else(PoisonError::into_inner);
        if !may(&last) {
            return;
        }
        let report = last.insert(report());
        // The launcher may read at any moment, so the file is replaced as a whole. A report that
        // cannot be written costs a clearer message, not the job.
        let mut new = file.path.clone().into_os_string();
        new.push(".new");
        let _ = std::fs::write(&new, report.to_string())
            .and_then(|()| std::fs::rename(&new, &file.path));
    }
}
