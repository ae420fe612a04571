use super::*;
use crate::simd::for_every_isa;
use fleet_base::rng::Sequence;

const SHAPES: [(&[usize], &[usize]); 14] = [
    (&[], &[]),
    (&[37], &[37]),
    (&[5, 37], &[1]),
    (&[], &[4, 9]),
    (&[5, 37], &[37]),
    (&[37], &[5, 37]),
    (&[5, 37], &[5, 1]),
    (&[2, 5, 37], &[5, 1]),
    (&[2, 1, 5], &[1, 3, 5]),
    (&[7, 1], &[1, 33]),
    (&[4, 3, 2, 5], &[1, 3, 1, 5]),
    (&[4, 1, 2, 1], &[1, 3, 1, 5]),
    (&[200, 300], &[300]),
    (&[0, 3], &[3]),
];
const OPS: [Binary; 9] = [
    Binary::Add,
    Binary::Sub,
    Binary::Mul,
    Binary::Div,
    Binary::Max,
    Binary::Min,
    Binary::Pow,
    Binary::Mod,
    Binary::FloorDiv,
];

fn numbers(shape: &[usize], salt: u64) -> Vec<f32> {
    let mut random = Sequence::new(9, salt);
    (0..shape.iter().product()).map(|_| (random.unit() * 3.0 + 0.3) as f32).collect()
}

/// Returns the flat positions of both operands for every element of the result.
fn pairs(a: &[usize], b: &[usize], out: &[usize]) -> Vec<(usize, usize)> {
    let position = |shape: &[usize], index: &[usize]| {
        let index = &index[index.len() - shape.len()..];
        shape.iter().zip(index).fold(0, |at, (len, i)| at * len + if *len == 1 { 0 } else { *i })
    };
    (0..out.iter().product())
        .map(|mut flat| {
            let mut index = vec![0; out.len()];
            for axis in (0..out.len()).rev() {
                index[axis] = flat % out[axis];
                flat /= out[axis];
            }
            (position(a, &index), position(b, &index))
        })
        .collect()
}

fn reference(op: Binary, a: f64, b: f64) -> f64 {
    match op {
        Binary::Add => a + b,
        Binary::Sub => a - b,
        Binary::Mul => a * b,
        Binary::Div => a / b,
        Binary::Max => a.max(b),
        Binary::Min => a.min(b),
        Binary::Pow => a.powf(b),
        Binary::Mod => a - b * (a / b).floor(),
        Binary::FloorDiv => (a / b).floor(),
    }
}

#[test]
fn every_op_broadcasts() {
    for_every_isa(|level| {
        let pool = Pool::new(1);
        for (a_shape, b_shape) in SHAPES {
            let plan = Broadcast::new(a_shape, b_shape).unwrap();
            let (a, b) = (numbers(a_shape, 1), numbers(b_shape, 2));
            let pairs = pairs(a_shape, b_shape, plan.shape());
            assert_eq!(pairs.len(), plan.out_len());
            for op in OPS {
                let mut out = vec![f32::NAN; pairs.len()];
                binary(&pool, op, &plan, &a, &b, &mut out);
                for (got, (i, j)) in out.iter().zip(&pairs) {
                    let expected = reference(op, f64::from(a[*i]), f64::from(b[*j]));
                    let error = (f64::from(*got) - expected).abs();
                    assert!(
                        error <= 1e-6 * expected.abs().max(1.0),
                        "{op:?} of {a_shape:?} and {b_shape:?} at {level:?}: {got}, {expected}"
                    );
                }
                if a.len() == out.len() {
                    let mut a = a.clone();
                    binary(&pool, op, &plan, Input::Output, &b, &mut a);
                    assert_eq!(a, out);
                }
            }
            let mut truth = vec![9; pairs.len()];
            compare(&pool, Compare::Lt, &plan, &a, &b, &mut truth);
            let expected = pairs.iter().map(|(i, j)| u8::from(a[*i] < b[*j]));
            assert!(truth.iter().copied().eq(expected));
        }
    });
}

