//! s = g / shows; w -= lr s √(g0 / (g0 + g2)); then g2 += mean(s²). State: g2, one number a row.
//!
//! The step is that of sgd at a rate of the row.

use super::{How, RowRule};
use fleet_kernels::optim::{Run, sgd_with_mean_square};
use fleet_kernels::simd::Simd;
use fleet_table::rule::CtrAdagrad;

impl RowRule for CtrAdagrad {
    fn state_len(self, _len: usize) -> usize {
        1
    }

    #[inline(always)]
    fn apply<S: Simd>(self, s: S, run: Run<'_>, shows: f32, how: How) {
        let g2 = run.state[0];
        let shrink = (self.initial_g2sum / (self.initial_g2sum + g2)).sqrt();
        let lr = self.lr * how.rate_scale * shrink;
        let (state, run) = (run.state, Run { state: &mut [], ..run });
        state[0] = g2 + sgd_with_mean_square(s, lr, 1.0 / shows, run, how.bounds);
    }
}
