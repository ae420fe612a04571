//! Input pipelines: reads, shuffles and batches training data. The crate knows neither programs nor
//! servers; it fills buffers.
//!
//! Records have named slots ([`Schema`]) and are stored in columns ([`Block`]). A pipeline has five
//! stages:
//!
//! * Source: a list of files ([`Dataset`]), samples addressed by number ([`Samples`]), or user code
//!   ([`DataLoader`]).
//! * Parse: a [`RecordFormat`] turns a file into records; [`LineReader`] does so for text, such as
//!   the [`MultiSlot`] lines that a [`DataGenerator`] writes. [`ColumnFiles`] reads named columns
//!   of tables in any format.
//! * Shuffle: [`InMemoryDataset`] and [`Loader`]; each source of a [`QueueDataset`] reads its files
//!   in order.
//! * Batch: a [`Batch`] holds tensors that are filled from slots or by user code.
//! * Prefetch: threads make batches ahead of time. [`Prefetch`] does so for any [`BatchSource`];
//!   [`DataLoader`] and [`Loader`] have their own options for the same threads.
//!
//! A [`Survey`] looks at files before they are used: the names and the values of their columns.

#![deny(missing_docs)]
#![forbid(unsafe_code)]

mod bad_rows;
mod batch;
mod block;
mod columns;
mod data_loader;
mod dataset;
mod decompress;
mod downloader;
mod files;
mod float_table;
mod formats;
mod generator;
mod images;
mod lines;
mod loader;
mod multislot;
#[cfg(feature = "object-store")]
mod object_stores;
mod pipe;
mod prefetch;
mod shard;
mod skipped;
mod slot;
mod survey;
mod tar;

pub use bad_rows::BadRows;
pub use batch::{Batch, BatchLayout, BatchSource, Input, RowRef};
pub use block::{Block, Column, Values};
pub use columns::{
    ColumnFiles, ColumnKind, ColumnSpec, CsvHeader, DataFormat, FurtherValues, RequestColumn,
    RequestError, RequestRows, TextDictionary, TextObserver, category_hash, parse_time,
};
pub use data_loader::{Batches, DataLoader, DataLoaderOptions, Feed, Field, FieldSample, Part};
pub use dataset::{
    Dataset, DatasetOptions, Exchange, InMemoryDataset, InProcessExchange, QueueDataset,
    RecordFormat, SuppliedBatches, TensorDataset, TextFiles, shuffle_groups, sum_over,
};
pub use downloader::Downloader;
pub use files::{file_shard, glob};
pub use float_table::FloatTable;
#[cfg(feature = "parquet")]
pub use formats::ParquetFiles;
pub use formats::{Criteo, CriteoHash, Csv, CsvColumn, JsonLines, LibSvm, hash_bucket};
#[cfg(feature = "tfrecord")]
pub use formats::{TfRecordReader, TfRecords};
pub use generator::{DataGenerator, Sample, SampleWriter, Value};
pub use images::{ImageList, ImageOptions, Images, Pixels, decode_image};
pub use lines::{LineError, LineFormat, LineReader, RecordReader};
pub use loader::{Cursor, Loader, LoaderOptions, Samples};
pub use multislot::{MultiSlot, MultiSlotWriter};
#[cfg(feature = "object-store")]
pub use object_stores::ObjectStores;
pub use pipe::open_piped;
pub use prefetch::Prefetch;
pub use shard::shard_range;
pub use skipped::{OnError, Skipped};
pub use slot::{Schema, Slot, SlotForm, SlotKind};
pub use survey::{ColumnSummary, InferredKind, NumberSummary, Survey, SurveyOptions};
