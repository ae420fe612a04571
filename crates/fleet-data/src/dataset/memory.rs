//! A dataset that is loaded into memory, shuffled and then read.

use super::exchange::Exchange;
use super::file_list::FileList;
use super::shuffle::{self, BLOCK_ROWS};
use super::turns::Turns;
use super::{Dataset, DatasetOptions, RecordFormat, for_pass, no_files, reader_panicked};
use crate::batch::{Batch, BatchLayout, BatchSource, RowRef};
use crate::block::Block;
use crate::lines::Skipped;
use fleet_base::rng::Sequence;
use fleet_base::sync::lock;
use fleet_base::{Error, Result, text};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

/// Records in memory.
///
/// ```
/// use fleet_data::{Batch, BatchSource, Dataset, DatasetOptions, InMemoryDataset};
/// use fleet_data::{Schema, Slot, TextFiles};
/// let path = std::env::temp_dir().join(format!("memory-example-{}", std::process::id()));
/// std::fs::write(&path, "2 7 8 1 1\n1 9 1 0\n").unwrap();
///
/// let schema = Schema::new([Slot::ragged_ids("words"), Slot::dense_ids("label", [1])])?;
/// let files = TextFiles::multi_slot(&schema);
/// let options = DatasetOptions { batch_size: 2, ..DatasetOptions::new(files)? };
/// let mut dataset = InMemoryDataset::new(options)?;
/// dataset.set_filelist([path.clone()])?;
/// dataset.load_into_memory()?;
/// dataset.local_shuffle();
/// let mut batch = Batch::new(dataset.layout());
/// for mut source in dataset.sources(1)? {
///     while source.next_batch(&mut batch)? {
///         assert_eq!(batch.tensor("label")?.shape().to_string(), "[2, 1]");
///     }
/// }
/// dataset.release_memory();
/// # std::fs::remove_file(&path).unwrap();
/// # Ok::<(), fleet_base::Error>(())
/// ```
pub struct InMemoryDataset {
    options: DatasetOptions,
    list: FileList,
    /// `None` until a list is set; an empty list has nothing to load.
    files: Option<Vec<PathBuf>>,
    blocks: Arc<Vec<Block>>,
    /// Order in which records are handed out.
    order: Arc<Vec<RowRef>>,
    skipped: Skipped,
    preload: Option<Preload>,
    loaded: bool,
    local_shuffles: u64,
    global_shuffles: u64,
    /// Slot of ids whose records stay together.
    group: Option<usize>,
}

/// A load in progress.
struct Preload {
    thread: JoinHandle<Result<Loaded>>,
    stop: Arc<AtomicBool>,
    format: Arc<dyn RecordFormat>,
}

/// Result of a load.
struct Loaded {
    blocks: Vec<Block>,
    skipped: Skipped,
}

impl InMemoryDataset {
    /// Returns a dataset without files. Fails if a setting is out of range.
    pub fn new(options: DatasetOptions) -> Result<InMemoryDataset> {
        options.check()?;
        Ok(InMemoryDataset {
            options,
            list: FileList::default(),
            files: None,
            blocks: Arc::default(),
            order: Arc::default(),
            skipped: Skipped::default(),
            preload: None,
            loaded: false,
            local_shuffles: 0,
            global_shuffles: 0,
            group: None,
        })
    }

