//! The parameter server: tables that many workers read and write concurrently.
//!
//! A table holds parameters and their optimizer state. Workers pull values and push gradients; the
//! table's own rule turns gradients into new values. [`SparseTable`] holds rows by id, made when an
//! id is first seen, for embeddings larger than any one machine. [`DenseTable`] holds a server's
//! part of the dense parameters. [`GeoTable`] holds rows that workers train locally.
//! [`BarrierTable`] and [`GlobalStep`] synchronize trainers and count their steps. [`save_sparse`]
//! and [`load_sparse`] keep rows in files. [`Servers`] is a worker's interface to all of these.
//! Nothing in this crate knows programs or devices.

#![deny(missing_docs)]
// Only the storage of rows and a system call use unsafe code.
#![deny(unsafe_code)]
// The print macros panic if standard output or error cannot be written, for example on a full disk.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod client;
mod communicator;
#[cfg(feature = "grpc")]
pub mod control;
mod dense;
mod finite;
mod geo;
mod hash_key;
mod init;
mod io_error;
mod job_text;
mod merge;
mod message;
mod progress;
mod push;
mod request;
mod row_rule;
mod save;
mod seen;
mod server;
mod servers;
#[allow(unsafe_code)]
mod sparse;
mod stats;
mod sync;
mod thread;

pub use client::{Client, IsOver, LocalServers, RemoteOptions, RemoteServers};
pub use communicator::{
    Communicator, CommunicatorOptions, CommunicatorStats, GeoCommunicator, POLL_SPAN, RateOf, Rates,
};
pub use dense::{DenseConfig, DenseTable, Update};
pub use fleet_table::{
    Accessor, CtrAccessor, DenseBlock, DenseCut, DenseOptions, Entry, Exchange, Initializer,
    JobTables, NonFinite, PushMode, Rule, SparseConfig, TableConfig, dense_range, rule,
};
pub use geo::GeoTable;
pub use hash_key::HashKey;
pub use merge::Merger;
pub use progress::Progress;
pub use push::{Ids, Push, Step, UniqueIds};
pub use save::{
    RemoteDir, SaveFormat, SaveFs, SaveOptions, SaveSource, Saved, SavedRows, SavedTable,
    TableIndex, load_sparse, numbered_name, remote_url, save_sparse,
};
pub use seen::WorkerSeen;
pub use server::{
    Damage, Durability, Flush, FolderReport, FolderState, LogReport, Loss, Recovered, ServerReport,
    ServerTables, SnapshotReport, TableServer, Tail, WorkerReport, accept_loss, folder_state,
    inspect,
};
pub use servers::{Barriers, RunControl, START_ROUNDS, Servers, TableAccess, TableAdmin, Tables};
pub use sparse::{PullMode, Record, SaveMode, Snapshot, SparseTable};
pub use stats::TableStats;
pub use sync::{Arrival, BarrierTable, GlobalStep};
