//! The context of a translation: inputs and attributes of the op, and the graph to write to.

use crate::exporter::Exporter;
use crate::graph::{Attribute, Attributes, Value, type_number};
use crate::values::TableRows;
use fleet_base::{Error, Result};
use fleet_ir::{Op, VarId};
use fleet_ops::Meta;
use fleet_tensor::{DType, Shape, Tensor};

/// Context of a translation.
pub(crate) struct Context<'c, 'e> {
    exporter: &'c mut Exporter<'e>,
    /// The op, with its attributes.
    pub op: &'c Op,
}

impl<'c, 'e> Context<'c, 'e> {
    pub fn new(exporter: &'c mut Exporter<'e>, op: &'c Op) -> Context<'c, 'e> {
        Context { exporter, op }
    }

    // Inputs and outputs of the op.

    /// Returns the only input of a slot.
    pub fn x(&mut self, slot: &str) -> Result<Value> {
        let var = self.var(slot)?;
        self.exporter.read(var)
    }

    /// Returns the input of an optional slot.
    pub fn optional(&mut self, slot: &str) -> Result<Option<Value>> {
        let var = self.op.input(slot).first().copied();
        var.map(|var| self.exporter.read(var)).transpose()
    }

    /// Returns all inputs of a slot.
    pub fn all(&mut self, slot: &str) -> Result<Vec<Value>> {
        self.op.input(slot).to_vec().into_iter().map(|var| self.exporter.read(var)).collect()
    }

    /// Returns type and shape of the only input of a slot, with -1 for unknown dimensions.
    pub fn meta(&self, slot: &str) -> Result<Meta> {
        let var = self.var(slot)?;
        Ok(self.meta_of(var))
    }

    pub fn meta_of(&self, var: VarId) -> Meta {
        fleet_ops::meta(self.exporter.program, var)
    }

    pub fn shape(&self, slot: &str) -> Result<Shape> {
        Ok(self.meta(slot)?.shape)
    }

    pub fn dtype(&self, slot: &str) -> Result<DType> {
        Ok(self.meta(slot)?.dtype)
    }

    /// Returns type and shape of the first output of a slot.
    pub fn out_meta(&self, slot: &str) -> Result<Meta> {
        match self.op.output(slot).first() {
            Some(var) => Ok(self.meta_of(*var)),
            None => Err(Error::invalid(format!("missing output '{slot}' of '{}'", self.op.name()))),
        }
    }

    /// Returns the value of a variable.
    pub fn read(&mut self, var: VarId) -> Result<Value> {
        self.exporter.read(var)
    }

    /// Returns the limit on the rows of a table.
    pub fn table_rows_max(&self) -> u64 {
        self.exporter.options.table_rows_max
    }

    /// Returns the rows of a table on parameter servers.
    pub fn table(&mut self, id: u32) -> Result<TableRows> {
        let max = self.table_rows_max();
        self.exporter.values.table(id, max)
    }

    /// Returns the variable of an input.
    pub fn var(&self, slot: &str) -> Result<VarId> {
        match self.op.input(slot).first() {
            Some(var) => self.check_dense(*var).map(|()| *var),
            None => Err(Error::invalid(format!("missing input '{slot}' of '{}'", self.op.name()))),
        }
    }

    /// Rejects a variable that holds sparse rows.
    pub fn check_dense(&self, var: VarId) -> Result<()> {
        match self.exporter.is_dense(var) {
            true => Ok(()),
            false => Err(Error::unsupported("ONNX has no sparse rows")
                .got(format!("'{}'", self.exporter.program.var_name(var)))),
        }
    }

    pub fn var_name(&self, var: VarId) -> &str {
        self.exporter.program.var_name(var)
    }

    /// Sets the only output of a slot; ignored if the program does not request it.
    pub fn set(&mut self, slot: &str, value: Value) -> Result<()> {
        self.set_at(slot, 0, value)
    }

    /// Sets an output of a slot.
    pub fn set_at(&mut self, slot: &str, index: usize, value: Value) -> Result<()> {
        if let Some(var) = self.op.output(slot).get(index).copied() {
            let name = self.exporter.program.var_name(var);
            self.exporter.graph.suggest_name(value, name);
            self.exporter.held.insert(var, value);
        }
        Ok(())
    }

    // Nodes and constants.

    /// Returns whether the op set of the export is this version or later.
    pub fn since(&self, opset: i64) -> bool {
        self.exporter.options.opset >= opset
    }

    /// Adds a node without attributes.
    pub fn node(&mut self, op: &'static str, inputs: &[Value]) -> Value {
        self.exporter.graph.node(op, inputs, Vec::new())
    }

    /// Adds a node.
    pub fn with(&mut self, op: &'static str, inputs: &[Value], attributes: Attributes) -> Value {
        self.exporter.graph.node(op, inputs, attributes)
    }

    /// Adds a node with several outputs.
    pub fn many(
        &mut self,
        op: &'static str,
        inputs: &[Value],
        attributes: Attributes,
        count: usize,
    ) -> Vec<Value> {
        self.exporter.graph.nodes(op, inputs, attributes, count)
    }

