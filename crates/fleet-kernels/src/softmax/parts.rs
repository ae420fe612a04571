//! Softmax cross-entropy of rows of which other ranks have other columns, in the steps between
//! which ranks exchange numbers: the maximum of each row, then the sum of its exponentials and the
//! logit of its label. The last columns of a rank may be padding, which has no part in these.
//!
//! ```
//! use fleet_kernels::{pool::Pool, softmax::parts::*};
//! let pool = Pool::new(1);
//! let (logits, labels) = ([0.0, 0.0, 0.0, 0.0], [1, OTHER]);
//! let (mut max, mut sums, mut loss) = ([0.0; 2], [0.0; 4], [0.0; 2]);
//! let mut softmax = [0.0; 4];
//! let columns = Columns::all(2);
//! maxima(&pool, &logits, columns, &mut max);
//! exponentials(&pool, &logits, columns, &labels, &max, &mut softmax, &mut sums);
//! assert_eq!(sums, [2.0, 2.0, 0.0, 0.0]);
//! // Another rank has as many columns, all 0.
//! sums[..2].fill(4.0);
//! losses(&pool, &labels, &sums, &mut softmax, &mut loss);
//! assert_eq!((softmax, loss), ([0.25; 4], [4f32.ln(); 2]));
//! ```

use super::{check_rows, row_exp, row_max, row_scale};
use crate::elementwise::grain_rows;
use crate::input::Input;
use crate::pool::Pool;
use crate::simd::SharedPtr;
use crate::{for_registers, kernel};
use std::ops::Range;

/// The label of a row whose class another rank has.
pub const OTHER: i64 = -1;
/// The label of a row without loss and gradient.
pub const IGNORED: i64 = -2;

/// The columns of a rank.
#[derive(Clone, Copy, Debug)]
pub struct Columns {
    /// Length of a row.
    pub len: usize,
    /// Number of columns that are classes; the others are padding.
    pub own: usize,
}

impl Columns {
    /// Returns columns without padding.
    pub fn all(len: usize) -> Columns {
        Columns { len, own: len }
    }
}

kernel! {
    unsafe fn max_rows<S>(
        s: S, x: *const f32, max: *mut f32, rows: Range<usize>, columns: Columns,
    ) {
        for row in rows {
            *max.add(row) = row_max(s, x.add(row * columns.len), columns.own);
        }
    }
}

/// Writes the maximum of each row, or negative infinity if all columns are padding.
pub fn maxima(pool: &Pool, x: &[f32], columns: Columns, max: &mut [f32]) {
    let Columns { len, own } = columns;
    assert_eq!(x.len(), max.len() * len, "expected one maximum per row");
    assert!(own <= len, "expected no more classes than columns");
    let (x, max_at) = (SharedPtr::new(x.as_ptr()), SharedPtr::new_mut(max.as_mut_ptr()));
    pool.run_ranges(max.len(), grain_rows(len), |range| {
        // SAFETY: tasks have different rows, and the lengths were checked.
        unsafe { max_rows(x.at(0), max_at.at(0), range, columns) };
    });
}

kernel! {
    unsafe fn exp_rows<S>(
        s: S, x: *const f32, labels: *const i64, max: *const f32, y: *mut f32, sums: *mut f32,
        targets: *mut f32, rows: Range<usize>, columns: Columns,
    ) {
        let Columns { len, own } = columns;
        for row in rows {
            let (x, y, max) = (x.add(row * len), y.add(row * len), *max.add(row));
            let label = *labels.add(row);
            // Read before `y` is written, because `y` may be in place of `x`.
            *targets.add(row) = if label < 0 { 0.0 } else { *x.add(label as usize) - max };
            *sums.add(row) = row_exp(s, x, max, y, own);
            std::slice::from_raw_parts_mut(y.add(own), len - own).fill(0.0);
        }
    }
}

