//! Batches for a training loop, from samples that are addressed by number. Samples are shuffled in
//! each epoch and divided among workers; threads prefetch batches; and a job resumes exactly.
//!
//! The order of an epoch is a function of (seed, epoch). In each step, the workers together take
//! the next `world_size * batch_size` samples of this order, side by side. The position of a job is
//! therefore one number for all workers: the number of samples taken in the epoch. A [`Cursor`]
//! with that number resumes the job on any number of workers, without repeated or missing samples.

use crate::batch::{Batch, BatchLayout};
use crate::dataset::{Dataset, InMemoryDataset};
use crate::prefetch::{Lanes, reuse};
use fleet_base::rng::Sequence;
use fleet_base::{Error, Result};
use std::fmt;
use std::ops::Range;
use std::str::FromStr;
use std::sync::Arc;

/// Samples addressed by number.
pub trait Samples: Send + Sync {
    /// Returns the number of samples.
    fn sample_count(&self) -> u64;

    /// Fills a batch with these samples, in this order.
    fn fill(&self, samples: &[u64], batch: &mut Batch) -> Result<()>;

    /// Like [`Samples::fill`], for samples that are augmented differently in each epoch.
    fn fill_in_epoch(&self, _epoch: u64, samples: &[u64], batch: &mut Batch) -> Result<()> {
        self.fill(samples, batch)
    }

    /// Returns the inputs of a batch of these samples, for loops that make the batches themselves.
    fn batch_layout(&self) -> Option<&Arc<BatchLayout>> {
        None
    }
}

impl Samples for InMemoryDataset {
    fn sample_count(&self) -> u64 {
        self.memory_data_size() as u64
    }

    fn fill(&self, samples: &[u64], batch: &mut Batch) -> Result<()> {
        InMemoryDataset::fill(self, samples, batch)
    }

    fn batch_layout(&self) -> Option<&Arc<BatchLayout>> {
        Some(Dataset::layout(self))
    }
}

/// Order, batch size and distribution of samples.
#[derive(Clone, Debug, PartialEq)]
pub struct LoaderOptions {
    /// Samples in a batch of one worker.
    pub batch_size: usize,
    /// Whether samples are shuffled in each epoch.
    pub shuffle: bool,
    /// Seed of the shuffles.
    pub seed: u64,
    /// Drop the samples at the end of an epoch that do not fill a batch for every worker. Otherwise
    /// the workers share them, and some workers may have one batch more than others.
    pub drop_last: bool,
    /// Rank of this worker, from 0.
    pub rank: usize,
    /// Number of workers.
    pub world_size: usize,
    /// Prefetch threads; with 0, each batch is made on request.
    pub threads: usize,
}

impl Default for LoaderOptions {
    fn default() -> Self {
        LoaderOptions {
            batch_size: 1,
            shuffle: false,
            seed: 0,
            drop_last: true,
            rank: 0,
            world_size: 1,
            threads: 1,
        }
    }
}

/// The position of a loader for checkpoints; the same on all workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cursor {
    /// Number of complete epochs.
    pub epoch: u64,
    /// Samples of the epoch that all workers together have taken.
    pub taken: u64,
    /// Seed of the order. A cursor is valid only for the order of this seed and sample count.
    pub seed: u64,
    /// Number of samples of an epoch.
    pub sample_count: u64,
}

