//! Control flow, and values that come and go.

pub mod conditional_block;
pub mod offload;