/// Writes the exponentials of the numbers minus the maximum of their row, and zeros as padding.
/// `sums` gets their sum for each row, and then the number of each row's label minus the maximum,
/// or 0 without a label.
pub fn exponentials<'a>(
    pool: &Pool,
    x: impl Into<Input<'a, f32>>,
    columns: Columns,
    labels: &[i64],
    max: &[f32],
    y: &mut [f32],
    sums: &mut [f32],
) {
    let (rows, all) = (labels.len(), y.len());
    if rows == 0 {
        return;
    }
    let len = check_labels(labels, all);
    assert_eq!(len, columns.len, "expected rows of these columns");
    assert!(columns.own <= len, "expected no more classes than columns");
    assert_eq!((max.len(), sums.len()), (rows, 2 * rows), "expected one maximum per row");
    let (y_at, max) = (y.as_mut_ptr(), SharedPtr::new(max.as_ptr()));
    let x = SharedPtr::new(x.into().start(all, y_at, all));
    let (y, labels) = (SharedPtr::new_mut(y_at), SharedPtr::new(labels.as_ptr()));
    let (sums, targets) = sums.split_at_mut(rows);
    let sums = SharedPtr::new_mut(sums.as_mut_ptr());
    let targets = SharedPtr::new_mut(targets.as_mut_ptr());
    pool.run_ranges(rows, grain_rows(len), |range| {
        // SAFETY: tasks have different rows, and lengths and labels were checked.
        unsafe {
            let (sums, targets) = (sums.at(0), targets.at(0));
            exp_rows(x.at(0), labels.at(0), max.at(0), y.at(0), sums, targets, range, columns);
        }
    });
}

kernel! {
    unsafe fn loss_rows<S>(
        s: S, labels: *const i64, sums: *const f32, targets: *const f32, y: *mut f32,
        loss: *mut f32, rows: Range<usize>, len: usize,
    ) {
        for row in rows {
            let sum = *sums.add(row);
            row_scale(s, y.add(row * len), 1.0 / sum, len);
            let is_ignored = *labels.add(row) == IGNORED;
            *loss.add(row) = if is_ignored { 0.0 } else { sum.ln() - *targets.add(row) };
        }
    }
}

/// Divides exponentials by the sum of their row over all ranks, and writes the losses. `sums` are
/// those of [`exponentials`], added over ranks.
pub fn losses(pool: &Pool, labels: &[i64], sums: &[f32], y: &mut [f32], loss: &mut [f32]) {
    let rows = labels.len();
    if rows == 0 {
        return;
    }
    let len = check_labels(labels, y.len());
    assert_eq!((sums.len(), loss.len()), (2 * rows, rows), "expected one loss per row");
    let (y, loss) = (SharedPtr::new_mut(y.as_mut_ptr()), SharedPtr::new_mut(loss.as_mut_ptr()));
    let (sums, targets) = sums.split_at(rows);
    let (sums, targets) = (SharedPtr::new(sums.as_ptr()), SharedPtr::new(targets.as_ptr()));
    let labels = SharedPtr::new(labels.as_ptr());
    pool.run_ranges(rows, grain_rows(len), |range| {
        // SAFETY: tasks have different rows, and the lengths were checked.
        unsafe {
            let (sums, targets) = (sums.at(0), targets.at(0));
            loss_rows(labels.at(0), sums, targets, y.at(0), loss.at(0), range, len);
        }
    });
}

kernel! {
    unsafe fn gradient_rows<S>(
        s: S, p: *const f32, labels: *const i64, dloss: *const f32, dx: *mut f32,
        rows: Range<usize>, len: usize,
    ) {
        for row in rows {
            let (p, dx) = (p.add(row * len), dx.add(row * len));
            let (label, weight) = (*labels.add(row), *dloss.add(row));
            if label == IGNORED {
                std::slice::from_raw_parts_mut(dx, len).fill(0.0);
                continue;
            }
            let at_label = if label < 0 { 0.0 } else { (*p.add(label as usize) - 1.0) * weight };
            let weight = s.splat(weight);
            for_registers!(S, len, |i, n| {
                s.store_n(dx.add(i), s.mul(s.load_n(p.add(i), n), weight), n);
            });
            if label >= 0 {
                *dx.add(label as usize) = at_label;
            }
        }
    }
}

/// Computes the gradient of the logits from the softmax and the gradient of every row's loss.
pub fn gradient<'a>(
    pool: &Pool,
    softmax: impl Into<Input<'a, f32>>,
    labels: &[i64],
    dloss: &[f32],
    dlogits: &mut [f32],
) {
    let (rows, all) = (labels.len(), dlogits.len());
    if rows == 0 {
        return;
    }
    let len = check_labels(labels, all);
    assert_eq!(dloss.len(), rows, "expected one loss per row");
    let (dx, labels) = (dlogits.as_mut_ptr(), SharedPtr::new(labels.as_ptr()));
    let (p, dl) = (softmax.into().start(all, dx, all), SharedPtr::new(dloss.as_ptr()));
    let (p, dx) = (SharedPtr::new(p), SharedPtr::new_mut(dx));
    pool.run_ranges(rows, grain_rows(len), |range| {
        // SAFETY: tasks have different rows, and lengths and labels were checked.
        unsafe { gradient_rows(p.at(0), labels.at(0), dl.at(0), dx.at(0), range, len) };
    });
}

