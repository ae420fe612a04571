//! Random numbers of ops in each step.

use crate::prelude::*;

/// Returns the seed of an op, or the program's seed if that is 0.
pub(crate) fn seed(attr: i64, k: &KernelCtx<'_>) -> u64 {
    if attr != 0 { attr as u64 } else { k.seed }
}

/// Returns the stream of an op in the current step. Every step draws new numbers, and a repeated
/// run of the op in the same step draws the same ones. Streams of ops that run once (initializers)
/// are below 2^32 and so never equal these.
pub(crate) fn stream(attr: i64, k: &KernelCtx<'_>) -> u64 {
    ((attr as u64).wrapping_add(1) << 32).wrapping_add(k.step)
}
