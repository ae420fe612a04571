//! The effect of a strategy on the executor.

use fleet_config::BuildStrategy;
use fleet_passes::BuildOptions;

/// Returns the executor's options: `base`, overridden by the assigned fields.
///
/// ```
/// # use fleet_strategy::{BuildStrategy, build_options};
/// # use fleet_passes::BuildOptions;
/// let strategy = BuildStrategy::default().with_enable_addto(false);
/// let options = build_options(&strategy, BuildOptions::default());
/// assert!(!options.enable_addto && options.enable_inplace);
/// ```
pub fn build_options(strategy: &BuildStrategy, base: BuildOptions) -> BuildOptions {
    // Fusing a matrix product with bias and activation is one of the elementwise fusions.
    let elementwise = match (strategy.fuse_elewise_add_act_ops, strategy.fuse_gemm_epilogue) {
        (None, None) => None,
        (one, other) => Some(one.unwrap_or(false) || other.unwrap_or(false)),
    };
    BuildOptions {
        fuse_elewise_add_act_ops: elementwise.unwrap_or(base.fuse_elewise_add_act_ops),
        fuse_bn_act_ops: strategy.fuse_bn_act_ops.unwrap_or(base.fuse_bn_act_ops),
        fuse_bn_add_act_ops: strategy.fuse_bn_add_act_ops.unwrap_or(base.fuse_bn_add_act_ops),
        fuse_relu_depthwise_conv: strategy
            .fuse_relu_depthwise_conv
            .unwrap_or(base.fuse_relu_depthwise_conv),
        fuse_all_optimizer_ops: strategy
            .fuse_all_optimizer_ops
            .unwrap_or(base.fuse_all_optimizer_ops),
        enable_inplace: strategy.enable_inplace.unwrap_or(base.enable_inplace),
        enable_addto: strategy.enable_addto.unwrap_or(base.enable_addto),
        enable_sequential_execution: strategy
            .enable_sequential_execution
            .unwrap_or(base.enable_sequential_execution),
        ..base
    }
}
