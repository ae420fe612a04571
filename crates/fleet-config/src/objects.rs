//! The objects of `paddle.static` that are assigned to a strategy.
//!
//! In the original, an assignment copies every field of the object, so that an object by which one
//! fusion is switched on switches others off. Here it assigns the fields that were set on the
//! object; for the others, Fleet does what is best.

use crate::schema::{BuildStrategy, ExecutionStrategy};

impl BuildStrategy {
    /// Returns the object with no field set.
    ///
    /// ```
    /// # use fleet_config::{BuildStrategy, DistributedStrategy};
    /// let object = BuildStrategy::new().with_fuse_bn_act_ops(true);
    /// let strategy = DistributedStrategy::new().with_build_strategy(object);
    /// assert_eq!(strategy.to_prototxt(), "build_strategy {\n  fuse_bn_act_ops: true\n}\n");
    /// ```
    pub fn new() -> BuildStrategy {
        BuildStrategy::default()
    }
}

impl ExecutionStrategy {
    /// Returns the object with no field set.
    pub fn new() -> ExecutionStrategy {
        ExecutionStrategy::default()
    }
}
