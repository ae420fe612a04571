//! Prefetched batches: each of several threads keeps some batches ready while one is in use.
//! Batches are taken from the threads in turn, so their order never depends on the speed of
//! threads.

use crate::batch::{Batch, BatchLayout, BatchSource};
use crate::lines::Skipped;
use fleet_base::sync::lock;
use fleet_base::{Error, Result};
use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

/// Threads that make batches ahead of time.
pub(crate) struct Lanes<B> {
    /// The next batch comes from the front.
    lanes: VecDeque<Lane<B>>,
    /// The error for a thread that panics.
    panicked: Error,
}

struct Lane<B> {
    full: Receiver<Result<B>>,
    empty: SyncSender<B>,
    thread: JoinHandle<()>,
}

impl<B: Send + 'static> Lanes<B> {
    pub fn new(panicked: Error) -> Lanes<B> {
        Lanes { lanes: VecDeque::new(), panicked }
    }

    /// Starts a thread that keeps up to `ahead` batches ready (at least 1). The thread calls
    /// `start` for a function that makes the next batch, or returns `None` at the end. Its argument
    /// is a used batch, if any, whose memory it may reuse. The thread ends after an error.
    pub fn add<F: FnMut(Option<B>) -> Result<Option<B>>>(
        &mut self,
        ahead: usize,
        start: impl FnOnce() -> F + Send + 'static,
    ) -> Result<()> {
        let (send, full) = sync_channel(ahead - 1);
        // Room also for the batch in use and for one on its way back.
        let (empty, take_empty) = sync_channel::<B>(ahead + 1);
        let work = move || {
            let mut make = start();
            while let Some(made) = make(take_empty.try_recv().ok()).transpose() {
                let last = made.is_err();
                if send.send(made).is_err() || last {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new()
            .name(format!("fleet-batches-{}", self.lanes.len()))
            .spawn(work)
            .map_err(|error| Error::exhausted(format!("cannot start a thread: {error}")))?;
        self.lanes.push_back(Lane { full, empty, thread });
        Ok(())
    }

    /// Swaps the next batch into `batch`; returns false when all threads have ended.
    pub fn next(&mut self, batch: &mut B) -> Result<bool> {
        self.next_by(batch, |lane| Ok(lane.full.recv().ok()))
    }

    /// Like `next`, and calls `check` about ten times a second while it waits. An error of `check`
    /// is returned. After an error there are no more batches.
    pub fn next_or(
        &mut self,
        batch: &mut B,
        check: &mut dyn FnMut() -> Result<()>,
    ) -> Result<bool> {
        let next = self.next_by(batch, |lane| {
            loop {
                match lane.full.recv_timeout(CHECK_PERIOD) {
                    Ok(made) => return Ok(Some(made)),
                    Err(RecvTimeoutError::Disconnected) => return Ok(None),
                    Err(RecvTimeoutError::Timeout) => check()?,
                }
            }
        });
        if next.is_err() {
            self.detach();
        }
        next
    }

    /// Lets the threads end at their next batch, and does not wait for that: one of them may wait
    /// for data for long.
    fn detach(&mut self) {
        self.lanes.clear();
    }

    fn next_by(
        &mut self,
        batch: &mut B,
        mut receive: impl FnMut(&Lane<B>) -> Result<Option<Result<B>>>,
    ) -> Result<bool> {
        while let Some(lane) = self.lanes.pop_front() {
            // A thread that has ended leaves the rotation.
            let Some(made) = receive(&lane)? else {
                lane.thread.join().map_err(|_| self.panicked.clone())?;
                continue;
            };
            // A thread that has ended needs no memory back.
            let _ = lane.empty.try_send(std::mem::replace(batch, made?));
            self.lanes.push_back(lane);
            return Ok(true);
        }
        Ok(false)
    }
}

impl<B> Drop for Lanes<B> {
    fn drop(&mut self) {
        // Without receivers, all threads stop at their next batch.
        let threads: Vec<_> = self.lanes.drain(..).map(|lane| lane.thread).collect();
        for thread in threads {
            // A panic of a thread does not matter to a caller that stops early.
            let _ = thread.join();
        }
    }
}

/// Returns a used batch if it has this layout, or a new one.
pub(crate) fn reuse(used: Option<Batch>, layout: &Arc<BatchLayout>) -> Batch {
    let fits = |used: &Batch| Arc::ptr_eq(used.layout(), layout);
    used.filter(fits).unwrap_or_else(|| Batch::new(layout))
}

/// Sources whose batches are prefetched.
///
/// ```
/// use fleet_data::{Batch, BatchSource, Dataset, DatasetOptions, Prefetch, QueueDataset};
/// use fleet_data::{Schema, Slot, TextFiles};
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
    lanes: Lanes<Batch>,
    stoppers: Vec<Box<dyn Fn() + Send + Sync>>,
    /// The lines that sources which have ended skipped.
    skipped: Arc<Mutex<Skipped>>,
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
        let mut lanes = Lanes::new(Error::internal("a prefetch thread panicked"));
        let skipped = Arc::new(Mutex::new(Skipped::default()));
        let stoppers = sources.iter().filter_map(|source| source.stopper()).collect();
        for mut source in sources {
            let (layout, skipped) = (Arc::clone(layout), Arc::clone(&skipped));
            let make = move |used| {
                let mut batch = reuse(used, &layout);
                if source.next_batch(&mut batch)? {
                    return Ok(Some(batch));
                }
                lock(&skipped).add(&source.skipped());
                Ok(None)
            };
            lanes.add(ahead, || make)?;
        }
        Ok(Prefetch { lanes, stoppers, skipped })
    }

    /// Ends the pass without waiting for its threads, which end at their next batch. Dropping it
    /// waits for them.
    pub fn detach(mut self) {
        self.lanes.detach();
    }

    /// Swaps the next batch into `batch`, and calls `check` about ten times a second while it
    /// waits. An error of `check` is returned. After an error there are no more batches.
    pub fn next_batch_or(
        &mut self,
        batch: &mut Batch,
        check: &mut dyn FnMut() -> Result<()>,
    ) -> Result<bool> {
        let next = self.lanes.next_or(batch, check);
        if next.is_err() {
            self.stop();
        }
        next
    }

    /// Ends what the sources wait for.
    fn stop(&self) {
        self.stoppers.iter().for_each(|stop| stop());
    }
}

