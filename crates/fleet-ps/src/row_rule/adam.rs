//! m = b1 m + (1 - b1) g; v = b2 v + (1 - b2) g²; w -= lr √(1 - b2^t) / (1 - b1^t) m / (√v + e).
//!
//! e is epsilon √(1 - b2^t), as in the optimizer of that name, or plain epsilon, as in click
//! tables. t counts the pushes to the row, not the steps of the job: a rarely seen row takes steps
//! of full length (lazy). State: m, v, b1^t, b2^t. The powers start at b1 and b2 and are multiplied
//! after the step.

use super::formula::apply_op;
use super::{How, Row, RowRule};
use fleet_kernels::optim::RowAdamOp;
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
    unsafe fn apply<S: Simd>(self, s: S, row: Row, len: usize, how: How) {
        // SAFETY: promised by the caller; the state is `2 len + 2` floats.
        unsafe {
            let powers = row.state.add(2 * len);
            let (power1, power2) = (*powers, *powers.add(1));
            let root = (1.0 - power2).sqrt();
            let op = RowAdamOp {
                beta1: self.beta1,
                beta2: self.beta2,
                rate: self.lr * how.rate_scale * root / (1.0 - power1),
                epsilon: self.epsilon * if self.epsilon_corrected { root } else { 1.0 },
            };
            apply_op(s, op, row, len, how);
            *powers = power1 * self.beta1;
            *powers.add(1) = power2 * self.beta2;
        }
    }
}
