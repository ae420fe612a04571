//! Ops and their builder.

use crate::{Arity, Attr, AttrKind, OpSpec, VarId};
use fleet_base::{Error, Result, text};
use fleet_tensor::DType;
use std::sync::Arc;

/// An operation of a program.
#[derive(Clone, Debug)]
pub struct Op {
    /// The name, slots and attributes of the op.
    pub spec: &'static OpSpec,
    /// Input variables by slot, in the spec's order.
    pub inputs: Vec<Vec<VarId>>,
    /// Output variables by slot, in the spec's order.
    pub outputs: Vec<Vec<VarId>>,
    /// Attribute values in the spec's order, with defaults filled in.
    pub attrs: Vec<Attr>,
    /// The part of a training step that the op belongs to.
    pub role: OpRole,
    /// The device label set by `device_guard`.
    pub device: Option<Arc<str>>,
    /// Whether the op is in an `fp16_guard` region, which pure mixed precision may compute in 16
    /// bits.
    pub fp16_guard: bool,
    /// The source location in the user's code that created the op, for errors: `src/model.rs:12`.
    pub source: Option<Arc<str>>,
}

/// The role of an op in training, as the documented bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct OpRole(pub u32);

impl OpRole {
    /// Computes the network and its loss.
    pub const FORWARD: OpRole = OpRole(0);
    /// Computes gradients.
    pub const BACKWARD: OpRole = OpRole(1);
    /// Changes parameters and the state of the optimizer.
    pub const OPTIMIZE: OpRole = OpRole(2);
    /// Exchanges rows or dense parameters with parameter servers.
    pub const RPC: OpRole = OpRole(3);
    /// Communicates with other ranks. Collectives that strategies insert have the role of their
    /// phase.
    pub const DIST: OpRole = OpRole(4);
    /// Computes the learning rate.
    pub const LR_SCHED: OpRole = OpRole(16);
    /// The bit that marks the ops which compute the loss and its gradient, in addition to their
    /// role.
    pub const LOSS: OpRole = OpRole(256);

    /// Returns this role with the loss bit set.
    pub const fn with_loss(self) -> OpRole {
        OpRole(self.0 | OpRole::LOSS.0)
    }

    /// Returns this role without the loss bit.
    pub const fn base(self) -> OpRole {
        OpRole(self.0 & !OpRole::LOSS.0)
    }

    /// Returns whether the loss bit is set.
    pub const fn is_loss(self) -> bool {
        self.0 & OpRole::LOSS.0 != 0
    }

    /// Returns whether the op computes the network or its loss.
    pub fn is_forward(self) -> bool {
        self.base() == OpRole::FORWARD
    }

    /// Returns whether the op computes gradients.
    pub fn is_backward(self) -> bool {
        self.base() == OpRole::BACKWARD
    }
}

macro_rules! attr_getters {
    ($($name:ident -> $type:ty: $kind:ident($value:ident) => $get:expr;)*) => {$(
        /// Returns the value of an attribute. Panics if the spec has no such attribute, or one of
        /// another type.
        pub fn $name(&self, name: &str) -> $type {
            match self.attr(name) {
                Some(Attr::$kind($value)) => $get,
                other => attr_type_mismatch(self, name, other),
            }
        }
    )*};
}

impl Op {
    /// Starts an op with empty slots, no attributes and the role [`OpRole::FORWARD`].
    pub fn build(spec: &'static OpSpec) -> OpBuilder {
        OpBuilder {
            op: Op {
                spec,
                inputs: vec![Vec::new(); spec.inputs.len()],
                outputs: vec![Vec::new(); spec.outputs.len()],
                attrs: Vec::new(),
                role: OpRole::FORWARD,
                device: None,
                fp16_guard: false,
                source: None,
            },
            attrs: vec![None; spec.attrs.len()],
            error: None,
        }
    }

