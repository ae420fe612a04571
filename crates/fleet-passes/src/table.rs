//! The passes that the executor applies to a program before planning, in order.

use crate::options::BuildOptions;
use crate::{dce, fuse, layout};
use fleet_base::Result;
use fleet_ir::{Program, VarId};
use fleet_ops::Registry;

/// A rewrite of one program that keeps its results.
#[derive(Clone, Copy)]
pub struct Pass {
    /// Name in errors and reports.
    pub name: &'static str,
    /// The effect, in one sentence.
    pub about: &'static str,
    /// The option that enables the pass; `None` if it always runs.
    pub option: Option<BuildOption>,
    /// The pass without whose changes this one is skipped.
    pub follows: Option<&'static str>,
    /// Rewrites the program, and returns whether it changed. Must not change the variables in the
    /// list.
    pub run: fn(&mut Program, &Registry, &[VarId]) -> Result<bool>,
}

/// A field of [`BuildOptions`].
#[derive(Clone, Copy)]
pub struct BuildOption {
    /// Name of the field.
    pub name: &'static str,
    /// Returns whether the field is set.
    pub is_on: fn(&BuildOptions) -> bool,
}

macro_rules! option {
    ($field:ident) => {
        Some(BuildOption { name: stringify!($field), is_on: |options| options.$field })
    };
}

/// The executor's passes. Where the order of two passes matters, the comment of one of them says
/// why; other neighbours may be swapped.
pub const PASSES: &[Pass] = &[
    // First: reads of dead ops would prevent fusions.
    Pass {
        name: "dead_ops",
        about: "removes ops whose results are not used",
        option: None,
        follows: None,
        run: dce::run,
    },
    Pass {
        name: "batch_norm_act",
        about: "fuses a batch norm with the following relu",
        option: option!(fuse_bn_act_ops),
        follows: None,
        run: |program, registry, keep| fuse::batch_norm::ACT.run(program, registry, keep),
    },
    // Before `elementwise_act`, which would take its sum and relu.
    Pass {
        name: "batch_norm_add_act",
        about: "fuses a batch norm with the following sum and relu",
        option: option!(fuse_bn_add_act_ops),
        follows: None,
        run: |program, registry, keep| fuse::batch_norm::ADD_ACT.run(program, registry, keep),
    },
    Pass {
        name: "gemm_epilogue",
        about: "fuses a matrix product with its bias and activation",
        option: option!(fuse_elewise_add_act_ops),
        follows: None,
        run: |program, registry, keep| fuse::gemm_epilogue::FUSION.run(program, registry, keep),
    },
    // After `gemm_epilogue`, whose ops it changes.
    Pass {
        name: "gemm_relu_grad",
        about: "moves the gradient of a relu between two layers into the later layer's product",
        option: option!(fuse_elewise_add_act_ops),
        follows: None,
        run: |program, _, keep| fuse::gemm_epilogue::fuse_relu_grad(program, keep),
    },
    Pass {
        name: "elementwise_act",
        about: "fuses a sum with the following relu",
        option: option!(fuse_elewise_add_act_ops),
        follows: None,
        run: |program, registry, keep| fuse::elementwise_act::FUSION.run(program, registry, keep),
    },
    Pass {
        name: "residual_norm",
        about: "fuses a layer norm with the preceding sum",
        option: option!(enable_auto_fusion),
        follows: None,
        run: |program, registry, keep| fuse::residual_norm::SUM.run(program, registry, keep),
    },
    // After `batch_norm_act`: a relu that a batch norm can take costs less there.
    Pass {
        name: "relu_depthwise",
        about: "fuses a relu into the following depthwise convolution",
        option: option!(fuse_relu_depthwise_conv),
        follows: None,
        run: |program, registry, keep| fuse::relu_depthwise::FUSION.run(program, registry, keep),
    },
    // After the fusions of batch norms, to whose gradients it adds an operand.
    Pass {
        name: "batch_norm_grad_sum",
        about: "adds two gradients while the gradient of a batch norm reads them",
        option: option!(enable_addto),
        follows: None,
        run: |program, registry, keep| fuse::batch_norm::GRAD_SUM.run(program, registry, keep),
    },
    Pass {
        name: "residual_norm_grad_sum",
        about: "adds two gradients while the gradient of a layer norm writes one of them",
        option: option!(enable_addto),
        follows: None,
        run: |program, registry, keep| fuse::residual_norm::GRAD_SUM.run(program, registry, keep),
    },
    // Before `optimizer`, which would take the updates.
    Pass {
        name: "update_on_arrival",
        about: "fuses the sum of gradients over ranks with the updates that use it",
        option: option!(update_on_arrival),
        follows: None,
        run: fuse::reduced_update::run,
    },
    Pass {
        name: "optimizer",
        about: "fuses updates of one rule into one sweep over all parameters",
        option: option!(fuse_all_optimizer_ops),
        follows: None,
        run: |program, registry, _| fuse::optimizer::run(program, registry),
    },
    Pass {
        name: "embedding_concat",
        about: "writes looked-up rows directly into the concat that uses them",
        option: option!(enable_auto_fusion),
        follows: None,
        run: |program, registry, keep| fuse::embedding_concat::FUSION.run(program, registry, keep),
    },
    // After `gemm_epilogue`, whose gradient ops can add too, and after `embedding_concat`, whose
    // gradient ops cannot.
    Pass {
        name: "gradient_sum",
        about: "adds the gradient of a weight to those before it while it is computed",
        option: option!(enable_addto),
        follows: None,
        run: |program, registry, keep| fuse::gradient_sum::FUSION.run(program, registry, keep),
    },
    // After all fusions, which then need not handle formats.
    Pass {
        name: "layout",
        about: "stores images channels-last and filters packed",
        option: option!(choose_layout),
        follows: None,
        run: layout::run,
    },
    // After `layout`: only the channels-last kernel computes the sums.
    Pass {
        name: "batch_norm_stats",
        about: "lets a convolution compute the sums for the following batch norm",
        option: option!(choose_layout),
        follows: Some("layout"),
        run: |program, _, keep| fuse::batch_norm::fuse_stats(program, keep),
    },
    // After `layout`, which may leave transposes that nothing reads.
    Pass {
        name: "dead_transposes",
        about: "removes ops whose results are not used any more",
        option: option!(choose_layout),
        follows: Some("layout"),
        run: dce::run,
    },
];
