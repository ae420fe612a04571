//! Imports for the file of an op.

#![allow(unused_imports)]

pub use crate::divide::{Along, Divide, PART, Placement};
pub use crate::{
    AmpClass, Cost, CostCtx, Grad, GradCtx, Images, InferCtx, Kernel, KernelCtx, Meta, OpDef,
    OpTraits, PrepareCtx, Spread, Traffic,
};
pub use fleet_base::{Error, Result};
pub use fleet_ir::AttrConst::{Bool, DType as DTypeOf, Float, Floats, Int, Ints, Str, Strs};
pub use fleet_ir::{AttrKind, OpSpec, VarId, VarKind, attr, many, one, optional, required};
pub use fleet_kernels::input::Input;
pub use fleet_kernels::pool::Pool;
pub use fleet_tensor::{DType, Layout, Out, Shape, View, view_as, view_as_mut};