    /// Returns the name of the operation: `matmul`.
    pub fn name(&self) -> &'static str {
        self.spec.name
    }

    /// Returns the variables of an input slot; empty if the spec has no such slot.
    pub fn input(&self, slot: &str) -> &[VarId] {
        self.spec.input_index(slot).map_or(&[], |index| &self.inputs[index])
    }

    /// Returns the variables of an output slot; empty if the spec has no such slot.
    pub fn output(&self, slot: &str) -> &[VarId] {
        self.spec.output_index(slot).map_or(&[], |index| &self.outputs[index])
    }

    /// Iterates over the variables of all input slots. A variable in two places appears twice.
    pub fn all_inputs(&self) -> impl Iterator<Item = VarId> + '_ {
        self.inputs.iter().flatten().copied()
    }

    /// Iterates over the variables of all output slots.
    pub fn all_outputs(&self) -> impl Iterator<Item = VarId> + '_ {
        self.outputs.iter().flatten().copied()
    }

    /// Returns the value of an attribute, or `None` if the spec has no such attribute.
    pub fn attr(&self, name: &str) -> Option<&Attr> {
        self.spec.attr_index(name).map(|index| &self.attrs[index])
    }

    /// Sets an attribute. Returns an error if the spec has no such attribute or the type is wrong.
    pub fn set_attr(&mut self, name: &str, value: impl Into<Attr>) -> Result<()> {
        let value = value.into();
        let index = find_attr(self.spec, name)?;
        self.attrs[index] = coerce(self.spec, index, value)?;
        Ok(())
    }

    attr_getters! {
        attr_int -> i64: Int(value) => *value;
        attr_float -> f64: Float(value) => *value;
        attr_bool -> bool: Bool(value) => *value;
        attr_str -> &str: Str(value) => value;
        attr_ints -> &[i64]: Ints(value) => value;
        attr_floats -> &[f64]: Floats(value) => value;
        attr_strs -> &[String]: Strs(value) => value;
        attr_dtype -> DType: DType(value) => *value;
    }

    /// Returns an integer attribute as a size, with 0 for negative values. Panics like `attr_int`.
    pub fn attr_usize(&self, name: &str) -> usize {
        self.attr_int(name).max(0) as usize
    }

    /// Checks that every slot has as many variables as it takes.
    pub fn check(&self) -> Result<()> {
        for (slot, vars) in self.spec.inputs.iter().zip(&self.inputs) {
            check_arity(self.spec, "input", slot.name, slot.arity, vars.len())?;
        }
        for (slot, vars) in self.spec.outputs.iter().zip(&self.outputs) {
            check_arity(self.spec, "output", slot.name, slot.arity, vars.len())?;
        }
        Ok(())
    }

    /// Returns the sub-block that an attribute names, if any.
    pub fn sub_block(&self) -> Option<crate::BlockId> {
        self.attrs.iter().find_map(|attr| match attr {
            Attr::Block(block) => Some(*block),
            _ => None,
        })
    }
}

/// Panics: an op's own code asked for an attribute that its spec does not have with that type. This
/// is a bug in the op, which its first test finds.
#[cold]
fn attr_type_mismatch(op: &Op, name: &str, found: Option<&Attr>) -> ! {
    panic!("op '{}' has no attribute '{name}' of the requested type: {found:?}", op.name())
}

/// Builds an [`Op`]. The first error is kept and returned by [`OpBuilder::finish`].
pub struct OpBuilder {
    op: Op,
    attrs: Vec<Option<Attr>>,
    error: Option<Error>,
}

impl OpBuilder {
    /// Appends a variable to an input slot.
    pub fn input(self, slot: &str, var: VarId) -> Self {
        self.inputs(slot, &[var])
    }

    /// Appends variables to an input slot. [`OpBuilder::finish`] fails if the spec has no such
    /// slot.
    pub fn inputs(mut self, slot: &str, vars: &[VarId]) -> Self {
        match self.op.spec.input_index(slot) {
            Some(index) => self.op.inputs[index].extend_from_slice(vars),
            None => self.fail(unknown("input slot", self.op.spec, slot, |s| {
                s.inputs.iter().map(|slot| slot.name).collect()
            })),
        }
        self
    }

    /// Appends a variable to an output slot.
    pub fn output(self, slot: &str, var: VarId) -> Self {
        self.outputs(slot, &[var])
    }

    /// Appends variables to an output slot. [`OpBuilder::finish`] fails if the spec has no such
    /// slot.
    pub fn outputs(mut self, slot: &str, vars: &[VarId]) -> Self {
        match self.op.spec.output_index(slot) {
            Some(index) => self.op.outputs[index].extend_from_slice(vars),
            None => self.fail(unknown("output slot", self.op.spec, slot, |s| {
                s.outputs.iter().map(|slot| slot.name).collect()
            })),
        }
        self
    }

    /// Sets an attribute. [`OpBuilder::finish`] fails if the spec has no such attribute or the type
    /// is wrong.
    pub fn attr(mut self, name: &str, value: impl Into<Attr>) -> Self {
        let value = value.into();
        match find_attr(self.op.spec, name)
            .and_then(|index| coerce(self.op.spec, index, value).map(|value| (index, value)))
        {
            Ok((index, value)) => self.attrs[index] = Some(value),
            Err(error) => self.fail(error),
        }
        self
    }

