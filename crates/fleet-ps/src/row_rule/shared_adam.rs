//! Adam with one moment of each order per row: m_i = b1 m + (1 - b1) g_i and v_i likewise give the
//! step; then m and v become the means of m_i and v_i. State: m, v, b1^t, b2^t.
//!
//! No optimizer of whole tensors has shared moments, so this formula is here alone.

use super::{How, Row, RowRule, clamp};
use fleet_kernels::for_registers;
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
    unsafe fn apply<S: Simd>(self, s: S, row: Row, len: usize, how: How) {
        let (rest1, rest2) = (s.splat(1.0 - self.beta1), s.splat(1.0 - self.beta2));
        // SAFETY: the state is 4 floats, the row `len`.
        unsafe {
            let state = row.state;
            let (power1, power2) = (*state.add(2), *state.add(3));
            let lr = self.lr * how.rate_scale * (1.0 - power2).sqrt() / (1.0 - power1);
            let (lr, epsilon) = (s.splat(lr), s.splat(self.epsilon));
            let (old1, old2) = (s.splat(self.beta1 * *state), s.splat(self.beta2 * *state.add(1)));
            let (mut sum1, mut sum2) = (s.zero(), s.zero());
            for_registers!(S, len, |i, n| {
                let w = row.weights.add(i);
                let g = s.load_n(row.grad.add(i), n);
                let first = s.fma(rest1, g, old1);
                let second = s.fma(rest2, s.mul(g, g), old2);
                sum1 = s.add(sum1, s.keep_first(first, n));
                sum2 = s.add(sum2, s.keep_first(second, n));
                let step = s.div(s.mul(lr, first), s.add(s.sqrt(second), epsilon));
                s.store_n(w, clamp(s, s.sub(s.load_n(w, n), step), how), n);
            });
            *state = s.sum(sum1) / len as f32;
            *state.add(1) = s.sum(sum2) / len as f32;
            *state.add(2) = power1 * self.beta1;
            *state.add(3) = power2 * self.beta2;
        }
    }
}
