use super::*;
use fleet_base::rng::Sequence;

struct Case {
    dims: Dims,
    x: Vec<f32>,
    residual: Vec<f32>,
    dy: Vec<f32>,
    gamma: Vec<f32>,
    beta: Vec<f32>,
}

fn case(batch: usize, plane: usize, channels: usize, order: Order) -> Case {
    let dims = Dims { batch, plane, channels, order };
    let mut random = Sequence::new(7, dims.len() as u64);
    let mut floats = |count: usize, scale: f32, offset: f32| -> Vec<f32> {
        (0..count).map(|_| random.normal() as f32 * scale + offset).collect()
    };
    Case {
        x: floats(dims.len(), 2.0, 3.0),
        residual: floats(dims.len(), 1.0, 0.0),
        dy: floats(dims.len(), 1.0, 0.1),
        gamma: floats(channels, 0.5, 1.0),
        beta: floats(channels, 0.5, 0.0),
        dims,
    }
}

impl Case {
    fn channel(&self, index: usize) -> usize {
        match self.dims.order {
            Order::ChannelsLast => index % self.dims.channels,
            Order::ChannelsFirst => index / self.dims.plane % self.dims.channels,
        }
    }

    /// Returns mean and variance in f64.
    fn moments(&self, x: &[f64]) -> (Vec<f64>, Vec<f64>) {
        let rows = self.dims.rows() as f64;
        let mut mean = vec![0.0; self.dims.channels];
        for (index, x) in x.iter().enumerate() {
            mean[self.channel(index)] += x / rows;
        }
        let mut variance = vec![0.0; self.dims.channels];
        for (index, x) in x.iter().enumerate() {
            let channel = self.channel(index);
            variance[channel] += (x - mean[channel]).powi(2) / rows;
        }
        (mean, variance)
    }

    fn forward(&self, x: &[f64], residual: bool, relu: bool) -> Vec<f64> {
        let (mean, variance) = self.moments(x);
        x.iter()
            .enumerate()
            .map(|(index, x)| {
                let c = self.channel(index);
                let mut y = (x - mean[c]) / (variance[c] + 1e-5).sqrt() * f64::from(self.gamma[c])
                    + f64::from(self.beta[c]);
                if residual {
                    y += f64::from(self.residual[index]);
                }
                if relu { y.max(0.0) } else { y }
            })
            .collect()
    }

    /// Returns the gradients of x, gamma, beta and the residual for a gradient `dy` of y.
    fn backward(&self, dy: &[f64], y: Option<&[f64]>) -> [Vec<f64>; 4] {
        let x: Vec<f64> = self.x.iter().map(|&x| f64::from(x)).collect();
        let (mean, variance) = self.moments(&x);
        let c = self.dims.channels;
        let rows = self.dims.rows() as f64;
        let masked: Vec<f64> = dy
            .iter()
            .enumerate()
            .map(|(i, &dy)| if y.is_none_or(|y| y[i] > 0.0) { dy } else { 0.0 })
            .collect();
        let (mut d_gamma, mut d_beta) = (vec![0.0; c], vec![0.0; c]);
        let hat = |i: usize, c: usize| (x[i] - mean[c]) / (variance[c] + 1e-5).sqrt();
        for (i, g) in masked.iter().enumerate() {
            let c = self.channel(i);
            d_beta[c] += g;
            d_gamma[c] += g * hat(i, c);
        }
        let dx = masked
            .iter()
            .enumerate()
            .map(|(i, g)| {
                let c = self.channel(i);
                f64::from(self.gamma[c]) / (variance[c] + 1e-5).sqrt()
                    * (g - d_beta[c] / rows - hat(i, c) * d_gamma[c] / rows)
            })
            .collect();
        [dx, d_gamma, d_beta, masked]
    }
}

fn check(ours: &[f32], theirs: &[f64], tolerance: f64, what: &str) {
    assert_eq!(ours.len(), theirs.len());
    for (i, (&a, &b)) in ours.iter().zip(theirs).enumerate() {
        let error = (f64::from(a) - b).abs();
        assert!(error <= tolerance * (1.0 + b.abs()), "{what} {i}: {a} against {b}");
    }
}

fn cases() -> Vec<Case> {
    let mut out = Vec::new();
    for order in [Order::ChannelsLast, Order::ChannelsFirst] {
        for (batch, plane, channels) in [
            (1, 1, 1),
            (2, 7, 3),
            (3, 49, 64),
            (2, 650, 17),
            (5, 9, 100),
            (2, 3000, 5),
            (1, 40, 600),
        ] {
            out.push(case(batch, plane, channels, order));
        }
    }
    out
}

