//! Emission of ops, used by layers, gradient rules, optimizers and passes to build programs.

use super::{Emit, OpDef, Registry};
use crate::{Meta, meta};
use fleet_base::{Error, Result};
use fleet_ir::{Attr, Op, OpBuilder, OpId, OpRole, Program, Var, VarId};

impl<'p> Emit<'p> {
    /// Returns an emitter into the root block, for ops of a role, without device label and source.
    pub fn new(program: &'p mut Program, registry: &'p Registry, role: OpRole) -> Emit<'p> {
        Emit {
            program,
            registry,
            block: Program::ROOT,
            role,
            device: None,
            fp16_guard: false,
            source: None,
            layer: None,
            ops: Vec::new(),
        }
    }

    /// Starts an op.
    pub fn op<'e>(&'e mut self, def: &'static OpDef) -> OpEmitter<'e, 'p> {
        OpEmitter { def, builder: Op::build(&def.spec), name: None, emit: self }
    }

    /// Starts an op by name.
    pub fn named_op<'e>(&'e mut self, name: &str) -> Result<OpEmitter<'e, 'p>> {
        let def = self.registry.get(name)?;
        Ok(self.op(def))
    }

    /// Appends the emitted ops to the block and clears the list.
    pub fn append(&mut self) {
        let mut ops = self.program.block(self.block).ops().to_vec();
        ops.append(&mut self.ops);
        self.program.set_block_ops(self.block, ops);
    }

    /// Returns the type and shape of a variable.
    pub fn meta(&self, var: VarId) -> Meta {
        meta(self.program, var)
    }
}

/// An op being emitted.
pub struct OpEmitter<'e, 'p> {
    emit: &'e mut Emit<'p>,
    def: &'static OpDef,
    builder: OpBuilder,
    name: Option<String>,
}

impl OpEmitter<'_, '_> {
    /// Passes a variable to an input slot.
    pub fn input(mut self, slot: &str, var: VarId) -> Self {
        self.builder = self.builder.input(slot, var);
        self
    }

    /// Passes variables to an input slot that takes several.
    pub fn inputs(mut self, slot: &str, vars: &[VarId]) -> Self {
        self.builder = self.builder.inputs(slot, vars);
        self
    }

    /// Passes a variable to an optional input slot, if there is one.
    pub fn maybe(self, slot: &str, var: Option<VarId>) -> Self {
        match var {
            Some(var) => self.input(slot, var),
            None => self,
        }
    }

    /// Assigns a variable to an output slot. Slots without a variable get new ones.
    pub fn output(mut self, slot: &str, var: VarId) -> Self {
        self.builder = self.builder.output(slot, var);
        self
    }

    /// Assigns variables to an output slot that takes several.
    pub fn outputs(mut self, slot: &str, vars: &[VarId]) -> Self {
        self.builder = self.builder.outputs(slot, vars);
        self
    }

    /// Assigns a variable to an optional output slot, if there is one.
    pub fn maybe_output(self, slot: &str, var: Option<VarId>) -> Self {
        match var {
            Some(var) => self.output(slot, var),
            None => self,
        }
    }

    /// Sets an attribute. [`OpEmitter::done`] and its like fail if the op has no such attribute or
    /// the type is wrong.
    pub fn attr(mut self, name: &str, value: impl Into<Attr>) -> Self {
        self.builder = self.builder.attr(name, value);
        self
    }

    /// Stem of the names of new variables (`fc_0.tmp`). The default is the name of the layer or
    /// of the op.
    pub fn named(mut self, stem: impl Into<String>) -> Self {
        self.name = Some(stem.into());
        self
    }

    /// Emits the op and returns the first variable of `slot`.
    pub fn one(self, slot: &str) -> Result<VarId> {
        let name = self.def.spec.name;
        let (id, emit) = self.place()?;
        emit.program
            .op(id)
            .output(slot)
            .first()
            .copied()
            .ok_or_else(|| Error::internal(format!("missing output '{slot}' of op '{name}'")))
    }

    /// Emits the op and returns the variables of `slot`.
    pub fn many(self, slot: &str) -> Result<Vec<VarId>> {
        let (id, emit) = self.place()?;
        Ok(emit.program.op(id).output(slot).to_vec())
    }

    /// Emits the op.
    pub fn done(self) -> Result<OpId> {
        Ok(self.place()?.0)
    }
}

impl<'e, 'p> OpEmitter<'e, 'p> {
    /// Infers shapes, makes missing outputs, checks given ones, and emits the op.
    fn place(self) -> Result<(OpId, &'e mut Emit<'p>)> {
        let OpEmitter { emit, def, builder, name } = self;
        let builder = builder
            .role(emit.role)
            .device(emit.device.clone())
            .fp16_guard(emit.fp16_guard)
            .source(emit.source.clone());
        let blamed = |error: Error| match &emit.source {
            Some(source) => error.at(format!("{}, {source}", def.spec.name)).naming(source),
            None => error.at(def.spec.name),
        };
        let mut op = builder.finish_open().map_err(blamed)?;
        let inferred = def.shapes(&op, |var| meta(emit.program, var)).map_err(blamed)?;
        let stem = name.unwrap_or_else(|| match &emit.layer {
            Some(layer) => format!("{layer}.tmp"),
            None => format!("{}.tmp", emit.program.unique_name(def.spec.name)),
        });
        for (slot, metas) in inferred.into_iter().enumerate() {
            if op.outputs[slot].is_empty() {
                for meta in metas {
                    let name = emit.program.unique_name(&stem);
                    let var = Var { kind: meta.kind, ..Var::new(name, meta.dtype, meta.shape) };
                    let var = emit.program.add_var(emit.block, var)?;
                    op.outputs[slot].push(var);
                }
            } else {
                check_given(emit.program, &op, slot, &metas).map_err(|error| {
                    match &emit.source {
                        Some(source) => error.at(source),
                        None => error,
                    }
                })?;
            }
        }
        op.check()?;
        let id = emit.program.make_op(op);
        emit.ops.push(id);
        Ok((id, emit))
    }
}

/// Checks that given outputs can hold the op's results.
fn check_given(program: &mut Program, op: &Op, slot: usize, metas: &[Meta]) -> Result<()> {
    let given = &op.outputs[slot];
    let name = op.spec.outputs[slot].name;
    if given.len() > metas.len() {
        return Err(Error::invalid(format!(
            "too many variables for output '{name}' of {}",
            op.name()
        ))
        .expected(metas.len())
        .got(given.len()));
    }
    for (var, made) in given.iter().zip(metas) {
        let held = meta(program, *var);
        if held.dtype != made.dtype || !held.shape.agrees(&made.shape) {
            return Err(Error::invalid(format!(
                "variable '{}' does not fit output '{name}' of {}",
                program.var_name(*var),
                op.name()
            ))
            .expected(format!("{}{}", made.dtype, made.shape))
            .got(format!("{}{}", held.dtype, held.shape)));
        }
    }
    Ok(())
}
