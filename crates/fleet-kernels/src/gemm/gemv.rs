//! Products with one row or one column: a matrix times a vector, limited by memory bandwidth.
//!
//! Sketch: each element of the matrix is read once. If the rows run along the sum, each result is
//! one dot product of a row. If they run along the output, scaled rows are added in slices of
//! [`SLICE_ROWS`], and the slices are then added in order.

use super::block::{finish_row, mask_row};
use super::{Epilogue, Gemm, RowPart};
use crate::micro::portable::for_isa;
use crate::pool::{Pool, Shareable};

/// Number of rows that one task multiplies with the vector.
const DOTS_PER_TASK: usize = 64;

/// Number of rows that one task adds. The number of slices depends on the shape alone.
const SLICE_ROWS: usize = 256;

/// Number of outputs that one task holds while it adds rows: 4 KB of L1.
const WIDTH: usize = 1024;

/// A product, viewed as a matrix times a vector.
struct View {
    /// Number of outputs, and number of terms of each.
    outputs: usize,
    terms: usize,
    /// Whether the matrix is stored `[outputs][terms]` rather than `[terms][outputs]`.
    along_terms: bool,
    pitch: usize,
    /// Distance between the vector's elements, and distance between outputs.
    vector_step: usize,
    out_step: usize,
    /// Whether the output is a row of C rather than a column.
    is_row: bool,
}

impl View {
    fn new(gemm: &Gemm) -> View {
        let is_row = gemm.m == 1;
        if is_row {
            View {
                outputs: gemm.n,
                terms: gemm.k,
                along_terms: gemm.trans_b,
                pitch: gemm.ldb,
                vector_step: if gemm.trans_a { gemm.lda } else { 1 },
                out_step: 1,
                is_row,
            }
        } else {
            View {
                outputs: gemm.m,
                terms: gemm.k,
                along_terms: !gemm.trans_a,
                pitch: gemm.lda,
                vector_step: if gemm.trans_b { 1 } else { gemm.ldb },
                out_step: gemm.ldc,
                is_row,
            }
        }
    }

    fn slices(&self) -> usize {
        if self.along_terms { 1 } else { self.terms.div_ceil(SLICE_ROWS) }
    }
}

pub(super) fn scratch_len(gemm: &Gemm) -> usize {
    let view = View::new(gemm);
    // The dense vector, and the sums of each slice. The products of a batch run one after the
    // other.
    view.terms + view.slices() * view.outputs
}

pub(super) fn run(
    gemm: &Gemm,
    pool: &Pool,
    a: &[f32],
    b: &[f32],
    c: &mut [f32],
    scratch: &mut [f32],
    epilogue: &Epilogue<'_>,
) {
    let view = View::new(gemm);
    let (vector, sums) = scratch.split_at_mut(view.terms);
    for item in 0..gemm.batch.count[0] * gemm.batch.count[1] {
        let a = &a[gemm.batch.offset(gemm.batch.a, item)..];
        let b = &b[gemm.batch.offset(gemm.batch.b, item)..];
        let c = &mut c[gemm.batch.offset(gemm.batch.c, item)..];
        let (matrix, source) = if view.is_row { (b, a) } else { (a, b) };
        for (i, value) in vector.iter_mut().enumerate() {
            *value = source[i * view.vector_step];
        }
        one(gemm, &view, pool, matrix, vector, c, sums, item, epilogue);
    }
}

fn one(
    gemm: &Gemm,
    view: &View,
    pool: &Pool,
    matrix: &[f32],
    vector: &[f32],
    c: &mut [f32],
    sums: &mut [f32],
    item: usize,
    epilogue: &Epilogue<'_>,
) {
    let c = Shareable::new(c);
    let mask = epilogue.mask.map(|mask| &mask[gemm.batch.offset(gemm.batch.c, item)..]);
    let finish = |first: usize, values: &[f32]| {
        if view.is_row {
            // SAFETY: the row of C has this length, and each task writes only its own outputs.
            let out = unsafe { c.slice(first, values.len()) };
            finish_row(gemm, epilogue, first, values, out);
            if let Some(mask) = mask {
                mask_row(&mask[first..], out);
            }
            if let Some(hook) = epilogue.finish {
                for (i, part) in out.chunks_mut(64).enumerate() {
                    hook(RowPart { item, row: 0, col: first + i * 64, values: part });
                }
            }
            return;
        }
        for (i, value) in values.iter().enumerate() {
            // SAFETY: as above, down a column.
            let out = unsafe { c.slice((first + i) * view.out_step, 1) };
            finish_row(gemm, epilogue, 0, std::slice::from_ref(value), out);
            if let Some(mask) = mask {
                mask_row(&mask[(first + i) * view.out_step..], out);
            }
            if let Some(hook) = epilogue.finish {
                hook(RowPart { item, row: first + i, col: 0, values: out });
            }
        }
    };
    if view.along_terms {
        pool.run_ranges(view.outputs, DOTS_PER_TASK, |rows| {
            let mut values = [0.0f32; DOTS_PER_TASK];
            for (value, row) in values.iter_mut().zip(rows.clone()) {
                *value = dot(gemm.isa, &matrix[row * view.pitch..][..view.terms], vector);
            }
            finish(rows.start, &values[..rows.len()]);
        });
        return;
    }
    sum_slices(gemm, view, pool, matrix, vector, sums, finish);
}

