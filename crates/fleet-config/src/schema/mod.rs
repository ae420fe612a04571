//! Definitions of all messages of a strategy: numbers, types, defaults, and the effect of each
//! field.

// Documented names such as fuse_grad_size_in_MB.
#![allow(non_snake_case)]

mod collective;
mod define;
mod execution;
mod hybrid;
mod server;
mod strategy;

pub use collective::*;
pub use execution::*;
pub use hybrid::*;
pub use server::*;
pub use strategy::*;

/// Fields with this number or a higher one are Fleet's own.
pub(crate) const OWN_NUMBERS: u32 = 1000;
