//! Compares convolutions with sums in f64, on every instruction set, for 1, 2 and 3 threads.

use super::*;
use fleet_base::rng::Sequence;

fn numbers(rng: &mut Sequence, len: usize) -> Vec<f32> {
    (0..len).map(|_| (rng.unit() * 2.0 - 1.0) as f32).collect()
}

/// Calls `body` with the positions in x, in the plain filter and in y, for every product in a
/// convolution.
fn for_products(conv: &Conv2d, mut body: impl FnMut(usize, usize, usize)) {
    let (g_in, g_out) = (conv.group_in(), conv.group_out());
    for image in 0..conv.n {
        for oh in 0..conv.out_h() {
            for ow in 0..conv.out_w() {
                for kh in 0..conv.kh {
                    for kw in 0..conv.kw {
                        let h = (oh * conv.stride[0] + kh * conv.dilation[0])
                            .wrapping_sub(conv.pad[0][0]);
                        let w = (ow * conv.stride[1] + kw * conv.dilation[1])
                            .wrapping_sub(conv.pad[1][0]);
                        if h >= conv.h || w >= conv.w {
                            continue;
                        }
                        let x = ((image * conv.h + h) * conv.w + w) * conv.c_in;
                        let y = ((image * conv.out_h() + oh) * conv.out_w() + ow) * conv.c_out;
                        for o in 0..conv.c_out {
                            for i in 0..g_in {
                                let weight = ((o * g_in + i) * conv.kh + kh) * conv.kw + kw;
                                body(x + o / g_out * g_in + i, weight, y + o);
                            }
                        }
                    }
                }
            }
        }
    }
}

fn compare(what: &str, conv: &Conv2d, got: &[f32], wanted: &[(f64, f64)]) {
    for (at, (got, (value, size))) in got.iter().zip(wanted).enumerate() {
        let slack = 2e-6 * (size + 1.0);
        assert!(
            (f64::from(*got) - value).abs() <= slack,
            "{what} {conv:?}: at {at} expected {value}, got {got}"
        );
    }
}

/// Runs on each instruction set and thread count. The results of one set must be bitwise equal.
fn on_all(what: &str, conv: &Conv2d, run: impl Fn(Isa, &Pool) -> Vec<f32>) -> Vec<Vec<f32>> {
    Isa::available()
        .map(|isa| {
            let one = run(isa, &Pool::new(1));
            for threads in [2, 3] {
                let more = run(isa, &Pool::new(threads));
                let same = one.iter().zip(&more).all(|(a, b)| a.to_bits() == b.to_bits());
                assert!(same, "{what} {conv:?} {isa:?}: depends on threads");
            }
            one
        })
        .collect()
}

