//! Makes batches on a thread of its own, so that training does not wait for its data.

use super::{Batch, Source};
use crate::output::Stop;
use fleet::{Error, Result};
use std::ops::Range;
use std::sync::mpsc;

/// Batches in flight: enough for hiccups of either side, little memory.
const BATCHES_AHEAD: usize = 8;

/// Which samples are this worker's.
pub struct Share {
    /// In each step.
    pub rows: usize,
    /// Samples from the beginning of a step to that of the next.
    pub stride: u64,
    /// Samples of a step that are other workers' and come before.
    pub first: u64,
}

/// Calls `step(number, batch)` for every step of `steps`, in order; numbers are from 1, and buffers
/// are used again.
pub fn run(
    source: &dyn Source,
    share: &Share,
    steps: Range<u64>,
    mut step: impl FnMut(u64, &Batch) -> Result<(), Stop>,
) -> Result<(), Stop> {
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
                // Training has stopped when nobody takes the batch.
                if full.send(filled).is_err() || failed {
                    return;
                }
            }
        });
        // Dropped on the way out, which ends the thread.
        let ready = ready;
        for index in steps {
            let batch = ready
                .recv()
                .map_err(|_| Error::internal("the thread that makes data has ended"))??;
            step(index + 1, &batch)?;
            // The thread may have made its last batch.
            let _ = done.send(batch);
        }
        Ok(())
    })
}
