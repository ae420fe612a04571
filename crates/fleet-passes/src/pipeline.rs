//! The list of passes that the executor applies to a program before planning.

use crate::{dce, fuse, layout};
use fleet_base::Result;
use fleet_ir::{Program, VarId};
use fleet_ops::Registry;

/// Selection of rewrites. All of them keep the results. The names are those of the documented
/// `BuildStrategy`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BuildOptions {
    /// Fuses `act(x + y)` into one pass over memory, a matrix product with its bias and activation,
    /// and a layer norm with the preceding residual sum.
    pub fuse_elewise_add_act_ops: bool,
    /// Fuses batch norm with the following activation.
    pub fuse_bn_act_ops: bool,
    /// Fuses batch norm with the following sum and activation.
    pub fuse_bn_add_act_ops: bool,
    /// Fuses a relu into the following depthwise convolution.
    pub fuse_relu_depthwise_conv: bool,
    /// Fuses the optimizer into one sweep over all parameters.
    pub fuse_all_optimizer_ops: bool,
    /// Updates parameters while the sum of their gradients arrives, in the lane of the ring. Useful
    /// only if a rank has one thread. Several threads update faster after the backward pass than
    /// the ring's lane does alone.
    pub update_on_arrival: bool,
    /// Lets outputs reuse the memory of inputs that are not read afterwards.
    pub enable_inplace: bool,
    /// Adds the gradients of variables with several uses in place.
    pub enable_addto: bool,
    /// Runs ops one after another in program order, without lanes beside compute.
    pub enable_sequential_execution: bool,
    /// Stores images channels-last and filters packed inside the program. Also writes looked-up
    /// table rows directly into the concat that uses them.
    pub choose_layout: bool,
}

impl Default for BuildOptions {
    fn default() -> Self {
        BuildOptions {
            fuse_elewise_add_act_ops: true,
            fuse_bn_act_ops: true,
            fuse_bn_add_act_ops: true,
            fuse_relu_depthwise_conv: true,
            fuse_all_optimizer_ops: true,
            update_on_arrival: true,
            enable_inplace: true,
            enable_addto: true,
            enable_sequential_execution: false,
            choose_layout: true,
        }
    }
}

impl BuildOptions {
    /// Returns options without rewrites.
    pub fn none() -> BuildOptions {
        BuildOptions {
            fuse_elewise_add_act_ops: false,
            fuse_bn_act_ops: false,
            fuse_bn_add_act_ops: false,
            fuse_relu_depthwise_conv: false,
            fuse_all_optimizer_ops: false,
            update_on_arrival: false,
            enable_inplace: false,
            enable_addto: false,
            enable_sequential_execution: true,
            choose_layout: false,
        }
    }
}

/// Returns the program that the executor plans: `program` rewritten for speed, without ops that
/// neither `keep` nor the scope needs.
///
/// Order of passes:
///
/// * Dead ops are removed first, so that their reads do not prevent a fusion.
/// * Batch norm precedes the plain `act(x + y)`, which would consume its sum.
/// * Updates are fused with the sums of their buckets before the remaining updates are fused.
/// * Layouts follow the fusions, which then need not handle formats.
/// * The convolution's statistics follow the layouts, because only the channels-last kernel
///   computes them.
pub fn optimize(
    program: &Program,
    registry: &Registry,
    keep: &[VarId],
    options: &BuildOptions,
) -> Result<Program> {
    let mut p = program.clone();
    dce::run(&mut p, registry, keep)?;
    if options.fuse_bn_act_ops || options.fuse_bn_add_act_ops {
        let fusions = fuse::batch_norm::Fusions {
            act: options.fuse_bn_act_ops,
            add_act: options.fuse_bn_add_act_ops,
        };
        fuse::batch_norm::run(&mut p, registry, keep, &fusions)?;
    }
    if options.fuse_elewise_add_act_ops {
        fuse::gemm_epilogue::run(&mut p, registry, keep)?;
        fuse::gemm_epilogue::fuse_relu_grad(&mut p, keep)?;
        fuse::elementwise_act::run(&mut p, registry, keep)?;
        fuse::residual_norm::run(&mut p, registry, keep)?;
    }
    if options.fuse_relu_depthwise_conv {
        fuse::relu_depthwise::run(&mut p, registry, keep)?;
    }
    if options.enable_addto {
        fuse::batch_norm::fuse_grad_sum(&mut p, keep)?;
        fuse::residual_norm::fuse_grad_sum(&mut p, keep)?;
    }
    if options.update_on_arrival {
        fuse::reduced_update::run(&mut p, registry, keep)?;
    }
    if options.fuse_all_optimizer_ops {
        fuse::optimizer::run(&mut p, registry)?;
    }
    if options.choose_layout {
        fuse::embedding_concat::run(&mut p, registry, keep)?;
    }
    if options.choose_layout && layout::run(&mut p, registry, keep)? {
        fuse::batch_norm::fuse_stats(&mut p, keep)?;
        dce::run(&mut p, registry, keep)?;
    }
    Ok(p)
}