/// Checks all three directions, with and without their options.
fn check(conv: Conv2d, with_options: bool, seed: u64) {
    conv.check().expect("a valid shape");
    let mut rng = Sequence::new(seed, 2);
    let x = numbers(&mut rng, conv.input_len());
    let dy = numbers(&mut rng, conv.output_len());
    let oihw = numbers(&mut rng, conv.oihw_len());
    let bias = numbers(&mut rng, conv.c_out);
    let old_dx = numbers(&mut rng, conv.input_len());
    let old_weights = numbers(&mut rng, conv.oihw_len());
    let mut filter = vec![f32::NAN; conv.filter_len()];
    conv.pack_filter_oihw(&oihw, &mut filter);
    let mut again = vec![f32::NAN; conv.oihw_len()];
    conv.unpack_filter_oihw(&filter, &mut again);
    assert_eq!(oihw, again);
    let beta = if with_options { 1.0 } else { 0.0 };

    let first = |values: &[f32]| -> Vec<(f64, f64)> {
        values.iter().map(|value| (f64::from(beta) * f64::from(*value), 0.0)).collect()
    };
    let mut y = vec![(0.0, 0.0); conv.output_len()];
    let (mut dx, mut dw) = (first(&old_dx), first(&old_weights));
    let add = |sum: &mut (f64, f64), a: f32, b: f32| {
        let product = f64::from(a) * f64::from(b);
        *sum = (sum.0 + product, sum.1 + product.abs());
    };
    for_products(&conv, |at_x, at_w, at_y| {
        add(&mut y[at_y], x[at_x], oihw[at_w]);
        add(&mut dx[at_x], dy[at_y], oihw[at_w]);
        add(&mut dw[at_w], x[at_x], dy[at_y]);
    });
    if with_options {
        for (at, (value, _)) in y.iter_mut().enumerate() {
            *value = (*value + f64::from(bias[at % conv.c_out])).max(0.0);
        }
    }

    let forward = |isa: Isa, pool: &Pool| {
        let mut out = vec![f32::NAN; conv.output_len()];
        let mut stats = vec![f32::NAN; conv.stats_len()];
        let mut scratch = vec![f32::NAN; conv.forward_scratch_len(pool.threads())];
        let options = Forward {
            bias: with_options.then_some(&bias),
            relu: with_options,
            stats: Some(&mut stats),
            isa: Some(isa),
        };
        conv.forward(pool, &x, &filter, &mut out, &mut scratch, options);
        let (mean, variance) = mean_and_variance(&conv, &stats);
        check_moments(&conv, &out, &mean, &variance);
        out.extend(mean.iter().chain(&variance));
        out
    };
    for got in on_all("forward", &conv, forward) {
        compare("forward", &conv, &got, &y);
    }

    let data = |isa: Isa, pool: &Pool| {
        let mut out = if with_options { old_dx.clone() } else { vec![f32::NAN; old_dx.len()] };
        let mut scratch = vec![f32::NAN; conv.backward_data_scratch_len(pool.threads())];
        let options = Backward { beta, isa: Some(isa) };
        conv.backward_data(pool, &dy, &filter, &mut out, &mut scratch, options);
        out
    };
    for got in on_all("backward data", &conv, data) {
        compare("backward data", &conv, &got, &dx);
    }

    let weights = |isa: Isa, pool: &Pool| {
        let mut out = vec![f32::NAN; conv.filter_len()];
        if with_options {
            conv.pack_filter_oihw(&old_weights, &mut out);
        }
        let mut scratch = vec![f32::NAN; conv.backward_weights_scratch_len(pool.threads())];
        let options = Backward { beta, isa: Some(isa) };
        conv.backward_weights(pool, &x, &dy, &mut out, &mut scratch, options);
        out
    };
    for got in on_all("backward weights", &conv, weights) {
        let mut plain = vec![f32::NAN; conv.oihw_len()];
        conv.unpack_filter_oihw(&got, &mut plain);
        compare("backward weights", &conv, &plain, &dw);
        let mut padded = vec![0.0; conv.filter_len()];
        conv.pack_filter_oihw(&plain, &mut padded);
        assert_eq!(padded, got, "{conv:?}: columns beyond the last channel are not 0");
    }
}

/// Returns the mean and the (biased) variance of each output channel from collected statistics.
fn mean_and_variance(conv: &Conv2d, stats: &[f32]) -> (Vec<f32>, Vec<f32>) {
    let count = (conv.n * conv.out_h() * conv.out_w()).max(1) as f64;
    let channels = if conv.is_depthwise() { conv.c_out } else { conv.group_out() };
    let (panels, in_group) = (conv.stats_panels(), channels.div_ceil(PANEL));
    let (mut mean, mut variance) = (vec![0.0; conv.c_out], vec![0.0; conv.c_out]);
    for panel in 0..panels {
        let sum = |at: usize| -> f64 {
            let slots = 0..conv.stats_slots();
            slots.map(|slot| f64::from(stats[(slot * panels + panel) * 2 * PANEL + at])).sum()
        };
        let (group, column) = (panel / in_group, panel % in_group * PANEL);
        for j in 0..(channels - column).min(PANEL) {
            let center = sum(j) / count;
            let channel = group * channels + column + j;
            mean[channel] = center as f32;
            // Rounding may make the difference negative.
            variance[channel] = (sum(PANEL + j) / count - center * center).max(0.0) as f32;
        }
    }
    (mean, variance)
}

fn check_moments(conv: &Conv2d, y: &[f32], mean: &[f32], variance: &[f32]) {
    let count = (y.len() / conv.c_out).max(1) as f64;
    for channel in 0..conv.c_out {
        let values = || y.iter().skip(channel).step_by(conv.c_out).map(|value| f64::from(*value));
        let center = values().sum::<f64>() / count;
        let spread = values().map(|value| (value - center) * (value - center)).sum::<f64>() / count;
        let size = values().map(|value| value * value).sum::<f64>() / count;
        let off = (f64::from(mean[channel]) - center).abs();
        assert!(off <= 1e-5 * (1.0 + size.sqrt()), "{conv:?}: mean off by {off}");
        let off = (f64::from(variance[channel]) - spread).abs();
        assert!(off <= 1e-5 * (1.0 + size), "{conv:?}: variance off by {off}");
    }
}

