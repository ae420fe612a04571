//! The objects of `paddle.static` that are assigned to a strategy as a whole, and their effect on
//! the executor.

use crate::reflect::{Item, Reflect, Scalar};
use crate::schema::{BuildStrategy, ExecutionStrategy};
use fleet_passes::BuildOptions;

impl BuildStrategy {
    /// Returns the object with every field assigned its default. These defaults differ from the
    /// message's in `enable_inplace` and `fuse_broadcast_ops`. `BuildStrategy::default()` is the
    /// message with nothing assigned.
    ///
    /// ```
    /// # use fleet_strategy::{BuildStrategy, DistributedStrategy};
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

    /// Returns the executor's options: `base`, overridden by the assigned fields.
    ///
    /// ```
    /// # use fleet_strategy::BuildStrategy;
    /// # use fleet_passes::BuildOptions;
    /// let build = BuildStrategy::default().with_enable_addto(false).build_options(BuildOptions::default());
    /// assert!(!build.enable_addto && build.enable_inplace);
    /// ```
    pub fn build_options(&self, base: BuildOptions) -> BuildOptions {
        // Fusing a matrix product with bias and activation is one of the elementwise fusions.
        let elementwise = match (self.fuse_elewise_add_act_ops, self.fuse_gemm_epilogue) {
            (None, None) => None,
            (one, other) => Some(one.unwrap_or(false) || other.unwrap_or(false)),
        };
        BuildOptions {
            fuse_elewise_add_act_ops: elementwise.unwrap_or(base.fuse_elewise_add_act_ops),
            fuse_bn_act_ops: self.fuse_bn_act_ops.unwrap_or(base.fuse_bn_act_ops),
            fuse_bn_add_act_ops: self.fuse_bn_add_act_ops.unwrap_or(base.fuse_bn_add_act_ops),
            fuse_relu_depthwise_conv: self
                .fuse_relu_depthwise_conv
                .unwrap_or(base.fuse_relu_depthwise_conv),
            fuse_all_optimizer_ops: self
                .fuse_all_optimizer_ops
                .unwrap_or(base.fuse_all_optimizer_ops),
            enable_inplace: self.enable_inplace.unwrap_or(base.enable_inplace),
            enable_addto: self.enable_addto.unwrap_or(base.enable_addto),
            enable_sequential_execution: self
                .enable_sequential_execution
                .unwrap_or(base.enable_sequential_execution),
            ..base
        }
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
