//! Half precision: element types of layers, and their conversion for f32 kernels.

use crate::prelude::*;
use crate::widen::{has_half, through_f32};

/// Element types of images and activations.
pub(crate) const FLOATS: &[DType] = &[DType::F32, DType::F16, DType::BF16];

/// Returns the kernel that `cpu` makes. If an operand has half precision, it runs on f32 copies.
pub(crate) fn any_float(
    p: &PrepareCtx<'_>,
    cpu: fn(&PrepareCtx<'_>) -> Result<Kernel>,
) -> Result<Kernel> {
    if has_half(p) { through_f32(p, cpu) } else { cpu(p) }
}
