//! Fleet: training of deep models.
//!
//! A network is written with [`Net`](nn::Net), becomes a pair of programs, and is run by a
//! [`Session`]:
//!
//! ```
//! use fleet::prelude::*;
//!
//! let net = Net::new();
//! let x = net.data("x", [-1, 2], DType::F32);
//! let y = net.data("y", [-1, 1], DType::F32);
//! let loss = x.fc(1).mse_loss(y, Reduction::Mean);
//! net.minimize(loss, Sgd::new(0.1))?;
//! let loss = loss.name();
//!
//! let mut session = Session::new(net.build()?, ExecOptions::default())?;
//! let x = Tensor::from_slice(&[1.0f32, 0.0, 0.0, 1.0], [2, 2])?;
//! let y = Tensor::from_slice(&[3.0f32, -1.0], [2, 1])?;
//! for _ in 0..200 {
//!     session.run(&[("x", &x), ("y", &y)], &[])?;
//! }
//! let out = session.run(&[("x", &x), ("y", &y)], &[&loss])?;
//! assert!(out[0].item::<f32>()? < 1e-3);
//! # Ok::<(), fleet::Error>(())
//! ```

#![forbid(unsafe_code)]
// These macros panic if a log's disk is full.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod agree;
mod checkpoints;
mod connection;
mod dataset_run;
mod distributed;
mod exchange;
mod explain;
mod feed_layout;
mod fit;
mod fleet;
mod membership;
pub mod metrics;
mod model_average;
mod nccl;
mod numbers;
mod optimizer;
mod options;
mod probe;
mod report;
mod rings;
mod save;
pub mod servers;
mod session;
mod terminal;
mod util;

pub use checkpoints::{CheckpointPolicy, Checkpoints, Resumed};
pub use dataset_run::{DatasetReport, DatasetRun, Fetched, run_from_dataset};
pub use distributed::Distributed;
pub use exchange::WorkerExchange;
pub use feed_layout::{feed_layout, slots_of};
pub use fleet::Fleet;
pub use fleet_base::{Error, ErrorKind, Result, rng};
pub use fleet_comm::ReduceOp;
pub use fleet_data as data;
pub use fleet_exec::{
    Device, ExecOptions, Executor, Interpreter, PlanSummary, Scope, Shares, Span, Trace,
};
pub use fleet_format as format;
pub use fleet_ir as ir;
pub use fleet_nn as nn;
pub use fleet_ops as ops;
pub use fleet_passes::{self as passes, BuildOptions};
pub use fleet_ps as ps;
pub use fleet_strategy::{self as strategy, DistributedStrategy, StrategySource, Written};
pub use fleet_tensor::{DType, Element, Shape, Tensor};
pub use fleet_topology::{self as topology, Topology};
pub use optimizer::DistributedOptimizer;
pub use options::exec_options;
pub use save::{
    InferenceModel, load_inference_model, load_params, load_persistables, load_vars,
    load_vars_where, save_inference_model, save_params, save_persistables, save_vars,
};
pub use session::Session;
pub use util::Util;

/// Imports for most programs.
pub mod prelude {
    pub use crate::{
        BuildOptions, DType, Error, ExecOptions, Executor, Result, Scope, Session, Shape, Tensor,
    };
    pub use fleet_nn::prelude::*;
}
