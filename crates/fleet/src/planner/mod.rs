//! Planning: which layout of a training on some ranks is fastest and fits their memory.
//!
//! [`search`] compares the layouts that the compiler admits: data parallelism, sharding, pipelines,
//! tensor parallelism, and their products. Each is predicted ([`predict`]), with the speeds of the
//! machine and what the network's own ops reach of them ([`measure`]).

mod auto;
mod layout;
mod measure;
mod memory;
mod predict;
mod saved;
mod search;
mod simulate;
mod speeds;

pub use auto::plan_job;
pub use memory::private_bytes;
pub use predict::{Network, Prediction};
pub use saved::Saved;
#[cfg(feature = "app")]
pub use {
    auto::choose_layout,
    measure::op_factors,
    predict::{Machines, fixed_batch},
    search::{Batch, Candidate, Found, Goal, LayoutSearch, Left, search},
    speeds::Speeds,
};
