//! Servers and workers over real sockets.

mod common;
mod remote;
mod trouble;
