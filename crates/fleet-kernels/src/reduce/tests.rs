use super::*;
use crate::simd::for_every_isa;
use fleet_base::rng::Sequence;

fn numbers(len: usize) -> Vec<f32> {
    let mut random = Sequence::new(1, len as u64);
    (0..len).map(|_| (random.unit() * 2.0 - 0.7) as f32).collect()
}

fn run_plan(pool: &Pool, fold: Fold, shape: &[usize], axes: &[usize], x: &[f32]) -> Vec<f32> {
    let plan = Reduction::new(shape, axes);
    let mut out = vec![f32::NAN; plan.out_len()];
    let mut scratch = vec![f32::NAN; plan.scratch_len()];
    reduce(pool, fold, &plan, x, &mut out, &mut scratch);
    out
}

fn reference(fold: Fold, shape: &[usize], axes: &[usize], x: &[f32]) -> Vec<f64> {
    let identity = match fold {
        Fold::Sum | Fold::Mean => 0.0,
        Fold::Max => f64::NEG_INFINITY,
        Fold::Min => f64::INFINITY,
        Fold::Prod => 1.0,
    };
    let kept = |axis: &usize| !axes.contains(axis);
    let out_len = (0..shape.len()).filter(kept).map(|axis| shape[axis]).product();
    let mut out = vec![identity; out_len];
    let count = x.len() as f64 / out_len as f64;
    for (i, value) in x.iter().enumerate() {
        let (mut rest, mut slot, mut stride) = (i, 0, 1);
        for axis in (0..shape.len()).rev() {
            if kept(&axis) {
                slot += rest % shape[axis] * stride;
                stride *= shape[axis];
            }
            rest /= shape[axis];
        }
        let value = f64::from(*value);
        out[slot] = match fold {
            Fold::Sum => out[slot] + value,
            Fold::Mean => out[slot] + value / count,
            Fold::Max => out[slot].max(value),
            Fold::Min => out[slot].min(value),
            Fold::Prod => out[slot] * value,
        };
    }
    out
}

fn check(shape: &[usize], axes: &[usize]) {
    let x = numbers(shape.iter().product());
    for fold in [Fold::Sum, Fold::Mean, Fold::Max, Fold::Min, Fold::Prod] {
        let expected = reference(fold, shape, axes, &x);
        for_every_isa(|level| {
            let got = run_plan(&Pool::new(1), fold, shape, axes, &x);
            assert_eq!(got.len(), expected.len());
            let count = (x.len() / got.len().max(1)) as f64;
            for (got, expected) in got.iter().zip(&expected) {
                let bound = match fold {
                    Fold::Sum => 1e-7 * count.max(8.0).sqrt() * (2.0 + expected.abs()),
                    Fold::Mean => 1e-6,
                    Fold::Prod => 1e-6 * count.sqrt() * expected.abs() + 1e-37,
                    _ => 0.0,
                };
                assert!(
                    (f64::from(*got) - expected).abs() <= bound,
                    "{fold:?} of {shape:?} over {axes:?} at {level:?}: {got} for {expected}"
                );
            }
        });
        let one = run_plan(&Pool::new(1), fold, shape, axes, &x);
        assert!(one == run_plan(&Pool::new(3), fold, shape, axes, &x), "depends on threads");
    }
}

#[test]
fn any_axes_of_any_shape() {
    check(&[1], &[0]);
    check(&[17], &[]);
    check(&[17], &[0]);
    check(&[300_001], &[0]);
    check(&[5, 129], &[1]);
    check(&[1000, 3], &[1]);
    check(&[2048, 40], &[0]);
    check(&[1031, 400], &[0]);
    check(&[3, 5000], &[0]);
    check(&[100_003, 3], &[0]);
    check(&[100, 17], &[0, 1]);
    check(&[4, 6, 35], &[0, 2]);
    check(&[4, 6, 35], &[1]);
    check(&[3, 4, 5, 6, 7], &[0, 2, 4]);
    check(&[3, 4, 5, 6, 7], &[1, 3]);
    check(&[2, 1, 70_000, 1, 2], &[0, 2]);
    check(&[9, 2, 70_000], &[0, 2]);
}

#[test]
fn totals() {
    let x = numbers(1_000_003);
    let squares: f64 = x.iter().map(|x| f64::from(*x).powi(2)).sum();
    for threads in [1, 3] {
        let pool = Pool::new(threads);
        assert!((squared_norm(&pool, &x) / squares - 1.0).abs() < 1e-6);
        assert_eq!(squared_norm(&pool, &x), squared_norm(&Pool::new(1), &x));
    }
    assert_eq!(squared_norm(&Pool::new(1), &[]), 0.0);
}

#[test]
fn first_extremes() {
    for_every_isa(|level| {
        for (outer, len, inner) in [(3, 50, 1), (70, 7, 1), (2, 9, 19), (5, 33, 4), (1, 1, 1)] {
            // There are few distinct values, so that ties are common.
            let mut random = Sequence::new(2, len as u64);
            let x: Vec<f32> = (0..outer * len * inner).map(|_| random.below(6) as f32).collect();
            for extreme in [Extreme::Max, Extreme::Min] {
                let mut out = vec![-1; outer * inner];
                arg_extreme(&Pool::new(1), extreme, &x, outer, len, inner, &mut out);
                for o in 0..outer {
                    for c in 0..inner {
                        let at = |k: usize| x[(o * len + k) * inner + c];
                        let best = (0..len).fold(0, |best, k| {
                            let better = match extreme {
                                Extreme::Max => at(k) > at(best),
                                Extreme::Min => at(k) < at(best),
                            };
                            if better { k } else { best }
                        });
                        assert_eq!(out[o * inner + c], best as i64, "{level:?} {o} {c}");
                    }
                }
            }
        }
    });
}
