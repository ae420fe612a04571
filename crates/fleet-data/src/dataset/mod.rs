//! Datasets of record files. [`InMemoryDataset`] loads, shuffles and hands out records;
//! [`QueueDataset`] streams them. Both read through a [`RecordFormat`], and both hand out batches
//! to any number of threads.

mod exchange;
mod file_list;
mod memory;
mod queue;
mod shuffle;
mod supplied;
mod tensors;
mod turns;

pub use exchange::{Exchange, InProcessExchange, sum_over};
pub use memory::InMemoryDataset;
pub use queue::QueueDataset;
pub use shuffle::shuffle_groups;
pub(crate) use shuffle::stable_hash;
pub use supplied::SuppliedBatches;
pub use tensors::TensorDataset;

use crate::batch::{BatchLayout, BatchSource};
use crate::lines::{LineFormat, LineReader, OnError, RecordReader};
use crate::multislot::MultiSlot;
use crate::pipe::FileSource;
use crate::slot::Schema;
use fleet_base::{Error, Result};
use std::path::Path;
use std::sync::Arc;

/// A format of files that hold records.
pub trait RecordFormat: Send + Sync {
    /// Returns the slots of the records.
    fn schema(&self) -> &Arc<Schema>;

    /// Opens a file for reading.
    fn open(&self, path: &Path) -> Result<Box<dyn RecordReader>>;

    /// Returns the same format for one pass or load, if [`RecordFormat::stop`] has an effect on it.
    fn for_pass(&self) -> Option<Arc<dyn RecordFormat>> {
        None
    }

    /// Ends the commands through which a format of [`RecordFormat::for_pass`] reads files, now and
    /// later. Their readers return an error.
    fn stop(&self) {}

    /// Returns whether all files are in the local file system, so that a list can be checked before
    /// it is read.
    fn is_local(&self) -> bool {
        true
    }
}

/// Settings with a format of their own for one pass or load.
fn for_pass(options: &DatasetOptions) -> DatasetOptions {
    let format = options.format.for_pass().unwrap_or_else(|| Arc::clone(&options.format));
    DatasetOptions { format, ..options.clone() }
}

/// Text files of a line format, read directly or through a command.
pub struct TextFiles {
    schema: Arc<Schema>,
    format: Arc<dyn Fn() -> Box<dyn LineFormat> + Send + Sync>,
    origin: FileSource,
    on_error: OnError,
}

impl TextFiles {
    /// Reads files of MultiSlot lines.
    pub fn multi_slot(schema: &Arc<Schema>) -> TextFiles {
        let mut files = Self::lines(MultiSlot::new(schema));
        // An id in front of the slots is not a slot.
        if !schema.has_record_ids() {
            files.origin.slots = schema.slots().iter().map(|slot| slot.name.clone()).collect();
        }
        files
    }

    /// Reads files of any line format.
    pub fn lines<F: LineFormat + Clone + Sync + 'static>(format: F) -> TextFiles {
        TextFiles {
            schema: Arc::clone(format.schema()),
            format: Arc::new(move || Box::new(format.clone())),
            origin: FileSource::default(),
            on_error: OnError::Fail,
        }
    }

    /// Pipes each file through a shell command, which reads the file on its standard input and
    /// writes the lines, for example `zcat` or `python reader.py`. With an empty command or `cat`,
    /// files are read directly. The command gets the names of the slots of MultiSlot lines in the
    /// environment variable `FLEET_SLOTS`, one per line.
    pub fn pipe_command(mut self, command: impl Into<String>) -> TextFiles {
        self.origin.pipe_command = command.into();
        self
    }

    /// Downloads files with a shell command, for example `hadoop fs -cat`, `gsutil cat` or
    /// `ssh store cat`. The command gets a file's name as its last argument and writes the content.
    /// The pipe command, if any, is applied to this output. With an empty command or `cat`, files
    /// are local.
    ///
    /// ```
    /// # #[cfg(unix)] {
    /// use fleet_data::{Block, RecordFormat, Schema, Slot, TextFiles};
    /// let schema = Schema::new([Slot::dense_ids("id", [1])])?;
    /// let files = TextFiles::multi_slot(&schema).download_command("echo 1");
    /// let mut block = Block::new(&schema);
    /// assert_eq!(files.open("17".as_ref())?.read(10, &mut block)?, 1);
    /// assert_eq!(block.column(0).ids(0), Some(&[17][..]));
    /// # }
    /// # Ok::<(), fleet_base::Error>(())
    /// ```
    pub fn download_command(mut self, command: impl Into<String>) -> TextFiles {
        self.origin.download_command = command.into();
        self
    }

    /// Also accepts names of objects, such as `s3://bucket/part-0`, and reads them from these
    /// stores. The pipe command, if any, is applied to their content.
    #[cfg(feature = "object-store")]
    pub fn object_stores(mut self, stores: &crate::ObjectStores) -> TextFiles {
        self.origin.stores = Some(stores.clone());
        self
    }

    /// Sets whether lines that cannot be read are skipped; by default they are errors.
    pub fn on_error(mut self, on_error: OnError) -> TextFiles {
        self.on_error = on_error;
        self
    }
}