#[test]
fn gradients_sum_over_repeated_axes() {
    for threads in [1, 3] {
        let pool = Pool::new(threads);
        for (a_shape, b_shape) in SHAPES {
            let plan = Broadcast::new(a_shape, b_shape).unwrap();
            let (a, b) = (numbers(a_shape, 3), numbers(b_shape, 4));
            let dz = numbers(plan.shape(), 5);
            let pairs = pairs(a_shape, b_shape, plan.shape());
            for op in OPS {
                let (mut da, mut db) = (vec![f32::NAN; a.len()], vec![f32::NAN; b.len()]);
                let mut scratch = vec![f32::NAN; binary_grad_scratch_len(op, &plan)];
                binary_grad(
                    &pool,
                    op,
                    &plan,
                    &a,
                    &b,
                    &dz,
                    Some(&mut da),
                    Some(&mut db),
                    &mut scratch,
                );
                let (mut ea, mut eb) = (vec![0f64; a.len()], vec![0f64; b.len()]);
                for (dz, (i, j)) in dz.iter().zip(&pairs) {
                    let (x, y, dz) = (f64::from(a[*i]), f64::from(b[*j]), f64::from(*dz));
                    let h = 1e-6;
                    let slope = |f: &dyn Fn(f64) -> f64| (f(h) - f(-h)) / (2.0 * h);
                    ea[*i] += dz * slope(&|h| reference(op, x + h, y));
                    eb[*j] += dz * slope(&|h| reference(op, x, y + h));
                }
                for (got, expected) in da.iter().zip(&ea).chain(db.iter().zip(&eb)) {
                    let error = (f64::from(*got) - expected).abs();
                    assert!(
                        error <= 1e-4 * expected.abs().max(1.0),
                        "{op:?}' of {a_shape:?} and {b_shape:?}: {got} for {expected}"
                    );
                }
            }
        }
    }
}

#[test]
fn integers_and_doubles() {
    let pool = Pool::new(1);
    let plan = Broadcast::new(&[6], &[6]).unwrap();
    let a = [7, -7, 7, -7, i32::MIN, 5];
    let b = [2, 2, -2, -2, -1, 0];
    let run = |op| {
        let mut out = [99; 6];
        binary(&pool, op, &plan, &a, &b, &mut out);
        out
    };
    assert_eq!(run(Binary::Mod), [1, 1, -1, -1, 0, 0]);
    assert_eq!(run(Binary::FloorDiv), [3, -4, -4, 3, i32::MIN, 0]);
    assert_eq!(run(Binary::Div), [3, -3, -3, 3, i32::MIN, 0]);
    assert_eq!(run(Binary::Pow), [49, 49, 0, 0, 0, 1]);
    assert_eq!(run(Binary::Max), [7, 2, 7, -2, -1, 5]);
    let plan = Broadcast::new(&[3], &[]).unwrap();
    let mut out = [0f64; 3];
    binary(&pool, Binary::Mod, &plan, &[5.5, -5.5, 1e300], &[2.0], &mut out);
    assert_eq!(out, [1.5, 0.5, 0.0]);
}

#[test]
fn truth_tables() {
    let pool = Pool::new(1);
    let plan = Broadcast::new(&[4], &[4]).unwrap();
    let (a, b) = ([0, 0, 1, 7], [0, 5, 0, 9]);
    let run = |op| {
        let mut out = [9; 4];
        logical(&pool, op, &plan, &a, &b, &mut out);
        out
    };
    assert_eq!(run(Logical::And), [0, 0, 0, 1]);
    assert_eq!(run(Logical::Or), [0, 1, 1, 1]);
    assert_eq!(run(Logical::Xor), [0, 1, 1, 0]);
    let mut out = [9; 4];
    logical_not(&pool, &a, &mut out);
    assert_eq!(out, [1, 1, 0, 0]);
}

#[test]
fn shapes_that_do_not_fit_are_refused() {
    let error = Broadcast::new(&[2, 3], &[2]).unwrap_err();
    assert!(error.to_string().contains("cannot be broadcast"));
}
