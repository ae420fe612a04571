//! Export of inference programs to ONNX.
//!
//! [`export`] writes the part of a program that computes some variables as an ONNX graph, with the
//! values of its parameters as constants. An op becomes one node or several (`ops/`). Ops that
//! belong to training have no translation: `ops/refused.rs` says why.
//!
//! This crate knows neither scopes nor folders of saves: a [`Values`] gives the values of variables
//! and the rows of tables on parameter servers.
//!
//! ```
//! use fleet_base::{Error, Result};
//! use fleet_onnx::{OnnxOptions, TableRows, Values, export};
//! use fleet_tensor::Tensor;
//!
//! struct Weights;
//! impl Values for Weights {
//!     fn variable(&mut self, _name: &str) -> Result<Tensor> {
//!         Tensor::from_slice(&[2.0f32; 3], [3, 1])
//!     }
//!     fn table(&mut self, id: u32, _row_count_max: u64) -> Result<TableRows> {
//!         Err(Error::invalid(format!("no table {id}")))
//!     }
//! }
//!
//! let text = "fleet program 1
//!     block0 {
//!     %x: f32[-1, 3] data
//!     %w: f32[3, 1] persistable
//!     %y: f32[-1, 1]
//!     (Out: %y) = mul(X: %x, Y: %w)
//!     }";
//! let program = fleet_ir::Program::parse(text, fleet_ops::Registry::standard())?;
//! let model = export(&program, &["y"], &mut Weights, &OnnxOptions::default())?;
//! assert!(model.to_bytes()?.len() < 300);
//! # Ok::<(), Error>(())
//! ```

#![deny(missing_docs)]
#![forbid(unsafe_code)]

mod builder;
mod context;
mod dims;
mod export;
mod exporter;
mod file;
mod graph;
mod ops;
pub mod proto;
mod values;

pub use builder::{OnnxBuilder, OnnxInputs};
pub use export::{export, export_from};
pub use file::{OnnxModel, WrittenOnnx};
pub use graph::Value as OnnxValue;
pub use values::{OnnxOptions, TableRows, Values, too_many_rows};
