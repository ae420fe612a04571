//! Strategies: how a job trains a program, as rewrites of the program.
//!
//! [`DistributedStrategy`] of `fleet-config` asks for them. [`decide`] reports which apply, and
//! why; [`minimize`] applies them.

#![deny(missing_docs)]
#![forbid(unsafe_code)]

pub mod auto;
pub mod buckets;
mod check;
pub mod compiler;
pub mod cost;
mod decision;
mod effective;
mod grid;
mod job;
mod local_state;
pub mod meta;
mod options;
mod owners;
mod pipeline;
mod ranks;
mod rates;
mod report;
pub mod servers;

pub use check::{check, inspect, undecided, unmatched, validate};
pub use compiler::{Plan, minimize, minimize_with};
pub use decision::{Decision, Outcome, Verdict};
pub use effective::Effective;
pub use fleet_config::*;
pub use fleet_ops::Spread;
pub use grid::{Axis, Grid};
pub use local_state::{LocalVar, layer_ranks, local_state};
pub use meta::StrategyId;
pub use meta::amp::{BAD_STEPS, GOOD_STEPS, LOSS_SCALE, SKIPPED_STEPS};
pub use meta::recompute::recompute_candidates;
pub use meta::segments::{RECEIVED, undivided};
pub use options::build_options;
pub use owners::owners;
pub use pipeline::{Bubble, StageInfo};
pub use ranks::{Ranks, RingSpec};
pub use rates::{BATCH_ASSUMED, ChosenLayout, Cluster, Origin, Rates};
pub use report::{Report, decide};