    /// Keeps records together that have the same id in a slot, such as the results of a query. A
    /// shuffle then changes the order of the groups. A batch may end within a group.
    ///
    /// ```
    /// # use fleet_data::{Batch, BatchSource, Dataset, DatasetOptions, InMemoryDataset};
    /// # use fleet_data::{Schema, Slot, TextFiles};
    /// # let path = std::env::temp_dir().join(format!("group-by-{}", std::process::id()));
    /// std::fs::write(&path, "1 7\n1 8\n1 7\n1 9\n").unwrap();
    /// # let schema = Schema::new([Slot::dense_ids("query", [1])])?;
    /// # let options = DatasetOptions::new(TextFiles::multi_slot(&schema))?;
    /// let mut dataset = InMemoryDataset::new(DatasetOptions { batch_size: 4, ..options })?;
    /// dataset.group_by("query")?;
    /// dataset.set_filelist([&path])?;
    /// dataset.load_into_memory()?;
    /// let mut batch = Batch::new(dataset.layout());
    /// dataset.sources(1)?[0].next_batch(&mut batch)?;
    /// assert_eq!(batch.tensor("query")?.as_slice::<i64>()?, [7, 7, 8, 9]);
    /// # std::fs::remove_file(&path).unwrap();
    /// # Ok::<(), fleet_base::Error>(())
    /// ```
    pub fn group_by(&mut self, slot: &str) -> Result<()> {
        self.group = Some(self.options.format.schema().index(slot)?);
        self.order = Arc::new(self.grouped(in_order(&self.blocks)));
        Ok(())
    }

    /// Sorts rows by their groups, if there are groups.
    fn grouped(&self, mut rows: Vec<RowRef>) -> Vec<RowRef> {
        if let Some(slot) = self.group {
            rows.sort_by_cached_key(|row| group_of(&self.blocks, slot, row));
        }
        rows
    }

    /// Returns all rows in a random order, groups together.
    fn shuffled(&self, stream: u64) -> Vec<RowRef> {
        let rows = self.grouped(in_order(&self.blocks));
        let mut random = Sequence::new(self.options.seed, stream);
        match self.group {
            Some(slot) => {
                shuffle::shuffle_groups(rows, |row| group_of(&self.blocks, slot, row), &mut random)
            }
            None => {
                let mut rows = rows;
                random.shuffle(&mut rows);
                rows
            }
        }
    }

    /// Changes settings, starting with the next load or pass (`update_settings`).
    ///
    /// ```
    /// # use fleet_data::{DatasetOptions, InMemoryDataset, Schema, Slot, TextFiles};
    /// # let schema = Schema::new([Slot::dense_ids("label", [1])])?;
    /// # let options = DatasetOptions::new(TextFiles::multi_slot(&schema))?;
    /// # let mut dataset = InMemoryDataset::new(options)?;
    /// dataset.update_settings(|settings| settings.batch_size = 64)?;
    /// assert!(dataset.update_settings(|settings| settings.batch_size = 0).is_err());
    /// # Ok::<(), fleet_base::Error>(())
    /// ```
    pub fn update_settings(&mut self, change: impl FnOnce(&mut DatasetOptions)) -> Result<()> {
        self.options = self.options.changed(change)?;
        Ok(())
    }

    /// Sets the files to load, all of which must exist. Records in memory stay until the next load.
    /// The list may be empty if there are fewer files than workers: a global shuffle then gives
    /// this worker records.
    pub fn set_filelist<P: Into<PathBuf>>(
        &mut self,
        files: impl IntoIterator<Item = P>,
    ) -> Result<()> {
        self.files = Some(self.list.set(&*self.options.format, files)?);
        Ok(())
    }

    /// Sets the date, such as `20210222`, which replaces `{date}` in the names of files
    /// (`set_date`). Records in memory stay until the next load.
    ///
    /// ```
    /// # use fleet_data::{DatasetOptions, InMemoryDataset, Schema, Slot, TextFiles};
    /// # let folder = std::env::temp_dir().join(format!("set-date-{}", std::process::id()));
    /// # for day in ["20210222", "20210223"] {
    /// #     std::fs::create_dir_all(folder.join(day)).unwrap();
    /// #     std::fs::write(folder.join(day).join("part-0"), "1 7\n").unwrap();
    /// # }
    /// # let schema = Schema::new([Slot::dense_ids("id", [1])])?;
    /// # let options = DatasetOptions::new(TextFiles::multi_slot(&schema))?;
    /// let mut dataset = InMemoryDataset::new(options)?;
    /// for day in ["20210222", "20210223"] {
    ///     dataset.set_date(day)?;
    ///     dataset.set_filelist([folder.join("{date}/part-0")])?;
    ///     dataset.load_into_memory()?;
    ///     assert_eq!(dataset.memory_data_size(), 1);
    /// }
    /// # std::fs::remove_dir_all(&folder).unwrap();
    /// # Ok::<(), fleet_base::Error>(())
    /// ```
    pub fn set_date(&mut self, date: &str) -> Result<()> {
        let files = self.list.set_date(date)?;
        if self.files.is_some() {
            self.files = Some(files);
        }
        Ok(())
    }

