//! `DistributedStrategy`: the one object that configures a job.
//!
//! ```
//! use fleet_strategy::{AmpConfig, DistributedStrategy};
//! let strategy = DistributedStrategy::new()
//!     .use_amp(AmpConfig::default().with_init_loss_scaling(1024.0))
//!     .use_recompute(["encoder_0.tmp_2", "encoder_1.tmp_2"])
//!     .with_fuse_grad_size_in_MB(16);
//! assert!(strategy.amp());
//! assert_eq!(strategy.amp_configs().decr_ratio(), 0.8); // not assigned: the default
//! assert_eq!(strategy.amp_configs().decr_ratio, None);
//! ```

pub mod buckets;
pub mod compiler;
pub mod cost;
pub mod meta;
pub mod reflect;
mod schema;
mod typed;

pub use compiler::{Decision, Observer, Plan, Verdict, decide, minimize, minimize_observed};
pub use meta::{Ranks, RingSpec};
pub use reflect::{EnumShape, Field, Item, Kind, Reflect, Scalar, Shape};
pub use schema::*;
