//! Servers and workers over real sockets.

mod common;
mod remote;
mod saves;
mod trouble;
