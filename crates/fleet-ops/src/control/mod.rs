//! Control flow, and offloading of values.

pub mod conditional_block;
pub mod offload;
