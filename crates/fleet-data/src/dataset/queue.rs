//! A dataset that is read while it is used. For each source, a thread reads files into a short
//! queue of batches. Source r of n gets files r, r + n, .. in their order, so its batches do not
//! depend on the speed of threads.

use super::file_list::FileList;
use super::{Dataset, DatasetOptions, RecordFormat, for_pass, no_files, reader_panicked};
use crate::batch::{Batch, BatchLayout, BatchSource, RowRef};
use crate::block::Block;
use crate::lines::{RecordReader, Skipped};
use crate::prefetch::Lanes;
use fleet_base::Result;
use fleet_base::sync::lock;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

/// Records that are streamed, once for each call of [`Dataset::sources`].
///
/// ```
/// use fleet_data::{Batch, BatchSource, Dataset, DatasetOptions, QueueDataset};
/// use fleet_data::{Schema, Slot, TextFiles};
/// let path = std::env::temp_dir().join(format!("queue-example-{}", std::process::id()));
/// std::fs::write(&path, "1 7\n1 8\n1 9\n").unwrap();
/// let schema = Schema::new([Slot::dense_ids("id", [1])])?;
/// let files = TextFiles::multi_slot(&schema);
/// let options = DatasetOptions { batch_size: 2, ..DatasetOptions::new(files)? };
/// let mut dataset = QueueDataset::new(options)?;
/// dataset.set_filelist([path.clone()])?;
/// let mut batch = Batch::new(dataset.layout());
/// let mut sizes = Vec::new();
/// for mut source in dataset.sources(1)? {
///     while source.next_batch(&mut batch)? {
///         sizes.push(batch.len());
///     }
/// }
/// assert_eq!(sizes, [2, 1]); // the last batch is kept unless drop_last says otherwise
/// # std::fs::remove_file(&path).unwrap();
/// # Ok::<(), fleet_base::Error>(())
/// ```
pub struct QueueDataset {
    options: DatasetOptions,
    list: FileList,
    files: Vec<PathBuf>,
}

impl QueueDataset {
    /// Returns a dataset without files. Fails if a setting is out of range.
    pub fn new(options: DatasetOptions) -> Result<QueueDataset> {
        options.check()?;
        Ok(QueueDataset { options, list: FileList::default(), files: Vec::new() })
    }

    /// Changes settings, starting with the next pass (`update_settings`).
    ///
    /// ```
    /// # use fleet_data::{DatasetOptions, QueueDataset, Schema, Slot, TextFiles};
    /// # let schema = Schema::new([Slot::dense_ids("label", [1])])?;
    /// # let options = DatasetOptions::new(TextFiles::multi_slot(&schema))?;
    /// # let mut dataset = QueueDataset::new(options)?;
    /// dataset.update_settings(|settings| settings.batch_size = 64)?;
    /// assert!(dataset.update_settings(|settings| settings.batch_size = 0).is_err());
    /// # Ok::<(), fleet_base::Error>(())
    /// ```
    pub fn update_settings(&mut self, change: impl FnOnce(&mut DatasetOptions)) -> Result<()> {
        self.options = self.options.changed(change)?;
        Ok(())
    }

    /// Sets the files to read, all of which must exist.
    pub fn set_filelist<P: Into<PathBuf>>(
        &mut self,
        files: impl IntoIterator<Item = P>,
    ) -> Result<()> {
        self.files = self.list.set(&*self.options.format, files)?;
        Ok(())
    }

    /// Sets the date, such as `20210222`, which replaces `{date}` in the names of files of later
    /// passes (`set_date`).
    pub fn set_date(&mut self, date: &str) -> Result<()> {
        self.files = self.list.set_date(date)?;
        Ok(())
    }
}

impl Dataset for QueueDataset {
    fn layout(&self) -> &Arc<BatchLayout> {
        &self.options.layout
    }

    /// Starts to read, but with no more sources than files; source r of n gets files r, r + n, ..
    fn sources(&self, threads: usize) -> Result<Vec<Box<dyn BatchSource>>> {
        let threads = self.options.threads_of(threads)?;
        if self.files.is_empty() {
            return Err(no_files());
        }
        let count = threads.min(self.files.len());
        let options = for_pass(&self.options);
        (0..count)
            .map(|source| {
                let files = self.files.iter().skip(source).step_by(count).cloned().collect();
                let source = QueueSource::start(options.clone(), files)?;
                Ok(Box::new(source) as Box<dyn BatchSource>)
            })
            .collect()
    }
}

/// Hands out the batches of some files, which a thread reads into blocks.
struct QueueSource {
    blocks: Lanes<Block>,
    format: Arc<dyn RecordFormat>,
    /// The block of the last batch, whose memory the thread reuses.
    block: Block,
    rows: Vec<RowRef>,
    /// The skipped lines, once the thread has ended.
    skipped: Arc<Mutex<Skipped>>,
}

impl QueueSource {
    fn start(options: DatasetOptions, files: Vec<PathBuf>) -> Result<QueueSource> {
        let format = Arc::clone(&options.format);
        let block = Block::new(format.schema());
        let skipped = Arc::new(Mutex::new(Skipped::default()));
        let total = Arc::clone(&skipped);
        let files = files.into_iter();
        let mut reader = FileReader { options, files, open: None, skipped: Skipped::default() };
        let make = move |used| {
            let block = reader.read(used)?;
            if block.is_none() {
                *lock(&total) = std::mem::take(&mut reader.skipped);
            }
            Ok(block)
        };
        let mut blocks = Lanes::new(reader_panicked());
        blocks.add(QUEUE_BLOCKS, || make)?;
        Ok(QueueSource { blocks, format, block, rows: Vec::new(), skipped })
    }
}

impl BatchSource for QueueSource {
    fn next_batch(&mut self, batch: &mut Batch) -> Result<bool> {
        if !self.blocks.next(&mut self.block)? {
            return Ok(false);
        }
        self.rows.clear();
        self.rows.extend((0..self.block.len() as u32).map(|row| RowRef { block: 0, row }));
        batch.fill(std::slice::from_ref(&self.block), &self.rows)?;
        Ok(true)
    }

    fn stopper(&self) -> Option<Box<dyn Fn() + Send + Sync>> {
        let format = Arc::clone(&self.format);
        Some(Box::new(move || format.stop()))
    }

    fn skipped(&self) -> Skipped {
        lock(&self.skipped).clone()
    }
}

/// Reads files into blocks of one batch each; a batch may span files.
struct FileReader {
    options: DatasetOptions,
    files: std::vec::IntoIter<PathBuf>,
    open: Option<Box<dyn RecordReader>>,
    /// The lines skipped in the files before the open one.
    skipped: Skipped,
}

impl FileReader {
    /// Returns the next block, or `None` at the end.
    fn read(&mut self, used: Option<Block>) -> Result<Option<Block>> {
        let DatasetOptions { batch_size, drop_last, .. } = self.options;
        let mut block = used.unwrap_or_else(|| Block::new(self.options.format.schema()));
        block.clear();
        while block.len() < batch_size {
            let Some(reader) = &mut self.open else {
                let Some(file) = self.files.next() else { break };
                self.open = Some(self.options.format.open(&file)?);
                continue;
            };
            if reader.read(batch_size - block.len(), &mut block)? == 0 {
                self.skipped.add(&reader.skipped());
                self.open = None;
            }
        }
        let is_whole = block.len() == batch_size;
        let is_kept = is_whole || !block.is_empty() && !drop_last;
        Ok(is_kept.then_some(block))
    }
}

/// Batches queued for a source: enough to cover the start of the pipe command for the next file.
const QUEUE_BLOCKS: usize = 5;
