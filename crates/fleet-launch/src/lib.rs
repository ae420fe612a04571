//! `fleetrun` as a library: starts the processes of a job, supervises them, and reports failures.
//!
//! It depends neither on tensors nor on the work of the processes, and starts in milliseconds. Read
//! [`job`] first: it takes a job from the command line to the exit code.

#![deny(missing_docs)]
#![deny(unsafe_code)]
// `print!` and `eprint!` panic when the disk that takes the output is full.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod absent;
mod attempts;
mod beats;
mod blame;
mod child;
pub mod cluster;
mod console;
mod decisions;
mod display;
mod ends;
mod etcd;
mod events;
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
mod protocol;
mod random;
mod scratch;
pub mod script;
mod several;
mod supervisor;
pub mod tables;
mod terms;

pub use guard::ARGUMENT as GUARD_ARGUMENT;
pub use job::{OwnProcess, main};
pub use script::{Builtins, FileJobs, asks_for_help};
