//! Servers and workers over real sockets.

mod common;
#[cfg(feature = "grpc")]
mod control;
mod deaths;
mod delays;
mod durable;
mod remote;
mod saves;
mod trouble;
