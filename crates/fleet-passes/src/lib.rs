//! Rewrites of programs. A pass sees ops and shapes, never values, clocks or the environment.

mod backward;

pub use backward::{BackwardOptions, append_backward, gradients};