impl Cursor {
    /// Encodes the cursor as bytes for a checkpoint.
    ///
    /// ```
    /// use fleet_data::Cursor;
    /// let cursor = Cursor { epoch: 3, taken: 1024, seed: 7, sample_count: 60_000 };
    /// assert_eq!(Cursor::from_bytes(&cursor.to_bytes())?, cursor);
    /// assert!(Cursor::from_bytes(b"other").is_err());
    /// # Ok::<(), fleet_base::Error>(())
    /// ```
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        for word in [self.epoch, self.taken, self.seed, self.sample_count] {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// Decodes bytes of [`Cursor::to_bytes`]. Fails if they are not a cursor.
    pub fn from_bytes(bytes: &[u8]) -> Result<Cursor> {
        let words = bytes.strip_prefix(MAGIC).map(|rest| rest.as_chunks::<8>());
        match words {
            Some(([epoch, taken, seed, count], [])) => Ok(Cursor {
                epoch: u64::from_le_bytes(*epoch),
                taken: u64::from_le_bytes(*taken),
                seed: u64::from_le_bytes(*seed),
                sample_count: u64::from_le_bytes(*count),
            }),
            _ => Err(Error::invalid("not a loader cursor").got(format!("{} bytes", bytes.len()))),
        }
    }
}

impl fmt::Display for Cursor {
    /// Writes the cursor as text for a checkpoint's entries; [`Cursor::from_str`] parses it.
    ///
    /// ```
    /// use fleet_data::Cursor;
    /// let cursor = Cursor { epoch: 3, taken: 1024, seed: 7, sample_count: 60_000 };
    /// assert_eq!(cursor.to_string(), "epoch=3,taken=1024,seed=7,sample_count=60000");
    /// assert_eq!(cursor.to_string().parse::<Cursor>()?, cursor);
    /// # Ok::<(), fleet_base::Error>(())
    /// ```
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Cursor { epoch, taken, seed, sample_count } = self;
        write!(f, "epoch={epoch},taken={taken},seed={seed},sample_count={sample_count}")
    }
}

impl FromStr for Cursor {
    type Err = Error;

    fn from_str(text: &str) -> Result<Cursor> {
        let wrong = || {
            Error::invalid("not a loader cursor")
                .expected("epoch=..,taken=..,seed=..,sample_count=..")
                .got(format!("'{text}'"))
        };
        let mut rest = text.split(',');
        let mut number = |key: &str| -> Result<u64> {
            let value = rest.next().and_then(|word| word.strip_prefix(key)?.strip_prefix('='));
            value.and_then(|value| value.parse().ok()).ok_or_else(wrong)
        };
        let cursor = Cursor {
            epoch: number("epoch")?,
            taken: number("taken")?,
            seed: number("seed")?,
            sample_count: number("sample_count")?,
        };
        if rest.next().is_some() { Err(wrong()) } else { Ok(cursor) }
    }
}

/// A source of batches for a training loop.
///
/// ```
/// use fleet_data::{Batch, Dataset, DatasetOptions, InMemoryDataset, Loader, LoaderOptions};
/// use fleet_data::{Schema, Slot, TextFiles};
/// use std::sync::Arc;
/// # let path = std::env::temp_dir().join(format!("loader-example-{}", std::process::id()));
/// # std::fs::write(&path, (0..10).map(|id| format!("1 {id}\n")).collect::<String>()).unwrap();
/// let schema = Schema::new([Slot::dense_ids("id", [1])])?;
/// let mut dataset = InMemoryDataset::new(DatasetOptions::new(TextFiles::multi_slot(&schema))?)?;
/// dataset.set_filelist([path.clone()])?;
/// dataset.load_into_memory()?;
/// let layout = Arc::clone(dataset.layout());
///
/// let options =
///     LoaderOptions { batch_size: 4, shuffle: true, seed: 1, ..LoaderOptions::default() };
/// let mut loader = Loader::new(Arc::new(dataset), options)?;
/// let mut batch = Batch::new(&layout);
/// for _epoch in 0..2 {
///     while loader.next(&mut batch)? {
///         assert_eq!(batch.len(), 4);
///     }
///     loader.next_epoch();
/// }
/// // The cursor goes into a checkpoint; loader.resume(cursor) returns to it.
/// assert_eq!(loader.cursor().epoch, 2);
/// # std::fs::remove_file(&path).unwrap();
/// # Ok::<(), fleet_base::Error>(())
/// ```
pub struct Loader {
    samples: Arc<dyn Samples>,
    options: LoaderOptions,
    cursor: Cursor,
    order: Option<Arc<Vec<u64>>>,
    ahead: Option<Lanes<Batch>>,
}