/// Adds scaled rows of the matrix in slices, adds the slices in order, and passes each chunk of
/// finished sums to `finish`.
fn sum_slices(
    gemm: &Gemm,
    view: &View,
    pool: &Pool,
    matrix: &[f32],
    vector: &[f32],
    sums: &mut [f32],
    finish: impl Fn(usize, &[f32]) + Sync,
) {
    let (slices, outputs) = (view.slices(), view.outputs);
    let sums = Shareable::new(sums);
    let chunks = outputs.div_ceil(WIDTH);
    pool.run(slices * chunks, |task| {
        let (slice, first) = (task / chunks, task % chunks * WIDTH);
        let width = (outputs - first).min(WIDTH);
        // SAFETY: each task writes its own part of the sums.
        let out = unsafe { sums.slice(slice * outputs + first, width) };
        let rows = slice * SLICE_ROWS..((slice + 1) * SLICE_ROWS).min(view.terms);
        let matrix = &matrix[rows.start * view.pitch + first..];
        add_rows(gemm.isa, matrix, view.pitch, &vector[rows], out);
    });
    pool.run(chunks, |chunk| {
        let first = chunk * WIDTH;
        let width = (outputs - first).min(WIDTH);
        // SAFETY: only this task adds these outputs.
        let total = unsafe { sums.slice(first, width) };
        for slice in 1..slices {
            // SAFETY: as above; another slice does not overlap the first.
            let more = unsafe { &*sums.slice(slice * outputs + first, width) };
            for (value, more) in total.iter_mut().zip(more) {
                *value += more;
            }
        }
        finish(first, total);
    });
}

/// Number of lanes of a dot product: four of the widest vectors, to hide latency.
const LANES: usize = 64;

#[inline(always)]
fn dot_lanes(x: &[f32], y: &[f32], fused: impl Fn(f32, f32, f32) -> f32) -> f32 {
    let mut acc = [0.0f32; LANES];
    let (x_chunks, x_rest) = x.as_chunks::<LANES>();
    let (y_chunks, y_rest) = y.as_chunks::<LANES>();
    for (x, y) in x_chunks.iter().zip(y_chunks) {
        for i in 0..LANES {
            acc[i] = fused(x[i], y[i], acc[i]);
        }
    }
    for (i, (x, y)) in x_rest.iter().zip(y_rest).enumerate() {
        acc[i] = fused(*x, *y, acc[i]);
    }
    let mut width = LANES;
    while width > 1 {
        width /= 2;
        for i in 0..width {
            acc[i] += acc[i + width];
        }
    }
    acc[0]
}

/// Computes `out = sum over r of weights[r] * matrix[r * pitch..]`, four rows at a time.
#[inline(always)]
fn add_rows_lanes(
    matrix: &[f32],
    pitch: usize,
    weights: &[f32],
    out: &mut [f32],
    fused: impl Fn(f32, f32, f32) -> f32,
) {
    out.fill(0.0);
    let width = out.len();
    let row = |r: usize| &matrix[r * pitch..][..width];
    let fours = weights.len() / 4 * 4;
    for r in (0..fours).step_by(4) {
        let rows = [row(r), row(r + 1), row(r + 2), row(r + 3)];
        for j in 0..width {
            let mut value = out[j];
            for i in 0..4 {
                value = fused(weights[r + i], rows[i][j], value);
            }
            out[j] = value;
        }
    }
    for r in fours..weights.len() {
        for (out, x) in out.iter_mut().zip(row(r)) {
            *out = fused(weights[r], *x, *out);
        }
    }
}

for_isa! { fn dot(x: &[f32], y: &[f32]) -> f32, dot_lanes }
for_isa! {
    fn add_rows(matrix: &[f32], pitch: usize, weights: &[f32], out: &mut [f32]), add_rows_lanes
}
