//! Prefetched batches: a thread for each source keeps some batches ready while one is in use.
//! Batches are taken from the sources in turn, so their order never depends on the speed of
//! threads.

use crate::batch::{Batch, BatchLayout, BatchSource};
use crate::lines::Skipped;
use fleet_base::{Error, Result};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

/// Sources whose batches are prefetched.
///
/// ```
/// use fleet_data::{Batch, BatchSource, Dataset, DatasetOptions, Prefetch, QueueDataset, Schema, Slot, TextFiles};
/// # let path = std::env::temp_dir().join(format!("prefetch-example-{}", std::process::id()));
/// # std::fs::write(&path, "1 7\n1 8\n1 9\n").unwrap();
/// let schema = Schema::new([Slot::dense_ids("id", [1])])?;
/// let mut dataset = QueueDataset::new(DatasetOptions::new(TextFiles::multi_slot(&schema))?)?;
/// dataset.set_filelist([path.clone()])?;
/// let mut batches = Prefetch::start(dataset.sources(1)?, dataset.layout(), 2)?;
/// let mut batch = Batch::new(dataset.layout());
/// let mut count = 0;
/// while batches.next_batch(&mut batch)? {
///     count += 1;
/// }
/// assert_eq!(count, 3);
/// # std::fs::remove_file(&path).unwrap();
/// # Ok::<(), fleet_base::Error>(())
/// ```
pub struct Prefetch {
    /// The next batch comes from the front.
    lanes: VecDeque<Lane>,
    skipped: Skipped,
}

struct Lane {
    full: Receiver<Result<Batch>>,
    empty: SyncSender<Batch>,
    thread: JoinHandle<Skipped>,
}

impl Prefetch {
    /// Starts a thread for each source, which keeps up to `ahead` batches ready.
    pub fn start(
        sources: Vec<Box<dyn BatchSource>>,
        layout: &Arc<BatchLayout>,
        ahead: usize,
    ) -> Result<Prefetch> {
        if ahead == 0 || ahead > PREFETCH_MAX {
            return Err(Error::invalid("number of prefetched batches is out of range")
                .expected(format!("1 to {PREFETCH_MAX}"))
                .got(ahead));
        }
        let mut prefetch = Prefetch { lanes: VecDeque::new(), skipped: Skipped::default() };
        for source in sources {
            prefetch.lanes.push_back(Lane::start(source, layout, ahead)?);
        }
        Ok(prefetch)
    }
}

impl Lane {
    fn start(
        mut source: Box<dyn BatchSource>,
        layout: &Arc<BatchLayout>,
        ahead: usize,
    ) -> Result<Lane> {
        let (send, full) = sync_channel(ahead - 1);
        // Room also for the batch in use and for one on its way back.
        let (empty, take_empty) = sync_channel::<Batch>(ahead + 1);
        let layout = Arc::clone(layout);
        let work = move || {
            loop {
                let mut batch = take_empty.try_recv().unwrap_or_else(|_| Batch::new(&layout));
                let made = match source.next_batch(&mut batch) {
                    Ok(true) => Ok(batch),
                    Ok(false) => break,
                    Err(error) => Err(error),
                };
                let last = made.is_err();
                if send.send(made).is_err() || last {
                    break;
                }
            }
            source.skipped()
        };
        let thread = std::thread::Builder::new()
            .name("fleet-prefetch".into())
            .spawn(work)
            .map_err(|error| Error::exhausted(format!("cannot start a thread: {error}")))?;
        Ok(Lane { full, empty, thread })
    }

    /// Waits for the thread, and returns the lines that its source skipped.
    fn end(self) -> Result<Skipped> {
        drop(self.full);
        let lost = |_| Error::internal("a prefetch thread panicked");
        self.thread.join().map_err(lost)
    }
}

impl BatchSource for Prefetch {
    /// Swaps the next batch into `batch`.
    fn next_batch(&mut self, batch: &mut Batch) -> Result<bool> {
        while let Some(lane) = self.lanes.pop_front() {
            // A source that has ended leaves the rotation.
            let Ok(made) = lane.full.recv() else {
                self.skipped.add(&lane.end()?);
                continue;
            };
            let used = std::mem::replace(batch, made?);
            if Arc::ptr_eq(used.layout(), batch.layout()) {
                // A thread that has ended needs no memory back.
                let _ = lane.empty.try_send(used);
            }
            self.lanes.push_back(lane);
            return Ok(true);
        }
        Ok(false)
    }

    fn skipped(&self) -> Skipped {
        self.skipped.clone()
    }
}

impl Drop for Prefetch {
    fn drop(&mut self) {
        for lane in self.lanes.drain(..) {
            // Errors of the threads do not matter to a caller that stops early.
            let _ = lane.end();
        }
    }
}

/// Limit of the batches ahead; more only take memory.
const PREFETCH_MAX: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Block, RowRef, Schema, Slot};

    /// Batches of one number each; one of them may be broken.
    struct Numbers {
        block: Block,
        rest: std::ops::Range<u32>,
        broken: Option<u32>,
    }

    impl BatchSource for Numbers {
        fn next_batch(&mut self, batch: &mut Batch) -> Result<bool> {
            let Some(row) = self.rest.next() else { return Ok(false) };
            if Some(row) == self.broken {
                return Err(Error::invalid("broken"));
            }
            batch.fill(&[&self.block], &[RowRef { block: 0, row }])?;
            Ok(true)
        }
    }

    fn numbers(rest: std::ops::Range<u32>, broken: Option<u32>) -> Numbers {
        let schema = Schema::new([Slot::dense_ids("n", [1])]).unwrap();
        let mut block = Block::new(&schema);
        for n in 0..100 {
            block.push_ids(0, &[n]).unwrap();
            block.end_record().unwrap();
        }
        Numbers { block, rest, broken }
    }

    fn start(sources: Vec<Numbers>, ahead: usize) -> (Prefetch, Batch) {
        let layout = BatchLayout::of_slots(sources[0].block.schema()).unwrap();
        let sources: Vec<Box<dyn BatchSource>> =
            sources.into_iter().map(|it| Box::new(it) as Box<dyn BatchSource>).collect();
        (Prefetch::start(sources, &layout, ahead).unwrap(), Batch::new(&layout))
    }

    fn take(prefetch: &mut Prefetch, batch: &mut Batch) -> Vec<i64> {
        let mut all = Vec::new();
        while prefetch.next_batch(batch).unwrap() {
            all.push(batch.tensor("n").unwrap().to_vec::<i64>().unwrap()[0]);
        }
        all
    }

    #[test]
    fn sources_take_turns_until_all_have_ended() {
        for ahead in [1, 2, 5] {
            let sources = vec![numbers(0..2, None), numbers(10..15, None), numbers(20..21, None)];
            let (mut prefetch, mut batch) = start(sources, ahead);
            let all = take(&mut prefetch, &mut batch);
            assert_eq!(all, [0, 10, 20, 1, 11, 12, 13, 14]);
            assert!(!prefetch.next_batch(&mut batch).unwrap());
        }
    }

    #[test]
    fn an_error_comes_in_its_turn_and_dropping_stops_the_threads() {
        let (mut prefetch, mut batch) =
            start(vec![numbers(0..9, Some(2)), numbers(10..99, None)], 2);
        for _ in 0..4 {
            assert!(prefetch.next_batch(&mut batch).unwrap());
        }
        assert_eq!(prefetch.next_batch(&mut batch).unwrap_err().message(), "broken");
        drop(prefetch);
    }
}
