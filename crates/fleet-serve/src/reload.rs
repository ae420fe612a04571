//! Looks for new versions of the model.

use crate::metrics::Metrics;
use crate::workers::Workers;
use fleet_base::output::note;
use fleet_job::serving::{RecommendOptions, ServedModel, Version};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

/// Loads new versions until the sender of requests is gone.
pub fn watch(
    (folder, options): (PathBuf, RecommendOptions),
    interval: Option<Duration>,
    workers: Arc<Workers>,
    metrics: Arc<Metrics>,
    requests: Receiver<()>,
) {
    // Longer than any server runs.
    let interval = interval.unwrap_or(Duration::from_secs(u64::from(u32::MAX)));
    let mut failed: Option<Version> = None;
    loop {
        let is_requested = match requests.recv_timeout(interval) {
            Ok(()) => true,
            Err(RecvTimeoutError::Timeout) => false,
            Err(RecvTimeoutError::Disconnected) => return,
        };
        let newer = workers.model().newer();
        if !is_requested && (newer.is_none() || newer == failed) {
            continue;
        }
        let changed = ServedModel::open(&folder, &options).and_then(|model| {
            let version = model.version();
            workers.change(model).map(|()| version)
        });
        metrics.reloaded(changed.is_ok());
        match changed {
            Ok(version) => {
                failed = None;
                note(format!("serving version {version} of {}", folder.display()));
            }
            Err(error) => {
                failed = newer;
                let version = workers.model().version();
                note(format!("new model not loaded, version {version} stays: {error}"));
            }
        }
    }
}
