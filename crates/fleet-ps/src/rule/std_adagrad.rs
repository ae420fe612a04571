//! s = g / shows; w -= lr s √(g0 / (g0 + g2)); then g2 += s², element by element. State: g2.

use super::{How, Parameter, RATE, Row, RowRule, clamp};
use fleet_kernels::for_registers;
use fleet_kernels::simd::Simd;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StdAdagrad {
    pub lr: f32,
    /// g0: the scale of squared gradients at which steps get shorter.
    pub initial_g2sum: f32,
}

impl Default for StdAdagrad {
    fn default() -> Self {
        StdAdagrad { lr: 0.05, initial_g2sum: 3.0 }
    }
}

impl RowRule for StdAdagrad {
    fn name(self) -> &'static str {
        "std_adagrad"
    }

    fn parameters(self) -> Vec<Parameter> {
        let positive = (f32::MIN_POSITIVE, f32::MAX);
        vec![("lr", self.lr, RATE), ("initial_g2sum", self.initial_g2sum, positive)]
    }

    fn state_len(self, len: usize) -> usize {
        len
    }

    #[inline(always)]
    unsafe fn apply<S: Simd>(self, s: S, row: Row, len: usize, how: How) {
        let scale = s.splat(1.0 / row.shows);
        let (lr, g0) = (s.splat(self.lr * how.rate_scale), s.splat(self.initial_g2sum));
        for_registers!(S, len, |i, n| {
            // SAFETY: `n` floats from `i` on are inside the row.
            unsafe {
                let (w, g2) = (row.weights.add(i), row.state.add(i));
                let g = s.mul(s.load_n(row.grad.add(i), n), scale);
                let sum = s.load_n(g2, n);
                let step = s.mul(s.mul(lr, g), s.sqrt(s.div(g0, s.add(g0, sum))));
                s.store_n(g2, s.fma(g, g, sum), n);
                s.store_n(w, clamp(s, s.sub(s.load_n(w, n), step), how), n);
            }
        });
    }
}
