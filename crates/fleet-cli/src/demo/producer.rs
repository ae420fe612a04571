//! Makes batches on a thread of its own, so that training does not wait for its data.

use super::{Batch, Source};
use crate::output::Stop;
use fleet::{Error, Result};
use std::sync::mpsc;

/// Batches in flight: enough for hiccups of either side, little memory.
const BATCHES_AHEAD: usize = 8;

/// Calls `step(number, batch)` for every batch in order, numbers from 1; buffers are used again.
pub fn run(
    source: &dyn Source,
    rows: usize,
    steps: u64,
    mut step: impl FnMut(u64, &Batch) -> Result<(), Stop>,
) -> Result<(), Stop> {
    let (full, ready) = mpsc::sync_channel::<Result<Batch>>(BATCHES_AHEAD);
    let (done, empty) = mpsc::channel::<Batch>();
    std::thread::scope(|threads| {
        threads.spawn(move || {
            for index in 0..steps {
                let batch = empty.try_recv().map_or_else(|_| source.blank(rows), Ok);
                let filled = batch.and_then(|mut batch| {
                    source.fill(&mut batch, index * rows as u64)?;
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
        for number in 1..=steps {
            let batch = ready
                .recv()
                .map_err(|_| Error::internal("the thread that makes data has ended"))??;
            step(number, &batch)?;
            // The thread may have made its last batch.
            let _ = done.send(batch);
        }
        Ok(())
    })
}