impl RecordFormat for TextFiles {
    fn schema(&self) -> &Arc<Schema> {
        &self.schema
    }

    fn open(&self, path: &Path) -> Result<Box<dyn RecordReader>> {
        let from = self.origin.open(path)?;
        let name = self.origin.name(path);
        Ok(Box::new(LineReader::new(from, name, (self.format)()).on_error(self.on_error)))
    }

    fn for_pass(&self) -> Option<Arc<dyn RecordFormat>> {
        Some(Arc::new(TextFiles {
            schema: Arc::clone(&self.schema),
            format: Arc::clone(&self.format),
            origin: self.origin.for_pass(),
            on_error: self.on_error,
        }))
    }

    fn stop(&self) {
        self.origin.running.end_all();
    }

    fn is_local(&self) -> bool {
        self.origin.is_local()
    }
}

/// A data set that training reads batches from.
pub trait Dataset {
    /// Returns the inputs of its batches.
    fn layout(&self) -> &Arc<BatchLayout>;

    /// Returns the sources of one pass over the records, for at most `threads` threads; 0 takes the
    /// number in the options. Callers take batches from the sources in turn.
    fn sources(&self, threads: usize) -> Result<Vec<Box<dyn BatchSource>>>;

    /// Returns the number of batches of a pass, if it is known before the pass.
    fn batch_count(&self) -> Option<u64> {
        None
    }
}

fn check_threads(threads: usize) -> Result<()> {
    if threads == 0 || threads > THREADS_MAX {
        return Err(Error::invalid("number of reader threads is out of range")
            .expected(format!("1 to {THREADS_MAX}"))
            .got(threads));
    }
    Ok(())
}

/// Settings of a dataset.
#[derive(Clone)]
pub struct DatasetOptions {
    /// The format of the files.
    pub format: Arc<dyn RecordFormat>,
    /// The inputs of a batch.
    pub layout: Arc<BatchLayout>,
    /// Number of records in a batch.
    pub batch_size: usize,
    /// Number of threads that read files.
    pub threads: usize,
    /// Whether to drop an incomplete last batch instead of handing it out smaller.
    pub drop_last: bool,
    /// Seed of all shuffles.
    pub seed: u64,
    /// Limit of the memory that an in-memory dataset may use.
    pub memory_bytes_max: usize,
}

impl DatasetOptions {
    /// Defaults: one record a batch, one thread, an input for every slot, the last batch kept, and
    /// no memory limit.
    pub fn new(format: impl RecordFormat + 'static) -> Result<DatasetOptions> {
        let layout = BatchLayout::of_slots(format.schema())?;
        Ok(DatasetOptions {
            format: Arc::new(format),
            layout,
            batch_size: 1,
            threads: 1,
            drop_last: false,
            seed: 0,
            memory_bytes_max: usize::MAX,
        })
    }

    /// Returns a changed copy; the new format must have the same slots.
    fn changed(&self, change: impl FnOnce(&mut DatasetOptions)) -> Result<DatasetOptions> {
        let mut changed = self.clone();
        change(&mut changed);
        changed.check()?;
        if changed.format.schema() != self.format.schema() {
            return Err(Error::invalid("slots of a dataset are fixed")
                .help("create a new dataset for the other format"));
        }
        Ok(changed)
    }

    /// Returns the number of threads that a pass uses if `threads` are requested.
    fn threads_of(&self, threads: usize) -> Result<usize> {
        let threads = if threads == 0 { self.threads } else { threads };
        check_threads(threads)?;
        Ok(threads)
    }

    fn check(&self) -> Result<()> {
        if self.layout.schema() != self.format.schema() {
            return Err(Error::invalid("inputs of the batch do not match the slots of the format"));
        }
        if self.batch_size == 0 || self.batch_size > BATCH_MAX {
            return Err(Error::invalid("batch size is out of range")
                .expected(format!("1 to {BATCH_MAX}"))
                .got(self.batch_size));
        }
        check_threads(self.threads)
    }
}

fn no_files() -> Error {
    Error::invalid("the dataset has no files").help(
        "call set_filelist first; with fewer files than workers, pass an InMemoryDataset \
             an empty list, and it receives records by a global shuffle",
    )
}

/// Returns the error for a panic of a reader thread, which is a bug in a format.
fn reader_panicked() -> Error {
    Error::internal("a reader thread panicked")
}

/// Limit of the batch size; larger values most likely mean one batch for the whole data set.
const BATCH_MAX: usize = 1 << 24;
const THREADS_MAX: usize = 1024;
