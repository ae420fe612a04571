//! Losses of many classes: products of features and rows of class weights, the angular margin of
//! the label's class, and their gradients. [`sample`](mod@sample) chooses the classes of a step.
//!
//! A column of the logits is a class, and a row is a sample. Other ranks may have other columns:
//! between the steps of this module, ranks exchange the numbers of
//! [`softmax::parts`](crate::softmax::parts).
//!
//! Work is done in blocks of [`BLOCK_FLOATS`] of weights. A block is copied if its rows are sampled
//! or normalized, so that no copy of all weights is needed. Sketch for 32 samples, 250,000 classes
//! of dimension 128: 128 MB of weights read twice and of gradients written once, 6 GFlop.
//!
//! ```
//! use fleet_kernels::{classes::{Classes, logits, scratch_len}, pool::Pool};
//! let pool = Pool::new(1);
//! let weights = [1.0, 0.0, 0.0, 2.0, 3.0, 3.0];
//! let classes = Classes { weights: &weights, dim: 2, rows: Some(&[1, 2]), is_normalized: false };
//! let mut scratch = vec![0.0; scratch_len(1, 2, 2, 1)];
//! let mut out = [0.0; 2];
//! logits(&pool, &[10.0, 1.0], &classes, 1.0, &mut out, &mut scratch);
//! assert_eq!(out, [2.0, 33.0]);
//! ```

pub mod sample;
#[cfg(test)]
mod tests;

use crate::gemm::{Epilogue, Gemm};
use crate::pool::Pool;
use std::ops::Range;

/// Floats of weights in a block: 1 MB, which fits in the caches of a core.
pub const BLOCK_FLOATS: usize = 1 << 18;
/// Least number of rows in a block.
const BLOCK_ROWS_MIN: usize = 16;
/// Rows or columns per task.
const GRAIN_ROWS: usize = 64;
const GRAIN_FLOATS: usize = 1 << 14;
/// Added to the squares of a norm, so that a row of zeros has a finite inverse.
const TINY: f32 = 1e-24;
/// Least sine of an angle in the slope of the margin, which is infinite at an angle of 0.
const SINE_MIN: f32 = 1e-3;

/// The class weights of a rank, and the rows that a step uses.
#[derive(Clone, Copy, Debug)]
pub struct Classes<'a> {
    /// Rows of weights, one for each class.
    pub weights: &'a [f32],
    /// Length of a row.
    pub dim: usize,
    /// The row of each column; all rows in order if this is none.
    pub rows: Option<&'a [i64]>,
    /// Whether rows are divided by their norms.
    pub is_normalized: bool,
}

impl Classes<'_> {
    /// Returns the number of columns.
    pub fn count(&self) -> usize {
        self.rows.map_or(self.weights.len() / self.dim.max(1), <[i64]>::len)
    }

    fn row(&self, column: usize) -> &[f32] {
        let row = self.rows.map_or(column, |rows| rows[column] as usize);
        &self.weights[row * self.dim..][..self.dim]
    }

    /// Returns the rows of columns, copied only if necessary. `inverse` gets the inverse norms of
    /// normalized rows.
    fn block<'b>(
        &'b self,
        pool: &Pool,
        columns: Range<usize>,
        copy: &'b mut [f32],
        inverse: &mut [f32],
    ) -> &'b [f32] {
        if self.rows.is_none() && !self.is_normalized {
            return &self.weights[columns.start * self.dim..columns.end * self.dim];
        }
        let (first, copy) = (columns.start, &mut copy[..columns.len() * self.dim]);
        if self.is_normalized {
            pool.run_parts(&mut inverse[..columns.len()], GRAIN_ROWS, |start, part| {
                for (at, inverse) in part.iter_mut().enumerate() {
                    *inverse = inverse_norm(self.row(first + start + at));
                }
            });
        }
        let inverse = &*inverse;
        pool.run_parts(copy, GRAIN_ROWS * self.dim, |start, part| {
            for (at, to) in part.chunks_exact_mut(self.dim).enumerate() {
                let at = start / self.dim + at;
                match self.is_normalized {
                    true => scale_into(self.row(first + at), inverse[at], to),
                    false => to.copy_from_slice(self.row(first + at)),
                }
            }
        });
        copy
    }
}

/// Sizes of the work on blocks.
#[derive(Clone, Copy)]
struct Blocks {
    samples: usize,
    dim: usize,
    count: usize,
    /// Columns of a block.
    columns: usize,
}

impl Blocks {
    fn new(samples: usize, dim: usize, count: usize) -> Blocks {
        let columns = (BLOCK_FLOATS / dim.max(1)).max(BLOCK_ROWS_MIN).min(count);
        Blocks { samples, dim, count, columns }
    }

