//! Every rule against its formula in f64, over several pushes and widths.

use super::*;
use crate::rule::{Adagrad, Adam, CtrAdagrad, Momentum, Sgd, SharedAdam, StdAdagrad};
use fleet_base::rng::Sequence;

/// Runs `pushes` random gradients through the rule and through `formula(w, state, g, shows)`.
fn check(rule: Rule, formula: impl Fn(&mut [f64], &mut [f64], &[f64], f64)) {
    for len in [1, 3, 8, 16, 19, 64] {
        let mut rng = Sequence::new(11, len as u64);
        let mut weights: Vec<f32> = (0..len).map(|_| rng.normal() as f32).collect();
        let mut state = vec![0.0f32; state_len(&rule, len)];
        init_state(&rule, len, &mut state);
        let mut w64: Vec<f64> = weights.iter().map(|w| f64::from(*w)).collect();
        let mut s64: Vec<f64> = state.iter().map(|s| f64::from(*s)).collect();
        for push in 0..7 {
            let grad: Vec<f32> = (0..len).map(|_| rng.normal() as f32).collect();
            let shows = (1 + push % 3) as f32;
            let run = Run { weights: &mut weights, state: &mut state, grad: &grad };
            let how = How { rate_scale: 1.0, bounds: [f32::NEG_INFINITY, f32::INFINITY] };
            update(&rule, run, shows, how);
            let g64: Vec<f64> = grad.iter().map(|g| f64::from(*g)).collect();
            formula(&mut w64, &mut s64, &g64, f64::from(shows));
        }
        for (got, want) in weights.iter().zip(&w64).chain(state.iter().zip(&s64)) {
            let error = (f64::from(*got) - want).abs();
            assert!(error <= 5e-6 * (1.0 + want.abs()), "{} x {len}: {got} {want}", rule.name());
        }
    }
}

#[test]
fn sgd() {
    check(Rule::Sgd(Sgd { lr: 0.1 }), |w, _, g, _| {
        w.iter_mut().zip(g).for_each(|(w, g)| *w -= 0.1 * g);
    });
}

#[test]
fn momentum_plain_and_nesterov() {
    for nesterov in [false, true] {
        check(Rule::Momentum(Momentum { lr: 0.1, mu: 0.9, nesterov }), |w, v, g, _| {
            for i in 0..w.len() {
                v[i] = 0.9 * v[i] + g[i];
                w[i] -= 0.1 * if nesterov { g[i] + 0.9 * v[i] } else { v[i] };
            }
        });
    }
}

#[test]
fn adagrad() {
    check(
        Rule::Adagrad(Adagrad { lr: 0.1, epsilon: 1e-6, initial_accumulator: 0.25 }),
        |w, h, g, _| {
            for i in 0..w.len() {
                h[i] += g[i] * g[i];
                w[i] -= 0.1 * g[i] / (h[i].sqrt() + 1e-6);
            }
        },
    );
}

#[test]
fn ctr_adagrad_divides_by_shows_and_shares_its_sum() {
    check(Rule::CtrAdagrad(CtrAdagrad { lr: 0.1, initial_g2sum: 3.0 }), |w, g2, g, shows| {
        let shrink = (3.0 / (3.0 + g2[0])).sqrt();
        for i in 0..w.len() {
            w[i] -= 0.1 * g[i] / shows * shrink;
        }
        g2[0] += g.iter().map(|g| (g / shows).powi(2)).sum::<f64>() / w.len() as f64;
    });
}

#[test]
fn std_adagrad() {
    check(Rule::StdAdagrad(StdAdagrad { lr: 0.1, initial_g2sum: 3.0 }), |w, g2, g, shows| {
        for i in 0..w.len() {
            let scaled = g[i] / shows;
            w[i] -= 0.1 * scaled * (3.0 / (3.0 + g2[i])).sqrt();
            g2[i] += scaled * scaled;
        }
    });
}

#[test]
fn adam_both_epsilons() {
    for epsilon_corrected in [false, true] {
        let rule = Adam { lr: 0.01, epsilon: 1e-3, epsilon_corrected, ..Adam::default() };
        check(Rule::Adam(rule), |w, state, g, _| {
            let len = w.len();
            let (power1, power2) = (state[2 * len], state[2 * len + 1]);
            let root = (1.0 - power2).sqrt();
            let epsilon = 1e-3 * if epsilon_corrected { root } else { 1.0 };
            for i in 0..len {
                state[i] = 0.9 * state[i] + 0.1 * g[i];
                state[len + i] = 0.999 * state[len + i] + 0.001 * g[i] * g[i];
                let step = root / (1.0 - power1) * state[i] / (state[len + i].sqrt() + epsilon);
                w[i] -= 0.01 * step;
            }
            state[2 * len] *= 0.9;
            state[2 * len + 1] *= 0.999;
        });
    }
}

#[test]
fn shared_adam_keeps_the_means() {
    let rule = SharedAdam { lr: 0.01, ..SharedAdam::default() };
    check(Rule::SharedAdam(rule), |w, state, g, _| {
        let len = w.len() as f64;
        let lr = 0.01 * (1.0 - state[3]).sqrt() / (1.0 - state[2]);
        let (mut sum1, mut sum2) = (0.0, 0.0);
        for i in 0..w.len() {
            let first = 0.9 * state[0] + 0.1 * g[i];
            let second = 0.999 * state[1] + 0.001 * g[i] * g[i];
            w[i] -= lr * first / (second.sqrt() + 1e-8);
            sum1 += first;
            sum2 += second;
        }
        (state[0], state[1]) = (sum1 / len, sum2 / len);
        state[2] *= 0.9;
        state[3] *= 0.999;
    });
}

#[test]
fn first_step_of_adam_is_the_rate() {
    let rule = Rule::Adam(Adam { lr: 0.01, ..Adam::default() });
    let (mut weights, mut state, grad) = ([1.0f32], [0.0f32; 4], [0.3f32]);
    init_state(&rule, 1, &mut state);
    let run = Run { weights: &mut weights, state: &mut state, grad: &grad };
    let how = How { rate_scale: 0.5, bounds: [f32::NEG_INFINITY, f32::INFINITY] };
    update(&rule, run, 1.0, how);
    assert!((weights[0] - 0.995).abs() < 1e-6, "{}", weights[0]);
}

#[test]
fn weights_stay_in_bounds() {
    let (mut weights, grad) = ([1.0f32, -1.0], [-100.0f32, 100.0]);
    let run = Run { weights: &mut weights, state: &mut [], grad: &grad };
    let how = How { rate_scale: 1.0, bounds: [-10.0, 10.0] };
    update(&Rule::Sgd(Sgd { lr: 1.0 }), run, 1.0, how);
    assert_eq!(weights, [10.0, -10.0]);
}

#[test]
fn senseless_parameters_are_refused() {
    for rule in [
        Rule::Sgd(Sgd { lr: f32::NAN }),
        Rule::Sgd(Sgd { lr: -1.0 }),
        Rule::Adam(Adam { beta2: 1.0, ..Adam::default() }),
        Rule::CtrAdagrad(CtrAdagrad { initial_g2sum: 0.0, ..CtrAdagrad::default() }),
    ] {
        let error = rule.check().unwrap_err().to_string();
        assert!(error.contains(rule.name()), "{error}");
    }
}
