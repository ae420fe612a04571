use super::*;
use crate::simd::for_every_isa;
use fleet_base::rng::Sequence;

const RULES: [Rule; 14] = [
    Rule::Sgd,
    Rule::Momentum { mu: 0.9, nesterov: false },
    Rule::Momentum { mu: 0.9, nesterov: true },
    Rule::Adam { beta1: 0.9, beta2: 0.99, epsilon: 1e-6 },
    Rule::AdamW { beta1: 0.9, beta2: 0.99, epsilon: 1e-6 },
    Rule::Adamax { beta1: 0.9, beta2: 0.99, epsilon: 1e-6 },
    Rule::Adagrad { epsilon: 1e-6 },
    Rule::Adadelta { rho: 0.95, epsilon: 1e-4 },
    Rule::RmsProp { rho: 0.95, epsilon: 1e-3, mu: 0.5, centered: false },
    Rule::RmsProp { rho: 0.95, epsilon: 1e-3, mu: 0.5, centered: true },
    Rule::Lars { mu: 0.9, coeff: 0.01, epsilon: 1e-6 },
    Rule::Lamb { beta1: 0.9, beta2: 0.99, epsilon: 1e-6, always_adapt: false },
    Rule::Lamb { beta1: 0.9, beta2: 0.99, epsilon: 1e-6, always_adapt: true },
    Rule::Sgd,
];

fn numbers(len: usize, salt: u64) -> Vec<f32> {
    let mut random = Sequence::new(4, salt);
    (0..len).map(|_| (random.unit() * 2.0 - 1.0) as f32).collect()
}

/// The formulas of the specification for one tensor, in f64.
fn reference(
    rule: Rule,
    lr: f64,
    (pow1, pow2): (f64, f64),
    decay: f64,
    w: &mut [f64],
    g: &[f64],
    state: &mut [Vec<f64>; 3],
) {
    let norm = |v: &[f64]| v.iter().map(|v| v * v).sum::<f64>().sqrt();
    let wide = f64::from;
    let (w_norm, g_norm) = (norm(w), norm(g));
    let mut r = vec![0.0; w.len()];
    for i in 0..w.len() {
        let [s0, s1, s2] = state;
        let (s0, s1, s2) = (&mut s0[i], &mut s1[i], &mut s2[i]);
        let g = g[i];
        match rule {
            Rule::Sgd => w[i] -= lr * g,
            Rule::Momentum { mu, nesterov } => {
                *s0 = wide(mu) * *s0 + g;
                w[i] -= lr * if nesterov { g + wide(mu) * *s0 } else { *s0 };
            }
            Rule::Adam { beta1, beta2, epsilon } | Rule::AdamW { beta1, beta2, epsilon } => {
                if matches!(rule, Rule::AdamW { .. }) {
                    w[i] *= 1.0 - lr * decay;
                }
                *s0 = wide(beta1) * *s0 + (1.0 - wide(beta1)) * g;
                *s1 = wide(beta2) * *s1 + (1.0 - wide(beta2)) * g * g;
                let root = (1.0 - pow2).sqrt();
                w[i] -= lr * root / (1.0 - pow1) * *s0 / (s1.sqrt() + wide(epsilon) * root);
            }
            Rule::Adamax { beta1, beta2, epsilon } => {
                *s0 = wide(beta1) * *s0 + (1.0 - wide(beta1)) * g;
                *s1 = g.abs().max(wide(beta2) * *s1 + wide(epsilon));
                w[i] -= lr / (1.0 - pow1) * *s0 / *s1;
            }
            Rule::Adagrad { epsilon } => {
                *s0 += g * g;
                w[i] -= lr * g / (s0.sqrt() + wide(epsilon));
            }
            Rule::Adadelta { rho, epsilon } => {
                *s0 = wide(rho) * *s0 + (1.0 - wide(rho)) * g * g;
                let d = -((*s1 + wide(epsilon)) / (*s0 + wide(epsilon))).sqrt() * g;
                *s1 = wide(rho) * *s1 + (1.0 - wide(rho)) * d * d;
                w[i] += lr * d;
            }
            Rule::RmsProp { rho, epsilon, mu, centered } => {
                *s0 = wide(rho) * *s0 + (1.0 - wide(rho)) * g * g;
                let mut square = *s0 + wide(epsilon);
                if centered {
                    *s2 = wide(rho) * *s2 + (1.0 - wide(rho)) * g;
                    square -= *s2 * *s2;
                }
                *s1 = wide(mu) * *s1 + lr * g / square.sqrt();
                w[i] -= *s1;
            }
            Rule::Lars { mu, coeff, epsilon } => {
                let local = if decay > 0.0 && w_norm > 0.0 && g_norm > 0.0 {
                    lr * wide(coeff) * w_norm / (g_norm + decay * w_norm + wide(epsilon))
                } else {
                    lr
                };
                *s0 = wide(mu) * *s0 + local * (g + decay * w[i]);
                w[i] -= *s0;
            }
            Rule::Lamb { beta1, beta2, epsilon, .. } => {
                *s0 = wide(beta1) * *s0 + (1.0 - wide(beta1)) * g;
                *s1 = wide(beta2) * *s1 + (1.0 - wide(beta2)) * g * g;
                let (m, v) = (*s0 / (1.0 - pow1), *s1 / (1.0 - pow2));
                r[i] = m / (v.sqrt() + wide(epsilon)) + decay * w[i];
            }
        }
    }
    if let Rule::Lamb { always_adapt, .. } = rule {
        let r_norm = norm(&r);
        let adapt = (decay > 0.0 || always_adapt) && w_norm > 0.0 && r_norm > 0.0;
        let trust = if adapt { w_norm / r_norm } else { 1.0 };
        for i in 0..w.len() {
            w[i] -= lr * trust * r[i];
        }
    }
}

