//! The typed interface beyond single fields: switches together with their messages, and assignments
//! with side effects.

use crate::schema::*;

impl DistributedStrategy {
    /// Creates a strategy with nothing assigned.
    pub fn new() -> DistributedStrategy {
        DistributedStrategy::default()
    }

    /// Returns whether nothing is assigned.
    pub fn is_empty(&self) -> bool {
        *self == DistributedStrategy::default()
    }

    /// Selects synchronous (false) or asynchronous (true) updates of a parameter server. This also
    /// sets `a_sync_configs.k_steps` to 0; a value above 0 selects GEO:
    ///
    /// ```
    /// # use fleet_config::DistributedStrategy;
    /// let mut strategy = DistributedStrategy::new();
    /// assert_eq!(strategy.a_sync_configs().k_steps(), -1); // no mode chosen
    /// strategy.set_a_sync(true);
    /// assert_eq!(strategy.a_sync_configs().k_steps(), 0);
    /// ```
    pub fn set_a_sync(&mut self, value: bool) {
        self.a_sync = Some(value);
        self.a_sync_configs_mut().set_k_steps(0);
    }

    /// Like [`set_a_sync`](Self::set_a_sync).
    #[must_use]
    pub fn with_a_sync(mut self, value: bool) -> Self {
        self.set_a_sync(value);
        self
    }

    /// Selects a parameter server whose workers exchange differences every `k_steps` steps.
    #[must_use]
    pub fn use_geo(mut self, k_steps: i32) -> Self {
        self.set_a_sync(true);
        self.a_sync_configs_mut().set_k_steps(k_steps);
        self
    }

    /// Enables recompute with these checkpoints.
    #[must_use]
    pub fn use_recompute<T: Into<String>>(self, checkpoints: impl IntoIterator<Item = T>) -> Self {
        let config = RecomputeConfig::default().with_checkpoints(checkpoints);
        self.with_recompute(true).with_recompute_configs(config)
    }

    /// Enables updates every `k_steps` steps with the mean of their gradients.
    #[must_use]
    pub fn use_gradient_merge(self, k_steps: i32) -> Self {
        let config = GradientMergeConfig::default().with_k_steps(k_steps).with_avg(true);
        self.with_gradient_merge(true).with_gradient_merge_configs(config)
    }
}

macro_rules! switches {
    ($($switch:ident, $configs:ident: $Config:ident;)*) => { pastey::paste! {
        impl DistributedStrategy {
            $(
                #[doc = concat!("Turns `", stringify!($switch), "` on, with this message.")]
                #[must_use]
                pub fn [<use_ $switch>](self, configs: $Config) -> Self {
                    self.[<with_ $switch>](true).[<with_ $configs>](configs)
                }
            )*
        }
    } };
}

switches! {
    amp, amp_configs: AmpConfig;
    localsgd, localsgd_configs: LocalSgdConfig;
    adaptive_localsgd, adaptive_localsgd_configs: AdaptiveLocalSgdConfig;
    dgc, dgc_configs: DgcConfig;
    lars, lars_configs: LarsConfig;
    lamb, lamb_configs: LambConfig;
    pipeline, pipeline_configs: PipelineConfig;
    sharding, sharding_configs: ShardingConfig;
}

impl HybridConfig {
    /// Returns the axes of the grid, outermost first.
    pub fn axes(&self) -> Vec<&str> {
        or_default(&self.order, &["dp", "pp", "sharding", "sep", "mp"])
    }
}

impl MpConfig {
    /// Returns the parts of names of the parameters that tensor-parallel workers synchronise.
    pub fn synced_names(&self) -> Vec<&str> {
        or_default(&self.sync_param_name, &["embedding", "layer_norm", ".b_"])
    }
}

impl DgcConfig {
    /// Returns the sparsities of the rampup, in order.
    pub fn sparsities(&self) -> Vec<f32> {
        if self.sparsity.is_empty() { vec![0.999] } else { self.sparsity.clone() }
    }
}

fn or_default<'a>(given: &'a [String], default: &[&'static str]) -> Vec<&'a str> {
    if given.is_empty() { default.to_vec() } else { given.iter().map(String::as_str).collect() }
}
