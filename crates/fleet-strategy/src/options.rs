//! The effect of a strategy on the executor.

use fleet_config::BuildStrategy;
use fleet_passes::BuildOptions;
use std::path::PathBuf;

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
    let on_arrival = strategy.enable_backward_optimizer_op_deps.map(|deps| !deps);
    let path = strategy.debug_graphviz_path.as_ref().filter(|path| !path.is_empty());
    let mut options = base;
    options.debug_graphviz_path = path.map(PathBuf::from).or(options.debug_graphviz_path);
    for (option, assigned) in [
        (&mut options.fuse_elewise_add_act_ops, elementwise),
        (&mut options.fuse_bn_act_ops, strategy.fuse_bn_act_ops),
        (&mut options.fuse_bn_add_act_ops, strategy.fuse_bn_add_act_ops),
        (&mut options.fuse_relu_depthwise_conv, strategy.fuse_relu_depthwise_conv),
        (&mut options.enable_auto_fusion, strategy.enable_auto_fusion),
        (&mut options.fuse_all_optimizer_ops, strategy.fuse_all_optimizer_ops),
        (&mut options.update_on_arrival, on_arrival),
        (&mut options.enable_inplace, strategy.enable_inplace),
        (&mut options.enable_addto, strategy.enable_addto),
        (&mut options.enable_sequential_execution, strategy.enable_sequential_execution),
    ] {
        *option = assigned.unwrap_or(*option);
    }
    options
}
