//! `fleetrun` as a library: starts the processes of a job, watches them, says what went wrong.
//!
//! It knows nothing of tensors or of what the processes do, and starts in milliseconds. Read
//! [`job`] first: what happens from the command line to the exit code.

// They panic where the disk of a log is full.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod absent;
mod beats;
mod blame;
mod child;
pub mod cluster;
mod console;
mod ends;
mod etcd;
pub mod flags;
mod guard;
pub mod job;
mod leader;
mod link;
mod logs;
pub mod machine;
mod oom;
pub mod options;
pub mod ports;
mod scratch;
pub mod script;
mod several;
mod supervisor;
pub mod tables;
pub mod terminal;
mod terms;
mod words;

pub use job::main;
pub use script::Builtins;
