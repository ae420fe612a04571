//! The objects of `paddle.static` that are assigned to a strategy as a whole.

use crate::reflect::{Item, Reflect, Scalar};
use crate::schema::{BuildStrategy, ExecutionStrategy};

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
        let scalar = match field.default_item() {
            Some(Item::Bool(value)) => Scalar::Bool(value),
            Some(Item::Int32(value)) => Scalar::Int32(value),
            Some(Item::Uint32(value)) => Scalar::Uint32(value),
            Some(Item::Uint64(value)) => Scalar::Uint64(value),
            Some(Item::Float(value)) => Scalar::Float(value),
            Some(Item::Double(value)) => Scalar::Double(value),
            Some(Item::Text(value)) => Scalar::Text(value.into()),
            Some(Item::Message(_)) | None => continue,
        };
        message.slot_mut(field.number).put(scalar);
    }
}
