use super::*;
use crate::simd::for_every_isa;
use crate::vmath::tests::erf_f64;
use fleet_base::rng::Sequence;

type Case = (Unary, fn(f64) -> f64);

fn cases() -> Vec<Case> {
    vec![
        (Unary::Relu, |x| x.max(0.0)),
        (Unary::Relu6, |x| x.clamp(0.0, 6.0)),
        (Unary::LeakyRelu { slope: 0.1 }, |x| if x > 0.0 { x } else { f64::from(0.1f32) * x }),
        (Unary::Sigmoid, |x| 1.0 / (1.0 + (-x).exp())),
        (Unary::LogSigmoid, |x| -(-x).exp().ln_1p()),
        (Unary::Tanh, f64::tanh),
        (Unary::Gelu, |x| 0.5 * x * (1.0 + erf_f64(x / 2f64.sqrt()))),
        (Unary::GeluTanh, |x| {
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
            0.5 * x * (1.0 + inner.tanh())
        }),
        (Unary::Exp, f64::exp),
        (Unary::Log, f64::ln),
        (Unary::Sqrt, f64::sqrt),
        (Unary::Rsqrt, |x| 1.0 / x.sqrt()),
        (Unary::Square, |x| x * x),
        (Unary::Abs, f64::abs),
        (Unary::Neg, |x| -x),
        (Unary::Reciprocal, |x| 1.0 / x),
        (Unary::Softplus { beta: 2.0, threshold: 15.0 }, |x| (2.0 * x).exp().ln_1p() / 2.0),
        (Unary::Softsign, |x| x / (1.0 + x.abs())),
        (Unary::HardSigmoid { slope: 0.25, offset: 0.5 }, |x| (0.25 * x + 0.5).clamp(0.0, 1.0)),
        (Unary::HardSwish { threshold: 6.0, scale: 6.0, offset: 3.0 }, |x| {
            x * (x + 3.0).clamp(0.0, 6.0) / 6.0
        }),
        (Unary::Swish { beta: 1.5 }, |x| x / (1.0 + (-1.5 * x).exp())),
        (Unary::Elu { alpha: 0.5 }, |x| if x > 0.0 { x } else { 0.5 * x.exp_m1() }),
        (Unary::Selu { scale: 1.25, alpha: 1.5 }, |x| {
            1.25 * if x > 0.0 { x } else { 1.5 * x.exp_m1() }
        }),
        (Unary::Sign, |x| if x == 0.0 { 0.0 } else { x.signum() }),
        (Unary::Floor, f64::floor),
        (Unary::Ceil, f64::ceil),
        (Unary::Round, f64::round),
        (Unary::Pow { exponent: 3.0 }, |x| x.powi(3)),
        (Unary::Scale { scale: -2.5, bias: 0.5 }, |x| -2.5 * x + 0.5),
        (Unary::Clip { min: -1.0, max: 1.5 }, |x| x.clamp(-1.0, 1.5)),
        (Unary::Sin, f64::sin),
        (Unary::Cos, f64::cos),
        (Unary::Erf, erf_f64),
    ]
}

fn inputs(op: Unary, len: usize) -> Vec<f32> {
    let mut random = Sequence::new(3, 5);
    let positive = matches!(op, Unary::Log | Unary::Sqrt | Unary::Rsqrt);
    (0..len)
        .map(|_| {
            let x = random.unit() * 14.0 - 7.0;
            // Avoid zero, where some functions have a kink or a pole.
            let x = if x.abs() < 0.01 { 0.02 } else { x };
            (if positive { x.abs() } else { x }) as f32
        })
        .collect()
}

#[test]
fn values_agree_with_f64() {
    for_every_isa(|level| {
        let pool = Pool::new(1);
        for (op, reference) in cases() {
            for len in [0, 1, 7, 16, 33, 1000] {
                let x = inputs(op, len);
                let mut y = vec![f32::NAN; len];
                unary(&pool, op, &x, &mut y);
                for i in 0..len {
                    let expected = reference(f64::from(x[i]));
                    let error = (f64::from(y[i]) - expected).abs();
                    let bound = 4e-7 * expected.abs() + 1e-7;
                    assert!(error <= bound, "{op:?}({}) at {level:?}: {}", x[i], y[i]);
                }
                let mut inplace = x;
                unary(&pool, op, Input::Output, &mut inplace);
                assert_eq!(inplace, y);
            }
        }
    });
}

#[test]
fn gradients_agree_with_differences() {
    for_every_isa(|level| {
        let pool = Pool::new(1);
        for (op, reference) in cases() {
            let x = inputs(op, 331);
            let dy: Vec<f32> = (0..x.len()).map(|i| (i % 7) as f32 - 2.5).collect();
            let y: Vec<f32> = x.iter().map(|x| reference(f64::from(*x)) as f32).collect();
            let saved = match op.saved() {
                Saved::Input => &x,
                Saved::Output => &y,
                Saved::Nothing => &dy,
            };
            let mut dx = vec![f32::NAN; x.len()];
            unary_grad(&pool, op, saved, &dy, &mut dx);
            for i in 0..x.len() {
                let x = f64::from(x[i]);
                let h = 1e-5;
                let slope = (reference(x + h) - reference(x - h)) / (2.0 * h);
                let jump = reference(x + h) - 2.0 * reference(x) + reference(x - h);
                if jump.abs() > 1e-3 * h {
                    continue; // a kink or a step within h
                }
                let expected = slope * f64::from(dy[i]);
                let error = (f64::from(dx[i]) - expected).abs();
                assert!(
                    error <= 2e-5 * (1.0 + expected.abs()),
                    "{op:?}'({x}) at {level:?}: {} for {expected}",
                    dx[i]
                );
            }
            let mut inplace = dy.clone();
            unary_grad(&pool, op, saved, Input::Output, &mut inplace);
            assert_eq!(inplace, dx);
        }
    });
}

#[test]
fn threads_change_nothing() {
    let x = inputs(Unary::Tanh, 100_003);
    let run = |threads| {
        let mut y = vec![0.0; x.len()];
        unary(&Pool::new(threads), Unary::Gelu, &x, &mut y);
        y
    };
    assert!(run(1) == run(3));
}
