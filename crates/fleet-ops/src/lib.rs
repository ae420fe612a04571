//! Op definitions, grouped by family. Each op has one file with its shape rule, gradient rule and
//! CPU kernel.
//!
//! `ops.rs` lists every op. To add an op, write its file (see `docs/add-an-op.md`), add its
//! definition to the list, and write test cases for it.

#![deny(missing_docs)]
#![forbid(unsafe_code)]

mod def;
mod infer;
mod kernel;
mod meta;
mod ops;
mod prelude;
mod ranks;
mod rules;
mod service;
mod tables;
mod traits;
mod widen;

pub mod divide;
pub mod verify;

pub mod comm;
pub mod control;
pub mod loss;
pub mod math;
mod metric;
pub mod nn;
pub mod optimizer;
pub mod ps;
pub mod tensor;

pub use def::{Emit, Grad, GradCtx, OpDef, OpEmitter, Registry};
pub use fleet_base::ReduceOp;
pub use infer::InferCtx;
pub use kernel::{Kernel, KernelCtx, KernelFn, PrepareCtx};
pub use meta::{Meta, meta};
pub use ranks::{Spread, Traffic};
pub use service::{Ring, Services, Spill};
pub use tables::{LookUp, Lookup, PushRows, Tables};
pub use traits::{AmpClass, Cost, CostCtx, Images, Lane, OpTraits, elementwise_cost};
