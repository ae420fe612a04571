//! Fusions: replace several ops by one that makes fewer passes over memory, with the same results.
//!
//! Each fusion has its own file. Most are patterns (`fusion.rs`) of a forward part together with
//! its gradient ops: both are replaced, so that intermediate results need not be stored.

pub(crate) mod batch_norm;
pub(crate) mod elementwise_act;
pub(crate) mod embedding_concat;
mod fusion;
pub(crate) mod gemm_epilogue;
pub(crate) mod gradient_sum;
mod graph;
pub(crate) mod optimizer;
mod pattern;
pub(crate) mod reduced_update;
pub(crate) mod relu_depthwise;
mod replacement;
pub(crate) mod residual_norm;