    fn ranges(self) -> impl Iterator<Item = Range<usize>> {
        let step = self.columns.max(1);
        (0..self.count).step_by(step).map(move |start| start..(start + step).min(self.count))
    }

    /// The products of a block of `columns`: logits, gradients of weights, gradients of features.
    fn products(self, columns: usize) -> [Gemm; 3] {
        let Blocks { samples, dim, count, .. } = self;
        [
            Gemm::nt(samples, columns, dim).leading(dim, dim, count),
            Gemm::tn(columns, dim, samples),
            Gemm::nn(samples, dim, columns),
        ]
    }

    fn product_scratch_len(self, threads: usize) -> usize {
        let last = match self.count % self.columns.max(1) {
            0 => self.columns,
            rest => rest,
        };
        let all = [self.columns, last].map(|columns| self.products(columns));
        all.iter().flatten().map(|gemm| gemm.scratch_len(threads)).max().unwrap_or(0)
    }

    /// Divides scratch memory into the copy of a block, its inverse norms, the gradients of its
    /// logits, and the scratch of products.
    fn split(self, scratch: &mut [f32]) -> [&mut [f32]; 4] {
        let (copy, rest) = scratch.split_at_mut(self.columns * self.dim);
        let (inverse, rest) = rest.split_at_mut(self.columns);
        let (dlogits, rest) = rest.split_at_mut(self.samples * self.columns);
        [copy, inverse, dlogits, rest]
    }
}

/// Returns the floats of scratch for [`logits`] and [`gradients`].
pub fn scratch_len(samples: usize, dim: usize, count: usize, threads: usize) -> usize {
    let blocks = Blocks::new(samples, dim, count);
    let own = blocks.columns * (dim + 1 + samples);
    own + blocks.product_scratch_len(threads)
}

/// Computes `out[i][j] = scale * features[i] . row[j]`.
///
/// # Panics
/// If a slice is too short, or a row is not one of the weights.
pub fn logits(
    pool: &Pool,
    features: &[f32],
    classes: &Classes<'_>,
    scale: f32,
    out: &mut [f32],
    scratch: &mut [f32],
) {
    let (dim, count) = (classes.dim, classes.count());
    let blocks = Blocks::new(features.len() / dim.max(1), dim, count);
    let [copy, inverse, _, rest] = blocks.split(scratch);
    for columns in blocks.ranges() {
        let [product, ..] = blocks.products(columns.len());
        let first = columns.start;
        let rows = classes.block(pool, columns, copy, inverse);
        let out = &mut out[first..];
        product.alpha(scale).run(pool, features, rows, out, rest, &Epilogue::NONE);
    }
}

/// Replaces the logit `scale * cos(a)` of each label by `scale * cos(a + margin)`. `slopes` gets
/// the derivative by the cosine; 1 for samples without a label among the columns.
pub fn add_margin(logits: &mut [f32], labels: &[i64], margin: f32, scale: f32, slopes: &mut [f32]) {
    let count = logits.len() / labels.len().max(1);
    let (sine, cosine) = margin.sin_cos();
    for ((row, label), slope) in logits.chunks_exact_mut(count.max(1)).zip(labels).zip(slopes) {
        *slope = 1.0;
        let Ok(label) = usize::try_from(*label) else { continue };
        let of_angle = (row[label] / scale).clamp(-1.0, 1.0);
        let sine_of_angle = (1.0 - of_angle * of_angle).sqrt();
        row[label] = scale * (of_angle * cosine - sine_of_angle * sine);
        *slope = cosine + of_angle * sine / sine_of_angle.max(SINE_MIN);
    }
}

/// The results of the forward pass from which gradients follow.
#[derive(Clone, Copy, Debug)]
pub struct Losses<'a> {
    /// Features of all samples, as in the product.
    pub features: &'a [f32],
    /// Probabilities of the columns for each sample.
    pub softmax: &'a [f32],
    /// The column of each sample's label; negative if another rank has it.
    pub labels: &'a [i64],
    /// The derivatives of [`add_margin`].
    pub slopes: &'a [f32],
    /// Factor of the logits.
    pub scale: f32,
    /// Gradient of each sample's loss.
    pub dloss: &'a [f32],
}

