//! Sums with a repeated row (a bias) and an activation, forward and backward, in one pass over
//! memory.
//!
//! ```
//! use fleet_kernels::{bias::bias_activation, elementwise::Unary, pool::Pool};
//! let mut out = [0.0; 4];
//! let x = [1.0, -3.0, -2.0, 5.0];
//! bias_activation(&Pool::new(1), Unary::Relu, &x, &[1.0, 2.0], 2, &mut out);
//! assert_eq!(out, [2.0, 0.0, 0.0, 7.0]);
//! ```

use crate::binary::{Binary, binary_tile};
use crate::elementwise::{GRAIN, Unary, backward_tile, forward_tile};
use crate::input::Input;
use crate::pool::Pool;
use crate::reduce::{add_columns, add_partials};
use crate::simd::SharedPtr;

/// Elements that are handled at a time, so that they stay in L1 between two passes.
const TILE: usize = 4096;

/// Computes `out = op(x + bias)` over rows of `columns`. The bias is one row, or has all rows.
///
/// # Panics
/// Panics if an operand has another length, or if `out` is not a whole number of rows.
pub fn bias_activation<'a>(
    pool: &Pool,
    op: Unary,
    x: impl Into<Input<'a, f32>>,
    bias: impl Into<Input<'a, f32>>,
    columns: usize,
    out: &mut [f32],
) {
    assert!(columns > 0 && out.len().is_multiple_of(columns), "not a whole number of rows");
    let (len, out) = (out.len(), out.as_mut_ptr());
    let x = SharedPtr::new(x.into().start(len, out, len));
    let bias = SharedPtr::new(bias.into().start(columns, out, len));
    let out = SharedPtr::new_mut(out);
    let tile = columns.min(TILE);
    let (per_row, rows) = (columns.div_ceil(tile), len / columns);
    pool.run_ranges(rows * per_row, (4 * TILE / columns.min(4 * TILE)).max(1), |range| {
        for part in range {
            let at = part % per_row * tile;
            let (n, start) = (tile.min(columns - at), part / per_row * columns + at);
            // SAFETY: parts are disjoint and inside the operands. `out` is exclusive; an operand in
            // it is read at the position being written.
            unsafe {
                let to = out.at(start);
                binary_tile(Binary::Add, x.at(start), bias.at(at), to, n);
                forward_tile(op, to, to, n);
            }
        }
    });
}

/// Returns the number of rows per task of [`bias_activation_grad`]. It depends on the shape alone.
fn bias_rows(rows: usize, columns: usize) -> usize {
    (GRAIN / columns.max(1)).max(rows.div_ceil(BIAS_BLOCKS_MAX)).max(1)
}

/// Limit on the blocks of partial bias gradients.
const BIAS_BLOCKS_MAX: usize = 128;

/// Returns the length of the scratch memory for [`bias_activation_grad`], in floats.
pub fn bias_activation_grad_scratch_len(rows: usize, columns: usize) -> usize {
    rows.div_ceil(bias_rows(rows, columns)) * columns
}

/// Computes the backward pass of `y = op(x + bias)` over `[rows, columns]` in one pass: `dx`, and
/// its column sums in `dbias`. `saved` is the value that [`Unary::saved`] names for `op`. `None`
/// for `op` passes the gradient through.
pub fn bias_activation_grad<'a>(
    pool: &Pool,
    op: Option<Unary>,
    saved: impl Into<Input<'a, f32>>,
    dy: impl Into<Input<'a, f32>>,
    dx: &mut [f32],
    dbias: &mut [f32],
    scratch: &mut [f32],
) {
    let columns = dbias.len();
    assert!(columns > 0 && dx.len().is_multiple_of(columns), "not a whole number of rows");
    let (all, rows, dx) = (dx.len(), dx.len() / columns, dx.as_mut_ptr());
    let (saved, dy) = (saved.into().start(all, dx, all), dy.into().start(all, dx, all));
    // SAFETY: all hold `rows` rows, and `dx` is exclusive.
    unsafe { backward_of_bias(pool, op, saved, dy, dx, rows, dbias, scratch) };
}

