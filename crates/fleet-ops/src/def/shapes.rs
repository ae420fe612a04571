//! Shapes of an op's outputs, after the checks that all ops share.

use super::{OpDef, gradient_check};
use crate::{InferCtx, Meta};
use fleet_base::{Error, Result};
use fleet_ir::{Op, VarId, VarKind};
use std::collections::{HashMap, HashSet};

impl OpDef {
    /// Returns the types and shapes of the outputs of `op`, by slot, computed from those of its
    /// inputs.
    pub fn shapes(&self, op: &Op, meta: impl Fn(VarId) -> Meta) -> Result<Vec<Vec<Meta>>> {
        let mut ctx = InferCtx::new(op, meta);
        self.check_dense(&ctx)?;
        self.check_overlap(op)?;
        gradient_check::check(&ctx)?;
        (self.infer)(&mut ctx)?;
        Ok(ctx.into_outputs())
    }

    /// Rejects outputs that alias inputs, except where the op may write over the input.
    fn check_overlap(&self, op: &Op) -> Result<()> {
        // A map by variable, because a program may pass any number of variables to an op.
        let mut read: HashMap<VarId, Vec<(&str, usize)>> = HashMap::new();
        for (slot, vars) in op.spec.inputs.iter().zip(&op.inputs) {
            for (index, var) in vars.iter().enumerate() {
                read.entry(*var).or_default().push((slot.name, index));
            }
        }
        let mut written = HashSet::new();
        for (out, vars) in op.spec.outputs.iter().zip(&op.outputs) {
            for (index, var) in vars.iter().enumerate() {
                let places = read.get(var).map_or(&[][..], Vec::as_slice);
                // A single output may share memory with any variable of the slot. With several
                // outputs, the kernel writes one output while it still reads the inputs of the
                // others. Each output may then alias only the input of the same index.
                let elsewhere = |slot: &str, at: usize| {
                    vars.len() > 1 && at != index && !self.traits.shape_only.contains(&slot)
                };
                let may_not = |(slot, at): &&(&str, usize)| {
                    !self.may_write_over(out.name, slot) || elsewhere(slot, *at)
                };
                if let Some((slot, _)) = places.iter().find(may_not) {
                    return Err(Error::invalid(format!(
                        "output '{}' of {} is the same variable as input '{slot}'",
                        out.name,
                        op.name()
                    ))
                    .expected("a separate variable"));
                }
                if !written.insert(*var) {
                    return Err(Error::invalid(format!(
                        "two outputs of {} are the same variable",
                        op.name()
                    ))
                    .got(format!("'{}' twice", out.name)));
                }
            }
        }
        Ok(())
    }

    fn may_write_over(&self, output: &str, input: &str) -> bool {
        let traits = &self.traits;
        traits.elementwise
            || traits.inplace.contains(&(output, input))
            || traits.view == Some((output, input))
            || traits.state.contains(&(output, input))
            || traits.shape_only.contains(&input)
    }

    /// Rejects sparse rows in input slots whose kernel supports dense tensors only.
    fn check_dense(&self, i: &InferCtx<'_>) -> Result<()> {
        let dense = self.spec.inputs.iter().filter(|slot| !self.traits.sparse.contains(&slot.name));
        for slot in dense {
            if i.inputs(slot.name).iter().any(|meta| meta.kind == VarKind::SparseRows) {
                return Err(i
                    .error(slot.name, "holds sparse rows")
                    .expected("a dense tensor")
                    .help("make the gradient of the embedding dense (is_sparse: false)"));
            }
        }
        Ok(())
    }
}