#[test]
fn odd_shapes() {
    let mut rng = Sequence::new(11, 0);
    let mut below = |bound: u64| rng.below(bound) as usize;
    let mut done = 0;
    while done < 60 {
        let conv = Conv2d {
            n: 1 + below(3),
            h: 1 + below(12),
            w: 1 + below(12),
            c_in: 1 + below(20),
            c_out: 1 + below(80),
            kh: 1 + below(4),
            kw: 1 + below(4),
            stride: [1 + below(3), 1 + below(3)],
            pad: [[below(3), below(3)], [below(3), below(3)]],
            dilation: [1 + below(2), 1 + below(2)],
            groups: 1,
        };
        if conv.check().is_ok() {
            check(conv, done % 2 == 0, done as u64);
            done += 1;
        }
    }
}

#[test]
fn groups_and_depthwise() {
    let mut rng = Sequence::new(12, 0);
    let mut below = |bound: u64| rng.below(bound) as usize;
    for round in 0..24 {
        let groups = 2 + below(4);
        let (c_in, c_out) = match round % 3 {
            0 => (groups, groups),
            1 => (groups * (1 + below(7)), groups * (1 + below(70))),
            _ => (groups, groups * 2),
        };
        let conv = Conv2d {
            h: 3 + below(6),
            w: 3 + below(6),
            kh: 1 + below(3),
            kw: 1 + below(3),
            stride: [1 + below(2), 1 + below(2)],
            pad: [[1, below(2)], [below(2), 1]],
            groups,
            ..Conv2d::square(1 + below(3), 0, 0, c_in, c_out, 1)
        };
        check(conv, round % 2 == 0, round);
    }
    let wide = Conv2d { pad: [[1, 1]; 2], groups: 130, ..Conv2d::square(2, 7, 6, 130, 130, 3) };
    check(wide, true, 1);
    let large = Conv2d { groups: 3, ..Conv2d::square(1, 12, 11, 3, 3, 9) };
    check(large, true, 2);
}

#[test]
fn shapes_of_real_networks_made_small() {
    let padded = |conv: Conv2d, pad: usize, stride: usize| Conv2d {
        pad: [[pad, pad]; 2],
        stride: [stride, stride],
        ..conv
    };
    for (round, conv) in [
        padded(Conv2d::square(1, 37, 35, 3, 64, 7), 3, 2),
        padded(Conv2d::square(2, 30, 30, 16, 64, 3), 1, 1),
        padded(Conv2d::square(9, 7, 7, 64, 70, 3), 1, 1),
        padded(Conv2d::square(3, 14, 14, 64, 65, 3), 1, 2),
        padded(Conv2d::square(6, 9, 7, 70, 128, 1), 0, 2),
        padded(Conv2d::square(2, 16, 15, 600, 17, 1), 0, 1),
        padded(Conv2d::square(1, 5, 5, 300, 130, 3), 1, 1),
        padded(Conv2d::square(1, 4, 3, 2, 3, 1), 1, 3),
        Conv2d { dilation: [3, 2], ..padded(Conv2d::square(2, 11, 12, 33, 40, 3), 2, 1) },
        Conv2d { kw: 40, pad: [[0, 0], [20, 19]], ..Conv2d::square(1, 3, 9, 5, 6, 2) },
    ]
    .into_iter()
    .enumerate()
    {
        check(conv, round % 2 == 0, round as u64);
    }
}

#[test]
fn an_empty_batch_changes_nothing() {
    check(Conv2d::square(0, 5, 5, 3, 4, 3), false, 0);
    check(Conv2d::square(0, 5, 5, 3, 4, 3), true, 0);
}

#[test]
fn bad_shapes_are_told() {
    let good = Conv2d::square(1, 5, 5, 4, 6, 3);
    assert!(good.check().is_ok());
    for bad in [
        Conv2d { groups: 3, ..good },
        Conv2d { groups: 0, ..good },
        Conv2d { stride: [0, 1], ..good },
        Conv2d { kh: 6, ..good },
        Conv2d { dilation: [1, 3], ..good },
        Conv2d { kw: KERNEL_MAX + 1, w: 1000, ..good },
        Conv2d { n: usize::MAX, ..good },
    ] {
        assert!(bad.check().is_err(), "{bad:?}");
    }
}
