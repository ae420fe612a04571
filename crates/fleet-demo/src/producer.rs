//! Generates batches on a thread of its own, so that training does not wait for data.

use super::{Batch, Source};
use fleet::{Error, Result};
use fleet_base::output::ExitReason;
use std::ops::Range;
use std::sync::mpsc;

/// Batches in flight: enough to smooth delays of either side, in little memory.
const BATCHES_AHEAD: usize = 8;

/// The samples of this worker.
pub struct Share {
    /// Samples of this worker per step.
    pub rows: usize,
    /// Distance between the first samples of consecutive steps.
    pub stride: u64,
    /// Samples of other workers in a step before this worker's.
    pub first: u64,
}

/// Calls `step(number, batch)` for every step of `steps`, in order. Numbers start at 1, and buffers
/// are reused.
pub fn run(
    source: &dyn Source,
    share: &Share,
    steps: Range<u64>,
    mut step: impl FnMut(u64, &Batch) -> Result<(), ExitReason>,
) -> Result<(), ExitReason> {
    let made = steps.clone();
    let (full, ready) = mpsc::sync_channel::<Result<Batch>>(BATCHES_AHEAD);
    let (done, empty) = mpsc::channel::<Batch>();
    std::thread::scope(|threads| {
        threads.spawn(move || {
            for index in made {
                let batch = empty.try_recv().map_or_else(|_| source.blank(share.rows), Ok);
                let filled = batch.and_then(|mut batch| {
                    source.fill(&mut batch, index * share.stride + share.first)?;
                    Ok(batch)
                });
                let failed = filled.is_err();
                // If nothing receives the batch, training has stopped.
                if full.send(filled).is_err() || failed {
                    return;
                }
            }
        });
        // Dropped on return, which ends the thread.
        let ready = ready;
        for index in steps {
            let batch =
                ready.recv().map_err(|_| Error::internal("the data thread ended early"))??;
            step(index + 1, &batch)?;
            // The send fails if the thread has already made its last batch.
            let _ = done.send(batch);
        }
        Ok(())
    })
}
