//! Gradient rules: which ops they emit.

use super::emit::OpEmitter;
use super::{Emit, Grad, GradCtx, OpDef};
use crate::Meta;
use fleet_base::{Error, Result};
use fleet_ir::{Arity, Attr, OpId, Var, VarId, VarKind};
use std::collections::HashMap;

impl Grad {
    /// Returns whether gradients stop at the op.
    pub fn is_none(&self) -> bool {
        matches!(self, Grad::None)
    }

    /// Returns the op that only computes gradients of this one.
    pub fn op(&self) -> Option<&'static OpDef> {
        match *self {
            Grad::Op(op) | Grad::OpRule(op, _) => Some(op),
            Grad::None | Grad::Rule(_) => None,
        }
    }

    /// Emits the ops that compute the requested gradients.
    pub fn emit(&self, g: &mut GradCtx<'_, '_>) -> Result<()> {
        match *self {
            Grad::None => Ok(()),
            Grad::Op(op) => g.by_name(op, &[], VarKind::Dense),
            Grad::OpRule(op, rule) => rule(g, op),
            Grad::Rule(rule) => rule(g),
        }
    }
}

impl<'g, 'p> GradCtx<'g, 'p> {
    /// Returns the context of the op `op_id`. `output_grads` has the complete gradients of its
    /// outputs, and `wanted` says for which variables gradients are needed.
    pub fn new(
        emit: &'g mut Emit<'p>,
        op_id: OpId,
        output_grads: &'g HashMap<VarId, VarId>,
        wanted: &'g dyn Fn(VarId) -> bool,
    ) -> Self {
        let op = emit.program.op(op_id).clone();
        GradCtx { emit, op, op_id, output_grads, wanted, made: Vec::new() }
    }

    /// Returns the first variable of a forward input slot.
    pub fn x(&self, slot: &str) -> Result<VarId> {
        self.maybe_x(slot).ok_or_else(|| self.missing("input", slot))
    }

    /// Returns the first variable of a forward input slot, or `None` if the slot is empty.
    pub fn maybe_x(&self, slot: &str) -> Option<VarId> {
        self.op.input(slot).first().copied()
    }

    /// Returns the first variable of a forward output slot.
    pub fn y(&self, slot: &str) -> Result<VarId> {
        self.maybe_y(slot).ok_or_else(|| self.missing("output", slot))
    }

    /// Returns the first variable of a forward output slot, or `None` if the slot is empty.
    pub fn maybe_y(&self, slot: &str) -> Option<VarId> {
        self.op.output(slot).first().copied()
    }

    /// Returns the incoming gradient of the first variable of an output slot, if there is one.
    pub fn maybe_dy(&self, slot: &str) -> Option<VarId> {
        self.dy_of(self.maybe_y(slot)?)
    }

    /// Like [`GradCtx::maybe_dy`], for ops with one differentiable output. A rule is called only if
    /// some output has a gradient.
    pub fn dy(&self, slot: &str) -> Result<VarId> {
        self.maybe_dy(slot).ok_or_else(|| {
            Error::unsupported(format!("no gradient for output '{slot}' of {}", self.op.name()))
                .help("set stop_gradient on its other outputs, which are not differentiable")
        })
    }

    /// Returns the incoming gradient of a variable.
    pub fn dy_of(&self, var: VarId) -> Option<VarId> {
        self.output_grads.get(&var).copied()
    }

    /// Returns whether the gradient of a forward input is wanted.
    pub fn wants(&self, slot: &str) -> bool {
        self.maybe_x(slot).is_some_and(|var| (self.wanted)(var))
    }

    /// Returns whether the gradient of a variable is wanted.
    pub fn wants_var(&self, var: VarId) -> bool {
        (self.wanted)(var)
    }

    /// Adds a variable for the gradient of the first variable of an input slot, if that is wanted.
    pub fn dx(&mut self, slot: &str) -> Result<Option<VarId>> {
        match self.maybe_x(slot) {
            Some(var) if (self.wanted)(var) => Ok(Some(self.dx_of(var, VarKind::Dense)?)),
            _ => Ok(None),
        }
    }

    /// Adds a variable for the gradient of `var`. `kind` is sparse rows where the rule makes these.
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

    /// Declares that `grad`, an existing variable, is the gradient of `var`. No op is needed.
    pub fn alias_grad(&mut self, var: VarId, grad: VarId) {
        self.made.push((var, grad));
    }

    /// Emits a gradient op, unless no gradient is wanted. Its attributes are those of the forward
    /// op with the same names. Its slots follow from their names:
    ///
    /// * input `S@GRAD`: the incoming gradient of output `S`;
    /// * other inputs: the forward op's input or output of this name, if there is one;
    /// * output `S@GRAD`: the gradient of input `S`, if it is wanted, of the given kind.
    ///
    /// Inputs in `unused` stay empty.
    pub fn by_name(&mut self, grad: &'static OpDef, unused: &[&str], kind: VarKind) -> Result<()> {
        let mut inputs: Vec<(&str, Vec<VarId>)> = Vec::new();
        for slot in grad.spec.inputs.iter().filter(|slot| !unused.contains(&slot.name)) {
            let vars = match slot.name.strip_suffix("@GRAD") {
                Some(output) if slot.arity == Arity::One => vec![self.dy(output)?],
                Some(output) => self.maybe_dy(output).into_iter().collect(),
                None => [self.op.input(slot.name), self.op.output(slot.name)].concat(),
            };
            inputs.push((slot.name, vars));
        }
        let mut outputs: Vec<(&str, VarId)> = Vec::new();
        for slot in grad.spec.outputs {
            let input = slot.name.strip_suffix("@GRAD").and_then(|input| self.maybe_x(input));
            if let Some(var) = input.filter(|var| (self.wanted)(*var)) {
                outputs.push((slot.name, self.dx_of(var, kind)?));
            }
        }
        if outputs.is_empty() {
            return Ok(());
        }
        let names = grad.spec.attrs.iter().map(|attr| attr.name);
        let attrs: Vec<(&str, Attr)> =
            names.filter_map(|name| Some((name, self.op.attr(name)?.clone()))).collect();
        let mut call = self.op(grad);
        for (slot, vars) in &inputs {
            call = call.inputs(slot, vars);
        }
        for (name, value) in attrs {
            call = call.attr(name, value);
        }
        for (slot, var) in outputs {
            call = call.output(slot, var);
        }
        call.done().map(drop)
    }

    /// Starts an op of the backward pass.
    pub fn op<'e>(&'e mut self, def: &'static OpDef) -> OpEmitter<'e, 'p> {
        self.emit.op(def)
    }

    /// Returns the type and shape of a variable.
    pub fn meta(&self, var: VarId) -> Meta {
        self.emit.meta(var)
    }

    /// Returns the gradients that the rule made.
    pub fn into_made(self) -> Vec<(VarId, VarId)> {
        self.made
    }

    fn missing(&self, side: &str, slot: &str) -> Error {
        Error::internal(format!("missing {side} '{slot}' of {}", self.op.name()))
    }
}