fn run_forward(case: &Case, pool: &Pool, residual: bool, relu: bool) -> [Vec<f32>; 5] {
    run_forward_with(case, pool, Statistics::Measure, residual, relu)
}

/// The source of the statistics of a batch.
enum Statistics<'a> {
    Measure,
    Partial(Partials<'a>),
    Given { mean: &'a [f32], variance: &'a [f32] },
}

fn run_forward_with(
    case: &Case,
    pool: &Pool,
    source: Statistics<'_>,
    residual: bool,
    relu: bool,
) -> [Vec<f32>; 5] {
    let c = case.dims.channels;
    let (mut rm, mut rv) = (vec![0.5; c], vec![2.0; c]);
    let (mut mean, mut inv) = (vec![0.0; c], vec![0.0; c]);
    let mut y = vec![f32::NAN; case.dims.len()];
    let mut scratch = vec![f32::NAN; scratch_len(&case.dims)];
    match source {
        Statistics::Measure => {
            statistics(pool, &case.dims, &case.x, &mut scratch, &mut mean, &mut inv);
        }
        Statistics::Partial(partials) => {
            statistics_of_partials(case.dims.rows(), partials, &mut mean, &mut inv);
        }
        Statistics::Given { mean: given, variance } => {
            mean.copy_from_slice(given);
            inv.copy_from_slice(variance);
        }
    }
    let Training { momentum, epsilon } = Training::default();
    update_running(momentum, &mean, &mut rm);
    update_running(momentum, &inv, &mut rv);
    invert_deviation(epsilon, &mut inv);
    normalise(
        pool,
        &case.dims,
        Operand::Read(&case.x),
        (&mean, &inv),
        (&case.gamma, &case.beta),
        residual.then_some(&case.residual[..]),
        if relu { Act::Relu } else { Act::None },
        Output::New(&mut y),
        &mut scratch,
    );
    [y, mean, inv, rm, rv]
}

#[test]
fn forward_matches_the_plain_formula() {
    for case in cases() {
        let x: Vec<f64> = case.x.iter().map(|&x| f64::from(x)).collect();
        let (mean, variance) = case.moments(&x);
        for (residual, relu) in [(false, false), (true, false), (false, true), (true, true)] {
            let one = run_forward(&case, &Pool::new(1), residual, relu);
            let expected = case.forward(&x, residual, relu);
            // One row has no variance, so 1 / sqrt(epsilon) magnifies every rounding error.
            let tolerance = if case.dims.rows() == 1 { 1e-3 } else { 1e-5 };
            check(&one[0], &expected, tolerance, "y");
            check(&one[1], &mean, 1e-6, "mean");
            let running: Vec<f64> = mean.iter().map(|m| 0.5 * 0.9 + m * 0.1).collect();
            check(&one[3], &running, 1e-6, "running mean");
            let running: Vec<f64> = variance.iter().map(|v| 2.0 * 0.9 + v * 0.1).collect();
            check(&one[4], &running, 1e-5, "running variance");
            assert_eq!(one, run_forward(&case, &Pool::new(3), residual, relu));
        }
    }
}

#[test]
fn a_large_mean_costs_no_accuracy() {
    let mut case = case(4, 500, 16, Order::ChannelsLast);
    for x in &mut case.x {
        *x = *x * 0.5 + 1000.0;
    }
    let x: Vec<f64> = case.x.iter().map(|&x| f64::from(x)).collect();
    let (_, variance) = case.moments(&x);
    let ours = run_forward(&case, &Pool::new(1), false, false);
    let inv: Vec<f64> = variance.iter().map(|v| 1.0 / (v + 1e-5).sqrt()).collect();
    check(&ours[2], &inv, 1e-5, "inverse deviation");
    check(&ours[0], &case.forward(&x, false, false), 2e-4, "y");
}

