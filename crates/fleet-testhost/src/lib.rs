//! Processes, terminals, networks and object stores for tests; never part of a release. The crate
//! depends on no other of Fleet, so that the tests of any crate can use it.
//!
//! * [`hadoop`]: a double of a Hadoop client, which can fail.
//! * [`process`]: the processes of a test, which run its own test binary.
//! * [`mpirun`]: such processes as ranks of MPI.
//! * [`nccl_double`]: a double of NCCL and the CUDA driver.
//! * [`s3`]: an object store, which can fail.
//! * [`terminal`]: a terminal without a window.
//! * [`virtual_link`]: two network namespaces with a link.

#![deny(missing_docs)]
#![forbid(unsafe_code)]

#[cfg(unix)]
pub mod hadoop;
pub mod mpirun;
pub mod nccl_double;
pub mod process;
pub mod s3;
pub mod terminal;
pub mod virtual_link;
