//! Layer normalization over rows, forward and backward, optionally with a residual addition before
//! it.
//!
//! `y = (x - mean) * inv_std * gamma + beta` with `inv_std = 1 / sqrt(variance + epsilon)`. The
//! forward pass reads a row from memory once, and the row stays in L1 for its three passes. The
//! backward pass reads each row twice: for the sums, then for the gradient. It keeps the sums for
//! gamma and beta of a block of rows in scratch memory. Sketch for 8192 x 768: 50 MB forward, 75 MB
//! backward; memory bandwidth is the limit.
//!
//! ```
//! use fleet_kernels::{layer_norm::{LayerNorm, layer_norm}, pool::Pool};
//! let (mut y, mut mean, mut inv_std) = ([0.0; 4], [0.0; 2], [0.0; 2]);
//! let norm = LayerNorm { len: 2, epsilon: 0.0, gamma: None, beta: Some(&[0.0, 5.0]) };
//! layer_norm(&Pool::new(1), norm, &[1.0, 3.0, 8.0, 4.0], None, &mut y, &mut mean, &mut inv_std);
//! assert_eq!(y, [-1.0, 6.0, 1.0, 4.0]);
//! assert_eq!((mean, inv_std), ([2.0, 6.0], [1.0, 0.5]));
//! ```

use std::ops::Range;

use crate::elementwise::grain_rows;
use crate::input::Input;
use crate::pool::Pool;
use crate::reduce::add_partials;
use crate::simd::SharedPtr;
use crate::{for_registers, kernel};

/// Parameters of a layer normalization.
#[derive(Clone, Copy, Debug)]
pub struct LayerNorm<'a> {
    /// Number of elements in a row.
    pub len: usize,
    /// Added to the variance before the root is taken.
    pub epsilon: f32,
    /// `None` means ones.
    pub gamma: Option<&'a [f32]>,
    /// `None` means zeros. The backward pass does not read it.
    pub beta: Option<&'a [f32]>,
}

/// A second addend of the input, and the destination of the sum. The backward pass takes the sum as
/// its `x`.
#[derive(Debug)]
pub struct Residual<'a> {
    /// The tensor that is added to the input.
    pub addend: &'a [f32],
    /// Gets the sum, which is then normalized.
    pub sum: &'a mut [f32],
}

#[derive(Clone, Copy)]
struct Rows {
    len: usize,
    epsilon: f32,
    gamma: Option<SharedPtr<f32>>,
    beta: Option<SharedPtr<f32>>,
}

impl LayerNorm<'_> {
    fn rows(&self) -> Rows {
        let raw = |slice: Option<&[f32]>| {
            slice.map(|slice| {
                assert_eq!(slice.len(), self.len, "gamma and beta must have the length of a row");
                SharedPtr::new(slice.as_ptr())
            })
        };
        Rows { len: self.len, epsilon: self.epsilon, gamma: raw(self.gamma), beta: raw(self.beta) }
    }
}

kernel! {
    /// `residual` is the addend and the destination of `x + addend`, if there is an addend.
    unsafe fn forward_rows<S>(
        s: S, norm: Rows, x: *const f32, residual: Option<(SharedPtr<f32>, SharedPtr<f32>)>,
        y: *mut f32, mean_out: *mut f32, inv_std_out: *mut f32, rows: Range<usize>,
    ) {
        let len = norm.len;
        let per_row = 1.0 / len as f32;
        for row in rows {
            let mut x = x.add(row * len);
            let y = y.add(row * len);
            let mut sums = [s.zero(); 2];
            if let Some((addend, sum)) = residual {
                let (addend, sum) = (addend.at(row * len), sum.at(row * len));
                for_registers!(S, len, |i, n| {
                    let v = s.add(s.load_n(x.add(i), n), s.load_n(addend.add(i), n));
                    s.store_n(sum.add(i), v, n);
                    sums = [sums[1], s.add(sums[0], v)];
                });
                x = sum;
            } else {
                for_registers!(S, len, |i, n| {
                    sums = [sums[1], s.add(sums[0], s.load_n(x.add(i), n))];
                });
            }
            let mean = s.sum(s.add(sums[0], sums[1])) * per_row;
            let mean_v = s.splat(mean);
            let mut squares = [s.zero(); 2];
            for_registers!(S, len, |i, n| {
                let d = s.sub(s.load_n(x.add(i), n), mean_v);
                let d = s.keep_first(d, n);
                squares = [squares[1], s.fma(d, d, squares[0])];
            });
            let variance = s.sum(s.add(squares[0], squares[1])) * per_row;
            let inv_std = 1.0 / (variance + norm.epsilon).sqrt();
            *mean_out.add(row) = mean;
            *inv_std_out.add(row) = inv_std;
            let scale = s.splat(inv_std);
            for_registers!(S, len, |i, n| {
                let mut v = s.mul(s.sub(s.load_n(x.add(i), n), mean_v), scale);
                if let Some(gamma) = norm.gamma {
                    v = s.mul(v, s.load_n(gamma.at(i), n));
                }
                if let Some(beta) = norm.beta {
                    v = s.add(v, s.load_n(beta.at(i), n));
                }
                s.store_n(y.add(i), v, n);
            });
        }
    }
}

