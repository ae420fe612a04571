//! The state of an export: the graph so far, and the value of each variable.

use crate::graph::{Graph, Value};
use crate::values::{OnnxOptions, Values};
use fleet_base::{Error, Result};
use fleet_ir::{Program, VarId, VarKind};
use std::collections::HashMap;

/// An export in progress.
pub(crate) struct Exporter<'a> {
    pub program: &'a Program,
    pub values: &'a mut dyn Values,
    pub options: &'a OnnxOptions,
    pub graph: Graph,
    /// The current value of each variable.
    pub held: HashMap<VarId, Value>,
}

impl Exporter<'_> {
    /// Returns the value that a variable holds now.
    pub fn read(&mut self, id: VarId) -> Result<Value> {
        if let Some(value) = self.held.get(&id) {
            return Ok(*value);
        }
        let var = self.program.var(id);
        if !var.persistable {
            return Err(Error::invalid(format!("'{}' is read before it is written", var.name))
                .help("it may be an output that ONNX does not compute"));
        }
        let tensor = self.values.variable(&var.name)?;
        if tensor.dtype() != var.dtype || !var.shape.agrees(tensor.shape()) {
            return Err(Error::invalid(format!("'{}' has another type or shape", var.name))
                .expected(format!("{}{}", var.dtype, var.shape))
                .got(format!("{}{}", tensor.dtype(), tensor.shape())));
        }
        let value = self.graph.initializer(tensor);
        self.graph.suggest_name(value, &var.name);
        self.held.insert(id, value);
        Ok(value)
    }

    /// Returns whether a variable is a dense tensor.
    pub fn is_dense(&self, id: VarId) -> bool {
        self.program.var(id).kind == VarKind::Dense
    }
}
