//! CPU kernels over plain slices: they know shapes and numbers, nothing of programs.
//!
//! Every kernel takes the [`pool::Pool`] it may use and cuts its work by shape, so that its result
//! does not depend on the number of threads. Nothing here allocates once a plan runs: scratch is
//! passed in.

pub mod attention;
pub mod batch_norm;
pub mod binary;
pub mod cast;
pub mod chain;
pub mod conv;
pub mod copy;
pub mod dropout;
pub mod elementwise;
pub mod embedding;
pub mod fill;
pub mod fold;
pub mod gemm;
pub mod layer_norm;
pub mod metrics;
pub mod micro;
pub mod optim;
pub mod philox;
pub mod pool;
pub mod pool2d;
pub mod reduce;
pub mod scatter;
pub mod simd;
pub mod softmax;
pub mod transpose;
pub mod vmath;
