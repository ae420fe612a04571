//! CPU kernels over plain slices. They know shapes and numbers, but nothing about programs.
//!
//! Every kernel takes the [`pool::Pool`] that it may use. It splits its work by shape, so that its
//! result does not depend on the number of threads. Kernels do not allocate while a plan runs:
//! scratch memory is an argument.

#![deny(missing_docs)]
#![allow(clippy::too_many_arguments, reason = "kernels take their sizes one by one")]

pub mod attention;
pub mod batch_norm;
pub mod bias;
pub mod binary;
pub mod cast;
pub mod classes;
pub mod conv;
pub mod copy;
pub mod dropout;
pub mod elementwise;
pub mod embedding;
pub mod fill;
pub mod fold;
pub mod gemm;
pub mod input;
pub mod layer_norm;
pub mod map;
pub mod metrics;
pub mod micro;
pub mod optim;
pub mod philox;
pub mod pool;
pub mod pool2d;
pub mod products;
pub mod reduce;
pub mod rows;
pub mod scatter;
pub mod simd;
pub mod softmax;
pub mod strided;
pub mod transpose;
pub mod vmath;

/// Whether this crate is compiled with optimization. Without, kernels are about 100 times slower:
/// the compiler keeps no value in a vector register.
pub const IS_OPTIMIZED: bool = !matches!(env!("FLEET_OPT_LEVEL").as_bytes(), b"0");

#[cfg(test)]
mod tests {
    /// The tests of the workspace train models: its profiles optimize the kernels.
    #[test]
    fn kernels_are_optimized_in_every_profile() {
        const { assert!(super::IS_OPTIMIZED) };
    }
}