#[test]
fn partial_sums_of_a_producer_give_the_same_statistics() {
    let case = case(3, 70, 40, Order::ChannelsLast);
    let c = 40;
    let shift = vec![2.5; c];
    for shift in [None, Some(&shift[..])] {
        let mut sums = Vec::new();
        for block in case.x.chunks(32 * c) {
            let (mut sum, mut squares) = (vec![0.0; c], vec![0.0; c]);
            for (i, x) in block.iter().enumerate() {
                let x = x - shift.map_or(0.0, |shift| shift[i % c]);
                sum[i % c] += x;
                squares[i % c] += x * x;
            }
            sums.extend(sum.into_iter().chain(squares));
        }
        let (mut mean, mut variance) = (vec![0.0; c], vec![0.0; c]);
        let partials = Partials { sums: &sums, shift };
        statistics_of_partials(case.dims.rows(), partials, &mut mean, &mut variance);
        let x: Vec<f64> = case.x.iter().map(|&x| f64::from(x)).collect();
        let expected = case.moments(&x);
        check(&mean, &expected.0, 1e-5, "mean");
        check(&variance, &expected.1, 1e-5, "variance");
        let pool = Pool::new(1);
        let of_parts = run_forward_with(&case, &pool, Statistics::Partial(partials), true, true);
        let given = Statistics::Given { mean: &mean, variance: &variance };
        assert_eq!(of_parts, run_forward_with(&case, &pool, given, true, true));
        check(&of_parts[0], &case.forward(&x, true, true), 1e-5, "y");
    }
}

#[test]
fn a_test_run_may_write_over_its_input() {
    for case in cases() {
        let c = case.dims.channels;
        let (mean, mut inv) = (vec![2.0; c], vec![4.0 - 1e-5; c]);
        invert_deviation(1e-5, &mut inv);
        let mut x = case.x.clone();
        let mut scratch = vec![0.0; scratch_len(&case.dims)];
        normalise(
            &Pool::new(3),
            &case.dims,
            Operand::Reuse(&mut x),
            (&mean, &inv),
            (&case.gamma, &case.beta),
            Some(&case.residual),
            Act::Relu,
            Output::OverX,
            &mut scratch,
        );
        let expected: Vec<f64> = (0..x.len())
            .map(|i| {
                let c = case.channel(i);
                let hat = (f64::from(case.x[i]) - 2.0) / 2.0;
                let y = hat * f64::from(case.gamma[c]) + f64::from(case.beta[c]);
                (y + f64::from(case.residual[i])).max(0.0)
            })
            .collect();
        check(&x, &expected, 1e-5, "y");
    }
}

/// The destination of the results of a backward pass.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    New,
    OverX,
    OverDy,
}

fn run_backward(
    case: &Case,
    threads: usize,
    y: Option<&[f32]>,
    with_residual: bool,
    addend: Option<&[f32]>,
    way: Way,
) -> [Vec<f32>; 4] {
    let pool = Pool::new(threads);
    let (dims, c) = (case.dims, case.dims.channels);
    let forward = run_forward(case, &pool, with_residual, y.is_some());
    let (mut d_gamma, mut d_beta) = (vec![f32::NAN; c], vec![f32::NAN; c]);
    let (mut x, mut dy) = (case.x.clone(), case.dy.clone());
    let mut dx = vec![f32::NAN; dims.len()];
    let mut dr = vec![f32::NAN; dims.len()];
    let mut scratch = vec![f32::NAN; scratch_len(&dims)];
    let args = Backward {
        dy: Operand::Reuse(&mut dy),
        addend,
        mask: match y {
            None => Mask::None,
            Some(y) if with_residual => Mask::FromOutput(y),
            Some(_) => Mask::FromInput,
        },
        masked: match way {
            Way::New if with_residual => Masked::New(&mut dr),
            Way::OverX if with_residual => Masked::OverDy,
            _ => Masked::Drop,
        },
        x: if way == Way::OverX { Operand::Reuse(&mut x) } else { Operand::Read(&case.x) },
        dx: match way {
            Way::New => InputGradient::New(&mut dx),
            Way::OverX => InputGradient::OverX,
            Way::OverDy => InputGradient::OverDy,
        },
        mean: &forward[1],
        inv_std: &forward[2],
        gamma: &case.gamma,
        beta: &case.beta,
        is_frozen: false,
        d_gamma: &mut d_gamma,
        d_beta: &mut d_beta,
    };
    backward(&pool, &dims, args, &mut scratch);
    match way {
        Way::New => [dx, d_gamma, d_beta, dr],
        Way::OverX => [x, d_gamma, d_beta, dy],
        Way::OverDy => [dy, d_gamma, d_beta, Vec::new()],
    }
}

