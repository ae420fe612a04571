//! Ops by name, including those without a method.

use crate::build::Build;
use crate::{Net, Var};
use fleet_base::Result;
use fleet_ir::{Attr, OpId, VarId};
use std::panic::Location;

impl Net {
    /// Starts any op of the registry by name.
    ///
    /// ```
    /// # use fleet_nn::prelude::*;
    /// let net = Net::new();
    /// let x = net.data("x", [-1, 13], DType::F32);
    /// let y = net.op("scale").input("X", x).attr("scale", 2.0).one("Out");
    /// assert_eq!(y.name(), "scale_0.tmp_0");
    /// ```
    #[track_caller]
    pub fn op(&self, name: &'static str) -> OpCall<'_> {
        OpCall {
            net: self,
            name,
            at: Location::caller(),
            inputs: Vec::new(),
            outputs: Vec::new(),
            attrs: Vec::new(),
            layer: None,
        }
    }
}

/// Builder of an op; see [`Net::op`].
///
/// ```
/// # use fleet_nn::prelude::*;
/// let net = Net::new();
/// let logits = net.data("logits", [-1, 10], DType::F32);
/// let label = net.data("label", [-1, 1], DType::I64);
/// let call = net.op("softmax_with_cross_entropy").input("Logits", logits).input("Label", label);
/// let made = call.done();
/// let (loss, softmax) = (made.one("Loss"), made.one("Softmax"));
/// assert_eq!(softmax.shape(), Shape::from([-1, 10]));
/// let split = net.op("split").input("X", logits).attr("num", 2i64).attr("axis", 1i64);
/// let parts = split.many("Out", 2);
/// let sum = net.op("sum").inputs("X", &parts).output("Out", parts[0]).one("Out");
/// assert_eq!((sum.id(), sum.shape()), (parts[0].id(), Shape::from([-1, 5])));
/// # let _ = loss;
/// ```
#[must_use = "call `one`, `many` or `done` to add the op"]
pub struct OpCall<'n> {
    net: &'n Net,
    name: &'static str,
    at: &'static Location<'static>,
    inputs: Vec<(&'static str, Vec<Var<'n>>)>,
    outputs: Vec<(&'static str, Vec<Var<'n>>)>,
    attrs: Vec<(&'static str, Attr)>,
    layer: Option<String>,
}

impl<'n> OpCall<'n> {
    /// Passes a variable to an input slot. A slot that the op does not have is an error of the
    /// network.
    pub fn input(self, slot: &'static str, var: Var<'n>) -> Self {
        self.inputs(slot, &[var])
    }

    /// Passes variables to an input slot that takes several.
    pub fn inputs(mut self, slot: &'static str, vars: &[Var<'n>]) -> Self {
        self.inputs.push((slot, vars.to_vec()));
        self
    }

    /// Passes a variable to an optional input slot, if there is one.
    pub fn maybe(self, slot: &'static str, var: Option<Var<'n>>) -> Self {
        match var {
            Some(var) => self.input(slot, var),
            None => self,
        }
    }

    /// Writes to an existing variable instead of a new one.
    pub fn output(mut self, slot: &'static str, var: Var<'n>) -> Self {
        self.outputs.push((slot, vec![var]));
        self
    }

    /// Sets an attribute; others keep their defaults.
    pub fn attr(mut self, name: &'static str, value: impl Into<Attr>) -> Self {
        self.attrs.push((name, value.into()));
        self
    }

    /// Sets the layer's name. Outputs are then named `<name>.tmp_0` and so on.
    pub fn named(mut self, layer: impl Into<String>) -> Self {
        self.layer = Some(layer.into());
        self
    }

    /// Writes the op and returns the variable of an output slot.
    pub fn one(self, slot: &str) -> Var<'n> {
        self.done().one(slot)
    }

    /// Writes the op and returns the `count` variables of an output slot.
    pub fn many(self, slot: &str, count: usize) -> Vec<Var<'n>> {
        self.done().many(slot, count)
    }

    /// Writes the op.
    pub fn done(self) -> Outputs<'n> {
        let net = self.net;
        Outputs { net, op: net.try_emit(self.at, |build| self.emit(build)) }
    }

    fn emit(&self, build: &mut Build<'_>) -> Result<OpId> {
        let ids = |slots: &[(&'static str, Vec<Var<'n>>)]| -> Result<Vec<(&str, Vec<VarId>)>> {
            slots.iter().map(|(slot, vars)| Ok((*slot, build.ids(vars)?))).collect()
        };
        let (inputs, outputs) = (ids(&self.inputs)?, ids(&self.outputs)?);
        let layer = build.layer_name(self.name, self.layer.as_deref());
        let mut call = build.op(self.name)?.named(format!("{layer}.tmp"));
        for (slot, vars) in inputs {
            call = call.inputs(slot, &vars);
        }
        for (slot, vars) in outputs {
            call = call.outputs(slot, &vars);
        }
        for (name, value) in &self.attrs {
            call = call.attr(name, value.clone());
        }
        call.done()
    }
}

/// Outputs of an op.
#[derive(Clone, Copy)]
pub struct Outputs<'n> {
    net: &'n Net,
    /// `None` after an error in the network.
    op: Option<OpId>,
}

impl<'n> Outputs<'n> {
    /// Returns the first variable of an output slot.
    pub fn one(&self, slot: &str) -> Var<'n> {
        self.all(slot).first().copied().unwrap_or_else(|| self.net.invalid_var())
    }

    /// Returns the `count` variables of an output slot.
    pub fn many(&self, slot: &str, count: usize) -> Vec<Var<'n>> {
        let mut found = self.all(slot);
        found.resize_with(count, || self.net.invalid_var());
        found
    }

    fn all(&self, slot: &str) -> Vec<Var<'n>> {
        let ids = self.op.map(|op| self.net.outputs_of(op, slot)).unwrap_or_default();
        ids.into_iter().map(|id| self.net.handle(id)).collect()
    }
}