const LENS: [usize; 5] = [1, 17, 400, 40_001, 3];

struct Model {
    params: Vec<Vec<f32>>,
    states: Vec<[Vec<f32>; 3]>,
}

fn settings(index: usize) -> (f32, Regularizer, f32) {
    match index % 4 {
        0 => (1.0, Regularizer::None, 0.01),
        1 => (0.5, Regularizer::L2(0.1), 0.0),
        2 => (2.0, Regularizer::L1(0.05), 0.02),
        _ => (1.0, Regularizer::L2(0.01), 0.01),
    }
}

fn model() -> Model {
    let params = LENS.iter().enumerate().map(|(i, len)| numbers(*len, i as u64)).collect();
    let states = LENS.iter().map(|len| [0; 3].map(|_| vec![0.0; *len])).collect();
    Model { params, states }
}

fn train(threads: usize, rule: Rule, steps: i32, grad_scale: f32) -> Model {
    let pool = Pool::new(threads);
    let mut model = model();
    for t in 1..=steps {
        let grads: Vec<Vec<f32>> = LENS.iter().map(|len| numbers(*len, 90 + t as u64)).collect();
        let segment = |(i, len): (usize, &usize)| {
            let (lr_scale, regularizer, weight_decay) = settings(i);
            Segment { lr_scale, ..Segment::new(*len, regularizer, weight_decay) }
        };
        let mut segments = Segments::new(LENS.iter().enumerate().map(segment).collect());
        assert_eq!(segments.len(), LENS.iter().sum::<usize>());
        let mut scratch = vec![f64::NAN; segments.scratch_len()];
        let step =
            Step { lr: 0.05, grad_scale, beta1_pow: 0.9f32.powi(t), beta2_pow: 0.99f32.powi(t) };
        let Model { params, states } = &mut model;
        let mut tensors =
            params.iter_mut().zip(states).zip(&grads).map(|((param, state), grad)| {
                let state = state.each_mut().map(|state| Some(&mut state[..]));
                Tensors { param, grad: Some(grad), state, powers: None }
            });
        segments.bind(|_| tensors.next().unwrap()).update(&pool, rule, step, &mut scratch);
    }
    model
}

