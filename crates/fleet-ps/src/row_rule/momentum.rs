//! v = mu v + g; w -= lr v, or lr (g + mu v) with Nesterov. State: v.

use super::{How, RowRule};
use fleet_kernels::optim::{MomentumOp, Run, update_run};
use fleet_kernels::simd::Simd;
use fleet_table::rule::Momentum;

impl RowRule for Momentum {
    fn state_len(self, len: usize) -> usize {
        len
    }

    #[inline(always)]
    fn apply<S: Simd>(self, s: S, run: Run<'_>, _shows: f32, how: How) {
        let (lr, mu) = (self.lr * how.rate_scale, self.mu);
        match self.nesterov {
            true => update_run(s, MomentumOp::<true> { lr, mu }, run, how.bounds),
            false => update_run(s, MomentumOp::<false> { lr, mu }, run, how.bounds),
        }
    }
}
