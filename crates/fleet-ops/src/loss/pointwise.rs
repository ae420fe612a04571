//! Helpers of losses with one number per element: the parallel loop and the shape rule of a pair.
//! Ops that need vector code have kernels instead.

use crate::prelude::*;

/// Elements per task: about 50 us of logarithms.
const GRAIN: usize = 8192;

/// `out[i] = f(i)`, in parallel.
pub(super) fn fill(pool: &Pool, out: &mut [f32], f: impl Fn(usize) -> f32 + Sync) {
    pool.run_parts(out, GRAIN, |start, part| {
        for (index, value) in part.iter_mut().enumerate() {
            *value = f(start + index);
        }
    });
}

/// Returns the sum of `f(i)` for `i < len`, in f64 and in a fixed order.
pub(super) fn sum(
    pool: &Pool,
    len: usize,
    partial: &mut [f64],
    f: impl Fn(usize) -> f64 + Sync,
) -> f64 {
    let blocks = partial_len(len);
    pool.run_parts(&mut partial[..blocks], 1, |block, sum| {
        sum[0] = (block * GRAIN..((block + 1) * GRAIN).min(len)).map(&f).sum();
    });
    partial[..blocks].iter().sum()
}

/// Numbers of scratch that [`sum`] needs.
pub(super) fn partial_len(len: usize) -> usize {
    len.div_ceil(GRAIN)
}

/// Checks that both inputs are f32 of one shape, and gives the output that shape.
pub(super) fn infer_pair(i: &mut InferCtx<'_>, x: &str, y: &str, out: &str) -> Result<()> {
    check_pair(i, x, y)?;
    let meta = i.input(x)?;
    i.set(out, meta.dtype, meta.shape);
    Ok(())
}

/// Checks that gradients of both inputs are computed in memory of their own: the second one is
/// computed after the first one is written.
pub(super) fn check_separate(i: &InferCtx<'_>) -> Result<()> {
    let is_input = |out: VarId| i.op.all_inputs().any(|input| input == out);
    match i.op.all_outputs().count() > 1 && i.op.all_outputs().any(is_input) {
        true => Err(Error::invalid(format!("an output of {} is also an input", i.op.name()))
            .expected("separate variables for two gradients")),
        false => Ok(()),
    }
}

/// Like [`infer_pair`], without an output.
pub(super) fn check_pair(i: &InferCtx<'_>, x: &str, y: &str) -> Result<()> {
    i.check_dtype(x, &[DType::F32])?;
    i.check_dtype(y, &[DType::F32])?;
    i.check_shape(y, i.input(x)?.shape)
}
