//! m = b1 m + (1 - b1) g; v = b2 v + (1 - b2) g²; w -= lr √(1 - b2^t) / (1 - b1^t) m / (√v + e).
//!
//! e is epsilon √(1 - b2^t), as in the optimizer of that name, or plain epsilon, as in click
//! tables. t counts the pushes to the row, not the steps of the job: a rarely seen row takes steps
//! of full length (lazy). State: m, v, b1^t, b2^t. The powers start at b1 and b2 and are multiplied
//! after the step.

use super::{DECAY, How, Parameter, RATE, Row, RowRule, clamp};
use fleet_kernels::for_registers;
use fleet_kernels::simd::Simd;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Adam {
    pub lr: f32,
    pub beta1: f32,
    pub beta2: f32,
    pub epsilon: f32,
    /// Whether epsilon is multiplied by √(1 - b2^t).
    pub epsilon_corrected: bool,
}

impl Default for Adam {
    fn default() -> Self {
        Adam { lr: 1e-3, beta1: 0.9, beta2: 0.999, epsilon: 1e-8, epsilon_corrected: true }
    }
}

impl RowRule for Adam {
    fn name(self) -> &'static str {
        "adam"
    }

    fn parameters(self) -> Vec<Parameter> {
        vec![
            ("lr", self.lr, RATE),
            ("beta1", self.beta1, DECAY),
            ("beta2", self.beta2, DECAY),
            ("epsilon", self.epsilon, (f32::MIN_POSITIVE, f32::MAX)),
        ]
    }

    fn state_len(self, len: usize) -> usize {
        2 * len + 2
    }

    fn init_state(self, len: usize, state: &mut [f32]) {
        state.fill(0.0);
        state[2 * len] = self.beta1;
        state[2 * len + 1] = self.beta2;
    }

    #[inline(always)]
    unsafe fn apply<S: Simd>(self, s: S, row: Row, len: usize, how: How) {
        let (b1, b2) = (s.splat(self.beta1), s.splat(self.beta2));
        let (rest1, rest2) = (s.splat(1.0 - self.beta1), s.splat(1.0 - self.beta2));
        // SAFETY: the state is `2 len + 2` floats, the row `len`.
        unsafe {
            let (m, v, powers) = (row.state, row.state.add(len), row.state.add(2 * len));
            let (power1, power2) = (*powers, *powers.add(1));
            let root = (1.0 - power2).sqrt();
            let lr = s.splat(self.lr * how.rate_scale * root / (1.0 - power1));
            let epsilon = self.epsilon * if self.epsilon_corrected { root } else { 1.0 };
            let epsilon = s.splat(epsilon);
            for_registers!(S, len, |i, n| {
                let w = row.weights.add(i);
                let g = s.load_n(row.grad.add(i), n);
                let first = s.fma(b1, s.load_n(m.add(i), n), s.mul(rest1, g));
                let second = s.fma(b2, s.load_n(v.add(i), n), s.mul(rest2, s.mul(g, g)));
                s.store_n(m.add(i), first, n);
                s.store_n(v.add(i), second, n);
                let step = s.div(s.mul(lr, first), s.add(s.sqrt(second), epsilon));
                s.store_n(w, clamp(s, s.sub(s.load_n(w, n), step), how), n);
            });
            *powers = power1 * self.beta1;
            *powers.add(1) = power2 * self.beta2;
        }
    }
}
