//! Servers and workers over real sockets.

mod common;
#[cfg(feature = "grpc")]
mod control;
mod deaths;
mod delays;
mod durable;
#[cfg(unix)]
mod hdfs;
mod remote;
mod saves;
mod trouble;
