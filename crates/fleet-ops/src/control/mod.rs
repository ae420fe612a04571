//! Control flow.

pub mod conditional_block;
