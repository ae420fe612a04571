//! Which numbers an op draws in which step.

use crate::prelude::*;

/// The seed of an op: its own, or the program's where that is 0.
pub(super) fn seed(attr: i64, k: &KernelCtx<'_>) -> u64 {
    if attr != 0 { attr as u64 } else { k.seed }
}

/// The stream of an op in the current step, so that every step draws new numbers and a replay of
/// the op in the same step draws the same. Streams of ops that draw once (initialisers) stay below
/// 2^32 and never meet these.
pub(super) fn stream(attr: i64, k: &KernelCtx<'_>) -> u64 {
    ((attr as u64).wrapping_add(1) << 32).wrapping_add(k.step)
}