    /// Reads all files with `threads` threads. Records are in the order of the files, for any
    /// number of threads.
    pub fn load_into_memory(&mut self) -> Result<()> {
        self.preload_into_memory()?;
        self.wait_preload_done()
    }

    /// Starts to load and returns; [`InMemoryDataset::wait_preload_done`] waits for the result. The
    /// records in memory remain usable meanwhile, so a job can train on one day and load the next.
    pub fn preload_into_memory(&mut self) -> Result<()> {
        let Some(files) = self.files.clone() else { return Err(no_files()) };
        if self.preload.is_some() {
            return Err(Error::invalid("the dataset is already being loaded")
                .help("call wait_preload_done first"));
        }
        let options = for_pass(&self.options);
        let format = Arc::clone(&options.format);
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::Builder::new().name("fleet-preload".into());
        let thread = thread
            .spawn(move || load(&options, &files, &stopped))
            .map_err(|error| Error::exhausted(format!("cannot start a thread: {error}")))?;
        self.preload = Some(Preload { thread, stop, format });
        Ok(())
    }

    /// Returns whether [`InMemoryDataset::wait_preload_done`] would return at once.
    pub fn preload_is_done(&self) -> bool {
        self.preload.as_ref().is_none_or(|preload| preload.thread.is_finished())
    }

    /// Cancels a load in progress: its thread ends soon, and its commands at once.
    ///
    /// ```
    /// # use fleet_data::{DatasetOptions, InMemoryDataset, Schema, Slot, TextFiles};
    /// # let path = std::env::temp_dir().join(format!("cancel-{}", std::process::id()));
    /// # std::fs::write(&path, "1 7\n").unwrap();
    /// # let schema = Schema::new([Slot::dense_ids("id", [1])])?;
    /// # let options = DatasetOptions::new(TextFiles::multi_slot(&schema))?;
    /// # let mut dataset = InMemoryDataset::new(options)?;
    /// dataset.set_filelist([&path])?;
    /// dataset.preload_into_memory()?;
    /// dataset.cancel_preload();
    /// assert!(dataset.preload_is_done() && dataset.wait_preload_done().is_err());
    /// dataset.load_into_memory()?;
    /// assert_eq!(dataset.memory_data_size(), 1);
    /// # std::fs::remove_file(&path).unwrap();
    /// # Ok::<(), fleet_base::Error>(())
    /// ```
    pub fn cancel_preload(&mut self) {
        if let Some(preload) = self.preload.take() {
            preload.stop.store(true, Ordering::Relaxed);
            preload.format.stop();
        }
    }

    /// Waits for [`InMemoryDataset::preload_into_memory`] and makes its records the current ones.
    pub fn wait_preload_done(&mut self) -> Result<()> {
        let Some(preload) = self.preload.take() else {
            return Err(
                Error::invalid("no load in progress").help("call preload_into_memory first")
            );
        };
        let loaded = preload.thread.join().map_err(|_| reader_panicked())??;
        self.set_blocks(loaded.blocks);
        self.skipped = loaded.skipped;
        self.loaded = true;
        (self.local_shuffles, self.global_shuffles) = (0, 0);
        Ok(())
    }

    fn set_blocks(&mut self, blocks: Vec<Block>) {
        self.blocks = Arc::new(blocks);
        self.order = Arc::new(self.grouped(in_order(&self.blocks)));
    }

    /// Returns the lines that the load skipped.
    pub fn skipped(&self) -> &Skipped {
        &self.skipped
    }

