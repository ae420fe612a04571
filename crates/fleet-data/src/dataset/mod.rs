//! Datasets of record files: [`InMemoryDataset`] loads, shuffles and hands out; [`QueueDataset`]
//! streams. Both read through a [`RecordFormat`], and both hand out batches to any number of
//! threads.

mod exchange;
mod memory;
mod queue;
mod shuffle;

pub use exchange::{Exchange, InProcessExchange, sum_over};
pub use memory::{InMemoryDataset, MemoryReader};
pub use queue::{QueueDataset, QueueReader};
pub(crate) use shuffle::stable_hash;

use crate::batch::{BatchLayout, BatchSource};
use crate::lines::{LineFormat, LineReader, OnError, RecordReader};
use crate::multislot::MultiSlot;
use crate::pipe::{Origin, elsewhere, is_url};
use crate::slot::Schema;
use fleet_base::{Error, Result};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// How files hold records.
pub trait RecordFormat: Send + Sync {
    fn schema(&self) -> &Arc<Schema>;

    /// Starts to read a file.
    fn open(&self, path: &Path) -> Result<Box<dyn RecordReader>>;

    /// Whether files are where the system finds them, so that a list can be checked before it is
    /// read.
    fn is_local(&self) -> bool {
        true
    }
}

/// Text files of a line format, plain or through a program.
pub struct TextFiles {
    schema: Arc<Schema>,
    format: Box<dyn Fn() -> Box<dyn LineFormat> + Send + Sync>,
    origin: Origin,
    on_error: OnError,
}

impl TextFiles {
    /// Files of MultiSlot lines.
    pub fn multi_slot(schema: &Arc<Schema>) -> TextFiles {
        Self::lines(MultiSlot::new(schema))
    }

    /// Files of any line format.
    pub fn lines<F: LineFormat + Clone + Sync + 'static>(format: F) -> TextFiles {
        TextFiles {
            schema: Arc::clone(format.schema()),
            format: Box::new(move || Box::new(format.clone())),
            origin: Origin::default(),
            on_error: OnError::Fail,
        }
    }

    /// Sends each file through a command of the shell, which gets it as its standard input and
    /// writes the lines: `zcat`, `python reader.py`. Empty, or `cat`: the file is read as it is.
    pub fn pipe_command(mut self, command: impl Into<String>) -> TextFiles {
        self.origin.pipe_command = command.into();
        self
    }

    /// Gets files from elsewhere: the command of the shell gets a file's name as its last argument
    /// and writes what is in it: `hadoop fs -cat`, `gsutil cat`, `ssh store cat`. What it writes
    /// goes through the pipe command, where there is one. Empty, or `cat`: files are local.
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

    /// Takes names of objects too, `s3://bucket/part-0`, and gets them from these stores; what
    /// comes goes through the pipe command, where there is one.
    #[cfg(feature = "object-store")]
    pub fn object_stores(mut self, stores: &crate::ObjectStores) -> TextFiles {
        self.origin.stores = Some(stores.clone());
        self
    }

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

    fn is_local(&self) -> bool {
        self.origin.is_local()
    }
}

/// What training reads batches from.
pub trait Dataset {
    /// The inputs of its batches.
    fn layout(&self) -> &Arc<BatchLayout>;

    /// One pass over the records, shared out among at most `threads` threads; 0: as many as the
    /// options say. Batches are to be taken from the sources in turn.
    fn sources(&self, threads: usize) -> Result<Vec<Box<dyn BatchSource>>>;
}

fn boxed<S: BatchSource + 'static>(sources: Vec<S>) -> Vec<Box<dyn BatchSource>> {
    sources.into_iter().map(|source| Box::new(source) as Box<dyn BatchSource>).collect()
}

fn check_threads(threads: usize) -> Result<()> {
    if threads == 0 || threads > THREADS_MAX {
        return Err(Error::invalid("number of reader threads is out of range")
            .expected(format!("1 to {THREADS_MAX}"))
            .got(threads));
    }
    Ok(())
}

/// What a dataset is made of.
#[derive(Clone)]
pub struct DatasetOptions {
    pub format: Arc<dyn RecordFormat>,
    /// The inputs of a batch.
    pub layout: Arc<BatchLayout>,
    pub batch_size: usize,
    /// Threads that read files.
    pub threads: usize,
    /// Drop the batch at the end that is not full, rather than hand it out smaller.
    pub drop_last: bool,
    /// What shuffles follow from.
    pub seed: u64,
    /// What an in-memory dataset may hold.
    pub memory_bytes_max: usize,
}

impl DatasetOptions {
    /// One record a batch, one thread, an input for every slot, the last batch kept, no limit of
    /// memory.
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

    /// These, changed; the format must have the same slots.
    fn changed(&self, change: impl FnOnce(&mut DatasetOptions)) -> Result<DatasetOptions> {
        let mut changed = self.clone();
        change(&mut changed);
        changed.check()?;
        if changed.format.schema() != self.format.schema() {
            return Err(Error::invalid("the slots of a dataset cannot be changed")
                .help("make another dataset of the other format"));
        }
        Ok(changed)
    }

    fn check(&self) -> Result<()> {
        if self.layout.schema() != self.format.schema() {
            return Err(Error::invalid("the inputs of a batch belong to other slots"));
        }
        if self.batch_size == 0 || self.batch_size > BATCH_MAX {
            return Err(Error::invalid("batch size is out of range")
                .expected(format!("1 to {BATCH_MAX}"))
                .got(self.batch_size));
        }
        check_threads(self.threads)
    }
}

/// Checks that all files are there before hours are spent on the first ones.
fn check_files(format: &dyn RecordFormat, files: &[PathBuf]) -> Result<()> {
    if !format.is_local() {
        return Ok(());
    }
    for file in files {
        if is_url(file) {
            return Err(elsewhere(file.display()));
        }
        std::fs::metadata(file).map_err(|error| Error::io("read", file, &error))?;
    }
    Ok(())
}

fn no_files() -> Error {
    Error::invalid("the dataset has no files")
        .help(
            "set_filelist comes first. With fewer files than workers an InMemoryDataset can have none, and \
             gets records by a global shuffle",
        )
}

/// A panic of a reader thread, which is a bug in a format.
fn lost_thread() -> Error {
    Error::internal("a thread that reads records panicked")
}

/// Batches of more records than this are meant as a pass over everything.
const BATCH_MAX: usize = 1 << 24;
const THREADS_MAX: usize = 1024;
