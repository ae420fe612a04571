use super::*;
use fleet_base::rng::{Philox, Sequence};

#[derive(Clone)]
struct Case {
    shape: Attention,
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    d_out: Vec<f32>,
    mask: Option<(Vec<f32>, [usize; 4])>,
}

fn case(shape: Attention, mask: Option<[usize; 4]>) -> Case {
    let mut random = Sequence::new(3, (shape.queries * 1000 + shape.keys) as u64);
    let mut floats =
        |count: usize| -> Vec<f32> { (0..count).map(|_| random.normal() as f32).collect() };
    let Attention { batch, heads, queries, keys, dim, .. } = shape;
    let (of_q, of_k) = (batch * heads * queries * dim, batch * heads * keys * dim);
    Case {
        shape,
        q: floats(of_q),
        k: floats(of_k),
        v: floats(of_k),
        d_out: floats(of_q),
        mask: mask.map(|shape| {
            let mut mask = floats(shape.iter().product());
            // Hide some keys completely.
            mask.iter_mut().step_by(7).for_each(|m| *m = f32::NEG_INFINITY);
            (mask, shape)
        }),
    }
}

fn shape(batch: usize, heads: usize, queries: usize, keys: usize, dim: usize) -> Attention {
    let scale = 1.0 / (dim as f32).sqrt();
    Attention { batch, heads, queries, keys, dim, scale, is_causal: false, dropout: None }
}

struct Oracle {
    out: Vec<f64>,
    lse: Vec<f64>,
    dq: Vec<f64>,
    dk: Vec<f64>,
    dv: Vec<f64>,
}

/// The plain formulas in f64, on tensors [batch, time, heads, dim].
fn oracle(case: &Case) -> Oracle {
    let Attention { batch, heads, queries, keys, dim, scale, is_causal, dropout } = case.shape;
    let at = |time: usize, b: usize, t: usize, h: usize| ((b * time + t) * heads + h) * dim;
    let mut o = Oracle {
        out: vec![0.0; case.q.len()],
        lse: vec![0.0; case.shape.lse_len()],
        dq: vec![0.0; case.q.len()],
        dk: vec![0.0; case.k.len()],
        dv: vec![0.0; case.k.len()],
    };
    let product = |a: &[f32], b: &[f32]| -> f64 {
        a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
    };
    for (b, h, i) in (0..batch * heads * queries)
        .map(|n| (n / (heads * queries), n / queries % heads, n % queries))
    {
        let q = &case.q[at(queries, b, i, h)..][..dim];
        let go = &case.d_out[at(queries, b, i, h)..][..dim];
        let mut scores: Vec<f64> = (0..keys)
            .map(|j| {
                let mut score = product(q, &case.k[at(keys, b, j, h)..][..dim]) * f64::from(scale);
                if let Some((mask, [mb, mh, mq, mk])) = &case.mask {
                    let pick = |index: usize, size: usize| if size == 1 { 0 } else { index };
                    let index = ((pick(b, *mb) * mh + pick(h, *mh)) * mq + pick(i, *mq)) * mk
                        + pick(j, *mk);
                    score += f64::from(mask[index]);
                }
                if is_causal && j + queries > i + keys { f64::NEG_INFINITY } else { score }
            })
            .collect();
        let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let row = (b * heads + h) * queries + i;
        if max == f64::NEG_INFINITY {
            o.lse[row] = f64::INFINITY;
            continue;
        }
        let sum: f64 = scores.iter().map(|s| (s - max).exp()).sum();
        o.lse[row] = max + sum.ln();
        scores.iter_mut().for_each(|s| *s = (*s - max).exp() / sum);
        let keep: Vec<f64> = (0..keys)
            .map(|j| match dropout {
                None => 1.0,
                Some(Dropout { probability, seed, stream, .. }) => {
                    let unit = Philox::new(seed, stream).unit((row * keys + j) as u64);
                    f64::from(u8::from(unit >= probability)) / (1.0 - f64::from(probability))
                }
            })
            .collect();
        let dp: Vec<f64> =
            (0..keys).map(|j| product(go, &case.v[at(keys, b, j, h)..][..dim]) * keep[j]).collect();
        let delta: f64 = (0..keys).map(|j| scores[j] * dp[j]).sum();
        for j in 0..keys {
            let ds = scores[j] * (dp[j] - delta) * f64::from(scale);
            for d in 0..dim {
                let (of_q, of_k) = (at(queries, b, i, h) + d, at(keys, b, j, h) + d);
                o.out[of_q] += scores[j] * keep[j] * f64::from(case.v[of_k]);
                o.dv[of_k] += scores[j] * keep[j] * f64::from(go[d]);
                o.dq[of_q] += ds * f64::from(case.k[of_k]);
                o.dk[of_k] += ds * f64::from(q[d]);
            }
        }
    }
    o
}

