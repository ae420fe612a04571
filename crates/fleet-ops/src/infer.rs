//! Shape rules: the context that is passed to them.

use crate::Meta;
use fleet_base::{Error, Result};
use fleet_ir::{Op, VarId};
use fleet_tensor::{DType, Shape};

/// Context of a shape rule.
pub struct InferCtx<'a> {
    /// The op, with its attributes.
    pub op: &'a Op,
    inputs: Vec<Vec<Meta>>,
    outputs: Vec<Vec<Meta>>,
}

impl<'a> InferCtx<'a> {
    /// Returns the context for an op whose variables have the types and shapes that `meta` returns.
    pub fn new(op: &'a Op, meta: impl Fn(VarId) -> Meta) -> Self {
        let inputs =
            op.inputs.iter().map(|slot| slot.iter().map(|var| meta(*var)).collect()).collect();
        InferCtx { op, inputs, outputs: vec![Vec::new(); op.spec.outputs.len()] }
    }

    /// Returns the context for the shape rule of another op. Its inputs are those of this op,
    /// matched by slot name.
    pub(crate) fn of_other<'b>(&self, op: &'b Op) -> InferCtx<'b> {
        let inputs = op.spec.inputs.iter().map(|slot| self.inputs(slot.name).to_vec()).collect();
        InferCtx { op, inputs, outputs: vec![Vec::new(); op.spec.outputs.len()] }
    }

    /// Returns the first variable of a required input slot.
    pub fn input(&self, slot: &str) -> Result<Meta> {
        self.optional(slot).ok_or_else(|| {
            Error::invalid(format!("missing input '{slot}' of op '{}'", self.op.name()))
        })
    }

    /// Returns the first variable of an input slot, or `None` if the slot is empty.
    pub fn optional(&self, slot: &str) -> Option<Meta> {
        self.inputs(slot).first().copied()
    }

    /// Returns the variables of an input slot.
    pub fn inputs(&self, slot: &str) -> &[Meta] {
        self.op.spec.input_index(slot).map_or(&[], |index| &self.inputs[index])
    }

    /// Returns the first variable that was set for an output slot.
    pub fn output(&self, slot: &str) -> Option<Meta> {
        let index = self.op.spec.output_index(slot)?;
        self.outputs[index].first().copied()
    }

    /// Sets the only variable of an output slot.
    pub fn set(&mut self, slot: &str, dtype: DType, shape: impl Into<Shape>) {
        self.push(slot, Meta::dense(dtype, shape));
    }

    /// Adds a variable to an output slot.
    ///
    /// # Panics
    /// Panics if the op has no such slot.
    pub fn push(&mut self, slot: &str, meta: Meta) {
        let index = self.op.spec.output_index(slot).expect("slot belongs to the op's spec");
        self.outputs[index].push(meta);
    }

    /// Returns the outputs by slot, in the order of the spec.
    pub fn into_outputs(self) -> Vec<Vec<Meta>> {
        self.outputs
    }

    /// Rejects an input whose element type is not in `allowed`.
    pub fn check_dtype(&self, slot: &str, allowed: &[DType]) -> Result<()> {
        for meta in self.inputs(slot) {
            if !allowed.contains(&meta.dtype) {
                let names: Vec<&str> = allowed.iter().map(|dtype| dtype.name()).collect();
                return Err(self
                    .error(slot, "has the wrong element type")
                    .expected(names.join(" or "))
                    .got(meta.dtype));
            }
        }
        Ok(())
    }

    /// Rejects an input whose rank is not `rank`.
    pub fn check_rank(&self, slot: &str, rank: usize) -> Result<Shape> {
        let shape = self.input(slot)?.shape;
        if shape.rank() == rank {
            return Ok(shape);
        }
        Err(self
            .error(slot, "has the wrong number of dimensions")
            .expected(format!("{rank}"))
            .got(format!("{} (shape {shape})", shape.rank())))
    }

    /// Rejects an input whose shape does not agree with `shape`.
    pub fn check_shape(&self, slot: &str, shape: impl Into<Shape>) -> Result<()> {
        let shape = shape.into();
        let found = self.input(slot)?.shape;
        if found.agrees(&shape) {
            return Ok(());
        }
        Err(self.error(slot, "has the wrong shape").expected(shape).got(found))
    }

    /// Returns the error `input 'X' of mul <what>`, to be completed with `expected` and `got`.
    pub fn error(&self, slot: &str, what: &str) -> Error {
        Error::invalid(format!("input '{slot}' of {} {what}", self.op.name()))
    }
}
