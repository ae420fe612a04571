//! The messages of `proto/control.proto`, written by hand so that no build needs a protobuf
//! compiler. A test compares the two (`schema.rs`).

use prost::{Enumeration, Message};

/// Full name of the gRPC service.
pub const SERVICE: &str = "fleet.ps.v1.Control";
pub(super) const STATISTICS: &str = "/fleet.ps.v1.Control/Statistics";
pub(super) const SAVE: &str = "/fleet.ps.v1.Control/Save";
pub(super) const LOAD: &str = "/fleet.ps.v1.Control/Load";
pub(super) const SHRINK: &str = "/fleet.ps.v1.Control/Shrink";

/// Asks for the contents and the activity of one server.
#[derive(Clone, PartialEq, Message)]
pub struct StatisticsRequest {}

/// Contents and activity of one server.
#[derive(Clone, PartialEq, Message)]
pub struct StatisticsAnswer {
    /// Number of the server, from 0.
    #[prost(uint32, tag = "1")]
    pub server: u32,
    /// Number of servers of the job.
    #[prost(uint32, tag = "2")]
    pub server_count: u32,
    /// Number of workers of the job.
    #[prost(uint32, tag = "3")]
    pub worker_count: u32,
    /// Whether pushes wait for all workers.
    #[prost(bool, tag = "4")]
    pub synchronous: bool,
    /// Rounds of the barrier that all workers have completed.
    #[prost(uint64, tag = "5")]
    pub rounds: u64,
    /// The server's part of each table.
    #[prost(message, repeated, tag = "6")]
    pub tables: Vec<TableStatistics>,
    /// The workers that the server knows.
    #[prost(message, repeated, tag = "7")]
    pub workers: Vec<WorkerStatistics>,
    /// The log of a durable server; absent for others.
    #[prost(message, optional, tag = "8")]
    pub log: Option<LogStatistics>,
}

/// One server's part of a table, since the server started.
#[derive(Clone, PartialEq, Message)]
pub struct TableStatistics {
    /// Number of the table.
    #[prost(uint32, tag = "1")]
    pub table: u32,
    /// `sparse`, `dense`, `geo` or `global step`.
    #[prost(string, tag = "2")]
    pub kind: String,
    /// Rows; 0 for a dense table.
    #[prost(uint64, tag = "3")]
    pub rows: u64,
    /// Ids that were seen but have no row yet.
    #[prost(uint64, tag = "4")]
    pub waiting_ids: u64,
    /// Weights, optimizer state and counters.
    #[prost(uint64, tag = "5")]
    pub payload_bytes: u64,
    /// All memory of the table: payload, index, spare capacity.
    #[prost(uint64, tag = "6")]
    pub held_bytes: u64,
    /// Ids pulled, with repetitions; of a dense table, pulls.
    #[prost(uint64, tag = "7")]
    pub pulled_ids: u64,
    /// Ids pushed, with repetitions; of a dense table, pushes; of a global step, steps.
    #[prost(uint64, tag = "8")]
    pub pushed_ids: u64,
    /// Ids whose gradients were dropped because the entry policy gave them no row.
    #[prost(uint64, tag = "9")]
    pub dropped_ids: u64,
    /// Gradients that were NaN or infinite.
    #[prost(uint64, tag = "10")]
    pub non_finite: u64,
    /// Rows that were deleted by shrinking.
    #[prost(uint64, tag = "11")]
    pub deleted_rows: u64,
    /// Pushes of a synchronous job that are pending until all workers have pushed.
    #[prost(uint64, tag = "12")]
    pub queued_pushes: u64,
    /// Mean staleness of the pushes of a dense table: updates since the worker's last read.
    #[prost(double, tag = "13")]
    pub staleness_mean: f64,
    /// Largest staleness of a push of a dense table.
    #[prost(uint64, tag = "14")]
    pub staleness_max: u64,
}

