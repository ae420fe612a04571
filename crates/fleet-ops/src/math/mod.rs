//! Arithmetic: elementwise ops, products, reductions.

pub(crate) mod arg_extreme;
pub mod cast;
pub mod clip;
pub mod compare;
pub(crate) mod cumsum;
pub mod elementwise;
pub(crate) mod fused_elemwise_activation;
pub(crate) mod fused_gemm_epilogue;
pub mod increment;
pub(crate) mod matmul;
pub(crate) mod norm;
pub(crate) mod reduce;
pub mod scale;
pub mod sum;
pub(crate) mod top_k;
pub mod unary;
