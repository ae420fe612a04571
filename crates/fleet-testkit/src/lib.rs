//! Test support; never part of a release.
//!
//! * [`Case`]: one op with inputs and attributes, run alone. Every run covers several variants,
//!   which must agree: one thread and three, in place and not, memory filled with garbage. It also
//!   counts allocations.
//! * [`Case::check_grad`]: the op's gradient rule against finite differences.
//! * [`filetest`]: cases as text, with expected values from an oracle.
//! * [`local`]: ranks as threads of one process.
//! * `programs` (feature of that name): random programs under guard pages, in child processes.
//!
//! A test binary that checks allocations installs an allocator that calls [`count_allocation`].
//!
//! ```
//! use fleet_testkit::{Case, Value};
//! let x = Value::f32([2], &[1.0, 2.0]);
//! let case = Case::named("scale").unwrap().input("X", x).attr("scale", 3.0);
//! let outputs = case.run().unwrap();
//! assert_eq!(outputs.f32("Out"), [3.0, 6.0]);
//! case.check_grad(&["X"]).unwrap();
//! ```

#![deny(missing_docs)]
#![deny(unsafe_code)]

mod alloc;
mod case;
pub mod filetest;
mod grad;
pub mod local;
mod machine;
#[cfg(feature = "programs")]
pub mod programs;
mod value;

pub use alloc::{allocations, count_allocation};
pub use case::{Case, Outputs, check_grad, run_op};
pub use machine::{Machine, RunOptions};
pub use value::{Value, to_filter64};
