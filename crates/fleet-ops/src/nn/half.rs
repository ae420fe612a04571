//! Half precision: which element types the layers take, and how their f32 kernels serve them.

use crate::prelude::*;
use crate::widen::{has_half, through_f32};

/// Element types of images and activations.
pub(crate) const FLOATS: &[DType] = &[DType::F32, DType::F16, DType::BF16];

/// The kernel that `cpu` makes, over f32 copies where an operand has half precision.
pub(crate) fn any_float(
    p: &PrepareCtx<'_>,
    cpu: fn(&PrepareCtx<'_>) -> Result<Kernel>,
) -> Result<Kernel> {
    if has_half(p) { through_f32(p, cpu) } else { cpu(p) }
}
