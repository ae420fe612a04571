//! s = g / shows; w -= lr s √(g0 / (g0 + g2)); then g2 += mean(s²). State: g2, one number a row.

use super::{How, Parameter, RATE, Row, RowRule, clamp};
use fleet_kernels::for_registers;
use fleet_kernels::simd::Simd;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CtrAdagrad {
    pub lr: f32,
    /// g0: the scale of squared gradients at which steps get shorter.
    pub initial_g2sum: f32,
}

impl Default for CtrAdagrad {
    fn default() -> Self {
        CtrAdagrad { lr: 0.05, initial_g2sum: 3.0 }
    }
}

impl RowRule for CtrAdagrad {
    fn name(self) -> &'static str {
        "ctr_adagrad"
    }

    fn parameters(self) -> Vec<Parameter> {
        let positive = (f32::MIN_POSITIVE, f32::MAX);
        vec![("lr", self.lr, RATE), ("initial_g2sum", self.initial_g2sum, positive)]
    }

    fn state_len(self, _len: usize) -> usize {
        1
    }

    #[inline(always)]
    unsafe fn apply<S: Simd>(self, s: S, row: Row, len: usize, how: How) {
        let scale = s.splat(1.0 / row.shows);
        // SAFETY: the state is one float, the row `len`.
        unsafe {
            let g2 = *row.state;
            let shrink = (self.initial_g2sum / (self.initial_g2sum + g2)).sqrt();
            let lr = s.splat(self.lr * how.rate_scale * shrink);
            let mut squares = s.zero();
            for_registers!(S, len, |i, n| {
                let w = row.weights.add(i);
                let g = s.mul(s.load_n(row.grad.add(i), n), scale);
                squares = s.fma(g, g, squares);
                s.store_n(w, clamp(s, s.neg_fma(lr, g, s.load_n(w, n)), how), n);
            });
            *row.state = g2 + s.sum(squares) / len as f32;
        }
    }
}
