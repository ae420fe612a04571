//! A dataset that is read while it is used. For each reader, a thread reads files into a short
//! queue of batches. Reader r of n gets files r, r + n, .. in their order, so its batches do not
//! depend on the speed of threads.

use super::{
    Dataset, DatasetOptions, boxed, check_files, check_threads, no_files, reader_panicked,
};
use crate::batch::{Batch, BatchSource, RowRef};
use crate::block::Block;
use crate::lines::Skipped;
use fleet_base::{Error, Result};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

/// Records that are streamed, once for each call of [`QueueDataset::readers`].
///
/// ```
/// use fleet_data::{Batch, BatchSource, DatasetOptions, QueueDataset, Schema, Slot, TextFiles};
/// let path = std::env::temp_dir().join(format!("queue-example-{}", std::process::id()));
/// std::fs::write(&path, "1 7\n1 8\n1 9\n").unwrap();
/// let schema = Schema::new([Slot::dense_ids("id", [1])])?;
/// let options = DatasetOptions { batch_size: 2, ..DatasetOptions::new(TextFiles::multi_slot(&schema))? };
/// let mut dataset = QueueDataset::new(options)?;
/// dataset.set_filelist([path.clone()])?;
/// let mut batch = Batch::new(dataset.layout());
/// let mut sizes = Vec::new();
/// for mut reader in dataset.readers()? {
///     while reader.next_batch(&mut batch)? {
///         sizes.push(batch.len());
///     }
/// }
/// assert_eq!(sizes, [2, 1]); // the last batch is kept unless drop_last says otherwise
/// # std::fs::remove_file(&path).unwrap();
/// # Ok::<(), fleet_base::Error>(())
/// ```
pub struct QueueDataset {
    options: DatasetOptions,
    files: Vec<PathBuf>,
}

impl QueueDataset {
    pub fn new(options: DatasetOptions) -> Result<QueueDataset> {
        options.check()?;
        Ok(QueueDataset { options, files: Vec::new() })
    }

    pub fn layout(&self) -> &std::sync::Arc<crate::BatchLayout> {
        &self.options.layout
    }

    /// Changes settings, starting with the next pass (`update_settings`).
    ///
    /// ```
    /// # use fleet_data::{DatasetOptions, QueueDataset, Schema, Slot, TextFiles};
    /// # let schema = Schema::new([Slot::dense_ids("label", [1])])?;
    /// # let mut dataset = QueueDataset::new(DatasetOptions::new(TextFiles::multi_slot(&schema))?)?;
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
        let files: Vec<PathBuf> = files.into_iter().map(Into::into).collect();
        check_files(&*self.options.format, &files)?;
        self.files = files;
        Ok(())
    }

    /// Starts to read with one reader for each thread, but no more readers than files. Each reader
    /// serves one training thread.
    pub fn readers(&self) -> Result<Vec<QueueReader>> {
        self.start(self.options.threads)
    }

    fn start(&self, threads: usize) -> Result<Vec<QueueReader>> {
        check_threads(threads)?;
        if self.files.is_empty() {
            return Err(no_files());
        }
        let count = threads.min(self.files.len());
        (0..count)
            .map(|reader| {
                let files = self.files.iter().skip(reader).step_by(count).cloned().collect();
                QueueReader::start(self.options.clone(), files)
            })
            .collect()
    }
}

impl Dataset for QueueDataset {
    fn layout(&self) -> &std::sync::Arc<crate::BatchLayout> {
        &self.options.layout
    }

    /// Starts to read; source r of n gets files r, r + n, ..
    fn sources(&self, threads: usize) -> Result<Vec<Box<dyn BatchSource>>> {
        self.start(if threads == 0 { self.options.threads } else { threads }).map(boxed)
    }
}

/// Returns the batches of some files.
pub struct QueueReader {
    /// Full blocks; `None` after the end. Dropped first, so that the thread stops.
    full: Option<Receiver<Block>>,
    /// Returns used blocks to the thread.
    empty: SyncSender<Block>,
    thread: Option<JoinHandle<Result<Skipped>>>,
    rows: Vec<RowRef>,
    skipped: Skipped,
}

impl QueueReader {
    fn start(options: DatasetOptions, files: Vec<PathBuf>) -> Result<QueueReader> {
        let (send_full, full) = sync_channel(QUEUE_BLOCKS);
        let (empty, take_empty) = sync_channel(QUEUE_BLOCKS + 2);
        let thread = std::thread::Builder::new()
            .name("fleet-reader".into())
            .spawn(move || produce(&options, &files, &send_full, &take_empty))
            .map_err(|error| Error::exhausted(format!("cannot start a thread: {error}")))?;
        let skipped = Skipped::default();
        Ok(QueueReader { full: Some(full), empty, thread: Some(thread), rows: Vec::new(), skipped })
    }
}

impl BatchSource for QueueReader {
    fn next_batch(&mut self, batch: &mut Batch) -> Result<bool> {
        let Some(block) = self.full.as_ref().and_then(|full| full.recv().ok()) else {
            self.full = None;
            if let Some(thread) = self.thread.take() {
                self.skipped = thread.join().map_err(|_| reader_panicked())??;
            }
            return Ok(false);
        };
        self.rows.clear();
        self.rows.extend((0..block.len() as u32).map(|row| RowRef { block: 0, row }));
        batch.fill(std::slice::from_ref(&block), &self.rows)?;
        // The thread may have ended; it then needs no blocks back.
        let _ = self.empty.try_send(block);
        Ok(true)
    }

    fn skipped(&self) -> Skipped {
        self.skipped.clone()
    }
}

impl Drop for QueueReader {
    fn drop(&mut self) {
        self.full = None;
        if let Some(thread) = self.thread.take() {
            // A caller that drops a reader ignores its errors.
            let _ = thread.join();
        }
    }
}

/// Reads files into blocks of one batch each; a batch may span files.
fn produce(
    options: &DatasetOptions,
    files: &[PathBuf],
    full: &SyncSender<Block>,
    empty: &Receiver<Block>,
) -> Result<Skipped> {
    let mut skipped = Skipped::default();
    let mut block = Block::new(options.format.schema());
    for file in files {
        let mut reader = options.format.open(file)?;
        loop {
            let missing = options.batch_size - block.len();
            if reader.read(missing, &mut block)? == 0 {
                break;
            }
            if block.len() == options.batch_size {
                let mut next =
                    empty.try_recv().unwrap_or_else(|_| Block::new(options.format.schema()));
                next.clear();
                if full.send(std::mem::replace(&mut block, next)).is_err() {
                    return Ok(skipped);
                }
            }
        }
        skipped.add(&reader.skipped());
    }
    if !block.is_empty() && !options.drop_last {
        // The reader may already be dropped.
        let _ = full.send(block);
    }
    Ok(skipped)
}

/// Batches queued for a reader: enough to cover the start of the pipe command for the next file.
const QUEUE_BLOCKS: usize = 4;
