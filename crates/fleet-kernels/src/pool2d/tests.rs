use super::*;
use fleet_base::rng::Sequence;

fn floats(count: usize, seed: u64) -> Vec<f32> {
    let mut random = Sequence::new(seed, 1);
    // There are few different values, so that windows have equal maxima.
    (0..count).map(|_| random.below(9) as f32 * 0.25 - 1.0).collect()
}

fn input(batch: usize, channels: usize, height: usize, width: usize, order: Order) -> Input {
    Input { batch, channels, height, width, order }
}

fn poolings(order: Order) -> Vec<(Input, Pool2d)> {
    let strided = |size, stride, pads, ceil_mode| Strided { size, stride, pads, ceil_mode };
    let mut out = Vec::new();
    for (batch, channels, height, width) in
        [(1, 1, 4, 4), (2, 3, 9, 7), (3, 64, 11, 12), (1, 37, 5, 1)]
    {
        let input = input(batch, channels, height, width, order);
        for windows in [
            strided([2, 2], [2, 2], [[0, 0], [0, 0]], false),
            strided([3, 3], [2, 2], [[1, 1], [1, 1]], false),
            strided([3, 3], [2, 2], [[1, 1], [1, 1]], true),
            strided([3, 2], [1, 3], [[0, 2], [1, 0]], true),
            strided([2, 2], [3, 3], [[1, 0], [0, 1]], true),
        ] {
            out.extend(Pool2d::strided(input, windows).map(|pooling| (input, pooling)));
        }
        out.push((input, Pool2d::global(input)));
        out.push((input, Pool2d::adaptive(input, [3, 2])));
        out.push((input, Pool2d::adaptive(input, [7, 5])));
    }
    out
}

/// Returns the windows of every output value as indices into x, and the count with padding.
fn plain_windows(input: &Input, pooling: &Pool2d) -> Vec<(Vec<usize>, usize)> {
    let [oh, ow] = pooling.output();
    let Input { channels, height, width, order, .. } = *input;
    let span = |axis: usize, index: usize, len: usize| -> (Vec<usize>, usize) {
        match pooling.windows {
            Windows::Adaptive => {
                let n = pooling.output[axis] as f64;
                let begin = (index as f64 * len as f64 / n).floor() as usize;
                let end = ((index + 1) as f64 * len as f64 / n).ceil() as usize;
                ((begin..end).collect(), end - begin)
            }
            Windows::Strided { size, stride, pads } => {
                let begin = (index * stride[axis]) as i64 - pads[axis][0] as i64;
                let end = (begin + size[axis] as i64).min((len + pads[axis][1]) as i64);
                let inside = (begin..end).filter(|&i| (0..len as i64).contains(&i));
                (inside.map(|i| i as usize).collect(), (end - begin).max(0) as usize)
            }
        }
    };
    let mut out = vec![(Vec::new(), 0); pooling.output_len()];
    for (b, c, r, w) in (0..pooling.output_len())
        .map(|i| (i / (channels * oh * ow), i / (oh * ow) % channels, i / ow % oh, i % ow))
    {
        let (rows, columns) = (span(0, r, height), span(1, w, width));
        let indices = rows.0.iter().flat_map(|&h| {
            columns.0.iter().map(move |&w| match order {
                Order::ChannelsLast => ((b * height + h) * width + w) * channels + c,
                Order::ChannelsFirst => ((b * channels + c) * height + h) * width + w,
            })
        });
        let at = match order {
            Order::ChannelsLast => ((b * oh + r) * ow + w) * channels + c,
            Order::ChannelsFirst => ((b * channels + c) * oh + r) * ow + w,
        };
        out[at] = (indices.collect(), rows.1 * columns.1);
    }
    out
}

fn close(ours: &[f32], theirs: &[f64]) {
    assert_eq!(ours.len(), theirs.len());
    for (a, b) in ours.iter().zip(theirs) {
        assert!((f64::from(*a) - b).abs() <= 1e-5 * (1.0 + b.abs()), "{a} {b}");
    }
}

