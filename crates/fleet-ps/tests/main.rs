//! Servers and workers over real sockets.

mod common;
mod deaths;
mod delays;
mod durable;
mod remote;
mod saves;
mod trouble;
