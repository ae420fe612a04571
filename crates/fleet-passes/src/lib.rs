//! Program rewrites. A pass sees ops and shapes, but no values, clocks or environment variables.

#![forbid(unsafe_code)]

mod backward;
mod dce;
mod fuse;
mod layout;
mod pipeline;

pub use backward::{BackwardOptions, append_backward, check_loss, gradients};
pub use fuse::reduced_update::{Arrival, updates_on_arrival};
pub use pipeline::{BuildOptions, optimize};