/// Returns the length of a row, after a check that labels are columns of it.
fn check_labels(labels: &[i64], all: usize) -> usize {
    let len = all / labels.len();
    assert_eq!(check_rows(len, all, &[]), labels.len(), "logits and labels differ in rows");
    assert!(labels.iter().all(|label| *label < len as i64), "label is not a column");
    len
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::for_every_isa;
    use crate::softmax::{softmax_cross_entropy, softmax_cross_entropy_grad};

    const ROWS: usize = 7;
    const IGNORE: i64 = 3;

    /// Two ranks with half of the columns each compute the losses of the whole rows.
    #[test]
    fn parts_are_those_of_the_whole() {
        check(12, 6);
    }

    /// The second rank has columns of padding, whose numbers do not matter.
    #[test]
    fn padding_is_no_class() {
        check(11, 6);
        check(9, 6);
        check(6, 6);
    }

    fn check(classes: usize, half: usize) {
        for_every_isa(|_| {
            let pool = Pool::new(1);
            let x: Vec<f32> = (0..ROWS * classes).map(|i| ((i * 37) % 23) as f32 * 0.3).collect();
            let labels: Vec<i64> = (0..ROWS as i64).map(|row| row * 5 % classes as i64).collect();
            let (mut p, mut loss) = (vec![0.0; x.len()], vec![0.0; ROWS]);
            softmax_cross_entropy(&pool, &x, &labels, IGNORE, &mut p, &mut loss).unwrap();
            let dloss: Vec<f32> = (0..ROWS).map(|row| row as f32 - 2.0).collect();
            let mut dx = vec![0.0; x.len()];
            softmax_cross_entropy_grad(&pool, &p, &labels, IGNORE, &dloss, &mut dx).unwrap();

            let of_part =
                |part: usize| Columns { len: half, own: (classes - part * half).min(half) };
            // With `filler` as padding.
            let columns = |all: &[f32], part: usize, filler: f32| -> Vec<f32> {
                let own = |row: &[f32]| {
                    let mut own = row[part * half..][..of_part(part).own].to_vec();
                    own.resize(half, filler);
                    own
                };
                all.chunks(classes).flat_map(own).collect()
            };
            let own = |part: usize| -> Vec<i64> {
                let place = |label: &i64| match label - (part * half) as i64 {
                    _ if *label == IGNORE => IGNORED,
                    place if (0..half as i64).contains(&place) => place,
                    _ => OTHER,
                };
                labels.iter().map(place).collect()
            };
            let mut max = vec![f32::NEG_INFINITY; ROWS];
            let mut sums = vec![0.0; 2 * ROWS];
            let mut parts = [columns(&x, 0, 99.0), columns(&x, 1, 99.0)];
            for (part, x) in parts.iter().enumerate() {
                let mut own = vec![0.0; ROWS];
                maxima(&pool, x, of_part(part), &mut own);
                max.iter_mut().zip(own).for_each(|(all, own)| *all = all.max(own));
            }
            for (part, x) in parts.iter_mut().enumerate() {
                let mut mine = vec![0.0; 2 * ROWS];
                exponentials(&pool, Input::Output, of_part(part), &own(part), &max, x, &mut mine);
                sums.iter_mut().zip(mine).for_each(|(all, own)| *all += own);
            }
            for (part, y) in parts.iter_mut().enumerate() {
                let mut losses_of = vec![0.0; ROWS];
                losses(&pool, &own(part), &sums, y, &mut losses_of);
                let near =
                    |a: &[f32], b: &[f32]| a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-6);
                assert!(near(&losses_of, &loss), "{losses_of:?} {loss:?}");
                assert!(near(y, &columns(&p, part, 0.0)));
                let mut gradient_of = vec![0.0; y.len()];
                gradient(&pool, &*y, &own(part), &dloss, &mut gradient_of);
                assert!(near(&gradient_of, &columns(&dx, part, 0.0)));
            }
        });
    }
}
