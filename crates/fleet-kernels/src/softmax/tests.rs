use super::*;
use crate::simd::for_every_isa;
use fleet_base::rng::Sequence;

const SHAPES: [(usize, usize); 6] = [(1, 1), (3, 5), (7, 16), (5, 33), (300, 128), (2, 20_001)];

fn numbers(len: usize, salt: u64) -> Vec<f32> {
    let mut random = Sequence::new(4, salt);
    (0..len).map(|_| (random.unit() * 8.0 - 4.0) as f32).collect()
}

fn reference(x: &[f32]) -> Vec<f64> {
    let max = x.iter().copied().fold(f32::MIN, f32::max);
    let e: Vec<f64> = x.iter().map(|x| (f64::from(*x) - f64::from(max)).exp()).collect();
    let sum: f64 = e.iter().sum();
    e.iter().map(|e| e / sum).collect()
}

fn near(got: f32, expected: f64, tolerance: f64) {
    let error = (f64::from(got) - expected).abs();
    assert!(error <= tolerance * expected.abs().max(1e-3), "{got} for {expected}");
}

#[test]
fn softmax_and_its_logarithm_both_ways() {
    for_every_isa(|_| {
        let pool = Pool::new(1);
        for (rows, len) in SHAPES {
            let x = numbers(rows * len, 1);
            let dy = numbers(rows * len, 2);
            let (mut y, mut logs) = (vec![0.0; x.len()], vec![0.0; x.len()]);
            let (mut dx, mut dlogs) = (vec![0.0; x.len()], vec![0.0; x.len()]);
            softmax(&pool, &x, len, &mut y);
            log_softmax(&pool, &x, len, &mut logs);
            softmax_grad(&pool, &y, &dy, len, &mut dx);
            log_softmax_grad(&pool, &logs, &dy, len, &mut dlogs);
            for row in 0..rows {
                let part = row * len..(row + 1) * len;
                let p = reference(&x[part.clone()]);
                let dy: Vec<f64> = dy[part.clone()].iter().map(|d| f64::from(*d)).collect();
                let dot: f64 = p.iter().zip(&dy).map(|(p, d)| p * d).sum();
                let sum: f64 = dy.iter().sum();
                for (k, i) in part.enumerate() {
                    near(y[i], p[k], 2e-6);
                    near(logs[i], p[k].ln(), 2e-6);
                    near(dx[i], p[k] * (dy[k] - dot), 1e-3);
                    near(dlogs[i], dy[k] - p[k] * sum, 1e-3);
                }
            }
            let mut inplace = x.clone();
            softmax(&pool, Input::Output, len, &mut inplace);
            assert_eq!(inplace, y);
        }
    });
}

#[test]
fn huge_and_masked_logits() {
    let mut y = [0.0; 4];
    softmax(&Pool::new(1), &[1e30, -1e30, f32::NEG_INFINITY, 1e30], 4, &mut y);
    assert_eq!(y, [0.5, 0.0, 0.0, 0.5]);
}

#[test]
fn cross_entropy_with_hard_and_soft_labels() {
    for_every_isa(|_| {
        let pool = Pool::new(1);
        for (rows, len) in SHAPES {
            let x = numbers(rows * len, 3);
            let labels: Vec<i64> =
                (0..rows).map(|r| if r % 5 == 4 { -100 } else { (r * 7 % len) as i64 }).collect();
            let dloss = numbers(rows, 4);
            let (mut p, mut loss) = (vec![0.0; x.len()], vec![0.0; rows]);
            softmax_cross_entropy(&pool, &x, &labels, -100, &mut p, &mut loss).unwrap();
            let mut dx = vec![f32::NAN; x.len()];
            softmax_cross_entropy_grad(&pool, &p, &labels, -100, &dloss, &mut dx).unwrap();
            let soft: Vec<f32> = numbers(x.len(), 5).iter().map(|v| v.abs() * 0.1).collect();
            let (mut p2, mut loss2) = (vec![0.0; x.len()], vec![0.0; rows]);
            softmax_cross_entropy_soft(&pool, &x, &soft, &mut p2, &mut loss2);
            assert_eq!(p, p2);
            let mut dx2 = vec![f32::NAN; x.len()];
            softmax_cross_entropy_soft_grad(&pool, &p, &soft, &dloss, &mut dx2);
            for row in 0..rows {
                let expected = reference(&x[row * len..(row + 1) * len]);
                let ignored = labels[row] == -100;
                let soft = &soft[row * len..(row + 1) * len];
                let total: f64 = soft.iter().map(|v| f64::from(*v)).sum();
                let value: f64 =
                    soft.iter().zip(&expected).map(|(l, p)| -f64::from(*l) * p.ln()).sum();
                near(loss2[row], value, 1e-4);
                let value = if ignored { 0.0 } else { -expected[labels[row] as usize].ln() };
                near(loss[row], value, 1e-5);
                for k in 0..len {
                    let weight = f64::from(dloss[row]);
                    let one = if k as i64 == labels[row] { 1.0 } else { 0.0 };
                    let d = if ignored { 0.0 } else { (expected[k] - one) * weight };
                    near(dx[row * len + k], d, 1e-3);
                    let d = (expected[k] * total - f64::from(soft[k])) * weight;
                    near(dx2[row * len + k], d, 2e-3);
                }
            }
        }
    });
    let error =
        softmax_cross_entropy(&Pool::new(1), &[0.0; 3], &[3], -100, &mut [0.0; 3], &mut [0.0])
            .unwrap_err();
    assert!(error.to_string().contains("label out of range"));
}

#[test]
fn point_losses() {
    for_every_isa(|_| {
        let pool = Pool::new(1);
        let x = numbers(1003, 6);
        let dloss = numbers(1003, 7);
        let labels: Vec<f32> = (0..x.len()).map(|i| [0.0, 1.0, 0.3, -1.0][i % 4]).collect();
        let (mut loss, mut dx) = (vec![0.0; x.len()], vec![0.0; x.len()]);
        sigmoid_cross_entropy(&pool, &x, &labels, Some(-1.0), &mut loss);
        sigmoid_cross_entropy_grad(&pool, &x, &labels, Some(-1.0), &dloss, &mut dx);
        let p: Vec<f32> = x.iter().map(|x| 1.0 / (1.0 + (-x).exp())).collect();
        let (mut loss2, mut dp) = (vec![0.0; x.len()], vec![0.0; x.len()]);
        log_loss(&pool, &p, &labels, 1e-4, &mut loss2);
        log_loss_grad(&pool, &p, &labels, 1e-4, &dloss, &mut dp);
        for i in 0..x.len() {
            let (x, l, d) = (f64::from(x[i]), f64::from(labels[i]), f64::from(dloss[i]));
            let kept = if l == -1.0 { 0.0 } else { 1.0 };
            near(loss[i], kept * (x.exp().ln_1p() - x * l), 1e-4);
            near(dx[i], kept * d * (1.0 / (1.0 + (-x).exp()) - l), 1e-4);
            let (p, e) = (f64::from(p[i]), 1e-4);
            near(loss2[i], -l * (p + e).ln() - (1.0 - l) * (1.0 - p + e).ln(), 1e-4);
            near(dp[i], d * ((1.0 - l) / (1.0 - p + e) - l / (p + e)), 1e-4);
        }
    });
}

#[test]
fn threads_change_nothing() {
    let x = numbers(3001 * 37, 8);
    let run = |threads| {
        let mut y = vec![0.0; x.len()];
        softmax(&Pool::new(threads), &x, 37, &mut y);
        y
    };
    assert!(run(1) == run(3));
}
