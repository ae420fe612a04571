//! Arithmetic: elementwise ops, products, reductions.

pub mod scale;
