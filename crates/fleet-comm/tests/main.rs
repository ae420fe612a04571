//! Tests of collectives: results against a naive reference, and failures.

mod common;
mod diagnosis;
#[cfg(target_os = "linux")]
mod mpi;
#[cfg(target_os = "linux")]
mod namespaces;
#[cfg(target_os = "linux")]
mod nccl;
#[cfg(target_os = "linux")]
mod processes;
mod reference;
mod simulated;