    /// Shuffles the records of this worker. The n-th shuffle after a load is a function of the seed
    /// and n.
    pub fn local_shuffle(&mut self) {
        self.local_shuffles += 1;
        self.order = Arc::new(self.shuffled(SHUFFLE_STREAM + self.local_shuffles));
    }

    /// Shuffles the records of this worker for an epoch. Their order is a function of the seed and
    /// the epoch, and of no other shuffle than the last global one.
    pub fn shuffle_for_epoch(&mut self, epoch: u64) {
        self.order = Arc::new(self.shuffled(EPOCH_STREAM + epoch));
    }

    /// Redistributes the records of all workers, by record id if the schema has them and at random
    /// otherwise, then shuffles the received records. All workers must call it together. If any
    /// worker fails, the call fails and the records stay unchanged. Old and new records are both in
    /// memory during the call.
    pub fn global_shuffle(&mut self, exchange: &mut dyn Exchange) -> Result<()> {
        if !self.loaded {
            return Err(no_records());
        }
        let round = self.global_shuffles + 1;
        let blocks = shuffle::redistribute(
            self.options.format.schema(),
            &self.blocks,
            self.options.seed,
            round,
            exchange,
        )?;
        self.global_shuffles = round;
        self.set_blocks(blocks);
        self.local_shuffle();
        Ok(())
    }

    /// Shuffles the values of some slots among records, each slot independently. The loss in a
    /// model's quality that this causes is a measure of the slot's importance.
    pub fn slots_shuffle(&mut self, slots: &[&str]) -> Result<()> {
        let schema = Arc::clone(self.options.format.schema());
        let slots: Result<Vec<usize>> = slots.iter().map(|name| schema.index(name)).collect();
        self.local_shuffles += 1;
        let seed = self.options.seed;
        let stream = SLOT_STREAM + self.local_shuffles;
        self.blocks = Arc::new(shuffle::slots(&self.blocks, &slots?, seed, stream)?);
        Ok(())
    }

    /// Drops all records. Sources that are still in use keep theirs.
    pub fn release_memory(&mut self) {
        self.set_blocks(Vec::new());
        self.loaded = false;
    }

    /// Returns the number of records of this worker; [`sum_over`](super::sum_over) adds up all
    /// workers'.
    pub fn memory_data_size(&self) -> usize {
        self.order.len()
    }

    /// Returns the number of records of this worker after a global shuffle, 0 before.
    pub fn shuffle_data_size(&self) -> usize {
        if self.global_shuffles > 0 { self.order.len() } else { 0 }
    }

    /// Fills a batch with records by their positions in the current order.
    pub fn fill(&self, places: &[u64], batch: &mut Batch) -> Result<()> {
        let rows: Option<Vec<RowRef>> =
            places.iter().map(|place| self.order.get(*place as usize).copied()).collect();
        let rows = rows.ok_or_else(|| {
            Error::invalid("record position is out of range")
                .expected(format!("less than {}", self.order.len()))
        })?;
        batch.fill(&self.blocks, &rows)
    }
}

impl Dataset for InMemoryDataset {
    fn layout(&self) -> &Arc<BatchLayout> {
        &self.options.layout
    }

    fn batch_count(&self) -> Option<u64> {
        let DatasetOptions { batch_size, drop_last, .. } = self.options;
        self.loaded.then(|| Turns::batch_count(self.order.len(), batch_size, drop_last))
    }

    /// Returns sources whose batches follow the order of the records, for any number of threads:
    /// source t of n has batches t, t + n, .. of the order.
    fn sources(&self, threads: usize) -> Result<Vec<Box<dyn BatchSource>>> {
        let threads = self.options.threads_of(threads)?;
        if !self.loaded {
            return Err(no_records());
        }
        let DatasetOptions { batch_size, drop_last, .. } = self.options;
        let source = |turns| {
            let (blocks, order) = (Arc::clone(&self.blocks), Arc::clone(&self.order));
            Box::new(MemorySource { blocks, order, turns }) as Box<dyn BatchSource>
        };
        Ok(Turns::divide(self.order.len(), batch_size, drop_last, threads).map(source).collect())
    }
}