    /// Adds a lookup of integers in a hash table; others give `default`.
    pub fn hash_table(
        &mut self,
        x: Value,
        keys: Vec<i64>,
        values: Vec<i64>,
        default: i64,
    ) -> Value {
        self.exporter.graph.hash_table(x, keys, values, default)
    }

    /// Returns a number as a tensor without dimensions.
    pub fn scalar(&mut self, dtype: DType, value: f64) -> Result<Value> {
        self.filled(dtype, &[], value)
    }

    /// Returns a small tensor of equal numbers.
    pub fn filled(&mut self, dtype: DType, dims: &[i64], value: f64) -> Result<Value> {
        let shape = Shape::new(dims)?;
        let count = shape.numel().unwrap_or(0);
        let tensor = Tensor::from_slice(&vec![value; count], shape)?.cast(dtype)?;
        Ok(self.constant(tensor))
    }

    /// Returns one i64 without dimensions.
    pub fn int(&mut self, value: i64) -> Result<Value> {
        let tensor = Tensor::from_slice(&[value], Shape::SCALAR)?;
        Ok(self.constant(tensor))
    }

    /// Returns i64 numbers with one dimension.
    pub fn ints(&mut self, values: &[i64]) -> Result<Value> {
        self.exporter.graph.ints(values)
    }

    pub fn constant(&mut self, tensor: Tensor) -> Value {
        self.exporter.graph.constant(tensor)
    }

    /// Gives a constant a name in the file.
    pub fn suggest_name(&mut self, value: Value, name: &str) {
        self.exporter.graph.suggest_name(value, name);
    }

    // Short forms of nodes.

    pub fn add(&mut self, x: Value, y: Value) -> Value {
        self.node("Add", &[x, y])
    }

    pub fn sub(&mut self, x: Value, y: Value) -> Value {
        self.node("Sub", &[x, y])
    }

    pub fn mul(&mut self, x: Value, y: Value) -> Value {
        self.node("Mul", &[x, y])
    }

    pub fn div(&mut self, x: Value, y: Value) -> Value {
        self.node("Div", &[x, y])
    }

    pub fn cast(&mut self, x: Value, dtype: DType) -> Value {
        self.with("Cast", &[x], vec![("to", Attribute::Int(type_number(dtype).into()))])
    }

    pub fn transpose(&mut self, x: Value, order: &[i64]) -> Value {
        self.with("Transpose", &[x], vec![("perm", Attribute::Ints(order.to_vec()))])
    }

    pub fn unsqueeze(&mut self, x: Value, axes: &[i64]) -> Result<Value> {
        let axes = self.ints(axes)?;
        Ok(self.node("Unsqueeze", &[x, axes]))
    }

    pub fn squeeze(&mut self, x: Value, axes: &[i64]) -> Result<Value> {
        let axes = self.ints(axes)?;
        Ok(self.node("Squeeze", &[x, axes]))
    }

    /// Reshapes a value; 0 copies a dimension of it, and -1 is inferred.
    pub fn reshape(&mut self, x: Value, dims: &[i64]) -> Result<Value> {
        let dims = self.ints(dims)?;
        Ok(self.node("Reshape", &[x, dims]))
    }

    /// Reduces axes, all if the list is empty. The result keeps them with size 1 if `keep`.
    pub fn reduce(
        &mut self,
        op: &'static str,
        x: Value,
        axes: &[i64],
        keep: bool,
    ) -> Result<Value> {
        let mut attributes = vec![("keepdims", Attribute::Int(keep.into()))];
        if axes.is_empty() {
            return Ok(self.with(op, &[x], attributes));
        }
        if op == "ReduceSum" || self.since(18) {
            let axes = self.ints(axes)?;
            return Ok(self.with(op, &[x, axes], attributes));
        }
        attributes.push(("axes", Attribute::Ints(axes.to_vec())));
        Ok(self.with(op, &[x], attributes))
    }

    /// Takes `start..end` of one axis.
    pub fn slice(&mut self, x: Value, axis: i64, start: i64, end: i64) -> Result<Value> {
        let (start, end, axis) = (self.ints(&[start])?, self.ints(&[end])?, self.ints(&[axis])?);
        Ok(self.node("Slice", &[x, start, end, axis]))
    }

    pub fn concat(&mut self, parts: &[Value], axis: i64) -> Value {
        self.with("Concat", parts, vec![("axis", Attribute::Int(axis))])
    }

    /// Returns the sizes `axes` of a value, as i64.
    pub fn sizes(&mut self, x: Value, axes: std::ops::Range<usize>) -> Value {
        let attributes = vec![
            ("start", Attribute::Int(axes.start as i64)),
            ("end", Attribute::Int(axes.end as i64)),
        ];
        self.with("Shape", &[x], attributes)
    }

    /// Reshapes a value to `dims`, of which the first `from.1` are those of another value. At most
    /// one of the others may be unknown (-1), if all of those are known.
    pub fn reshape_like(&mut self, x: Value, from: (Value, usize), dims: &[i64]) -> Result<Value> {
        if dims.iter().filter(|dim| **dim < 0).count() <= 1 {
            return self.reshape(x, dims);
        }
        let first = self.sizes(from.0, 0..from.1);
        let rest = self.ints(&dims[from.1..])?;
        let whole = self.concat(&[first, rest], 0);
        Ok(self.node("Reshape", &[x, whole]))
    }
}
