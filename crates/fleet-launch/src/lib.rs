//! `fleetrun` as a library: starts the processes of a job, watches them, says what went wrong.
//!
//! It knows nothing of tensors or of what the processes do, and starts in milliseconds.

pub mod cluster;
pub mod flags;
pub mod machine;
pub mod options;
pub mod ports;
pub mod tables;
