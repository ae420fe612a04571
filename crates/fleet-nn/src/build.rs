//! Helpers to write layers: access to both programs, documented names, and initialized parameters.

use crate::{Act, Init, Net, ParamAttr, Var, init};
use fleet_base::{Error, Result};
use fleet_ir::{BlockId, OpRole, Param, Program, VarId};
use fleet_ops::{Emit, Meta, OpEmitter};
use fleet_tensor::{DType, Shape};
use std::panic::Location;

impl Net {
    /// Emits a layer, unless an error occurred before. Stores the layer's error in the network.
    pub(crate) fn emit<T>(
        &self,
        at: &Location<'_>,
        layer: impl FnOnce(&mut Build<'_>) -> Result<T>,
    ) -> Result<T> {
        let source = self.source(at);
        let registry = self.registry();
        self.update(&source, |state| {
            let emit = |program| Emit {
                source: Some(source.clone()),
                ..Emit::new(program, registry, OpRole::FORWARD)
            };
            let main = Emit {
                device: state.device.clone(),
                fp16_guard: state.fp16_guard,
                role: state.role,
                layer: state.layer.clone(),
                ..emit(&mut state.programs.main)
            };
            let startup = emit(&mut state.programs.startup);
            let block = state.block;
            let mut build = Build { net: self, main, startup, scope: &state.scope, block };
            let made = layer(&mut build)?;
            build.append_to(block);
            build.startup.append();
            Ok(made)
        })
    }

    /// Like [`Net::emit`], for callers that return handles.
    pub(crate) fn try_emit<T>(
        &self,
        at: &Location<'_>,
        layer: impl FnOnce(&mut Build<'_>) -> Result<T>,
    ) -> Option<T> {
        self.emit(at, layer).ok()
    }

    /// Makes a check of a layer. Stores its error in the network.
    pub(crate) fn checked<T>(
        &self,
        at: &Location<'_>,
        check: impl FnOnce() -> Result<T>,
    ) -> Option<T> {
        let source = self.source(at);
        let made = check();
        self.update(&source, |_| made).ok()
    }

    /// Like [`Net::try_emit`], for a layer with one result.
    pub(crate) fn try_emit_var(
        &self,
        at: &Location<'_>,
        layer: impl FnOnce(&mut Build<'_>) -> Result<VarId>,
    ) -> Var<'_> {
        self.try_emit(at, layer).map_or_else(|| self.invalid_var(), |id| self.handle(id))
    }
}

impl<'n> Var<'n> {
    /// Emits a layer with this variable as its input.
    #[track_caller]
    pub(crate) fn layer(
        self,
        emit: impl FnOnce(&mut Build<'_>, VarId) -> Result<VarId>,
    ) -> Var<'n> {
        self.net.try_emit_var(Location::caller(), |b| {
            let x = b.id(self)?;
            emit(b, x)
        })
    }
}

/// A layer being emitted. Its ops are added to the programs when the layer is complete.
pub(crate) struct Build<'a> {
    pub net: &'a Net,
    pub main: Emit<'a>,
    pub startup: Emit<'a>,
    pub scope: &'a str,
    /// Block of the layer's ops.
    pub block: BlockId,
}

impl<'a> Build<'a> {
    /// Returns the id of the handle's variable. Fails if it belongs to another network.
    pub fn id(&self, var: Var<'_>) -> Result<VarId> {
        var.of(self.net)
    }

