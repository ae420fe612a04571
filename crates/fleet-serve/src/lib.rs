//! `fleet serve`: predictions of a model that a job trained, and recommendations of a retrieval,
//! over HTTP with JSON, and over gRPC (feature `grpc`).
//!
//! ```text
//! http.rs, grpc.rs --Request--> queue.rs --> workers.rs --Answer-->
//! reload.rs: a new version of the model folder --> workers.rs
//! ```
//!
//! * One thread reads and writes connections. It limits what a client can take: bodies, headers,
//!   time, connections, waiting requests.
//! * Workers are threads, each with a scorer of its own over the same parameters. They parse
//!   requests, apply the features, and score the rows of several small requests together.
//! * A new version of the model is loaded and tried beside the old one. Then the workers change to
//!   it, between two requests.

#![deny(missing_docs)]
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod access;
mod app;
mod args;
#[cfg(feature = "grpc")]
pub mod client;
#[cfg(feature = "grpc")]
mod grpc;
mod http;
#[cfg(feature = "grpc")]
pub mod message;
mod metrics;
mod queue;
mod reload;
mod server;
mod signals;
mod workers;

pub use args::ServeArgs;
pub use server::{Server, run};
