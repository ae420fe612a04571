//! Nodes before a program: they compute its inputs from other ones, such as features from the
//! columns of a table.

use crate::graph::{Attribute, Graph, Value, type_number};
use crate::proto::{DimensionProto, TensorShapeProto, TensorTypeProto, TypeProto};
use fleet_base::{Error, Result};
use fleet_tensor::{DType, Tensor};
use std::collections::HashMap;

/// Writes the nodes before a program.
pub struct OnnxBuilder<'g> {
    graph: &'g mut Graph,
    pub(crate) inputs: Vec<(Value, TypeProto)>,
}

/// The inputs of a program, and names of its results.
#[derive(Debug, Default)]
pub struct OnnxInputs {
    /// The value of each input by its name. Others than the program needs are left out.
    pub inputs: HashMap<String, Value>,
    /// Names of the results, in the order of the targets.
    pub outputs: Vec<String>,
}

impl<'g> OnnxBuilder<'g> {
    pub(crate) fn new(graph: &'g mut Graph) -> OnnxBuilder<'g> {
        OnnxBuilder { graph, inputs: Vec::new() }
    }

    /// Adds an input `[batch, 1]`, or `[batch, NAME_values]` with any number of values.
    pub fn input(&mut self, name: &str, dtype: DType, has_several: bool) -> Result<Value> {
        let value = self.graph.named(name);
        if self.graph.name(value) != Some(name) {
            return Err(Error::invalid(format!("two inputs are called '{name}'")));
        }
        let named = |name: String| DimensionProto { dim_value: None, dim_param: Some(name) };
        let second = match has_several {
            true => named(format!("{name}_values")),
            false => DimensionProto { dim_value: Some(1), dim_param: None },
        };
        let shape = TensorShapeProto { dim: vec![named("batch".to_string()), second] };
        let tensor = TensorTypeProto { elem_type: type_number(dtype), shape: Some(shape) };
        self.inputs.push((value, TypeProto { tensor_type: Some(tensor) }));
        Ok(value)
    }

    /// Adds a call of a standard op with one output and attributes that are integers.
    pub fn node(
        &mut self,
        op: &'static str,
        inputs: &[Value],
        attributes: &[(&'static str, i64)],
    ) -> Value {
        let attribute = |(name, value): &(&'static str, i64)| (*name, Attribute::Int(*value));
        self.graph.node(op, inputs, attributes.iter().map(attribute).collect())
    }

    /// Converts a value to another type.
    pub fn cast(&mut self, x: Value, dtype: DType) -> Value {
        self.node("Cast", &[x], &[("to", i64::from(type_number(dtype)))])
    }

    /// Shifts the bits of 64-bit integers, which are taken as unsigned ones: to the left by a
    /// positive number, to the right by a negative one.
    pub fn shift(&mut self, x: Value, bits: i32) -> Result<Value> {
        let unsigned = self.node("Cast", &[x], &[("to", UINT64)]);
        let by = self.scalar(i64::from(bits.unsigned_abs()))?;
        let by = self.node("Cast", &[by], &[("to", UINT64)]);
        let direction = Attribute::Str(if bits > 0 { "LEFT" } else { "RIGHT" });
        let shifted = self.graph.node("BitShift", &[unsigned, by], vec![("direction", direction)]);
        Ok(self.cast(shifted, DType::I64))
    }

    /// Looks integers up in a hash table; others give `default`.
    pub fn hash_table(
        &mut self,
        x: Value,
        keys: Vec<i64>,
        values: Vec<i64>,
        default: i64,
    ) -> Value {
        self.graph.hash_table(x, keys, values, default)
    }

    /// Returns a constant.
    pub fn constant(&mut self, tensor: Tensor) -> Value {
        self.graph.constant(tensor)
    }

    /// Returns an integer without dimensions.
    pub fn scalar(&mut self, value: i64) -> Result<Value> {
        Ok(self.graph.constant(Tensor::from_slice(&[value], [])?))
    }

    /// Returns integers with one dimension, such as axes.
    pub fn ints(&mut self, values: &[i64]) -> Result<Value> {
        self.graph.ints(values)
    }
}

/// Number of the type of unsigned 64-bit integers, which programs do not have.
const UINT64: i64 = 13;
