//! Adam with one moment of each order per row: m_i = b1 m + (1 - b1) g_i and v_i likewise give the
//! step; then m and v become the means of m_i and v_i. State: m, v, b1^t, b2^t.

use super::{How, RowRule};
use fleet_kernels::optim::{Run, SharedAdamOp, shared_adam};
use fleet_kernels::simd::Simd;
use fleet_table::rule::SharedAdam;

impl RowRule for SharedAdam {
    fn state_len(self, _len: usize) -> usize {
        4
    }

    fn init_state(self, _len: usize, state: &mut [f32]) {
        state.copy_from_slice(&[0.0, 0.0, self.beta1, self.beta2]);
    }

    #[inline(always)]
    fn apply<S: Simd>(self, s: S, run: Run<'_>, _shows: f32, how: How) {
        let (moments, powers) = run.state.split_at_mut(2);
        let (power1, power2) = (powers[0], powers[1]);
        let op = SharedAdamOp {
            beta1: self.beta1,
            beta2: self.beta2,
            rate: self.lr * how.rate_scale * (1.0 - power2).sqrt() / (1.0 - power1),
            epsilon: self.epsilon,
        };
        let old = [moments[0], moments[1]];
        let run = Run { state: &mut [], ..run };
        moments.copy_from_slice(&shared_adam(s, op, old, run, how.bounds));
        powers[0] = power1 * self.beta1;
        powers[1] = power2 * self.beta2;
    }
}