impl Loader {
    /// Returns a loader at the start of epoch 0. Fails if a setting is out of range.
    pub fn new(samples: Arc<dyn Samples>, options: LoaderOptions) -> Result<Loader> {
        if options.batch_size == 0 {
            return Err(Error::invalid("batch size is 0"));
        }
        if options.rank >= options.world_size {
            return Err(Error::invalid("rank is out of range")
                .expected(format!("less than the number of workers {}", options.world_size))
                .got(options.rank));
        }
        if options.threads > THREADS_MAX {
            return Err(Error::invalid("too many loader threads")
                .expected(format!("at most {THREADS_MAX}"))
                .got(options.threads));
        }
        let sample_count = samples.sample_count();
        let cursor = Cursor { epoch: 0, taken: 0, seed: options.seed, sample_count };
        Ok(Loader { samples, options, cursor, order: None, ahead: None })
    }

    /// Returns the position after the last batch that was handed out, without prefetched batches.
    pub fn cursor(&self) -> Cursor {
        self.cursor
    }

    /// Returns the inputs of a batch, if the samples define them ([`Samples::batch_layout`]).
    pub fn layout(&self) -> Option<&Arc<BatchLayout>> {
        self.samples.batch_layout()
    }

    /// Returns the number of batches that this worker gets in an epoch after its first `taken`
    /// samples, which all workers together have taken.
    ///
    /// ```
    /// # use fleet_data::*;
    /// # struct Five;
    /// # impl Samples for Five {
    /// #     fn sample_count(&self) -> u64 { 5 }
    /// #     fn fill(&self, _: &[u64], _: &mut Batch) -> fleet_base::Result<()> { Ok(()) }
    /// # }
    /// let five = std::sync::Arc::new(Five);
    /// let options = LoaderOptions { batch_size: 2, drop_last: false, ..Default::default() };
    /// let loader = Loader::new(five, options)?;
    /// assert_eq!((loader.batches_after(0), loader.batches_after(4)), (3, 1));
    /// # Ok::<(), fleet_base::Error>(())
    /// ```
    pub fn batches_after(&self, taken: u64) -> u64 {
        let LoaderOptions { batch_size, rank, world_size, drop_last, .. } = &self.options;
        let step = (*batch_size as u64).saturating_mul(*world_size as u64);
        let left = self.cursor.sample_count.saturating_sub(taken);
        let share = crate::shard_range(left % step, *rank as u64, *world_size as u64);
        let has_share = !drop_last && share.is_ok_and(|share| !share.is_empty());
        left / step + u64::from(has_share)
    }

    /// Resumes at a cursor, which must belong to the same samples in the same order.
    pub fn resume(&mut self, cursor: Cursor) -> Result<()> {
        if (cursor.seed, cursor.sample_count) != (self.cursor.seed, self.cursor.sample_count) {
            return Err(Error::invalid("cursor does not match the samples or the seed")
                .expected(format!(
                    "{} samples, seed {}",
                    self.cursor.sample_count, self.cursor.seed
                ))
                .got(format!("{} samples, seed {}", cursor.sample_count, cursor.seed)));
        }
        if cursor.taken > cursor.sample_count {
            return Err(Error::invalid("cursor is past the last sample").got(cursor.taken));
        }
        self.stop();
        self.cursor = cursor;
        Ok(())
    }

    /// Returns to the first sample of the epoch.
    pub fn reset(&mut self) {
        self.stop();
        self.cursor.taken = 0;
    }

    /// Moves to the start of the next epoch.
    pub fn next_epoch(&mut self) {
        self.stop();
        self.cursor.epoch += 1;
        self.cursor.taken = 0;
    }

    fn stop(&mut self) {
        self.ahead = None;
        self.order = None;
    }