kernel! {
    unsafe fn backward_rows<S>(
        s: S, norm: Rows, x: *const f32, mean: *const f32, inv_std: *const f32, dy: *const f32,
        skip: Option<SharedPtr<f32>>, dx: *mut f32, dgamma: *mut f32, dbeta: *mut f32,
        rows: Range<usize>,
    ) {
        let len = norm.len;
        let per_row = 1.0 / len as f32;
        for row in rows {
            let (x, dy, dx) = (x.add(row * len), dy.add(row * len), dx.add(row * len));
            let scale = *inv_std.add(row);
            let (scale_v, mean_v) = (s.splat(scale), s.splat(*mean.add(row)));
            let (mut sum, mut sum_hat) = (s.zero(), s.zero());
            for_registers!(S, len, |i, n| {
                let g = s.load_n(dy.add(i), n);
                let hat = s.mul(s.sub(s.load_n(x.add(i), n), mean_v), scale_v);
                s.store_n(dbeta.add(i), s.add(s.load_n(dbeta.add(i), n), g), n);
                s.store_n(dgamma.add(i), s.fma(g, hat, s.load_n(dgamma.add(i), n)), n);
                // Lanes past the end of the row have gradient 0.
                let g = match norm.gamma {
                    Some(gamma) => s.mul(g, s.load_n(gamma.at(i), n)),
                    None => g,
                };
                sum = s.add(sum, g);
                sum_hat = s.fma(g, hat, sum_hat);
            });
            let level = s.splat(s.sum(sum) * per_row);
            let slope = s.splat(s.sum(sum_hat) * per_row);
            for_registers!(S, len, |i, n| {
                let mut g = s.load_n(dy.add(i), n);
                if let Some(gamma) = norm.gamma {
                    g = s.mul(g, s.load_n(gamma.at(i), n));
                }
                let hat = s.mul(s.sub(s.load_n(x.add(i), n), mean_v), scale_v);
                let mut d = s.mul(scale_v, s.neg_fma(hat, slope, s.sub(g, level)));
                if let Some(skip) = skip {
                    d = s.add(d, s.load_n(skip.at(row * len + i), n));
                }
                s.store_n(dx.add(i), d, n);
            });
        }
    }
}

/// Normalizes the rows of `x`, or of `x + residual.addend`. Stores `mean` and `inv_std` (one per
/// row) for the backward pass.
pub fn layer_norm(
    pool: &Pool,
    norm: LayerNorm<'_>,
    x: &[f32],
    residual: Option<Residual<'_>>,
    y: &mut [f32],
    mean: &mut [f32],
    inv_std: &mut [f32],
) {
    let rows = mean.len();
    assert!(x.len() == rows * norm.len && y.len() == x.len(), "wrong number of elements");
    assert_eq!(inv_std.len(), rows, "expected one mean and one inverse deviation per row");
    let residual = residual.map(|residual| {
        assert_eq!(residual.addend.len(), x.len(), "wrong number of elements in the addend");
        assert_eq!(residual.sum.len(), x.len(), "wrong number of elements in the sum");
        (SharedPtr::new(residual.addend.as_ptr()), SharedPtr::new_mut(residual.sum.as_mut_ptr()))
    });
    let plan = norm.rows();
    let (x, y) = (SharedPtr::new(x.as_ptr()), SharedPtr::new_mut(y.as_mut_ptr()));
    let (mean, inv_std) =
        (SharedPtr::new_mut(mean.as_mut_ptr()), SharedPtr::new_mut(inv_std.as_mut_ptr()));
    pool.run_ranges(rows, grain_rows(norm.len), |range| {
        // SAFETY: tasks have different rows, and the lengths were checked.
        unsafe {
            forward_rows(plan, x.at(0), residual, y.at(0), mean.at(0), inv_std.at(0), range);
        }
    });
}

