//! Update rules of rows, one file per rule.
//!
//! A rule sees one run of weights with its state and its gradient: a row of a sparse table, the
//! embedding part of a click row, or a whole dense table. `lr` is the rule's own rate times the
//! table's ([`set_rate_scale`](crate::SparseTable::set_rate_scale)). Weights are clamped to the
//! table's bounds afterwards.

mod adagrad;
mod adam;
mod ctr_adagrad;
mod momentum;
mod sgd;
mod shared_adam;
mod std_adagrad;

pub use adagrad::Adagrad;
pub use adam::Adam;
pub use ctr_adagrad::CtrAdagrad;
pub use momentum::Momentum;
pub use sgd::Sgd;
pub use shared_adam::SharedAdam;
pub use std_adagrad::StdAdagrad;

use fleet_base::{Error, Result};
use fleet_kernels::kernel;
use fleet_kernels::simd::Simd;

/// An update rule.
///
/// ```
/// use fleet_ps::{Rule, rule::Adam};
/// let rule = Rule::Adam(Adam { lr: 1e-4, ..Adam::default() });
/// assert_eq!((rule.name(), rule.state_len(16)), ("adam", 34));
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rule {
    Sgd(Sgd),
    Momentum(Momentum),
    /// The common Adagrad optimizer.
    Adagrad(Adagrad),
    /// Adagrad for click models: one sum per row, gradients divided by shows.
    CtrAdagrad(CtrAdagrad),
    /// Like `CtrAdagrad`, with one sum per element.
    StdAdagrad(StdAdagrad),
    Adam(Adam),
    SharedAdam(SharedAdam),
}

/// Calls a method of the rule.
macro_rules! each {
    ($self:expr, $rule:ident => $body:expr) => {
        match $self {
            Rule::Sgd($rule) => $body,
            Rule::Momentum($rule) => $body,
            Rule::Adagrad($rule) => $body,
            Rule::CtrAdagrad($rule) => $body,
            Rule::StdAdagrad($rule) => $body,
            Rule::Adam($rule) => $body,
            Rule::SharedAdam($rule) => $body,
        }
    };
}

impl Rule {
    pub fn name(&self) -> &'static str {
        each!(self, rule => rule.name())
    }

    /// Returns the floats of state for `len` weights.
    pub fn state_len(&self, len: usize) -> usize {
        each!(self, rule => rule.state_len(len))
    }

    /// Returns whether the rule divides gradients by the shows of a row.
    pub(crate) fn divides_by_shows(&self) -> bool {
        matches!(self, Rule::CtrAdagrad(_) | Rule::StdAdagrad(_))
    }

    /// Rejects rates and factors outside the valid range.
    pub(crate) fn check(&self) -> Result<()> {
        for (what, value, range) in each!(self, rule => rule.parameters()) {
            let inside = value >= range.0 && value <= range.1 && value.is_finite();
            if !inside {
                return Err(Error::invalid(format!("invalid {what} of rule {}", self.name()))
                    .expected(format!("a number in [{}, {}]", range.0, range.1))
                    .got(value));
            }
        }
        Ok(())
    }

    /// Writes the state of a row before its first push.
    pub(crate) fn init_state(&self, len: usize, state: &mut [f32]) {
        each!(self, rule => rule.init_state(len, state));
    }

    /// Applies one gradient to each row.
    ///
    /// # Safety
    /// Each row's pointers are valid for `len` weights and gradients and `state_len(len)` of state,
    /// and nothing else accesses them.
    pub(crate) unsafe fn update(&self, rows: &[Row], len: usize, how: How) {
        // SAFETY: promised by the caller.
        each!(self, rule => unsafe { update_rows(*rule, rows, len, how) });
    }
}

/// One row of an update.
#[derive(Clone, Copy)]
pub(crate) struct Row {
    pub weights: *mut f32,
    pub state: *mut f32,
    pub grad: *const f32,
    /// Divisor of the gradient in click rules.
    pub shows: f32,
}

/// Settings that all rows of an update share.
#[derive(Clone, Copy)]
pub(crate) struct How {
    pub rate_scale: f32,
    pub bounds: [f32; 2],
}

/// Name, value and valid range of a parameter.
type Parameter = (&'static str, f32, (f32, f32));

/// Valid rates: 0 freezes a table, and no use is known for larger ones.
const RATE: (f32, f32) = (0.0, 1e6);
/// Valid decay factors: at 1, nothing would ever be forgotten or learned.
const DECAY: (f32, f32) = (0.0, 0.999_999_94);

trait RowRule: Copy {
    fn name(self) -> &'static str;
    fn parameters(self) -> Vec<Parameter>;
    fn state_len(self, len: usize) -> usize;
    fn init_state(self, _len: usize, state: &mut [f32]) {
        state.fill(0.0);
    }
    /// # Safety
    /// As [`Rule::update`], for one row.
    unsafe fn apply<S: Simd>(self, s: S, row: Row, len: usize, how: How);
}

kernel! {
    unsafe fn update_rows<S, R: RowRule>(s: S, rule: R, rows: &[Row], len: usize, how: How) {
        for row in rows {
            rule.apply(s, *row, len, how);
        }
    }
}

/// Clamps to the bounds of the table.
#[inline(always)]
fn clamp<S: Simd>(s: S, w: S::F, how: How) -> S::F {
    s.min(s.splat(how.bounds[1]), s.max(s.splat(how.bounds[0]), w))
}

#[cfg(test)]
pub(crate) mod tests;