fn run(case: &Case, threads: usize) -> [Vec<f32>; 5] {
    let pool = Pool::new(threads);
    let shape = case.shape;
    let of_q = Strides::dense(shape.queries, shape.heads, shape.dim);
    let of_k = Strides::dense(shape.keys, shape.heads, shape.dim);
    let (q, k, v) =
        (Heads::new(&case.q, of_q), Heads::new(&case.k, of_k), Heads::new(&case.v, of_k));
    let mask = case.mask.as_ref().map(|(data, shape)| Mask::new(data, *shape));
    let mut out = vec![f32::NAN; case.q.len()];
    let mut lse = vec![f32::NAN; shape.lse_len()];
    let mut scratch = vec![f32::NAN; shape.forward_scratch_len(threads)];
    shape.forward(&pool, q, k, v, mask, HeadsMut::new(&mut out, of_q), &mut lse, &mut scratch);
    let (mut dq, mut dk, mut dv) =
        (vec![f32::NAN; case.q.len()], vec![f32::NAN; case.k.len()], vec![f32::NAN; case.k.len()]);
    let mut scratch = vec![f32::NAN; shape.backward_scratch_len(threads)];
    shape.backward(
        &pool,
        (q, k, v),
        mask,
        (Heads::new(&out, of_q), Heads::new(&case.d_out, of_q)),
        &lse,
        (HeadsMut::new(&mut dq, of_q), HeadsMut::new(&mut dk, of_k), HeadsMut::new(&mut dv, of_k)),
        &mut scratch,
    );
    [out, lse, dq, dk, dv]
}

fn check(case: &Case) {
    let expected = oracle(case);
    let ours = run(case, 1);
    let expected = [expected.out, expected.lse, expected.dq, expected.dk, expected.dv];
    for (part, (ours, expected)) in ours.iter().zip(&expected).enumerate() {
        for (i, (&a, &b)) in ours.iter().zip(expected).enumerate() {
            let same = f64::from(a) == b || (f64::from(a) - b).abs() <= 2e-5 * (1.0 + b.abs());
            assert!(same, "part {part}, {i}: {a} against {b} in {:?}", case.shape);
        }
    }
    assert_eq!(ours, run(case, 3));
}

#[test]
fn matches_the_plain_formulas() {
    for (b, h, tq, tk, d) in [
        (1, 1, 1, 1, 1),
        (2, 3, 5, 7, 8),
        (1, 2, 65, 129, 64),
        (2, 1, 300, 70, 20),
        (1, 1, 130, 300, 80),
    ] {
        let plain = shape(b, h, tq, tk, d);
        check(&case(plain, None));
        check(&case(Attention { is_causal: true, ..plain }, None));
        check(&case(plain, Some([b, 1, 1, tk])));
        check(&case(plain, Some([1, h, tq, 1])));
        check(&case(Attention { is_causal: true, ..plain }, Some([b, h, tq, tk])));
        let dropout = Some(Dropout { probability: 0.3, seed: 5, stream: 9, part: (0, 1) });
        check(&case(Attention { dropout, ..plain }, None));
        check(&case(Attention { dropout, is_causal: true, ..plain }, Some([1, 1, tq, tk])));
    }
}

