//! The objects of `paddle.static` that are assigned to a strategy as a whole.

use crate::reflect::Reflect;
use crate::schema::{BuildStrategy, ExecutionStrategy};
use crate::value::default_of;

impl BuildStrategy {
    /// Returns the object with every field assigned its default. These defaults differ from the
    /// message's in `enable_inplace` and `fuse_broadcast_ops`. `BuildStrategy::default()` is the
    /// message with nothing assigned.
    ///
    /// ```
    /// # use fleet_config::{BuildStrategy, DistributedStrategy};
    /// let object = BuildStrategy::new().with_fuse_bn_act_ops(true);
    /// let strategy = DistributedStrategy::new().with_build_strategy(object);
    /// assert!(strategy.build_strategy().enable_inplace());
    /// assert!(strategy.to_prototxt().contains("enable_addto: false\n"));
    /// ```
    pub fn new() -> BuildStrategy {
        let mut object = BuildStrategy::default();
        assign_all(&mut object);
        object.with_enable_inplace(true).with_fuse_broadcast_ops(true)
    }
}

impl ExecutionStrategy {
    /// Returns the object with every field assigned, like [`BuildStrategy::new`].
    pub fn new() -> ExecutionStrategy {
        let mut object = ExecutionStrategy::default();
        assign_all(&mut object);
        object
    }
}

/// Assigns its default to every field that is not a message.
fn assign_all(message: &mut dyn Reflect) {
    for field in message.shape().fields.iter().filter(|field| !field.repeated) {
        if let Some(scalar) = default_of(field).scalar(field.kind) {
            message.slot_mut(field.number).put(scalar);
        }
    }
}