    pub fn ids(&self, vars: &[Var<'_>]) -> Result<Vec<VarId>> {
        vars.iter().map(|var| self.id(*var)).collect()
    }

    /// Appends the ops so far to a block. Later ones go to the layer's block.
    pub fn append_to(&mut self, block: BlockId) {
        // Variables are always in the root.
        let variables = std::mem::replace(&mut self.main.block, block);
        self.main.append();
        self.main.block = variables;
    }

    pub fn op(&mut self, name: &str) -> Result<OpEmitter<'_, 'a>> {
        self.main.named_op(name)
    }

    pub fn meta(&self, var: VarId) -> Meta {
        self.main.meta(var)
    }

    pub fn shape(&self, var: VarId) -> Shape {
        self.meta(var).shape
    }

    /// Returns the given name, that of a [`Net::name_guard`], or a unique name such as `fc_0`.
    pub fn layer_name(&mut self, kind: &str, name: Option<&str>) -> String {
        match name.or(self.main.layer.as_deref()) {
            Some(name) => name.to_string(),
            None => self.main.program.unique_name(&format!("{}{kind}", self.scope)),
        }
    }

    /// Returns the size of dimension `axis`. It must be known because it sets the size of a
    /// parameter.
    pub fn known_dim(&self, what: &str, shape: &Shape, axis: i64) -> Result<i64> {
        let dim = shape.dims()[shape.axis(axis)?];
        if dim > 0 {
            return Ok(dim);
        }
        Err(Error::invalid(format!("dimension {axis} of the input of {what} must be known"))
            .expected("a size above 0")
            .got(shape))
    }

    /// Returns the product of the dimensions from `axis` on, which must be known.
    pub fn known_tail(&self, what: &str, shape: &Shape, axis: usize) -> Result<i64> {
        (axis..shape.rank()).try_fold(1, |product: i64, axis| {
            let dim = self.known_dim(what, shape, axis as i64)?;
            product
                .checked_mul(dim)
                .ok_or_else(|| Error::invalid(format!("input of {what} is too wide")).got(shape))
        })
    }

    /// Adds a parameter, which the startup program initializes. Its name is `<layer>.<suffix>_<n>`
    /// unless the attribute sets one. If the name exists already, the existing parameter is shared.
    pub fn parameter(
        &mut self,
        layer: &str,
        suffix: &str,
        attr: &ParamAttr,
        shape: impl Into<Shape>,
        dtype: DType,
        default: &Init,
    ) -> Result<VarId> {
        let shape = Shape::new(&shape.into())?;
        let name = match &attr.name {
            Some(name) => name.clone(),
            None => self.main.program.unique_name(&format!("{layer}.{suffix}")),
        };
        if !shape.is_known() || shape.is_empty() {
            return Err(Error::invalid(format!("the shape of parameter '{name}' must be known"))
                .expected("sizes above 0")
                .got(shape));
        }
        if let Some(found) = self.main.program.find_var(&name) {
            return self.shared(found, &name, shape, dtype);
        }
        if !(attr.learning_rate.is_finite() && attr.learning_rate >= 0.0) {
            return Err(Error::invalid(format!("invalid learning rate of parameter '{name}'"))
                .expected("a finite factor, at least 0")
                .got(attr.learning_rate));
        }
        let param = Param {
            trainable: attr.trainable,
            learning_rate: attr.learning_rate,
            regularizer: attr.regularizer,
            need_clip: attr.need_clip,
            is_distributed: attr.is_distributed,
        };
        let mut var = fleet_ir::Var::parameter(name, dtype, shape, param);
        if let Some(division) = attr.division {
            if !division.fits(&shape) {
                return Err(Error::invalid(format!("invalid split of parameter '{}'", var.name))
                    .expected(format!("an axis of {shape} that divides into the groups"))
                    .got(format!("axis {}, groups {}", division.axis, division.groups)));
            }
            var.division = Some(division);
        }
        let initial = attr.initializer.as_ref().unwrap_or(default);
        init::initialize(&mut self.startup, &var, initial)?;
        self.main.program.add_var(Program::ROOT, var)
    }

    fn shared(&self, found: VarId, name: &str, shape: Shape, dtype: DType) -> Result<VarId> {
        let var = self.main.program.var(found);
        if var.is_parameter() && var.shape == shape && var.dtype == dtype {
            return Ok(found);
        }
        let held = if var.is_parameter() { "parameter" } else { "variable" };
        Err(Error::invalid(format!("cannot share existing variable '{name}'"))
            .expected(format!("a parameter {dtype}{shape}"))
            .got(format!("a {held} {}{}", var.dtype, var.shape)))
    }

    /// Adds a persistable variable to both programs. The startup program fills it with `value`.
    pub fn global_var(
        &mut self,
        name: &str,
        shape: Shape,
        dtype: DType,
        value: f64,
    ) -> Result<VarId> {
        init::global_var(&mut self.main, &mut self.startup, name, shape, dtype, value)
    }

    pub fn act(&mut self, x: VarId, act: Option<&Act>, layer: &str) -> Result<VarId> {
        match act {
            Some(act) => act.emit(&mut self.main, x, Some(layer)),
            None => Ok(x),
        }
    }
}