/// State of a worker, as one server knows it.
#[derive(Clone, PartialEq, Message)]
pub struct WorkerStatistics {
    /// Rank of the worker, from 0.
    #[prost(uint32, tag = "1")]
    pub worker: u32,
    /// A [`WorkerState`].
    #[prost(enumeration = "WorkerState", tag = "2")]
    pub state: i32,
    /// Seconds since its last request; if it has never connected, since the server started.
    #[prost(double, tag = "3")]
    pub silent_seconds: f64,
    /// Number of its open connections.
    #[prost(uint32, tag = "4")]
    pub connections: u32,
}

/// Whether a worker is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Enumeration)]
#[repr(i32)]
pub enum WorkerState {
    /// It has not connected since the server started.
    NeverCame = 0,
    /// It has open connections.
    Connected = 1,
    /// It has connected, and has no open connection now.
    Gone = 2,
}

/// The log of changing requests since the last snapshot.
#[derive(Clone, PartialEq, Message)]
pub struct LogStatistics {
    /// Folder of the log on the server.
    #[prost(string, tag = "1")]
    pub folder: String,
    /// Size of the log in bytes.
    #[prost(uint64, tag = "2")]
    pub bytes: u64,
    /// Why the last snapshot could not be written; empty if it was.
    #[prost(string, tag = "3")]
    pub snapshot_error: String,
}

/// Asks for a save of all tables.
#[derive(Clone, PartialEq, Message)]
pub struct SaveRequest {
    /// Folder of the save, as a path on the servers.
    #[prost(string, tag = "1")]
    pub folder: String,
    /// A [`SaveMode`].
    #[prost(enumeration = "SaveMode", tag = "2")]
    pub mode: i32,
    /// A [`SaveFormat`].
    #[prost(enumeration = "SaveFormat", tag = "3")]
    pub format: i32,
}

/// Which rows a save takes: see [`SaveMode`](crate::SaveMode) of this crate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Enumeration)]
#[repr(i32)]
pub enum SaveMode {
    /// All rows.
    All = 0,
    /// The rows that serving needs.
    Base = 1,
    /// The rows that changed since the last base or delta.
    Delta = 2,
    /// All rows; afterwards every row is a day older.
    AllAndAge = 3,
}

/// Format of the files of a save.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Enumeration)]
#[repr(i32)]
pub enum SaveFormat {
    /// The bytes in memory: small and fast.
    Binary = 0,
    /// One line per row, for people and other programs.
    Text = 1,
}

/// Result of a save.
#[derive(Clone, PartialEq, Message)]
pub struct SaveAnswer {
    /// Rows that all servers saved.
    #[prost(uint64, tag = "1")]
    pub rows: u64,
    /// Size of all files in bytes.
    #[prost(uint64, tag = "2")]
    pub bytes: u64,
}

/// Asks for a load of all tables.
#[derive(Clone, PartialEq, Message)]
pub struct LoadRequest {
    /// Folder of the save, as a path on the servers.
    #[prost(string, tag = "1")]
    pub folder: String,
}

/// Result of a load.
#[derive(Clone, PartialEq, Message)]
pub struct LoadAnswer {
    /// Rows, and numbers of dense tables, that were loaded.
    #[prost(uint64, tag = "1")]
    pub rows: u64,
}

/// Asks for the deletion of unused rows.
#[derive(Clone, PartialEq, Message)]
pub struct ShrinkRequest {
    /// Number of the sparse table.
    #[prost(uint32, tag = "1")]
    pub table: u32,
    /// Deletes rows that were unseen for more days; if absent, the limit in the table's config.
    #[prost(uint32, optional, tag = "2")]
    pub unseen_days: Option<u32>,
}

/// Result of a deletion.
#[derive(Clone, PartialEq, Message)]
pub struct ShrinkAnswer {
    /// Rows that all servers deleted.
    #[prost(uint64, tag = "1")]
    pub deleted_rows: u64,
}
