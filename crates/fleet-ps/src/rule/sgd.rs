//! w -= lr g. No state.

use super::{How, Parameter, RATE, Row, RowRule, clamp};
use fleet_kernels::for_registers;
use fleet_kernels::simd::Simd;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sgd {
    pub lr: f32,
}

impl Default for Sgd {
    fn default() -> Self {
        Sgd { lr: 0.05 }
    }
}

impl RowRule for Sgd {
    fn name(self) -> &'static str {
        "sgd"
    }

    fn parameters(self) -> Vec<Parameter> {
        vec![("lr", self.lr, RATE)]
    }

    fn state_len(self, _len: usize) -> usize {
        0
    }

    #[inline(always)]
    unsafe fn apply<S: Simd>(self, s: S, row: Row, len: usize, how: How) {
        let lr = s.splat(self.lr * how.rate_scale);
        for_registers!(S, len, |i, n| {
            // SAFETY: `n` floats from `i` on are inside the row.
            unsafe {
                let (w, g) = (row.weights.add(i), s.load_n(row.grad.add(i), n));
                s.store_n(w, clamp(s, s.neg_fma(lr, g, s.load_n(w, n)), how), n);
            }
        });
    }
}
