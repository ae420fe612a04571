//! Arithmetic: elementwise ops, products, reductions.

pub mod arg_extreme;
pub mod cast;
pub mod clip;
pub mod compare;
pub mod cumsum;
pub mod elementwise;
pub mod fused_elemwise_activation;
pub mod fused_gemm_epilogue;
pub mod increment;
pub mod matmul;
pub mod norm;
pub mod reduce;
pub mod scale;
pub mod sum;
pub mod top_k;
pub mod unary;
