//! The strategy in effect.

use fleet_config::{DistributedStrategy, Reflect, Scalar};
use std::borrow::Cow;
use std::ops::Deref;

/// The strategy in effect: as written, or as `auto` chose it. Strategies and phases read this one;
/// [`Written`](crate::Written) is the user's.
#[derive(Clone, Debug)]
pub struct Effective<'a>(Cow<'a, DistributedStrategy>);

impl<'a> Effective<'a> {
    /// A strategy that leaves nothing to `auto`, or for which only the assigned fields matter.
    pub fn as_written(strategy: &'a DistributedStrategy) -> Effective<'a> {
        Effective(Cow::Borrowed(strategy))
    }

    /// Switches a strategy off.
    pub(crate) fn switch_off(&mut self, switch: &str) {
        let Some(field) = self.shape().field(switch) else { return };
        self.0.to_mut().slot_mut(field.number).put(Scalar::Bool(false));
    }

    /// A strategy that `auto` chose.
    pub(crate) fn chosen(strategy: DistributedStrategy) -> Effective<'a> {
        Effective(Cow::Owned(strategy))
    }
}

impl Deref for Effective<'_> {
    type Target = DistributedStrategy;

    fn deref(&self) -> &DistributedStrategy {
        &self.0
    }
}
