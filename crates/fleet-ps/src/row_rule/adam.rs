//! m = b1 m + (1 - b1) g; v = b2 v + (1 - b2) g²; w -= lr √(1 - b2^t) / (1 - b1^t) m / (√v + e).
//!
//! e is epsilon √(1 - b2^t), as in the optimizer of that name, or plain epsilon, as in click
//! tables. t counts the pushes to the row, not the steps of the job: a rarely seen row takes steps
//! of full length (lazy). State: m, v, b1^t, b2^t. The powers start at b1 and b2 and are multiplied
//! after the step.

use super::{How, RowRule};
use fleet_kernels::optim::{RowAdamOp, Run, update_run};
use fleet_kernels::simd::Simd;
use fleet_table::rule::Adam;

impl RowRule for Adam {
    fn state_len(self, len: usize) -> usize {
        2 * len + 2
    }

    fn init_state(self, len: usize, state: &mut [f32]) {
        state.fill(0.0);
        state[2 * len] = self.beta1;
        state[2 * len + 1] = self.beta2;
    }

    #[inline(always)]
    fn apply<S: Simd>(self, s: S, run: Run<'_>, _shows: f32, how: How) {
        let (moments, powers) = run.state.split_at_mut(2 * run.weights.len());
        let (power1, power2) = (powers[0], powers[1]);
        let root = (1.0 - power2).sqrt();
        let op = RowAdamOp {
            beta1: self.beta1,
            beta2: self.beta2,
            rate: self.lr * how.rate_scale * root / (1.0 - power1),
            epsilon: self.epsilon * if self.epsilon_corrected { root } else { 1.0 },
        };
        update_run(s, op, Run { state: moments, ..run }, how.bounds);
        powers[0] = power1 * self.beta1;
        powers[1] = power2 * self.beta2;
    }
}
