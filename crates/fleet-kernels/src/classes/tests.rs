//! Comparison with plain loops in f64, and the choice of classes.

use super::sample::{bits_len, sample};
use super::*;
use crate::fill::Draw;
use std::collections::BTreeSet;

fn numbers(count: usize, seed: usize) -> Vec<f32> {
    (0..count).map(|at| ((at * 7919 + seed * 104_729) % 2003) as f32 / 1001.0 - 1.0).collect()
}

/// A problem and its sizes.
struct Case {
    samples: usize,
    dim: usize,
    rows: usize,
    sampled: Option<Vec<i64>>,
    is_normalized: bool,
    scale: f32,
}

impl Case {
    fn count(&self) -> usize {
        self.sampled.as_ref().map_or(self.rows, Vec::len)
    }

    /// The row of a column in f64, and its norm.
    fn row(&self, weights: &[f32], column: usize) -> (Vec<f64>, f64) {
        let row = self.sampled.as_ref().map_or(column, |rows| rows[column] as usize);
        let row: Vec<f64> =
            weights[row * self.dim..][..self.dim].iter().map(|it| f64::from(*it)).collect();
        let norm = row.iter().map(|it| it * it).sum::<f64>().sqrt();
        let divisor = if self.is_normalized { norm } else { 1.0 };
        (row.iter().map(|it| it / divisor).collect(), divisor)
    }
}

fn assert_near(found: &[f32], expected: &[f64], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let largest = expected.iter().fold(0.0f64, |all, it| all.max(it.abs()));
    for (at, (a, b)) in found.iter().zip(expected).enumerate() {
        assert!((f64::from(*a) - b).abs() <= 2e-5 * largest, "{what} {at}: {a} and {b}");
    }
}

fn check(case: &Case) {
    let (samples, dim, count) = (case.samples, case.dim, case.count());
    let features = numbers(samples * dim, 1);
    let weights = numbers(case.rows * dim, 2);
    let softmax = numbers(samples * count, 3);
    let (slopes, dloss) = (numbers(samples, 4), numbers(samples, 5));
    let labels: Vec<i64> = (0..samples as i64).map(|at| at * 5 % (count as i64 + 1) - 1).collect();
    let classes = Classes {
        weights: &weights,
        dim,
        rows: case.sampled.as_deref(),
        is_normalized: case.is_normalized,
    };
    let rows: Vec<(Vec<f64>, f64)> = (0..count).map(|it| case.row(&weights, it)).collect();
    let dots =
        |a: &[f32], b: &[f64]| -> f64 { a.iter().zip(b).map(|(a, b)| f64::from(*a) * b).sum() };
    let mut expected = Vec::new();
    for features in features.chunks(dim) {
        expected.extend(rows.iter().map(|(row, _)| f64::from(case.scale) * dots(features, row)));
    }
    let mut results: Vec<[Vec<f32>; 3]> = Vec::new();
    for threads in [1, 3] {
        let pool = Pool::new(threads);
        let mut scratch = vec![f32::NAN; scratch_len(samples, dim, count, threads)];
        let mut out = vec![f32::NAN; samples * count];
        logits(&pool, &features, &classes, case.scale, &mut out, &mut scratch);
        let losses = Losses {
            features: &features,
            softmax: &softmax,
            labels: &labels,
            slopes: &slopes,
            scale: case.scale,
            dloss: &dloss,
        };
        let mut dfeatures = vec![f32::NAN; samples * dim];
        let mut drows = vec![f32::NAN; count * dim];
        let (to, of_rows) = (Some(&mut dfeatures[..]), Some(&mut drows[..]));
        gradients(&pool, &losses, &classes, to, of_rows, &mut scratch);
        results.push([out, dfeatures, drows]);
    }
    assert!(results[0] == results[1], "results depend on the number of threads");
    let [out, dfeatures, drows] = &results[0];
    assert_near(out, &expected, "logits");
    let (mut of_features, mut of_rows) = (vec![0.0; samples * dim], vec![0.0; count * dim]);
    for sample in 0..samples {
        for (column, (row, _)) in rows.iter().enumerate() {
            let is_label = labels[sample] == column as i64;
            let p = f64::from(softmax[sample * count + column]);
            let p = if is_label { (p - 1.0) * f64::from(slopes[sample]) } else { p };
            let d = p * f64::from(dloss[sample]) * f64::from(case.scale);
            for at in 0..dim {
                of_features[sample * dim + at] += d * row[at];
                of_rows[column * dim + at] += d * f64::from(features[sample * dim + at]);
            }
        }
    }
    for ((row, norm), gradient) in rows.iter().zip(of_rows.chunks_mut(dim)) {
        if case.is_normalized {
            let along: f64 = row.iter().zip(&*gradient).map(|(a, b)| a * b).sum();
            gradient.iter_mut().zip(row).for_each(|(it, row)| *it = (*it - along * row) / norm);
        }
    }
    assert_near(dfeatures, &of_features, "gradient of features");
    assert_near(drows, &of_rows, "gradient of rows");
}

