//! Building blocks that all crates of Fleet share: ids and entity maps, the error type,
//! counter-based random numbers, atomic file writes, the port to the file system, helpers for
//! messages, and the output of commands. Nothing here knows about machine learning.

#![deny(missing_docs)]
#![forbid(unsafe_code)]

pub mod disk;
pub mod entity;
pub mod error;
pub mod file;
pub mod fs;
pub mod input;
pub mod output;
mod reduce;
pub mod rng;
pub mod sealed;
pub mod signals;
pub mod sync;
pub mod temporary;
pub mod terminal;
pub mod text;
pub mod units;

pub use entity::{EntityMap, EntityRef, SecondaryMap};
pub use error::{Error, ErrorCode, ErrorKind, Result};
pub use reduce::ReduceOp;
