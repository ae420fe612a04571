//! What the executor does to a program before it plans: the one list of passes.

use crate::{dce, fuse, layout};
use fleet_base::Result;
use fleet_ir::{Program, VarId};
use fleet_ops::Registry;

/// Which rewrites are made. All of them keep the results; the names are those of the documented
/// `BuildStrategy`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BuildOptions {
    /// `act(x + y)` in one pass over memory; a matrix product with its bias and activation; a layer
    /// norm with the residual sum before it.
    pub fuse_elewise_add_act_ops: bool,
    /// Batch norm with the activation that follows it.
    pub fuse_bn_act_ops: bool,
    /// Batch norm, the sum that follows it, and the activation.
    pub fuse_bn_add_act_ops: bool,
    /// A relu into the depthwise convolution that follows it.
    pub fuse_relu_depthwise_conv: bool,
    /// One sweep of the optimizer over all parameters.
    pub fuse_all_optimizer_ops: bool,
    /// Parameters move while the sum of their gradients comes in, in the lane of the ring. Only
    /// where a rank has one thread: more update faster behind the backward pass than the ring's
    /// lane alone does.
    pub update_on_arrival: bool,
    /// Outputs take over the memory of inputs that end there.
    pub enable_inplace: bool,
    /// Gradients of variables with several uses are added in place.
    pub enable_addto: bool,
    /// Ops run one after the other in program order: no lanes beside compute.
    pub enable_sequential_execution: bool,
    /// Images are kept channels-last and filters packed inside the program; rows of a table are
    /// written straight into the concat that wants them.
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
    /// No rewrite at all.
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

/// The program that the executor plans: `program` rewritten for speed, with everything that neither
/// `keep` nor the scope needs left out.
///
/// Order: dead ops first, so that no fusion is held up by a reader that nobody reads. Batch norm
/// before the plain `act(x + y)`, which would take its sum away. Layouts after the fusions, which
/// then need to know no format; updates join the sums of their buckets before the rest is joined;
/// the convolution's statistics after the layouts, because only the channels-last kernel takes
/// them.
pub fn optimize(
    program: &Program,
    registry: &Registry,
    keep: &[VarId],
    options: &BuildOptions,
) -> Result<Program> {
    let mut p = program.clone();
    dce::run(&mut p, registry, keep)?;
    if options.fuse_bn_act_ops || options.fuse_bn_add_act_ops {
        let which = fuse::batch_norm::Which {
            act: options.fuse_bn_act_ops,
            add_act: options.fuse_bn_add_act_ops,
        };
        fuse::batch_norm::run(&mut p, registry, keep, &which)?;
    }
    if options.fuse_elewise_add_act_ops {
        fuse::gemm_epilogue::run(&mut p, registry, keep)?;
        fuse::gemm_epilogue::mask_at_source(&mut p, keep)?;
        fuse::elementwise_act::run(&mut p, registry, keep)?;
        fuse::residual_norm::run(&mut p, registry, keep)?;
    }
    if options.fuse_relu_depthwise_conv {
        fuse::relu_depthwise::run(&mut p, registry, keep)?;
    }
    if options.enable_addto {
        fuse::batch_norm::add_on_arrival(&mut p, keep)?;
        fuse::residual_norm::add_on_the_way(&mut p, keep)?;
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
        fuse::batch_norm::take_stats(&mut p, keep)?;
        dce::run(&mut p, registry, keep)?;
    }
    Ok(p)
}
