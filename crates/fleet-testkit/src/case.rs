//! A test case: one op with its inputs and attributes.

use crate::{Machine, Value};
use fleet_base::{Error, Result};
use fleet_ir::{Arity, Attr, Op, OpId, Program, Var, VarId};
use fleet_ops::{InferCtx, Meta, OpDef, Registry, meta};
use fleet_tensor::{DType, Layout};

/// An op with inputs and attributes, to be run or differentiated.
pub struct Case {
    /// The op.
    pub def: &'static OpDef,
    inputs: Vec<(String, Vec<Value>)>,
    attrs: Vec<(String, Attr)>,
    wanted: Vec<(String, usize)>,
    layouts: Vec<(String, Layout)>,
    same: Vec<(String, String)>,
    pub(crate) loss_on: Option<Vec<String>>,
    pub(crate) difference: f64,
    pub(crate) grad_tolerance: f64,
    seed: u64,
    step: u64,
}

/// The outputs of an op, by slot.
#[derive(Debug)]
pub struct Outputs(Vec<(&'static str, Vec<Value>)>);

/// Runs one op; see [`Case`].
pub fn run_op(
    def: &'static OpDef,
    inputs: Vec<(&str, Vec<Value>)>,
    attrs: &[(&str, Attr)],
) -> Result<Outputs> {
    Case::with(def, inputs, attrs).run()
}

/// Checks the gradient rule of an op with respect to the input slots `wrt`; see
/// [`Case::check_grad`].
pub fn check_grad(
    def: &'static OpDef,
    inputs: Vec<(&str, Vec<Value>)>,
    attrs: &[(&str, Attr)],
    wrt: &[&str],
) -> Result<()> {
    Case::with(def, inputs, attrs).check_grad(wrt)
}

impl Case {
    /// Returns a case without inputs and with default attributes.
    pub fn new(def: &'static OpDef) -> Case {
        Case {
            def,
            inputs: Vec::new(),
            attrs: Vec::new(),
            wanted: Vec::new(),
            layouts: Vec::new(),
            same: Vec::new(),
            loss_on: None,
            difference: 1.0 / 32.0,
            grad_tolerance: 2e-3,
            seed: 0,
            step: 0,
        }
    }

    /// Makes a case of a registered op.
    pub fn named(op: &str) -> Result<Case> {
        Ok(Case::new(Registry::standard().get(op)?))
    }

    fn with(def: &'static OpDef, inputs: Vec<(&str, Vec<Value>)>, attrs: &[(&str, Attr)]) -> Case {
        let case = Case::new(def);
        let case = inputs.into_iter().fold(case, |case, (slot, values)| case.inputs(slot, values));
        attrs.iter().fold(case, |case, (name, value)| case.attr(name, value.clone()))
    }

    /// Adds one variable to an input slot.
    pub fn input(self, slot: &str, value: impl Into<Value>) -> Case {
        self.inputs(slot, vec![value.into()])
    }

    /// Adds several variables to an input slot.
    pub fn inputs(mut self, slot: &str, values: Vec<Value>) -> Case {
        self.inputs.push((slot.to_string(), values));
        self
    }

    /// Sets an attribute.
    pub fn attr(mut self, name: &str, value: impl Into<Attr>) -> Case {
        self.attrs.push((name.to_string(), value.into()));
        self
    }

    /// Requests an optional output.
    pub fn request_output(mut self, slot: &str) -> Case {
        self.wanted.push((slot.to_string(), 1));
        self
    }

    /// Requests a physical layout for an output slot.
    pub fn layout(mut self, slot: &str, layout: Layout) -> Case {
        self.layouts.push((slot.to_string(), layout));
        self
    }

    /// Makes an output the same variable as an input (such as `ParamOut` of an optimizer).
    pub fn alias(mut self, output: &str, input: &str) -> Case {
        self.same.push((output.to_string(), input.to_string()));
        self
    }

    /// Seed of the program, for random ops.
    pub fn seed(self, seed: u64) -> Case {
        Case { seed, ..self }
    }

    /// Number of earlier runs of the program, which random ops for training depend on.
    pub fn step(self, step: u64) -> Case {
        Case { step, ..self }
    }

    /// Restricts the loss of [`Case::check_grad`] to these outputs. Default: all floating outputs.
    pub fn loss_on(mut self, slots: &[&str]) -> Case {
        self.loss_on = Some(slots.iter().map(|slot| slot.to_string()).collect());
        self
    }

    /// Sets the step of the finite differences (default 1/32) and the tolerance, relative to the
    /// largest gradient (default 0.002).
    pub fn finite_differences(self, step: f64, tolerance: f64) -> Case {
        Case { difference: step, grad_tolerance: tolerance, ..self }
    }

    /// Runs the op in all variants that must give the same result, and returns its outputs.
    pub fn run(&self) -> Result<Outputs> {
        let (mut machine, id) = self.build()?;
        machine.run(id)?;
        let op = machine.program.op(id).clone();
        let mut outputs = Vec::new();
        for (slot, vars) in op.spec.outputs.iter().zip(&op.outputs) {
            let values = vars.iter().filter_map(|var| machine.values.remove(var)).collect();
            outputs.push((slot.name, values));
        }
        Ok(Outputs(outputs))
    }

    /// Runs only the shape rule.
    pub fn infer(&self) -> Result<Vec<Vec<Meta>>> {
        let (machine, id) = self.build()?;
        let op = machine.program.op(id);
        let metas = |vars: &Vec<VarId>| vars.iter().map(|v| meta(&machine.program, *v)).collect();
        Ok(op.outputs.iter().map(metas).collect())
    }

    /// Runs the shape rule with the first dimension of the first input slot unknown. Its result
    /// must agree with the result for known dimensions.
    pub fn check_unknown_batch(&self) -> Result<()> {
        let (machine, id) = self.build()?;
        let op = machine.program.op(id);
        let Some(first) = op.inputs.first() else { return Ok(()) };
        let mut ctx = InferCtx::new(op, |var| {
            let mut meta = meta(&machine.program, var);
            if first.contains(&var) && meta.shape.rank() > 0 {
                meta.shape.dims_mut()[0] = -1;
            }
            meta
        });
        (self.def.infer)(&mut ctx).map_err(|error| error.at("shapes with an unknown batch"))?;
        for (slot, (made, vars)) in
            op.spec.outputs.iter().zip(ctx.into_outputs().iter().zip(&op.outputs))
        {
            for (made, var) in made.iter().zip(vars) {
                let known = meta(&machine.program, *var);
                if made.dtype != known.dtype || !made.shape.agrees(&known.shape) {
                    return Err(Error::internal(format!(
                        "shape rule of {} gives another result for '{}' with an unknown batch",
                        op.name(),
                        slot.name
                    ))
                    .expected(format!("{}{}", known.dtype, known.shape))
                    .got(format!("{}{}", made.dtype, made.shape)));
                }
            }
        }
        Ok(())
    }

    /// Builds a program with the op and its inputs.
    pub(crate) fn build(&self) -> Result<(Machine, OpId)> {
        let mut machine = Machine::new(self.def, self.seed);
        machine.step = self.step;
        machine.same.clone_from(&self.same);
        let mut builder = Op::build(&self.def.spec);
        for (slot, values) in &self.inputs {
            for value in values {
                let made = value.meta();
                let name = machine.program.unique_name(slot);
                let var = Var { kind: made.kind, ..Var::new(name, made.dtype, made.shape) };
                let var = machine.program.add_var(Program::ROOT, var)?;
                machine.values.insert(var, value.try_clone()?);
                builder = builder.input(slot, var);
            }
        }
        for (name, value) in &self.attrs {
            builder = builder.attr(name, value.clone());
        }
        for (slot, count) in &self.wanted {
            for _ in 0..*count {
                builder = builder.output(slot, new_var(&mut machine.program, slot)?);
            }
        }
        let mut op = builder.finish_open()?;
        let shapes = self.def.shapes(&op, |var| meta(&machine.program, var));
        let inferred = shapes.map_err(|error| error.at(self.def.spec.name))?;
        for (slot, metas) in inferred.into_iter().enumerate() {
            let spec = op.spec.outputs[slot];
            if spec.arity == Arity::Optional && op.outputs[slot].len() > metas.len() {
                return Err(Error::internal(format!(
                    "shape rule gives no shape for '{}'",
                    spec.name
                )));
            }
            for (index, made) in metas.into_iter().enumerate() {
                if op.outputs[slot].len() <= index {
                    let var = new_var(&mut machine.program, spec.name)?;
                    op.outputs[slot].push(var);
                }
                let id = op.outputs[slot][index];
                let var = machine.program.var_mut(id);
                (var.dtype, var.shape, var.kind) = (made.dtype, made.shape, made.kind);
                if let Some((_, layout)) = self.layouts.iter().find(|it| it.0 == spec.name) {
                    machine.layouts.insert(id, *layout);
                }
            }
        }
        op.check()?;
        let id = machine.program.append_op(Program::ROOT, op);
        Ok((machine, id))
    }
}

fn new_var(program: &mut Program, slot: &str) -> Result<VarId> {
    let name = program.unique_name(slot);
    program.add_var(Program::ROOT, Var::new(name, DType::F32, [0]))
}

impl Outputs {
    /// The variables of a slot.
    pub fn slot(&self, slot: &str) -> &[Value] {
        self.0.iter().find(|it| it.0 == slot).map_or(&[], |it| &it.1)
    }

    /// The first variable of a slot.
    ///
    /// # Panics
    /// If there is none.
    pub fn one(&self, slot: &str) -> &Value {
        self.slot(slot).first().unwrap_or_else(|| panic!("no output '{slot}'"))
    }

    /// The elements of the first variable of a slot.
    ///
    /// # Panics
    /// If there is none or it is not f32.
    pub fn f32(&self, slot: &str) -> &[f32] {
        self.one(slot).tensor().as_slice().expect("an f32 output")
    }

    /// Iterates over the output slots with their variables.
    pub fn iter(&self) -> impl Iterator<Item = &(&'static str, Vec<Value>)> {
        self.0.iter()
    }
}
