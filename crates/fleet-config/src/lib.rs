//! [`DistributedStrategy`]: the object that configures distributed training of a job.
//!
//! ```
//! use fleet_config::{AmpConfig, DistributedStrategy};
//! let strategy = DistributedStrategy::new()
//!     .use_amp(AmpConfig::default().with_init_loss_scaling(1024.0))
//!     .use_recompute(["encoder_0.tmp_2", "encoder_1.tmp_2"])
//!     .with_fuse_grad_size_in_MB(16);
//! assert!(strategy.amp());
//! assert_eq!(strategy.amp_configs().decr_ratio(), 0.8); // not assigned: the default
//! assert_eq!(strategy.amp_configs().decr_ratio, None);
//! ```

#![deny(missing_docs)]
#![forbid(unsafe_code)]

mod allowed;
mod compat;
mod documented;
mod fields;
mod flags;
mod form;
mod notices;
mod objects;
mod overview;
mod problem;
pub mod reflect;
mod schema;
mod set;
mod source;
mod tables;
mod typed;
mod value;

pub use documented::{DOCUMENTED_DEFAULTS, DocumentedDefault};
pub use form::{FILE_BYTES_MAX, Inspection, StrategyForm, read_file};
pub use notices::Notices;
pub use problem::{Place, Places, Problem, Severity, all_in_one};
pub use reflect::{EnumShape, Field, Item, JobKind, Kind, Reflect, Scalar, Shape};
pub use schema::*;
pub use source::{StrategySource, Written};
pub use value::Value;

/// Returns the accepted alternative names: the message, the name in it, and the field it stands
/// for.
pub fn other_names() -> impl Iterator<Item = (&'static str, &'static str, &'static str)> {
    compat::all()
}
