//! The ops: one file each, holding its shape rule, gradient rule and CPU kernel, in families.
//!
//! [`OPS`] is the whole list. To add an op: write its file (see `docs/add-an-op.md`), put its
//! definitions into the list, and give it cases.

mod def;
mod emit;
mod grad;
mod registry;

pub mod math;

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
    // math
    &math::scale::DEF,
];
