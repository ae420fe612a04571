//! The environment flags that correspond to fields of a strategy. This module does not access the
//! environment: flags are read through a function and returned as pairs.

use crate::reflect::{Kind, Reflect};
use crate::schema::DistributedStrategy;
use crate::value::{Value, effective};
use fleet_base::{Error, Result};
use fleet_topology::names;

/// Flags and the fields of a strategy that they set.
const FLAGS: [(&str, &str); 4] = [
    (names::FLAGS_CUDNN_BATCHNORM_SPATIAL_PERSISTENT, "cudnn_batchnorm_spatial_persistent"),
    (names::FLAGS_CONV_WORKSPACE_SIZE_LIMIT, "conv_workspace_size_limit"),
    (names::FLAGS_CUDNN_EXHAUSTIVE_SEARCH, "cudnn_exhaustive_search"),
    (names::FLAGS_SYNC_NCCL_ALLREDUCE, "sync_nccl_allreduce"),
];

impl DistributedStrategy {
    /// Creates a strategy from the flags that are set.
    ///
    /// ```
    /// # use fleet_config::DistributedStrategy;
    /// let flags = |name: &str| (name == "FLAGS_sync_nccl_allreduce").then(|| "0".to_string());
    /// let strategy = DistributedStrategy::from_flags(flags)?;
    /// assert_eq!(strategy.to_prototxt(), "sync_nccl_allreduce: false\n");
    /// # Ok::<(), fleet_base::Error>(())
    /// ```
    pub fn from_flags(flag: impl Fn(&str) -> Option<String>) -> Result<DistributedStrategy> {
        let mut strategy = DistributedStrategy::new();
        for (name, field) in FLAGS {
            let Some(text) = flag(name).filter(|text| !text.trim().is_empty()) else { continue };
            let Some(field) = Self::describe().field(field) else { continue };
            let value = match (field.kind, text.trim()) {
                (Kind::Bool, "1" | "true" | "True") => Some(Value::Bool(true)),
                (Kind::Bool, "0" | "false" | "False") => Some(Value::Bool(false)),
                (Kind::Bool, _) => None,
                (_, text) => text.parse().ok().map(Value::Int),
            };
            let scalar = value.and_then(|value| value.scalar(field.kind)).ok_or_else(|| {
                Error::invalid(format!("invalid value of {name}"))
                    .expected(crate::value::expected_type(field.kind))
                    .got(&text)
            })?;
            strategy.slot_mut(field.number).put(scalar);
        }
        Ok(strategy)
    }

    /// Returns the flags, with values, that hold while a job runs with this strategy.
    ///
    /// ```
    /// # use fleet_config::DistributedStrategy;
    /// let flags = DistributedStrategy::new().with_fuse_grad_size_in_MB(16).flags();
    /// assert!(flags.contains(&("FLAGS_fuse_parameter_memory_size", "16".to_string())));
    /// ```
    pub fn flags(&self) -> Vec<(&'static str, String)> {
        let shown = |field: &str| {
            let field = Self::describe().field(field);
            match field.map(|field| effective(self, field)) {
                Some(Value::Bool(value)) => u8::from(value).to_string(),
                Some(value) => value.to_string(),
                None => String::new(),
            }
        };
        let mut flags: Vec<(&'static str, String)> =
            FLAGS.iter().map(|(name, field)| (*name, shown(field))).collect();
        flags.push((names::FLAGS_FUSE_PARAMETER_MEMORY_SIZE, shown("fuse_grad_size_in_MB")));
        let layers = self.fuse_grad_size_in_TFLOPS() as i64;
        flags.push((names::FLAGS_FUSE_PARAMETER_GROUPS_SIZE, layers.to_string()));
        flags
    }
}
