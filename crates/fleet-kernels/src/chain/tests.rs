use super::*;
use crate::elementwise::{unary, unary_grad};
use crate::simd::at_every_level;
use fleet_base::rng::Sequence;

fn numbers(len: usize, salt: u64) -> Vec<f32> {
    let mut random = Sequence::new(4, salt);
    (0..len).map(|_| (random.unit() * 2.0 - 1.0) as f32).collect()
}

fn join(op: Binary, operand: usize, layout: Layout, value_right: bool) -> Step {
    Step::Join { op, operand, layout, value_right }
}

fn chains(rows: usize, columns: usize) -> Vec<Chain> {
    [
        vec![join(Binary::Add, 0, Layout::row(columns), false), Step::Map(Unary::Relu)],
        vec![join(Binary::Add, 0, Layout::row(columns), false), Step::Map(Unary::Gelu)],
        vec![join(Binary::Add, 1, Layout::Full, false), Step::Map(Unary::Tanh)],
        vec![
            join(Binary::Mul, 2, Layout::column(rows, columns), true),
            join(Binary::Sub, 1, Layout::Full, true),
            Step::Map(Unary::Sigmoid),
            join(Binary::Div, 3, Layout::scalar(), false),
            Step::Map(Unary::Square),
        ],
        vec![Step::Map(Unary::Neg), join(Binary::Add, 1, Layout::Full, false)],
    ]
    .map(|steps| Chain::new(steps).unwrap())
    .into()
}

#[test]
fn saved_values_are_as_few_as_can_be() {
    let saved: Vec<_> = chains(2, 3).iter().map(Chain::saved).collect();
    use ChainSaved::{Input, Nothing, Output};
    assert_eq!(saved, [Output, Input, Output, Input, Nothing]);
}

#[test]
fn chains_agree_with_single_steps_and_differences() {
    let (rows, columns) = (41, 77);
    let len = rows * columns;
    let x = numbers(len, 0);
    let dy = numbers(len, 9);
    let (row, full, column) = (numbers(columns, 1), numbers(len, 2), numbers(rows, 3));
    let scalar = [1.7];
    let operands: [&[f32]; 4] = [&row, &full, &column, &scalar];
    at_every_level(|_| {
        let pool = Pool::new(1);
        for chain in chains(rows, columns) {
            let forward = |x: &[f32], operands: &[&[f32]]| {
                let mut y = vec![f32::NAN; len];
                chain.forward(&pool, x, operands, &mut y);
                y
            };
            let y = forward(&x, &operands);
            let value = |i: usize| {
                chain.steps().iter().fold(f64::from(x[i]), |v, step| match step {
                    Step::Map(op) => {
                        let mut out = [0.0];
                        unary(&pool, *op, &[v as f32], &mut out);
                        f64::from(out[0])
                    }
                    Step::Join { op, operand, layout, value_right } => {
                        let k = match layout {
                            Layout::Full => i,
                            Layout::Repeated { inner, channels } => i / inner % channels,
                        };
                        let other = f64::from(operands[*operand][k]);
                        let (a, b) = if *value_right { (other, v) } else { (v, other) };
                        match op {
                            Binary::Add => a + b,
                            Binary::Sub => a - b,
                            Binary::Mul => a * b,
                            _ => a / b,
                        }
                    }
                })
            };
            for i in 0..len {
                assert!((f64::from(y[i]) - value(i)).abs() < 1e-5, "{chain:?}");
            }
            let saved = if chain.saved() == ChainSaved::Output { &y } else { &x };
            let mut dx = vec![f32::NAN; len];
            let mut dfull = vec![0.0; len];
            let mut dcolumn = vec![0.0; len];
            let mut slots = [None, Some(&mut dfull[..]), Some(&mut dcolumn[..]), None];
            chain.backward(&pool, saved, &operands, &dy, &mut dx, &mut slots);
            let check = |got: &[f32], up: &[f32], down: &[f32], h: f32| {
                for i in 0..len {
                    let expected = (up[i] - down[i]) / (2.0 * h) * dy[i];
                    assert!((got[i] - expected).abs() < 5e-3, "{chain:?} {i}");
                }
            };
            let h = 1e-3;
            let moved = |v: &[f32], h: f32| v.iter().map(|v| v + h).collect::<Vec<_>>();
            if chain.steps()[1..] != [Step::Map(Unary::Relu)] {
                check(
                    &dx,
                    &forward(&moved(&x, h), &operands),
                    &forward(&moved(&x, -h), &operands),
                    h,
                );
            }
            let with = |k: usize, v: &[f32]| {
                let mut operands = operands.map(<[f32]>::to_vec);
                operands[k] = v.to_vec();
                let slices: Vec<&[f32]> = operands.iter().map(|v| &v[..]).collect();
                forward(&x, &slices)
            };
            check(&dfull, &with(1, &moved(&full, h)), &with(1, &moved(&full, -h)), h);
            check(&dcolumn, &with(2, &moved(&column, h)), &with(2, &moved(&column, -h)), h);
        }
    });
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

#[test]
fn wrong_chains_are_refused() {
    assert!(Chain::new(Vec::new()).is_err());
    assert!(Chain::new(vec![Step::Map(Unary::Relu); STEPS_MAX + 1]).is_err());
    assert!(Chain::new(vec![join(Binary::Add, 0, Layout::row(0), false)]).is_err());
}
