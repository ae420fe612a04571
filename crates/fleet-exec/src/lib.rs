//! Plans and runs programs.
//!
//! * [`Scope`]: named tensors that persist between runs.
//! * [`Executor`]: plans a program once for the shapes of its feeds (order, memory, lanes), and
//!   then runs the plan. A run allocates no memory and looks up no names.
//! * [`Interpreter`]: a slow and simple reference that runs one op at a time. Tests compare the
//!   executor with it.
//!
//! This crate does not depend on strategies or the environment.

#![deny(missing_docs)]
#![deny(unsafe_code)]

#[allow(unsafe_code)]
mod bind;
mod executor;
mod flat;
#[allow(unsafe_code)]
mod interpreter;
#[allow(unsafe_code)]
mod lanes;
mod memory;
mod options;
mod plan;
mod scope;
mod shapes;
mod spill;
mod trace;
mod tree;

pub use executor::Executor;
pub use interpreter::Interpreter;
pub use options::{Device, ExecOptions, Memory};
pub use plan::{Outline, OutlineCall, OutlineStep, PlanSummary};
pub use scope::Scope;
pub use trace::{Shares, Span, Trace};
