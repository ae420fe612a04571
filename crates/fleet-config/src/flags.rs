//! The environment flags that correspond to fields of a strategy. This module does not access the
//! environment: flags are read through a function and returned as pairs.

use crate::reflect::{Item, Kind, Reflect, Scalar};
use crate::schema::DistributedStrategy;
use crate::value::{Value, effective};
use fleet_base::{Error, Result};
use fleet_topology::names;

/// Flags and the fields of a strategy that they set.
const FLAGS: [(&str, &str); 6] = [
    (names::FLAGS_CUDNN_BATCHNORM_SPATIAL_PERSISTENT, "cudnn_batchnorm_spatial_persistent"),
    (names::FLAGS_CONV_WORKSPACE_SIZE_LIMIT, "conv_workspace_size_limit"),
    (names::FLAGS_CUDNN_EXHAUSTIVE_SEARCH, "cudnn_exhaustive_search"),
    (names::FLAGS_SYNC_NCCL_ALLREDUCE, "sync_nccl_allreduce"),
    (names::FLAGS_FUSE_PARAMETER_MEMORY_SIZE, "fuse_grad_size_in_MB"),
    (names::FLAGS_FUSE_PARAMETER_GROUPS_SIZE, "fuse_grad_size_in_TFLOPS"),
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
                let expected = match field.kind {
                    // The flag is an integer, although the field is not.
                    Kind::Float => "an integer".to_string(),
                    kind => crate::value::expected_type(kind),
                };
                Error::invalid(format!("invalid value of {name}")).expected(expected).got(&text)
            })?;
            strategy.slot_mut(field.number).put(scalar);
        }
        Ok(strategy)
    }

    /// Returns the strategy with the values of flags in fields that are not assigned, and the fields
    /// that got one: `(field, flag)`. Fields come first, because a strategy is made for one job,
    /// while flags hold for all jobs of a shell.
    ///
    /// `auto` chooses only if no field is assigned, so no flag is read beside it.
    ///
    /// ```
    /// # use fleet_config::DistributedStrategy;
    /// let flags = |name: &str| name.contains("fuse_parameter_memory").then(|| "16".to_string());
    /// let (strategy, read) = DistributedStrategy::new().with_flags(flags)?;
    /// assert_eq!(strategy.fuse_grad_size_in_MB(), 16);
    /// assert_eq!(read, [("fuse_grad_size_in_MB", "FLAGS_fuse_parameter_memory_size")]);
    /// # Ok::<(), fleet_base::Error>(())
    /// ```
    pub fn with_flags(
        &self,
        flag: impl Fn(&str) -> Option<String>,
    ) -> Result<(DistributedStrategy, Vec<(&'static str, &'static str)>)> {
        let (mut strategy, mut read) = (self.clone(), Vec::new());
        if self.auto() {
            return Ok((strategy, read));
        }
        let flags = DistributedStrategy::from_flags(flag)?;
        for (name, field) in FLAGS {
            let Some(described) = Self::describe().field(field) else { continue };
            let given = flags.slot(described.number).first().and_then(scalar_of);
            let slot = strategy.slot_mut(described.number);
            if let (Some(given), 0) = (given, slot.count()) {
                slot.put(given);
                read.push((described.name, name));
            }
        }
        Ok((strategy, read))
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
                // The flag is an integer.
                Some(Value::Float(value)) => (value as i64).to_string(),
                Some(value) => value.to_string(),
                None => String::new(),
            }
        };
        FLAGS.iter().map(|(name, field)| (*name, shown(field))).collect()
    }
}

fn scalar_of(item: Item<'_>) -> Option<Scalar> {
    match item {
        Item::Bool(value) => Some(Scalar::Bool(value)),
        Item::Int32(value) => Some(Scalar::Int32(value)),
        Item::Float(value) => Some(Scalar::Float(value)),
        _ => None,
    }
}
