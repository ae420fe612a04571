//! What a gradient rule sees: the forward op, the gradients that arrive, and a place to emit.

use crate::{Call, Emit, Meta, OpDef};
use fleet_base::{Error, Result};
use fleet_ir::{Op, OpId, Var, VarId, VarKind};
use std::collections::HashMap;

/// Passed to the gradient rule of one forward op.
///
/// A rule asks which gradients are wanted ([`GradCtx::dx`]), which arrive ([`GradCtx::dy`]) and
/// emits ops that compute the former. The pass that drives it sums several contributions and names
/// them.
pub struct GradCtx<'g, 'p> {
    pub emit: &'g mut Emit<'p>,
    pub op: Op,
    pub op_id: OpId,
    /// Finished gradient of each variable that has one.
    arriving: &'g HashMap<VarId, VarId>,
    wanted: &'g dyn Fn(VarId) -> bool,
    /// (forward variable, its partial gradient), in order.
    made: Vec<(VarId, VarId)>,
}

impl<'g, 'p> GradCtx<'g, 'p> {
    pub fn new(
        emit: &'g mut Emit<'p>,
        op_id: OpId,
        arriving: &'g HashMap<VarId, VarId>,
        wanted: &'g dyn Fn(VarId) -> bool,
    ) -> Self {
        let op = emit.program.op(op_id).clone();
        GradCtx { emit, op, op_id, arriving, wanted, made: Vec::new() }
    }

    /// The first variable of a forward input slot.
    pub fn x(&self, slot: &str) -> Result<VarId> {
        self.maybe_x(slot).ok_or_else(|| self.missing("input", slot))
    }

    pub fn maybe_x(&self, slot: &str) -> Option<VarId> {
        self.op.input(slot).first().copied()
    }

    /// The first variable of a forward output slot.
    pub fn y(&self, slot: &str) -> Result<VarId> {
        self.maybe_y(slot).ok_or_else(|| self.missing("output", slot))
    }

    pub fn maybe_y(&self, slot: &str) -> Option<VarId> {
        self.op.output(slot).first().copied()
    }

    /// The gradient that arrives at the first variable of an output slot, if any does.
    pub fn maybe_dy(&self, slot: &str) -> Option<VarId> {
        self.dy_of(self.maybe_y(slot)?)
    }

    /// As [`GradCtx::maybe_dy`] where the op has one output worth differentiating: the rule is only
    /// called when a gradient arrives.
    pub fn dy(&self, slot: &str) -> Result<VarId> {
        self.maybe_dy(slot).ok_or_else(|| {
            Error::unsupported(format!(
                "no gradient arrives at output '{slot}' of {}",
                self.op.name()
            ))
            .help("its other outputs cannot be differentiated; set stop_gradient on them")
        })
    }

    /// The gradient that arrives at a variable.
    pub fn dy_of(&self, var: VarId) -> Option<VarId> {
        self.arriving.get(&var).copied()
    }

    /// Whether the gradient of a forward input is wanted.
    pub fn wants(&self, slot: &str) -> bool {
        self.maybe_x(slot).is_some_and(|var| (self.wanted)(var))
    }

    pub fn wants_var(&self, var: VarId) -> bool {
        (self.wanted)(var)
    }

    /// A new variable for the gradient of the first variable of an input slot, if that is wanted.
    pub fn dx(&mut self, slot: &str) -> Result<Option<VarId>> {
        match self.maybe_x(slot) {
            Some(var) if (self.wanted)(var) => Ok(Some(self.dx_of(var, VarKind::Dense)?)),
            _ => Ok(None),
        }
    }

    /// A new variable for the gradient of `var`, as sparse rows where the rule makes such.
    pub fn dx_of(&mut self, var: VarId, kind: VarKind) -> Result<VarId> {
        let forward = self.emit.program.var(var);
        let (dtype, shape, block) = (forward.dtype, forward.shape, self.emit.block);
        let stem = format!("{}@GRAD@PART", forward.name);
        let name = self.emit.program.unique_name(&stem);
        let grad =
            self.emit.program.add_var(block, Var { kind, ..Var::new(name, dtype, shape) })?;
        self.made.push((var, grad));
        Ok(grad)
    }

    /// States that `grad`, a variable that exists, is the gradient of `var` (no op needed).
    pub fn pass(&mut self, var: VarId, grad: VarId) {
        self.made.push((var, grad));
    }

    pub fn op<'e>(&'e mut self, def: &'static OpDef) -> Call<'e, 'p> {
        self.emit.op(def)
    }

    pub fn meta(&self, var: VarId) -> Meta {
        self.emit.meta(var)
    }

    /// What the rule made.
    pub fn into_made(self) -> Vec<(VarId, VarId)> {
        self.made
    }

    fn missing(&self, side: &str, slot: &str) -> Error {
        Error::internal(format!("{side} '{slot}' of {} is not there", self.op.name()))
    }
}