/// Limit on the blocks of partial sums for gamma and beta.
const BLOCKS_MAX: usize = 64;

/// Returns the number of rows that share one row of partial sums. It depends only on the shape.
fn block_rows(rows: usize, len: usize) -> usize {
    rows.div_ceil(BLOCKS_MAX).max(grain_rows(len))
}

/// Returns the length of the scratch memory for [`layer_norm_grad`], in floats.
pub fn layer_norm_grad_scratch_len(rows: usize, len: usize) -> usize {
    2 * rows.div_ceil(block_rows(rows, len)) * len
}

/// Computes the gradients of [`layer_norm`]: `dx`, `dgamma` and `dbeta`. `skip`, the gradient that
/// reaches the residual sum by another path, is added to `dx`. `x` is the normalized input: the
/// sum, if there was a residual.
pub fn layer_norm_grad<'a>(
    pool: &Pool,
    norm: LayerNorm<'_>,
    x: impl Into<Input<'a, f32>>,
    mean: &[f32],
    inv_std: &[f32],
    dy: impl Into<Input<'a, f32>>,
    skip: Option<Input<'a, f32>>,
    dx: &mut [f32],
    dgamma: &mut [f32],
    dbeta: &mut [f32],
    scratch: &mut [f32],
) {
    let (rows, len) = (mean.len(), norm.len);
    assert_eq!(inv_std.len(), rows, "expected one mean and one inverse deviation per row");
    assert!(
        dgamma.len() == len && dbeta.len() == len,
        "gamma and beta must have the length of a row"
    );
    assert!(scratch.len() >= layer_norm_grad_scratch_len(rows, len), "scratch is too short");
    let plan = norm.rows();
    let block = block_rows(rows, len);
    let sums_len = rows.div_ceil(block) * len;
    let sums = SharedPtr::new_mut(scratch.as_mut_ptr());
    let (all, dx) = (dx.len(), dx.as_mut_ptr());
    assert_eq!(all, rows * len, "wrong number of elements");
    let start = |input: Input<'a, f32>| SharedPtr::new(input.start(all, dx, all));
    let (x, dy, skip) = (start(x.into()), start(dy.into()), skip.map(start));
    let dx = SharedPtr::new_mut(dx);
    let (mean, inv_std) = (SharedPtr::new(mean.as_ptr()), SharedPtr::new(inv_std.as_ptr()));
    pool.run_ranges(rows, block, |range| {
        let at = range.start / block * len;
        // SAFETY: every range has its own rows and its own row of partial sums.
        unsafe {
            let (gamma, beta) = (sums.at(at), sums.at(sums_len + at));
            std::slice::from_raw_parts_mut(gamma, len).fill(0.0);
            std::slice::from_raw_parts_mut(beta, len).fill(0.0);
            backward_rows(
                plan,
                x.at(0),
                mean.at(0),
                inv_std.at(0),
                dy.at(0),
                skip,
                dx.at(0),
                gamma,
                beta,
                range,
            );
        }
    });
    add_partials(pool, &scratch[..sums_len], dgamma);
    add_partials(pool, &scratch[sums_len..2 * sums_len], dbeta);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::for_every_isa;
    use fleet_base::rng::Sequence;

    fn numbers(len: usize, salt: u64) -> Vec<f32> {
        let mut random = Sequence::new(4, salt);
        (0..len).map(|_| (random.unit() * 3.0 - 1.0) as f32).collect()
    }

    fn wide(v: &[f32]) -> Vec<f64> {
        v.iter().map(|v| f64::from(*v)).collect()
    }

    fn near(got: f32, expected: f64, tolerance: f64) {
        let error = (f64::from(got) - expected).abs();
        assert!(error <= tolerance * expected.abs().max(1.0), "{got} for {expected}");
    }

    struct Run {
        y: Vec<f32>,
        sum: Vec<f32>,
        dx: Vec<f32>,
        dgamma: Vec<f32>,
        dbeta: Vec<f32>,
    }

    fn run(threads: usize, rows: usize, len: usize, affine: bool, residual: bool) -> Run {
        let pool = Pool::new(threads);
        let (x, addend) = (numbers(rows * len, 1), numbers(rows * len, 2));
        let (gamma, beta) = (numbers(len, 3), numbers(len, 4));
        let (dy, skip) = (numbers(rows * len, 5), numbers(rows * len, 6));
        let norm = LayerNorm {
            len,
            epsilon: 1e-5,
            gamma: affine.then_some(&gamma),
            beta: affine.then_some(&beta),
        };
        let empty = || vec![f32::NAN; rows * len];
        let (mut y, mut sum, mut dx) = (empty(), x.clone(), empty());
        let (mut mean, mut inv_std) = (vec![0.0; rows], vec![0.0; rows]);
        let extra = residual.then(|| Residual { addend: &addend, sum: &mut sum });
        layer_norm(&pool, norm, &x, extra, &mut y, &mut mean, &mut inv_std);
        let (mut dgamma, mut dbeta) = (vec![f32::NAN; len], vec![f32::NAN; len]);
        let mut scratch = vec![f32::NAN; layer_norm_grad_scratch_len(rows, len)];
        let skip = residual.then_some(Input::from(&skip));
        layer_norm_grad(
            &pool,
            norm,
            &sum,
            &mean,
            &inv_std,
            &dy,
            skip,
            &mut dx,
            &mut dgamma,
            &mut dbeta,
            &mut scratch,
        );
        Run { y, sum, dx, dgamma, dbeta }
    }

    fn check(rows: usize, len: usize, affine: bool, residual: bool) {
        let got = run(1, rows, len, affine, residual);
        let (gamma, beta) = (wide(&numbers(len, 3)), wide(&numbers(len, 4)));
        let (dy, skip) = (wide(&numbers(rows * len, 5)), wide(&numbers(rows * len, 6)));
        let x = wide(&got.sum);
        let (mut dgamma, mut dbeta) = (vec![0.0; len], vec![0.0; len]);
        for row in 0..rows {
            let at = row * len;
            let part = &x[at..at + len];
            let count = len as f64;
            let mean = part.iter().sum::<f64>() / count;
            let variance = part.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / count;
            let inv_std = 1.0 / (variance + f64::from(1e-5f32)).sqrt();
            let hat: Vec<f64> = part.iter().map(|x| (x - mean) * inv_std).collect();
            let weight = |k: usize| if affine { gamma[k] } else { 1.0 };
            let g: Vec<f64> = (0..len).map(|k| dy[at + k] * weight(k)).collect();
            let level = g.iter().sum::<f64>() / count;
            let slope = g.iter().zip(&hat).map(|(g, h)| g * h).sum::<f64>() / count;
            for k in 0..len {
                let shift = if affine { beta[k] } else { 0.0 };
                near(got.y[at + k], hat[k] * weight(k) + shift, 1e-4);
                let other = if residual { skip[at + k] } else { 0.0 };
                let d = inv_std * (g[k] - level - hat[k] * slope) + other;
                // A row of one element has a deviation of 0, so its gradient is only rounding
                // error.
                near(got.dx[at + k], d, if len == 1 { 1e-3 } else { 1e-4 });
                dgamma[k] += dy[at + k] * hat[k];
                dbeta[k] += dy[at + k];
            }
        }
        for k in 0..len {
            near(got.dgamma[k], dgamma[k], 1e-4);
            near(got.dbeta[k], dbeta[k], 1e-4);
        }
    }

    #[test]
    fn both_directions_agree_with_f64() {
        for_every_isa(|_| {
            for (rows, len) in [(1, 1), (3, 7), (5, 16), (130, 33), (200, 768), (2, 5000)] {
                for (affine, residual) in [(true, false), (false, true), (true, true)] {
                    check(rows, len, affine, residual);
                }
            }
        });
    }

    #[test]
    fn threads_change_nothing() {
        let (one, three) = (run(1, 500, 77, true, true), run(3, 500, 77, true, true));
        assert!(one.y == three.y && one.dx == three.dx);
        assert!(one.dgamma == three.dgamma && one.dbeta == three.dbeta);
    }
}