fn no_records() -> Error {
    Error::invalid("no records in memory").help("call load_into_memory first")
}

/// Hands out some batches of the records.
struct MemorySource {
    blocks: Arc<Vec<Block>>,
    order: Arc<Vec<RowRef>>,
    turns: Turns,
}

impl BatchSource for MemorySource {
    fn next_batch(&mut self, batch: &mut Batch) -> Result<bool> {
        let Some(places) = self.turns.next() else { return Ok(false) };
        batch.fill(&self.blocks, &self.order[places])?;
        Ok(true)
    }
}

/// Returns the group of a row: its first id in a slot, 0 without one.
fn group_of(blocks: &[Block], slot: usize, row: &RowRef) -> i64 {
    let ids =
        blocks.get(row.block as usize).and_then(|block| block.column(slot).ids(row.row as usize));
    ids.and_then(|ids| ids.first()).copied().unwrap_or(0)
}

fn in_order(blocks: &[Block]) -> Vec<RowRef> {
    let rows = |(block, it): (usize, &Block)| {
        (0..it.len() as u32).map(move |row| RowRef { block: block as u32, row })
    };
    blocks.iter().enumerate().flat_map(rows).collect()
}

/// Reads all files. If several fail, returns the error of the first file.
fn load(options: &DatasetOptions, files: &[PathBuf], stop: &AtomicBool) -> Result<Loaded> {
    let (next, bytes) = (AtomicUsize::new(0), AtomicUsize::new(0));
    type Slot = Mutex<Option<Result<Loaded>>>;
    let outcomes: Vec<Slot> = files.iter().map(|_| Mutex::new(None)).collect();
    let work = || {
        while !stop.load(Ordering::Relaxed) {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(file) = files.get(index) else { break };
            let outcome = load_file(options, file, &bytes, stop);
            if outcome.is_err() {
                stop.store(true, Ordering::Relaxed);
            }
            *lock(&outcomes[index]) = Some(outcome);
        }
    };
    let threads = options.threads.min(files.len());
    std::thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(work)).collect();
        work();
        others.into_iter().try_for_each(|thread| thread.join().map_err(|_| reader_panicked()))
    })?;
    let mut all = Loaded { blocks: Vec::new(), skipped: Skipped::default() };
    let mut outcomes: Vec<Option<Result<Loaded>>> =
        outcomes.iter().map(|slot| lock(slot).take()).collect();
    if let Some(Err(error)) = outcomes.iter_mut().flatten().find(|outcome| outcome.is_err()) {
        return Err(error.clone());
    }
    for loaded in outcomes.into_iter().flatten().flatten() {
        all.blocks.extend(loaded.blocks);
        all.skipped.add(&loaded.skipped);
    }
    Ok(all)
}

fn load_file(
    options: &DatasetOptions,
    file: &Path,
    total: &AtomicUsize,
    stop: &AtomicBool,
) -> Result<Loaded> {
    let mut reader = options.format.open(file)?;
    let mut blocks = Vec::new();
    loop {
        let mut block = Block::new(options.format.schema());
        // After a stop nothing that was loaded is used.
        if reader.read(BLOCK_ROWS, &mut block)? == 0 || stop.load(Ordering::Relaxed) {
            break;
        }
        block.shrink();
        let held = total.fetch_add(block.bytes(), Ordering::Relaxed) + block.bytes();
        if held > options.memory_bytes_max {
            return Err(Error::exhausted("records exceed the memory limit")
                .expected(format!("at most {}", text::bytes(options.memory_bytes_max as u64)))
                .at(file.display())
                .help("load fewer files, or stream them with QueueDataset"));
        }
        blocks.push(block);
    }
    Ok(Loaded { blocks, skipped: reader.skipped() })
}

/// Random number streams of the shuffles, far apart.
const SHUFFLE_STREAM: u64 = 0x1 << 40;
const SLOT_STREAM: u64 = 0x2 << 40;
const EPOCH_STREAM: u64 = 0x3 << 40;
