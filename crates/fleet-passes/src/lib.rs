//! Program rewrites. A pass sees ops and shapes, but no values, clocks or environment variables.
//!
//! [`PASSES`] lists the passes of the executor, and [`PassManager`] runs them and those of
//! strategies.

#![deny(missing_docs)]
#![forbid(unsafe_code)]

mod backward;
mod dce;
mod fuse;
mod layout;
mod manager;
mod options;
mod pipeline;
mod precision;
mod table;

pub use backward::{BackwardOptions, append_backward, check_loss, gradients};
pub use fuse::reduced_update::{Arrival, updates_on_arrival};
pub use manager::{Observer, PassManager, Rewritten};
pub use options::BuildOptions;
pub use pipeline::{optimize, optimize_observed};
pub use precision::in_single_precision;
pub use table::{BuildOption, PASSES, Pass};
