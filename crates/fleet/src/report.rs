//! Reports of this process to its launcher, in the file that `FLEET_REPORT` names.

use fleet_base::sync::lock;
use fleet_base::{Error, ErrorKind};
use fleet_topology::{ProcessReport, Topology};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

/// Writer of reports; a clone writes to the same file. Without a launcher it writes nothing.
#[derive(Clone, Default)]
pub(crate) struct Reporter(Option<Arc<File>>);

struct File {
    path: PathBuf,
    last: Mutex<Option<ProcessReport>>,
}

impl Reporter {
    pub(crate) fn new(topology: &Topology) -> Reporter {
        let reports = topology.is_worker() || topology.is_server();
        let Some(path) = topology.job().report.as_ref().filter(|_| reports) else {
            return Reporter::default();
        };
        // The launcher keeps the report of a server that it restarts after it has served.
        let found = std::fs::read_to_string(path).ok();
        let last = found.and_then(|text| ProcessReport::parse(&text));
        Reporter(Some(Arc::new(File { path: path.into(), last: Mutex::new(last) })))
    }

    /// Reports a server that knows its rank but does not serve yet.
    pub(crate) fn starting(&self) {
        self.write(|last| last.is_none(), |_| ProcessReport::Starting);
    }

    /// Returns whether the launcher starts this server for the first time, or again before it has
    /// served. Other launchers may restart one process alone.
    pub(crate) fn is_first_start(&self) -> bool {
        self.last() == Some(ProcessReport::Starting)
    }

    /// Returns whether the launcher restarts this server after it has served.
    pub(crate) fn is_restart(&self) -> bool {
        matches!(self.last(), Some(ProcessReport::Serving { .. }))
    }

    fn last(&self) -> Option<ProcessReport> {
        let file = self.0.as_ref()?;
        lock(&file.last).clone()
    }

    /// Reports a worker that the others need from now on.
    pub(crate) fn joined(&self) {
        self.write(|last| last.is_none(), |_| ProcessReport::Joined);
    }

    /// Reports that workers can reach this server.
    pub(crate) fn serving(&self, is_durable: bool) {
        self.write(|_| true, |_| ProcessReport::Serving { is_durable });
    }

    /// Reports that the job is done, except for this server's last snapshot.
    pub(crate) fn leaving(&self) {
        self.write(|_| true, |_| ProcessReport::Leaving);
    }

    /// Reports that the others need this process no longer.
    pub(crate) fn finished(&self) {
        self.write(|_| true, |_| ProcessReport::Finished);
    }

    /// Reports that this process's part of the job has failed. Only the first error is kept: later
    /// ones follow from it.
    pub(crate) fn failed(&self, error: &Error) {
        let is_first = |last: &Option<ProcessReport>| {
            !matches!(last, Some(ProcessReport::Failed { .. } | ProcessReport::Finished))
        };
        self.write(is_first, |last| failure(error, last));
    }

    /// Replaces the reported failure by its reason, which is more precise than the error.
    pub(crate) fn explained(&self, error: &Error) {
        self.write(|_| true, |last| failure(error, last));
    }

    fn write(
        &self,
        may: impl FnOnce(&Option<ProcessReport>) -> bool,
        report: impl FnOnce(&Option<ProcessReport>) -> ProcessReport,
    ) {
        let Some(file) = &self.0 else { return };
        let mut last = lock(&file.last);
        if !may(&last) {
            return;
        }
        let report = report(&last);
        // The launcher may read at any moment, so the file is replaced atomically. If the report
        // cannot be written, the launcher's message is less clear, but the job continues.
        let mut new = file.path.clone().into_os_string();
        new.push(".new");
        let _ = std::fs::write(&new, report.to_string())
            .and_then(|()| std::fs::rename(&new, &file.path));
        *last = Some(report);
    }
}

fn failure(error: &Error, last: &Option<ProcessReport>) -> ProcessReport {
    let retry_may_help = matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Internal);
    ProcessReport::Failed {
        culprit: error.culprit(),
        is_final: !retry_may_help,
        has_served: matches!(last, Some(ProcessReport::Serving { .. } | ProcessReport::Leaving)),
        message: error.to_string(),
    }
}
