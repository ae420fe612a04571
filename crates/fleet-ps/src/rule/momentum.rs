//! v = mu v + g; w -= lr v, or lr (g + mu v) with Nesterov. State: v.

use super::{DECAY, How, Parameter, RATE, Row, RowRule, clamp};
use fleet_kernels::for_registers;
use fleet_kernels::simd::Simd;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Momentum {
    pub lr: f32,
    pub mu: f32,
    pub nesterov: bool,
}

impl Default for Momentum {
    fn default() -> Self {
        Momentum { lr: 0.05, mu: 0.9, nesterov: false }
    }
}

impl RowRule for Momentum {
    fn name(self) -> &'static str {
        "momentum"
    }

    fn parameters(self) -> Vec<Parameter> {
        vec![("lr", self.lr, RATE), ("mu", self.mu, DECAY)]
    }

    fn state_len(self, len: usize) -> usize {
        len
    }

    #[inline(always)]
    unsafe fn apply<S: Simd>(self, s: S, row: Row, len: usize, how: How) {
        let (lr, mu) = (s.splat(self.lr * how.rate_scale), s.splat(self.mu));
        for_registers!(S, len, |i, n| {
            // SAFETY: `n` floats from `i` on are inside the row.
            unsafe {
                let (w, v) = (row.weights.add(i), row.state.add(i));
                let g = s.load_n(row.grad.add(i), n);
                let speed = s.fma(mu, s.load_n(v, n), g);
                s.store_n(v, speed, n);
                let step = if self.nesterov { s.fma(mu, speed, g) } else { speed };
                s.store_n(w, clamp(s, s.neg_fma(lr, step, s.load_n(w, n)), how), n);
            }
        });
    }
}