impl Drop for Prefetch {
    fn drop(&mut self) {
        // Before the threads are waited for.
        self.stop();
    }
}

impl BatchSource for Prefetch {
    /// Swaps the next batch into `batch`.
    fn next_batch(&mut self, batch: &mut Batch) -> Result<bool> {
        self.lanes.next(batch)
    }

    fn skipped(&self) -> Skipped {
        lock(&self.skipped).clone()
    }
}

/// Interval between two checks while a batch is waited for.
const CHECK_PERIOD: Duration = Duration::from_millis(100);
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
    fn a_pass_that_is_left_does_not_wait_for_its_threads() {
        let (_held, wait) = sync_channel::<()>(0);
        let mut lanes = Lanes::new(Error::internal("a thread panicked"));
        let make = move |_| {
            let _ = wait.recv();
            Ok(None::<Batch>)
        };
        lanes.add(1, || make).unwrap();
        Prefetch { lanes, stoppers: Vec::new(), skipped: Arc::default() }.detach();
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

    #[test]
    fn a_check_ends_the_wait_for_a_batch() {
        // The thread makes its batch once the check has failed.
        let (fail, failed) = sync_channel::<()>(1);
        let mut lanes = Lanes::new(Error::internal("a thread panicked"));
        let make = move |_| {
            let _ = failed.recv();
            Ok(Some(1))
        };
        lanes.add(1, || make).unwrap();
        let mut checks = 0;
        let mut check = || {
            checks += 1;
            match checks {
                1 => Ok(()),
                _ => {
                    let _ = fail.send(());
                    Err(Error::invalid("interrupted"))
                }
            }
        };
        let error = lanes.next_or(&mut 0, &mut check).unwrap_err();
        assert_eq!((error.message(), checks), ("interrupted", 2));
        assert!(!lanes.next(&mut 0).unwrap());
    }

    #[test]
    fn a_panic_comes_as_an_error_after_the_batches_before_it() {
        let mut lanes = Lanes::new(Error::internal("a thread panicked"));
        let mut made = 0;
        let make = move |_| {
            made += 1;
            if made == 3 { panic!("the third batch") } else { Ok(Some(made)) }
        };
        lanes.add(2, move || make).unwrap();
        let mut batch = 0;
        for expected in [1, 2] {
            assert!(lanes.next(&mut batch).unwrap());
            assert_eq!(batch, expected);
        }
        assert_eq!(lanes.next(&mut batch).unwrap_err().message(), "a thread panicked");
        assert!(!lanes.next(&mut batch).unwrap());
    }

    #[test]
    fn all_threads_stop_before_one_is_waited_for() {
        // The first thread waits, in a batch, until the second has ended.
        let (ended, wait) = sync_channel::<()>(0);
        let mut lanes = Lanes::new(Error::internal("a thread panicked"));
        let first = move |_| {
            let _ = wait.recv();
            Ok(Some(1))
        };
        lanes.add(1, || first).unwrap();
        let second = move |_| {
            let _held = &ended;
            Ok(Some(2))
        };
        lanes.add(1, || second).unwrap();
        drop(lanes);
    }
}