#[test]
fn backward_matches_the_plain_formula_wherever_it_writes() {
    for case in cases() {
        if case.dims.rows() == 1 {
            continue;
        }
        let addend: Vec<f32> = case.residual.iter().map(|r| r * 0.3).collect();
        for (relu, with_residual, with_addend) in [
            (false, false, false),
            (true, false, false),
            (true, true, false),
            (true, true, true),
            (false, true, true),
        ] {
            let forward = run_forward(&case, &Pool::new(1), with_residual, relu);
            let y = relu.then_some(&forward[0][..]);
            let y64: Vec<f64> = forward[0].iter().map(|&y| f64::from(y)).collect();
            let added = with_addend.then_some(&addend[..]);
            let dy: Vec<f64> = (0..case.dy.len())
                .map(|i| f64::from(case.dy[i]) + added.map_or(0.0, |a| f64::from(a[i])))
                .collect();
            let expected = case.backward(&dy, relu.then_some(&y64[..]));
            let mut results = Vec::new();
            for way in [Way::New, Way::OverX, Way::OverDy] {
                let ours = run_backward(&case, 1, y, with_residual, added, way);
                check(&ours[0], &expected[0], 1e-4, "dx");
                check(&ours[1], &expected[1], 1e-4, "d_gamma");
                check(&ours[2], &expected[2], 1e-4, "d_beta");
                if with_residual && way != Way::OverDy {
                    check(&ours[3], &expected[3], 1e-6, "dr");
                }
                let bits = |runs: &[Vec<f32>; 4]| {
                    runs.concat().into_iter().map(f32::to_bits).collect::<Vec<_>>()
                };
                let again = run_backward(&case, 3, y, with_residual, added, way);
                assert_eq!(bits(&ours), bits(&again));
                results.push(ours);
            }
            assert!(results.iter().all(|other| other[..3] == results[0][..3]));
        }
    }
}

#[test]
fn gradients_agree_with_finite_differences() {
    let case = case(2, 5, 3, Order::ChannelsLast);
    let x: Vec<f64> = case.x.iter().map(|&x| f64::from(x)).collect();
    let forward = run_forward(&case, &Pool::new(1), true, true);
    let ours = run_backward(&case, 1, Some(&forward[0]), true, None, Way::New);
    let loss = |x: &[f64]| -> f64 {
        let y = case.forward(x, true, true);
        y.iter().zip(&case.dy).map(|(y, dy)| y * f64::from(*dy)).sum()
    };
    for i in 0..x.len() {
        let (mut more, mut less) = (x.clone(), x.clone());
        more[i] += 1e-5;
        less[i] -= 1e-5;
        let slope = (loss(&more) - loss(&less)) / 2e-5;
        assert!((slope - f64::from(ours[0][i])).abs() < 1e-3, "{i}");
    }
}

#[test]
fn frozen_statistics_pass_the_gradient_through() {
    let case = case(2, 5, 3, Order::ChannelsFirst);
    let (mut d_gamma, mut d_beta) = (vec![0.0; 3], vec![0.0; 3]);
    let mut dx = vec![0.0; case.x.len()];
    let mut scratch = vec![0.0; scratch_len(&case.dims)];
    let args = Backward {
        dy: Operand::Read(&case.dy),
        addend: None,
        mask: Mask::None,
        masked: Masked::Drop,
        x: Operand::Read(&case.x),
        dx: InputGradient::New(&mut dx),
        mean: &[0.0; 3],
        inv_std: &[0.5; 3],
        gamma: &case.gamma,
        beta: &case.beta,
        is_frozen: true,
        d_gamma: &mut d_gamma,
        d_beta: &mut d_beta,
    };
    backward(&Pool::new(1), &case.dims, args, &mut scratch);
    for i in 0..dx.len() {
        assert_eq!(dx[i], case.gamma[case.channel(i)] * 0.5 * case.dy[i]);
    }
}

#[test]
fn every_instruction_set_is_right() {
    crate::simd::for_every_isa(|_| {
        let case = case(2, 33, 21, Order::ChannelsLast);
        let x: Vec<f64> = case.x.iter().map(|&x| f64::from(x)).collect();
        let forward = run_forward(&case, &Pool::new(1), true, true);
        check(&forward[0], &case.forward(&x, true, true), 1e-5, "y");
        let y64: Vec<f64> = forward[0].iter().map(|&y| f64::from(y)).collect();
        let dy: Vec<f64> = case.dy.iter().map(|&dy| f64::from(dy)).collect();
        let expected = case.backward(&dy, Some(&y64));
        let ours = run_backward(&case, 1, Some(&forward[0]), true, None, Way::OverX);
        check(&ours[0], &expected[0], 1e-4, "dx");
    });
}