    /// Fills the batch with this worker's next samples. Returns false at the end of the epoch,
    /// until [`Loader::next_epoch`] or [`Loader::reset`] is called.
    pub fn next(&mut self, batch: &mut Batch) -> Result<bool> {
        let partition = Partition { options: &self.options, count: self.cursor.sample_count };
        let Some((mine, after)) = partition.step(self.cursor.taken) else {
            self.stop();
            return Ok(false);
        };
        if mine.is_empty() {
            self.cursor.taken = after;
            return Ok(false);
        }
        let order = Arc::clone(
            self.order.get_or_insert_with(|| Arc::new(epoch_order(&self.options, &self.cursor))),
        );
        if self.options.threads == 0 {
            self.samples.fill_in_epoch(self.cursor.epoch, &order[mine], batch)?;
        } else if let Err(error) = self.take(&order, batch) {
            // The next call retries the same samples.
            self.stop();
            return Err(error);
        }
        self.cursor.taken = after;
        Ok(true)
    }

    /// Swaps the next prefetched batch into `batch`.
    fn take(&mut self, order: &Arc<Vec<u64>>, batch: &mut Batch) -> Result<()> {
        let ahead = match &mut self.ahead {
            Some(ahead) => ahead,
            ahead => {
                let (from, layout) = (self.cursor, batch.layout());
                ahead.insert(prefetch(&self.samples, &self.options, order, from, layout)?)
            }
        };
        match ahead.next(batch)? {
            true => Ok(()),
            false => Err(Error::internal("the loader's threads ended early")),
        }
    }
}

/// Returns the samples of an epoch in their order.
fn epoch_order(options: &LoaderOptions, cursor: &Cursor) -> Vec<u64> {
    let mut order: Vec<u64> = (0..cursor.sample_count).collect();
    if options.shuffle {
        Sequence::new(options.seed, ORDER_STREAM + cursor.epoch).shuffle(&mut order);
    }
    order
}

/// Distribution of the samples of an epoch among steps and workers.
struct Partition<'a> {
    options: &'a LoaderOptions,
    count: u64,
}

impl Partition<'_> {
    /// Returns this worker's positions in the order for the step that starts at `taken`, and the
    /// start of the next step; `None` at the end.
    fn step(&self, taken: u64) -> Option<(Range<usize>, u64)> {
        let (rank, world) = (self.options.rank as u64, self.options.world_size as u64);
        let batch = self.options.batch_size as u64;
        let rest = self.count - taken;
        if rest >= batch.saturating_mul(world) {
            let start = taken + rank * batch;
            return Some((start as usize..(start + batch) as usize, taken + world * batch));
        }
        if rest == 0 || self.options.drop_last {
            return None;
        }
        let mine = crate::shard_range(rest, rank, world).ok()?;
        Some(((taken + mine.start) as usize..(taken + mine.end) as usize, self.count))
    }
}

/// Starts threads that prefetch the batches from a position on. Thread t of n makes steps t, t + n,
/// ...
fn prefetch(
    samples: &Arc<dyn Samples>,
    options: &LoaderOptions,
    order: &Arc<Vec<u64>>,
    from: Cursor,
    layout: &Arc<BatchLayout>,
) -> Result<Lanes<Batch>> {
    let mut lanes = Lanes::new(Error::internal("a loader thread panicked"));
    for first in 0..options.threads {
        let (samples, order) = (Arc::clone(samples), Arc::clone(order));
        let (options, layout) = (options.clone(), Arc::clone(layout));
        let (mut taken, mut step) = (from.taken, 0usize);
        let make = move |used| {
            let partition = Partition { options: &options, count: order.len() as u64 };
            while let Some((mine, after)) = partition.step(taken) {
                let is_turn = step % options.threads == first && !mine.is_empty();
                (taken, step) = (after, step + 1);
                if is_turn {
                    let mut batch = reuse(used, &layout);
                    samples.fill_in_epoch(from.epoch, &order[mine], &mut batch)?;
                    return Ok(Some(batch));
                }
            }
            Ok(None)
        };
        lanes.add(PREFETCH_BATCHES, || make)?;
    }
    Ok(lanes)
}