fn check_max<O: Offset + PartialEq + std::fmt::Debug>(
    input: &Input,
    pooling: &Pool2d,
    pool: &Pool,
) {
    let windows = plain_windows(input, pooling);
    let (x, dy) = (floats(pooling.input_len(), 1), floats(pooling.output_len(), 2));
    let mut y = vec![f32::NAN; dy.len()];
    let mut offsets = vec![O::default(); dy.len()];
    let mut dx = vec![f32::NAN; x.len()];
    pooling.max_forward(pool, &x, &mut y, Some(&mut offsets));
    pooling.max_backward(pool, &dy, &offsets, &mut dx);
    let mut expected = vec![0.0; x.len()];
    for (at, (window, _)) in windows.iter().enumerate() {
        let Some(&first) = window.first() else {
            assert_eq!(y[at], 0.0);
            continue;
        };
        let best = window.iter().fold(first, |best, &i| if x[i] > x[best] { i } else { best });
        assert_eq!(y[at], x[best]);
        expected[best] += f64::from(dy[at]);
    }
    close(&dx, &expected);
    let mut again = vec![0.0; y.len()];
    pooling.max_forward::<O>(pool, &x, &mut again, None);
    assert_eq!(y, again);
}

fn check_average(input: &Input, pooling: &Pool2d, pool: &Pool, count: Count) {
    let windows = plain_windows(input, pooling);
    let (x, dy) = (floats(pooling.input_len(), 1), floats(pooling.output_len(), 2));
    let mut y = vec![f32::NAN; dy.len()];
    let mut dx = vec![f32::NAN; x.len()];
    pooling.average_forward(pool, count, &x, &mut y);
    pooling.average_backward(pool, count, &dy, &mut dx);
    let (mut of_y, mut of_x) = (vec![0.0; y.len()], vec![0.0; x.len()]);
    for (at, (window, padded)) in windows.iter().enumerate() {
        let values = if count == Count::Exclusive { window.len() } else { *padded };
        for &i in window {
            of_y[at] += f64::from(x[i]) / values as f64;
            of_x[i] += f64::from(dy[at]) / values as f64;
        }
    }
    close(&y, &of_y);
    close(&dx, &of_x);
}

#[test]
fn both_directions_match_plain_windows() {
    for order in [Order::ChannelsLast, Order::ChannelsFirst] {
        let cases = poolings(order);
        assert!(cases.len() > 25);
        for (input, pooling) in &cases {
            for threads in [1, 3] {
                let pool = Pool::new(threads);
                check_max::<u8>(input, pooling, &pool);
                check_max::<u32>(input, pooling, &pool);
                check_average(input, pooling, &pool, Count::Exclusive);
                check_average(input, pooling, &pool, Count::Inclusive);
            }
        }
    }
}

#[test]
fn every_instruction_set_is_right() {
    crate::simd::for_every_isa(|_| {
        for (input, pooling) in poolings(Order::ChannelsLast) {
            check_max::<u8>(&input, &pooling, &Pool::new(1));
            check_average(&input, &pooling, &Pool::new(1), Count::Exclusive);
        }
    });
}

#[test]
fn a_nan_is_the_maximum_of_its_window() {
    let input = input(1, 1, 2, 2, Order::ChannelsLast);
    let (mut y, mut offset) = ([0.0], [0u8]);
    for place in 0..4 {
        let mut x = [1.0, 2.0, 3.0, 4.0];
        x[place] = f32::NAN;
        Pool2d::global(input).max_forward(&Pool::new(1), &x, &mut y, Some(&mut offset));
        assert!(y[0].is_nan() && usize::from(offset[0]) == place);
    }
}

#[test]
fn windows_that_cannot_be_are_refused() {
    let input = input(1, 1, 4, 4, Order::ChannelsLast);
    for (size, stride, pads) in [
        ([5, 1], [1, 1], [[0, 0]; 2]),
        ([2, 0], [1, 1], [[0, 0]; 2]),
        ([2, 2], [0, 1], [[0, 0]; 2]),
        ([2, 2], [1, 1], [[2, 0]; 2]),
    ] {
        let windows = Strided { size, stride, pads, ceil_mode: false };
        assert!(Pool2d::strided(input, windows).is_err());
    }
}