    /// Sets the part of a training step that the op belongs to; by default the forward pass.
    pub fn role(mut self, role: OpRole) -> Self {
        self.op.role = role;
        self
    }

    /// Sets the device label; by default there is none.
    pub fn device(mut self, device: Option<Arc<str>>) -> Self {
        self.op.device = device;
        self
    }

    /// Sets whether the op is in an `fp16_guard` region; by default it is not.
    pub fn fp16_guard(mut self, inside: bool) -> Self {
        self.op.fp16_guard = inside;
        self
    }

    /// Sets the source location for errors; by default there is none.
    pub fn source(mut self, source: Option<Arc<str>>) -> Self {
        self.op.source = source;
        self
    }

    /// Returns the first error so far. For readers, which add the position of the part just read.
    pub(crate) fn check_so_far(&mut self) -> Result<()> {
        self.error.take().map_or(Ok(()), Err)
    }

    /// Fills in the defaults of attributes, and checks attributes and slots.
    pub fn finish(self) -> Result<Op> {
        let op = self.finish_open()?;
        op.check()?;
        Ok(op)
    }

    /// Like [`OpBuilder::finish`], for an op whose outputs are added later. Does not check output
    /// slots; call [`Op::check`] once the outputs are added.
    pub fn finish_open(self) -> Result<Op> {
        let OpBuilder { mut op, attrs, error } = self;
        if let Some(error) = error {
            return Err(error);
        }
        let spec = op.spec;
        for (given, attr) in attrs.into_iter().zip(spec.attrs) {
            let value = given.or_else(|| attr.default.map(|default| default.to_attr()));
            op.attrs.push(value.ok_or_else(|| {
                Error::invalid(format!("missing attribute '{}' of op '{}'", attr.name, spec.name))
                    .expected(attr.kind)
            })?);
        }
        for (slot, vars) in spec.inputs.iter().zip(&op.inputs) {
            check_arity(spec, "input", slot.name, slot.arity, vars.len())?;
        }
        Ok(op)
    }

    fn fail(&mut self, error: Error) {
        self.error.get_or_insert(error);
    }
}

/// Returns an error if `count` variables do not fit a slot.
pub(crate) fn check_arity(
    spec: &OpSpec,
    side: &str,
    slot: &str,
    arity: Arity,
    count: usize,
) -> Result<()> {
    let (fits, expected) = match arity {
        Arity::One => (count == 1, "1 variable"),
        Arity::Optional => (count <= 1, "at most 1 variable"),
        Arity::Many => (true, ""),
    };
    if fits {
        return Ok(());
    }
    Err(Error::invalid(format!("{side} slot '{slot}' of op '{}' has the wrong size", spec.name))
        .expected(expected)
        .got(count))
}

fn find_attr(spec: &'static OpSpec, name: &str) -> Result<usize> {
    spec.attr_index(name).ok_or_else(|| {
        unknown("attribute", spec, name, |s| s.attrs.iter().map(|attr| attr.name).collect())
    })
}

/// Converts a value to the attribute's type: integers to floats, and an empty list to a list of
/// strings.
fn coerce(spec: &OpSpec, index: usize, value: Attr) -> Result<Attr> {
    let attr = &spec.attrs[index];
    Ok(match (attr.kind, value) {
        (kind, value) if kind == value.kind() => value,
        (AttrKind::Float, Attr::Int(value)) => Attr::Float(value as f64),
        (AttrKind::Floats, Attr::Ints(values)) => {
            Attr::Floats(values.into_iter().map(|value| value as f64).collect())
        }
        (AttrKind::Strs, Attr::Ints(values)) if values.is_empty() => Attr::Strs(Vec::new()),
        (kind, value) => {
            return Err(Error::invalid(format!(
                "attribute '{}' of op '{}' has the wrong type",
                attr.name, spec.name
            ))
            .expected(kind)
            .got(value.kind()));
        }
    })
}

fn unknown(
    what: &str,
    spec: &'static OpSpec,
    name: &str,
    known: fn(&'static OpSpec) -> Vec<&'static str>,
) -> Error {
    let known = known(spec);
    let hint = text::did_you_mean(name, known.iter().copied());
    if known.is_empty() {
        let message = format!("op '{}' has no {what} '{name}' (it has no {what}s)", spec.name);
        return Error::invalid(message);
    }
    Error::invalid(format!("op '{}' has no {what} '{name}'{hint}", spec.name))
        .expected(format!("one of {}", known.join(", ")))
}
