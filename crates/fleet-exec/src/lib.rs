//! Runs programs.
//!
//! * [`Scope`]: named tensors that live from one run to the next.
//! * [`Executor`]: plans a program once for the shapes that are fed (order, memory, lanes) and then
//!   runs the plan, which allocates nothing and looks up no name.
//! * [`Interpreter`]: slow and obvious, one op at a time; tests hold the executor to it.
//!
//! Nothing here knows a strategy or the environment.

mod bind;
mod executor;
mod flat;
mod interpreter;
mod lanes;
mod memory;
mod options;
mod plan;
mod scope;
mod shapes;
mod spill;
mod trace;

pub use executor::Executor;
pub use interpreter::Interpreter;
pub use options::{Device, ExecOptions, Memory};
pub use plan::PlanSummary;
pub use scope::Scope;
pub use trace::{Shares, Span, Trace};