/// Computes the gradients of the features and of the rows in use. Those of features are this rank's
/// summands, of features as they are in the product.
///
/// # Panics
/// If a slice has the wrong length, or a row is not one of the weights.
pub fn gradients(
    pool: &Pool,
    losses: &Losses<'_>,
    classes: &Classes<'_>,
    mut dfeatures: Option<&mut [f32]>,
    mut drows: Option<&mut [f32]>,
    scratch: &mut [f32],
) {
    let (dim, count) = (classes.dim, classes.count());
    let blocks = Blocks::new(losses.labels.len(), dim, count);
    let [copy, inverse, dlogits, rest] = blocks.split(scratch);
    for columns in blocks.ranges() {
        let [_, of_rows, of_features] = blocks.products(columns.len());
        let is_first = columns.start == 0;
        let dlogits = &mut dlogits[..blocks.samples * columns.len()];
        losses.dlogits(pool, columns.clone(), count, dlogits);
        let rows = classes.block(pool, columns.clone(), copy, inverse);
        if let Some(drows) = drows.as_deref_mut() {
            let drows = &mut drows[columns.start * dim..columns.end * dim];
            of_rows.run(pool, dlogits, losses.features, drows, rest, &Epilogue::NONE);
            if classes.is_normalized {
                normalized_gradients(pool, rows, inverse, dim, drows);
            }
        }
        if let Some(dfeatures) = dfeatures.as_deref_mut() {
            let sum = of_features.beta(if is_first { 0.0 } else { 1.0 });
            sum.run(pool, dlogits, rows, dfeatures, rest, &Epilogue::NONE);
        }
    }
}

impl Losses<'_> {
    /// Computes the gradients of the products in some columns, packed.
    fn dlogits(&self, pool: &Pool, columns: Range<usize>, count: usize, out: &mut [f32]) {
        let len = columns.len();
        pool.run_parts(out, (GRAIN_FLOATS / len).max(1) * len, |start, part| {
            for (at, to) in part.chunks_exact_mut(len).enumerate() {
                let sample = start / len + at;
                let weight = self.dloss[sample] * self.scale;
                let softmax = &self.softmax[sample * count..][columns.clone()];
                scale_into(softmax, weight, to);
                let label = usize::try_from(self.labels[sample]).ok();
                if let Some(label) = label.filter(|label| columns.contains(label)) {
                    let at = label - columns.start;
                    to[at] = (softmax[at] - 1.0) * weight * self.slopes[sample];
                }
            }
        });
    }
}

/// Divides each row by its norm.
pub fn normalize(pool: &Pool, rows: &[f32], dim: usize, out: &mut [f32]) {
    pool.run_parts(out, GRAIN_ROWS * dim, |start, part| {
        for (from, to) in rows[start..].chunks_exact(dim).zip(part.chunks_exact_mut(dim)) {
            scale_into(from, inverse_norm(from), to);
        }
    });
}

/// Replaces the gradients of normalized rows by those of the rows.
pub fn normalize_gradients(pool: &Pool, rows: &[f32], dim: usize, gradients: &mut [f32]) {
    pool.run_parts(gradients, GRAIN_ROWS * dim, |start, part| {
        for (row, gradient) in rows[start..].chunks_exact(dim).zip(part.chunks_exact_mut(dim)) {
            let inverse = inverse_norm(row);
            let along = dot(row, gradient) * inverse * inverse;
            for (to, from) in gradient.iter_mut().zip(row) {
                *to = (*to - along * from) * inverse;
            }
        }
    });
}

/// Like [`normalize_gradients`], from the normalized rows and the inverses of their norms.
fn normalized_gradients(
    pool: &Pool,
    rows: &[f32],
    inverse: &[f32],
    dim: usize,
    gradients: &mut [f32],
) {
    pool.run_parts(gradients, GRAIN_ROWS * dim, |start, part| {
        for (at, gradient) in part.chunks_exact_mut(dim).enumerate() {
            let row = &rows[start + at * dim..][..dim];
            let (along, inverse) = (dot(row, gradient), inverse[start / dim + at]);
            for (to, from) in gradient.iter_mut().zip(row) {
                *to = (*to - along * from) * inverse;
            }
        }
    });
}

fn inverse_norm(row: &[f32]) -> f32 {
    1.0 / (dot(row, row) + TINY).sqrt()
}

fn scale_into(from: &[f32], factor: f32, to: &mut [f32]) {
    to.iter_mut().zip(from).for_each(|(to, from)| *to = from * factor);
}

/// Number of sums that [`dot`] adds separately, which the compiler keeps in vector registers.
const SUMS: usize = 16;

fn dot(a: &[f32], b: &[f32]) -> f32 {
    let (mut left, mut right) = (a.chunks_exact(SUMS), b.chunks_exact(SUMS));
    let mut sums = [0.0f32; SUMS];
    for (a, b) in left.by_ref().zip(right.by_ref()) {
        for ((sum, a), b) in sums.iter_mut().zip(a).zip(b) {
            *sum += a * b;
        }
    }
    let rest: f32 = left.remainder().iter().zip(right.remainder()).map(|(a, b)| a * b).sum();
    sums.iter().sum::<f32>() + rest
}