/// Computes the column sums of `dy`, `[rows, columns]`: the gradient of a bias.
pub fn bias_grad(pool: &Pool, dy: &[f32], dbias: &mut [f32], scratch: &mut [f32]) {
    let columns = dbias.len();
    assert!(columns > 0 && dy.len().is_multiple_of(columns), "not a whole number of rows");
    let (at, rows) = (dy.as_ptr(), dy.len() / columns);
    // SAFETY: the slice has this length. Without a function, a `dx` that equals `dy` is not
    // written.
    unsafe { backward_of_bias(pool, None, at, at, at.cast_mut(), rows, dbias, scratch) };
}

/// Like [`bias_activation_grad`], over pointers. Without `op`, a `dx` that equals `dy` is not
/// written.
///
/// # Safety
/// `saved`, `dy` and `dx` hold `rows` times the length of `dbias`. `dx` is equal to or disjoint
/// from each of the others.
unsafe fn backward_of_bias(
    pool: &Pool,
    op: Option<Unary>,
    saved: *const f32,
    dy: *const f32,
    dx: *mut f32,
    rows: usize,
    dbias: &mut [f32],
    scratch: &mut [f32],
) {
    let columns = dbias.len();
    let block = bias_rows(rows, columns);
    assert!(
        scratch.len() >= bias_activation_grad_scratch_len(rows, columns),
        "scratch is too short"
    );
    let (saved, dy, dx) = (SharedPtr::new(saved), SharedPtr::new(dy), SharedPtr::new_mut(dx));
    let partial = SharedPtr::new_mut(scratch.as_mut_ptr());
    let blocks = rows.div_ceil(block);
    pool.run_ranges(rows, block, |range| {
        // SAFETY: every range has its own rows and its own row of partial sums. A few rows at a
        // time stay in L1 between the two passes over them.
        unsafe {
            let sums = partial.at(range.start / block * columns);
            std::slice::from_raw_parts_mut(sums, columns).fill(0.0);
            let step = (TILE / columns).max(1);
            let mut row = range.start;
            while row < range.end {
                let count = step.min(range.end - row);
                let (i, n) = (row * columns, count * columns);
                match op {
                    Some(op) => backward_tile(op, saved.at(i), dy.at(i), dx.at(i), n),
                    None if std::ptr::eq(dy.at(i), dx.at(i)) => {}
                    None => std::ptr::copy(dy.at(i).cast_const(), dx.at(i), n),
                }
                add_columns(dx.at(i), count, columns, sums);
                row += count;
            }
        }
    });
    add_partials(pool, &scratch[..blocks * columns], dbias);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::elementwise::unary_grad;
    use fleet_base::rng::Sequence;

    fn numbers(len: usize, salt: u64) -> Vec<f32> {
        let mut random = Sequence::new(4, salt);
        (0..len).map(|_| (random.unit() * 2.0 - 1.0) as f32).collect()
    }

    #[test]
    fn bias_gradients_are_column_sums() {
        for (rows, columns) in [(1, 1), (7, 400), (3000, 33), (5, 20_000)] {
            let (y, dy) = (numbers(rows * columns, 5), numbers(rows * columns, 6));
            let mut expected = vec![0.0; y.len()];
            unary_grad(&Pool::new(1), Unary::Relu, &y, &dy, &mut expected);
            let run = |threads| {
                let mut dx = vec![f32::NAN; y.len()];
                let mut dbias = vec![f32::NAN; columns];
                let mut scratch = vec![0.0; bias_activation_grad_scratch_len(rows, columns)];
                bias_activation_grad(
                    &Pool::new(threads),
                    Some(Unary::Relu),
                    &y,
                    &dy,
                    &mut dx,
                    &mut dbias,
                    &mut scratch,
                );
                (dx, dbias)
            };
            let (dx, dbias) = run(1);
            assert_eq!(dx, expected);
            for c in 0..columns {
                let sum: f64 = (0..rows).map(|r| f64::from(expected[r * columns + c])).sum();
                assert!((f64::from(dbias[c]) - sum).abs() < 1e-4, "{sum} {}", dbias[c]);
            }
            assert!((dx, dbias) == run(3), "depends on threads");
        }
    }
}