#[test]
fn every_rule_follows_its_formula() {
    for_every_isa(|level| {
        for rule in RULES {
            let got = train(1, rule, 3, 0.5);
            let start = model();
            for (index, len) in LENS.iter().enumerate() {
                let (lr_scale, regularizer, decay) = settings(index);
                let mut w: Vec<f64> = start.params[index].iter().map(|w| f64::from(*w)).collect();
                let mut state = [0; 3].map(|_| vec![0f64; *len]);
                for t in 1..=3 {
                    let g: Vec<f64> = numbers(*len, 90 + t as u64)
                        .iter()
                        .zip(&w)
                        .map(|(g, w)| {
                            f64::from(*g) * 0.5
                                + match regularizer {
                                    Regularizer::None => 0.0,
                                    Regularizer::L1(c) => f64::from(c) * w.signum(),
                                    Regularizer::L2(c) => f64::from(c) * w,
                                }
                        })
                        .collect();
                    let pows = (f64::from(0.9f32).powi(t), f64::from(0.99f32).powi(t));
                    let lr = f64::from(0.05f32) * f64::from(lr_scale);
                    reference(rule, lr, pows, f64::from(decay), &mut w, &g, &mut state);
                }
                for i in 0..*len {
                    let (got, expected) = (f64::from(got.params[index][i]), w[i]);
                    assert!(
                        (got - expected).abs() <= 2e-5 * expected.abs().max(0.1),
                        "{rule:?} at {level:?}, tensor {index}: {got} for {expected}"
                    );
                }
            }
        }
    });
}

#[test]
fn threads_change_nothing() {
    for rule in RULES {
        let (one, three) = (train(1, rule, 2, 1.0), train(3, rule, 2, 1.0));
        assert!(one.params == three.params && one.states == three.states, "{rule:?}");
    }
}

#[test]
fn rows_are_updated_as_tensors_of_their_own() {
    for_every_isa(|_| {
        for width in [1, 8, 16, 19] {
            let rules = [RULES[0], RULES[1], RULES[2], RULES[3], RULES[6]];
            for rule in rules {
                let count = 300;
                let rows: Vec<i64> = (0..count as i64).filter(|r| r * 7 % 3 == 1).collect();
                let grads = numbers(rows.len() * width, 8);
                let pool = Pool::new(1);
                let mut param = numbers(count * width, 1);
                let mut states = [2, 3, 4].map(|salt| {
                    numbers(count * width, salt).iter().map(|v| v.abs()).collect::<Vec<_>>()
                });
                let (before, states_before) = (param.clone(), states.clone());
                let table = Table {
                    param: &mut param,
                    state: states.each_mut().map(|state| Some(&mut state[..])),
                    width,
                    regularizer: Regularizer::L2(0.01),
                    weight_decay: 0.0,
                };
                let step = Step { grad_scale: 0.5, ..Step::default() };
                update_rows(&pool, rule, step, table, &rows, &grads).unwrap();
                for row in 0..count {
                    let part = row * width..(row + 1) * width;
                    let Some(k) = rows.iter().position(|r| *r == row as i64) else {
                        assert_eq!(param[part.clone()], before[part]);
                        continue;
                    };
                    let mut w = before[part.clone()].to_vec();
                    let mut state = states_before.each_ref().map(|s| s[part.clone()].to_vec());
                    let grad = &grads[k * width..(k + 1) * width];
                    let slots = state.each_mut().map(|state| Some(&mut state[..]));
                    let segment = Segment::new(width, Regularizer::L2(0.01), 0.0);
                    let mut segments = Segments::new(vec![segment]);
                    let grad = Some(grad);
                    let mut tensors =
                        Some(Tensors { param: &mut w, grad, state: slots, powers: None });
                    segments.bind(|_| tensors.take().unwrap()).update(&pool, rule, step, &mut []);
                    assert_eq!(param[part.clone()], w);
                    assert_eq!(states[0][part], state[0]);
                }
            }
        }
    });
    let table = Table {
        param: &mut [0.0; 4],
        state: [None, None, None],
        width: 2,
        regularizer: Regularizer::None,
        weight_decay: 0.0,
    };
    let wrong = update_rows(&Pool::new(1), Rule::Sgd, Step::default(), table, &[2], &[0.0; 2]);
    assert_eq!(wrong, Err(2));
}
