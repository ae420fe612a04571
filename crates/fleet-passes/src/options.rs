//! Options of the executor's rewrites.

use std::path::PathBuf;

/// Selection of rewrites. All of them keep the results. The names are those of the documented
/// `BuildStrategy`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BuildOptions {
    /// Fuses `act(x + y)` into one pass over memory, and a matrix product with its bias and
    /// activation.
    pub fuse_elewise_add_act_ops: bool,
    /// Fuses batch norm with the following activation.
    pub fuse_bn_act_ops: bool,
    /// Fuses batch norm with the following sum and activation.
    pub fuse_bn_add_act_ops: bool,
    /// Fuses a relu into the following depthwise convolution.
    pub fuse_relu_depthwise_conv: bool,
    /// Fuses the groups of ops that have no option of their own: a layer norm with the preceding
    /// residual sum, and looked-up table rows with the concat that uses them.
    pub enable_auto_fusion: bool,
    /// Fuses the optimizer into one sweep over all parameters.
    pub fuse_all_optimizer_ops: bool,
    /// Updates parameters while the sum of their gradients arrives, in the lane of the ring. Useful
    /// only if a rank has one thread. Several threads update faster after the backward pass than
    /// the ring's lane does alone. It is the opposite of `enable_backward_optimizer_op_deps`.
    pub update_on_arrival: bool,
    /// Lets outputs reuse the memory of inputs that are not read afterwards.
    pub enable_inplace: bool,
    /// Adds the gradients of variables with several uses in place.
    pub enable_addto: bool,
    /// Runs ops one after another in program order, without lanes beside compute.
    pub enable_sequential_execution: bool,
    /// Stores images channels-last and filters packed inside the program.
    pub choose_layout: bool,
    /// File to which the executor writes the rewritten training program as a graph; a later plan
    /// replaces it.
    pub debug_graphviz_path: Option<PathBuf>,
}

impl Default for BuildOptions {
    fn default() -> Self {
        BuildOptions::with_all(true)
    }
}

impl BuildOptions {
    /// Returns options without rewrites.
    pub fn none() -> BuildOptions {
        BuildOptions::with_all(false)
    }

    fn with_all(on: bool) -> BuildOptions {
        BuildOptions {
            fuse_elewise_add_act_ops: on,
            fuse_bn_act_ops: on,
            fuse_bn_add_act_ops: on,
            fuse_relu_depthwise_conv: on,
            enable_auto_fusion: on,
            fuse_all_optimizer_ops: on,
            update_on_arrival: on,
            enable_inplace: on,
            enable_addto: on,
            enable_sequential_execution: !on,
            choose_layout: on,
            debug_graphviz_path: None,
        }
    }
}