#[test]
fn every_instruction_set_is_right() {
    crate::simd::for_every_isa(|_| {
        let dropout = Some(Dropout { probability: 0.5, seed: 1, stream: 2, part: (0, 1) });
        let case = case(Attention { is_causal: true, dropout, ..shape(1, 2, 70, 140, 24) }, None);
        let expected = oracle(&case);
        let ours = run(&case, 1);
        for (ours, expected) in ours.iter().zip([&expected.out, &expected.lse, &expected.dq]) {
            for (&a, &b) in ours.iter().zip(expected) {
                assert!((f64::from(a) - b).abs() <= 2e-5 * (1.0 + b.abs()), "{a} {b}");
            }
        }
    });
}

#[test]
fn packed_operands_need_no_copies() {
    let shape = Attention { is_causal: true, ..shape(2, 3, 70, 70, 16) };
    let dense = case(shape, None);
    let (time, heads, dim) = (70, 3, 16);
    let mut qkv = vec![0.0; 3 * dense.q.len()];
    for (part, data) in [&dense.q, &dense.k, &dense.v].into_iter().enumerate() {
        for (row, data) in data.chunks(heads * dim).enumerate() {
            qkv[(row * 3 + part) * heads * dim..][..heads * dim].copy_from_slice(data);
        }
    }
    let expected = run(&dense, 1);
    let pool = Pool::new(2);
    let strides = Strides::dense(time, heads, dim);
    let [q, k, v] = Heads::split(&qkv, time, heads, dim);
    let (mut out, mut lse) = (vec![0.0; dense.q.len()], vec![0.0; shape.lse_len()]);
    let len = shape.forward_scratch_len(2).max(shape.backward_scratch_len(2));
    let mut scratch = vec![0.0; len];
    shape.forward(&pool, q, k, v, None, HeadsMut::new(&mut out, strides), &mut lse, &mut scratch);
    assert_eq!(out, expected[0]);
    let mut gradient = vec![0.0; qkv.len()];
    let [dq, dk, dv] = HeadsMut::split(&mut gradient, time, heads, dim);
    let outs = (Heads::new(&out, strides), Heads::new(&dense.d_out, strides));
    shape.backward(&pool, (q, k, v), None, outs, &lse, (dq, dk, dv), &mut scratch);
    for (part, data) in expected[2..].iter().enumerate() {
        for (row, data) in data.chunks(heads * dim).enumerate() {
            assert_eq!(&gradient[(row * 3 + part) * heads * dim..][..heads * dim], data);
        }
    }
}

#[test]
fn gradients_agree_with_finite_differences() {
    let base = case(shape(1, 2, 4, 5, 3), Some([1, 1, 4, 5]));
    let ours = run(&base, 1);
    let loss = |case: &Case| -> f64 {
        let out = oracle(case).out;
        out.iter().zip(&case.d_out).map(|(o, g)| o * f64::from(*g)).sum()
    };
    let step = 1.0 / 1024.0;
    for (part, pick) in [
        (|case: &mut Case| &mut case.q) as fn(&mut Case) -> &mut Vec<f32>,
        |case| &mut case.k,
        |case| &mut case.v,
    ]
    .into_iter()
    .enumerate()
    {
        for i in 0..pick(&mut base.clone()).len() {
            let (mut more, mut less) = (base.clone(), base.clone());
            let width = {
                pick(&mut more)[i] += step;
                pick(&mut less)[i] -= step;
                f64::from(pick(&mut more)[i]) - f64::from(pick(&mut less)[i])
            };
            let slope = (loss(&more) - loss(&less)) / width;
            assert!((slope - f64::from(ours[2 + part][i])).abs() < 1e-4, "{part} {i}");
        }
    }
}
