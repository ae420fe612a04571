//! The ops: one file each, holding its shape rule, gradient rule and CPU kernel, in families.
//!
//! [`OPS`] is the whole list. To add an op: write its file (see `docs/add-an-op.md`), put its
//! definitions into the list, and give it cases.

mod def;
mod emit;
mod grad;
mod registry;

pub mod control;
pub mod loss;
pub mod math;
pub mod nn;

pub use def::{
    AmpClass, Arg, Cost, CostCtx, Grad, InferCtx, Kernel, KernelCtx, KernelFn, Lane, Meta, OpDef,
    OpTraits, PrepareCtx, RowsArg, elementwise_cost,
};
pub use emit::{Call, Emit, meta};
pub use grad::GradCtx;
pub use registry::Registry;

/// What the file of an op needs.
mod prelude {
    #![allow(unused_imports)]
    pub use crate::{
        AmpClass, Cost, CostCtx, Grad, GradCtx, InferCtx, Kernel, KernelCtx, Meta, OpDef, OpTraits,
        PrepareCtx,
    };
    pub use fleet_base::{Error, Result};
    pub use fleet_ir::AttrConst::{Bool, DType as DTypeOf, Float, Floats, Int, Ints, Str, Strs};
    pub use fleet_ir::{AttrKind, OpSpec, VarId, VarKind, attr, many, one, optional, required};
    pub use fleet_kernels::pool::{Pool, Shareable};
    pub use fleet_tensor::{DType, Layout, Shape};
}

/// Every op, by family.
pub static OPS: &[&OpDef] = &[
    // control
    &control::conditional_block::DEF,
    // math
    &math::scale::DEF,
    // nn
    &nn::batch_norm::DEF,
    &nn::batch_norm::GRAD,
    &nn::fused_batch_norm_act::DEF,
    &nn::fused_batch_norm_act::GRAD,
    &nn::fused_bn_add_activation::DEF,
    &nn::fused_bn_add_activation::GRAD,
    &nn::lookup_table_v2::DEF,
    &nn::lookup_table_v2::GRAD,
    &nn::lookup_table_v2::OLD,
    &nn::lookup_table_v2::OLD_GRAD,
    // loss
    &loss::cross_entropy::DEF,
    &loss::cross_entropy::GRAD,
    &loss::huber_loss::DEF,
    &loss::huber_loss::GRAD,
    &loss::kldiv_loss::DEF,
    &loss::kldiv_loss::GRAD,
    &loss::label_smooth::DEF,
    &loss::log_loss::DEF,
    &loss::log_loss::GRAD,
    &loss::nll_loss::DEF,
    &loss::nll_loss::GRAD,
    &loss::sigmoid_cross_entropy_with_logits::DEF,
    &loss::sigmoid_cross_entropy_with_logits::GRAD,
    &loss::smooth_l1_loss::DEF,
    &loss::smooth_l1_loss::GRAD,
    &loss::square_error_cost::DEF,
    &loss::square_error_cost::GRAD,
];