#[test]
fn products_and_gradients_are_those_of_plain_loops() {
    let case = |samples, dim, rows| Case {
        samples,
        dim,
        rows,
        sampled: None,
        is_normalized: false,
        scale: 1.0,
    };
    check(&case(1, 1, 1));
    check(&case(3, 5, 7));
    // More than one block.
    check(&case(2, 1024, 300));
    check(&Case { is_normalized: true, scale: 64.0, ..case(4, 17, 33) });
    check(&Case { is_normalized: true, scale: 8.0, ..case(2, 1024, 259) });
    let sampled = |step: usize, rows: usize| Some((0..rows as i64).step_by(step).collect());
    check(&Case { sampled: sampled(3, 40), ..case(5, 20, 40) });
    check(&Case { sampled: sampled(2, 600), is_normalized: true, ..case(3, 1024, 600) });
}

#[test]
fn normalized_features() {
    let (pool, dim) = (Pool::new(2), 19);
    let (rows, mut gradients) = (numbers(150 * dim, 1), numbers(150 * dim, 2));
    let mut unit = vec![0.0; rows.len()];
    normalize(&pool, &rows, dim, &mut unit);
    let before = gradients.clone();
    normalize_gradients(&pool, &rows, dim, &mut gradients);
    for (at, row) in rows.chunks(dim).enumerate() {
        let all = at * dim..(at + 1) * dim;
        let norm = row.iter().map(|it| f64::from(it * it)).sum::<f64>().sqrt();
        let expected: Vec<f64> = row.iter().map(|it| f64::from(*it) / norm).collect();
        assert_near(&unit[all.clone()], &expected, "normalized");
        let along: f64 =
            before[all.clone()].iter().zip(&expected).map(|(a, b)| f64::from(*a) * b).sum();
        let of_row = before[all.clone()].iter().zip(&expected);
        let of_row: Vec<f64> =
            of_row.map(|(it, unit)| (f64::from(*it) - along * unit) / norm).collect();
        assert_near(&gradients[all], &of_row, "gradient");
    }
}

/// `cos(a + m)` and its derivative, also at the angles where the sine is 0.
#[test]
fn margins() {
    let (margin, scale) = (0.5f32, 64.0f32);
    let angles = [0.3f32, 1.2, 2.9, 0.0, std::f32::consts::PI];
    let mut logits: Vec<f32> =
        angles.iter().flat_map(|angle| [7.0, scale * angle.cos(), 9.0]).collect();
    let mut slopes = [0.0; 5];
    add_margin(&mut logits, &[1; 5], margin, scale, &mut slopes);
    for ((row, slope), angle) in logits.chunks(3).zip(slopes).zip(angles) {
        assert_eq!((row[0], row[2]), (7.0, 9.0));
        assert!((row[1] / scale - (angle + margin).cos()).abs() < 1e-3, "{row:?}");
        assert!(slope.is_finite());
        if angle.sin() > 0.1 {
            assert!((slope - (angle + margin).sin() / angle.sin()).abs() < 1e-3, "{slope}");
        }
    }
    let mut other = [1.0f32, 2.0];
    add_margin(&mut other, &[-1], margin, scale, &mut slopes[..1]);
    assert_eq!((other, slopes[0]), ([1.0, 2.0], 1.0));
}

fn sampled(labels: &[i64], classes: usize, count: usize, stream: u64) -> Vec<i64> {
    let mut bits = vec![u64::MAX; bits_len(classes)];
    let mut rows = vec![-7; count];
    let draw = Draw { seed: 5, stream, offset: 1 << 40 };
    sample(labels, classes, draw, &mut bits, &mut rows);
    rows
}

#[test]
fn samples_have_all_labels_and_no_class_twice() {
    for classes in [1, 5, 63, 64, 65, 200, 1000] {
        for count in [1, 2, 10, classes / 3, classes / 2 + 1, classes - 1, classes, classes + 3] {
            let places = count.max(1);
            let labels: Vec<i64> =
                (0..places as i64).map(|at| at * at * 31 % classes as i64 - at % 2).collect();
            let rows = sampled(&labels, classes, places, 9);
            assert!(rows.is_sorted_by(|a, b| a < b), "{classes}, {places}: {rows:?}");
            let found: BTreeSet<i64> = rows.iter().copied().collect();
            assert!(labels.iter().all(|label| *label < 0 || found.contains(label)));
            let real = rows.iter().filter(|row| **row < classes as i64).count();
            assert_eq!(real, places.min(classes));
        }
    }
}

/// The same numbers give the same classes, other steps give others, and all are equally frequent.
#[test]
fn samples_are_random_and_reproducible() {
    let (classes, count, steps) = (100, 30, 2000);
    assert_eq!(sampled(&[3], classes, count, 1), sampled(&[3], classes, count, 1));
    assert_ne!(sampled(&[3], classes, count, 1), sampled(&[3], classes, count, 2));
    for count in [count, 80] {
        let mut found = vec![0usize; classes];
        for step in 0..steps {
            for row in sampled(&[3], classes, count, step as u64) {
                found[row as usize] += 1;
            }
        }
        assert_eq!(found[3], steps);
        let mean = (count - 1) as f64 / (classes - 1) as f64 * steps as f64;
        for (class, times) in found.iter().enumerate().filter(|(class, _)| *class != 3) {
            // Six standard deviations.
            let limit = 6.0 * (mean * (1.0 - mean / steps as f64)).sqrt();
            assert!((*times as f64 - mean).abs() < limit, "class {class}: {times} of {mean}");
        }
    }
}
