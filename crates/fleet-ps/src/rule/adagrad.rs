//! h += g²; w -= lr g / (√h + epsilon). State: h.

use super::{How, Parameter, RATE, Row, RowRule, clamp};
use fleet_kernels::for_registers;
use fleet_kernels::simd::Simd;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Adagrad {
    pub lr: f32,
    pub epsilon: f32,
    /// h of a new row.
    pub initial_accumulator: f32,
}

impl Default for Adagrad {
    fn default() -> Self {
        Adagrad { lr: 0.05, epsilon: 1e-6, initial_accumulator: 0.0 }
    }
}

impl RowRule for Adagrad {
    fn name(self) -> &'static str {
        "adagrad"
    }

    fn parameters(self) -> Vec<Parameter> {
        let positive = (0.0, f32::MAX);
        vec![
            ("lr", self.lr, RATE),
            ("epsilon", self.epsilon, positive),
            ("initial_accumulator", self.initial_accumulator, positive),
        ]
    }

    fn state_len(self, len: usize) -> usize {
        len
    }

    fn init_state(self, _len: usize, state: &mut [f32]) {
        state.fill(self.initial_accumulator);
    }

    #[inline(always)]
    unsafe fn apply<S: Simd>(self, s: S, row: Row, len: usize, how: How) {
        let (lr, epsilon) = (s.splat(self.lr * how.rate_scale), s.splat(self.epsilon));
        for_registers!(S, len, |i, n| {
            // SAFETY: `n` floats from `i` on are inside the row.
            unsafe {
                let (w, h) = (row.weights.add(i), row.state.add(i));
                let g = s.load_n(row.grad.add(i), n);
                let sum = s.fma(g, g, s.load_n(h, n));
                s.store_n(h, sum, n);
                // Where h is 0, g is: without the guard, an epsilon of 0 would make 0 / 0.
                let moved = s.gt(sum, s.zero());
                let step = s.div(s.mul(lr, g), s.add(s.sqrt(sum), epsilon));
                let step = s.select(moved, step, s.mul(g, s.zero()));
                s.store_n(w, clamp(s, s.sub(s.load_n(w, n), step), how), n);
            }
        });
    }
}
