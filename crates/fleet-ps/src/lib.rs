//! The parameter server: tables that many workers read and write at once.
//!
//! A table holds parameters and their optimizer state; workers pull values and push gradients, and the
//! table's own rule turns gradients into new values. [`SparseTable`] holds rows by id, made when an id
//! is first seen, for embeddings larger than any one machine. Nothing here knows programs or devices.

mod entry;
mod finite;
mod init;
mod merge;
pub mod rule;
mod save;
mod sparse;
mod stats;

pub use entry::Entry;
pub use finite::NonFinite;
pub use init::Initializer;
pub use merge::Merger;
pub use rule::Rule;
pub use save::{SaveFormat, SaveOptions, Saved, load_sparse, save_sparse};
pub use sparse::{
    Accessor, CtrAccessor, PullMode, Push, Record, SaveMode, Snapshot, SparseConfig, SparseTable,
};
pub use stats::TableStats;