const MAGIC: &[u8] = b"fleet cursor 1\n";
/// Batches that each thread keeps ready: one to take at once, and one that it makes meanwhile.
const PREFETCH_BATCHES: usize = 2;
const THREADS_MAX: usize = 256;
const ORDER_STREAM: u64 = 0x4 << 44;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BatchLayout, Block, RowRef, Schema, Slot};

    /// Sample n holds the number n; sample `broken` cannot be read.
    struct Numbers {
        block: Block,
        broken: Option<u64>,
    }

    impl Numbers {
        fn new(count: i64, broken: Option<u64>) -> Arc<Numbers> {
            let schema = Schema::new([Slot::dense_ids("n", [1])]).unwrap();
            let mut block = Block::new(&schema);
            for n in 0..count {
                block.push_ids(0, &[n]).unwrap();
                block.end_record().unwrap();
            }
            Arc::new(Numbers { block, broken })
        }
    }

    impl Samples for Numbers {
        fn sample_count(&self) -> u64 {
            self.block.len() as u64
        }

        fn fill(&self, samples: &[u64], batch: &mut Batch) -> Result<()> {
            if samples.iter().any(|sample| Some(*sample) == self.broken) {
                return Err(Error::invalid("broken sample"));
            }
            let row = |sample: &u64| RowRef { block: 0, row: *sample as u32 };
            let rows: Vec<RowRef> = samples.iter().map(row).collect();
            batch.fill(&[&self.block], &rows)
        }
    }

    fn batch(samples: &Numbers) -> Batch {
        Batch::new(&BatchLayout::of_slots(samples.block.schema()).unwrap())
    }

    fn take(loader: &mut Loader, batch: &mut Batch) -> Option<Vec<i64>> {
        let more = loader.next(batch).unwrap();
        more.then(|| batch.tensor("n").unwrap().to_vec().unwrap())
    }

    fn options(rank: usize, world_size: usize, threads: usize) -> LoaderOptions {
        let (batch_size, seed) = (5, 3);
        let base = LoaderOptions { batch_size, seed, shuffle: true, ..LoaderOptions::default() };
        LoaderOptions { rank, world_size, threads, drop_last: false, ..base }
    }

    #[test]
    fn every_sample_comes_once_an_epoch_whatever_the_workers_and_threads() {
        let samples = Numbers::new(103, None);
        for world in 1..=4 {
            let mut all: Vec<Vec<i64>> = Vec::new();
            for threads in [0, 1, 3] {
                let mut list = Vec::new();
                for rank in 0..world {
                    let mut loader =
                        Loader::new(samples.clone(), options(rank, world, threads)).unwrap();
                    let mut batch = batch(&samples);
                    while let Some(some) = take(&mut loader, &mut batch) {
                        list.extend(some);
                    }
                    assert_eq!(loader.cursor().taken, 103);
                    assert!(take(&mut loader, &mut batch).is_none());
                }
                all.push(list);
            }
            assert!(all[0] == all[1] && all[0] == all[2]);
            all[0].sort_unstable();
            assert!(all[0].iter().copied().eq(0..103));
        }
    }

    #[test]
    fn epochs_differ_and_the_last_batch_may_be_dropped() {
        let samples = Numbers::new(23, None);
        let options = LoaderOptions { drop_last: true, ..options(0, 2, 2) };
        let mut loader = Loader::new(samples.clone(), options).unwrap();
        let mut batch = batch(&samples);
        let mut epoch = |loader: &mut Loader| {
            let mut list = Vec::new();
            while let Some(some) = take(loader, &mut batch) {
                list.push(some);
            }
            list
        };
        let first = epoch(&mut loader);
        assert_eq!(first.iter().map(Vec::len).collect::<Vec<_>>(), [5, 5]);
        loader.next_epoch();
        assert_ne!(epoch(&mut loader), first);
        loader.reset();
        let second = epoch(&mut loader);
        assert_ne!(second, first);
        loader.resume(Cursor { epoch: 0, taken: 0, ..loader.cursor() }).unwrap();
        assert_eq!(epoch(&mut loader), first);
    }

    #[test]
    fn a_resumed_job_repeats_and_skips_nothing() {
        let samples = Numbers::new(97, None);
        for (before, after) in [(1, 1), (2, 3), (4, 1), (3, 2)] {
            let mut seen = Vec::new();
            let mut cursors = Vec::new();
            for rank in 0..before {
                let mut loader = Loader::new(samples.clone(), options(rank, before, 2)).unwrap();
                let mut batch = batch(&samples);
                for _ in 0..3 {
                    seen.extend(take(&mut loader, &mut batch).unwrap());
                }
                cursors.push(loader.cursor().to_bytes());
            }
            // Prefetched batches do not count, and all workers agree.
            assert!(cursors.iter().all(|cursor| *cursor == cursors[0]));
            let cursor = Cursor::from_bytes(&cursors[0]).unwrap();
            assert_eq!(cursor.to_string().parse::<Cursor>().unwrap(), cursor);
            assert!("epoch=1,taken=x".parse::<Cursor>().is_err());
            assert_eq!(cursor.taken, 15 * before as u64);
            for rank in 0..after {
                let mut loader = Loader::new(samples.clone(), options(rank, after, 1)).unwrap();
                loader.resume(cursor).unwrap();
                let mut batch = batch(&samples);
                while let Some(some) = take(&mut loader, &mut batch) {
                    seen.extend(some);
                }
            }
            seen.sort_unstable();
            assert!(seen.into_iter().eq(0..97), "from {before} to {after} workers");
        }
    }

    #[test]
    fn a_resumed_worker_gets_the_very_batches() {
        let samples = Numbers::new(97, None);
        let mut loader = Loader::new(samples.clone(), options(1, 2, 2)).unwrap();
        let mut batch = batch(&samples);
        (0..4).for_each(|_| drop(take(&mut loader, &mut batch)));
        let cursor = loader.cursor();
        let rest: Vec<_> = std::iter::from_fn(|| take(&mut loader, &mut batch)).collect();
        let mut resumed = Loader::new(samples.clone(), options(1, 2, 1)).unwrap();
        resumed.resume(cursor).unwrap();
        let again: Vec<_> = std::iter::from_fn(|| take(&mut resumed, &mut batch)).collect();
        assert_eq!(rest, again);
    }

    #[test]
    fn errors_come_in_their_turn() {
        let samples = Numbers::new(30, Some(12));
        let plain = LoaderOptions { batch_size: 5, threads: 2, ..LoaderOptions::default() };
        let mut loader = Loader::new(samples.clone(), plain.clone()).unwrap();
        let mut batch = batch(&samples);
        assert_eq!(take(&mut loader, &mut batch).unwrap()[0], 0);
        assert_eq!(take(&mut loader, &mut batch).unwrap()[0], 5);
        for _ in 0..2 {
            assert_eq!(loader.next(&mut batch).unwrap_err().message(), "broken sample");
            assert_eq!(loader.cursor().taken, 10);
        }
        let wrong = Cursor { seed: 9, ..loader.cursor() };
        assert!(loader.resume(wrong).is_err());
        let past = Cursor { taken: 31, ..loader.cursor() };
        assert!(loader.resume(past).is_err());
        for bad in [
            LoaderOptions { batch_size: 0, ..plain.clone() },
            LoaderOptions { rank: 1, ..plain.clone() },
            LoaderOptions { threads: 1000, ..plain.clone() },
        ] {
            assert!(Loader::new(samples.clone(), bad).is_err());
        }
    }
}
