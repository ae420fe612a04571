//! s = g / shows; w -= lr s √(g0 / (g0 + g2)); then g2 += mean(s²). State: g2, one number a row.
//!
//! The step is that of sgd at a rate of the row. The mean over the row is the only part of the
//! formula that is not in `fleet-kernels`.

use super::{How, Row, RowRule, clamp};
use fleet_kernels::for_registers;
use fleet_kernels::optim::{SgdOp, UpdateOp};
use fleet_kernels::simd::Simd;
use fleet_table::rule::CtrAdagrad;

impl RowRule for CtrAdagrad {
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
            let op = SgdOp { lr: self.lr * how.rate_scale * shrink };
            let mut squares = s.zero();
            for_registers!(S, len, |i, n| {
                let w = row.weights.add(i);
                let g = s.mul(s.load_n(row.grad.add(i), n), scale);
                squares = s.fma(g, g, squares);
                let new = op.update(s, s.load_n(w, n), g, &mut [s.zero(); 3]);
                s.store_n(w, clamp(s, new, how), n);
            });
            *row.state = g2 + s.sum(squares) / len as f32;
        }
    }
}
