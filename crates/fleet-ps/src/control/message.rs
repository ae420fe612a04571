//! The messages of `proto/control.proto`, written by hand so that no build needs a protobuf
//! compiler. A test compares the two (`schema.rs`).

use prost::{Enumeration, Message};

pub const SERVICE: &str = "fleet.ps.v1.Control";
pub(super) const STATISTICS: &str = "/fleet.ps.v1.Control/Statistics";
pub(super) const SAVE: &str = "/fleet.ps.v1.Control/Save";
pub(super) const LOAD: &str = "/fleet.ps.v1.Control/Load";
pub(super) const SHRINK: &str = "/fleet.ps.v1.Control/Shrink";

#[derive(Clone, PartialEq, Message)]
pub struct StatisticsRequest {}

#[derive(Clone, PartialEq, Message)]
pub struct StatisticsAnswer {
    #[prost(uint32, tag = "1")]
    pub server: u32,
    #[prost(uint32, tag = "2")]
    pub server_count: u32,
    #[prost(uint32, tag = "3")]
    pub worker_count: u32,
    #[prost(bool, tag = "4")]
    pub synchronous: bool,
    #[prost(uint64, tag = "5")]
    pub rounds: u64,
    #[prost(message, repeated, tag = "6")]
    pub tables: Vec<TableStatistics>,
    #[prost(message, repeated, tag = "7")]
    pub workers: Vec<WorkerStatistics>,
    #[prost(message, optional, tag = "8")]
    pub log: Option<LogStatistics>,
}

#[derive(Clone, PartialEq, Message)]
pub struct TableStatistics {
    #[prost(uint32, tag = "1")]
    pub table: u32,
    #[prost(string, tag = "2")]
    pub kind: String,
    #[prost(uint64, tag = "3")]
    pub rows: u64,
    #[prost(uint64, tag = "4")]
    pub waiting_ids: u64,
    #[prost(uint64, tag = "5")]
    pub payload_bytes: u64,
    #[prost(uint64, tag = "6")]
    pub held_bytes: u64,
    #[prost(uint64, tag = "7")]
    pub pulled_ids: u64,
    #[prost(uint64, tag = "8")]
    pub pushed_ids: u64,
    #[prost(uint64, tag = "9")]
    pub dropped_ids: u64,
    #[prost(uint64, tag = "10")]
    pub non_finite: u64,
    #[prost(uint64, tag = "11")]
    pub deleted_rows: u64,
    #[prost(uint64, tag = "12")]
    pub queued_pushes: u64,
    #[prost(double, tag = "13")]
    pub staleness_mean: f64,
    #[prost(uint64, tag = "14")]
    pub staleness_max: u64,
}

#[derive(Clone, PartialEq, Message)]
pub struct WorkerStatistics {
    #[prost(uint32, tag = "1")]
    pub worker: u32,
    #[prost(enumeration = "WorkerState", tag = "2")]
    pub state: i32,
    #[prost(double, tag = "3")]
    pub silent_seconds: f64,
    #[prost(uint32, tag = "4")]
    pub connections: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Enumeration)]
#[repr(i32)]
pub enum WorkerState {
    NeverCame = 0,
    Connected = 1,
    Gone = 2,
}

#[derive(Clone, PartialEq, Message)]
pub struct LogStatistics {
    #[prost(string, tag = "1")]
    pub folder: String,
    #[prost(uint64, tag = "2")]
    pub bytes: u64,
    #[prost(string, tag = "3")]
    pub snapshot_error: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct SaveRequest {
    #[prost(string, tag = "1")]
    pub folder: String,
    #[prost(enumeration = "SaveMode", tag = "2")]
    pub mode: i32,
    #[prost(enumeration = "SaveFormat", tag = "3")]
    pub format: i32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Enumeration)]
#[repr(i32)]
pub enum SaveMode {
    All = 0,
    Base = 1,
    Delta = 2,
    AllAndAge = 3,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Enumeration)]
#[repr(i32)]
pub enum SaveFormat {
    Binary = 0,
    Text = 1,
}

#[derive(Clone, PartialEq, Message)]
pub struct SaveAnswer {
    #[prost(uint64, tag = "1")]
    pub rows: u64,
    #[prost(uint64, tag = "2")]
    pub bytes: u64,
}

#[derive(Clone, PartialEq, Message)]
pub struct LoadRequest {
    #[prost(string, tag = "1")]
    pub folder: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct LoadAnswer {
    #[prost(uint64, tag = "1")]
    pub rows: u64,
}

#[derive(Clone, PartialEq, Message)]
pub struct ShrinkRequest {
    #[prost(uint32, tag = "1")]
    pub table: u32,
    #[prost(uint32, optional, tag = "2")]
    pub unseen_days: Option<u32>,
}

#[derive(Clone, PartialEq, Message)]
pub struct ShrinkAnswer {
    #[prost(uint64, tag = "1")]
    pub deleted_rows: u64,
}
