//! Checks gradient rules against finite differences.

use crate::machine::RunOptions;
use crate::{Case, Machine, Value};
use fleet_base::{Error, Result};
use fleet_ir::{OpId, OpRole, Program, Var, VarId, VarKind};
use fleet_kernels::pool::Pool;
use fleet_ops::{Emit, GradCtx, Meta};
use fleet_tensor::DType;
use std::collections::HashMap;

/// Maximum number of elements of an input to differentiate; larger inputs are sampled evenly.
const ELEMENTS_MAX: usize = 48;

impl Case {
    /// Compares the op's own gradient with respect to the input slots `wrt` with central
    /// differences of a random projection of its outputs. The gradient ops run in the variants of
    /// [`Case::run`]: on 1 and 3 threads, in place and not.
    pub fn check_grad(&self, wrt: &[&str]) -> Result<()> {
        let (mut machine, id) = self.build()?;
        machine.run(id)?;
        let wanted: Vec<VarId> =
            wrt.iter().flat_map(|slot| machine.program.op(id).input(slot).to_vec()).collect();
        if wanted.is_empty() {
            return Err(Error::invalid(format!("{} has no input {wrt:?}", self.def.spec.name)));
        }
        let weights = self.weights(&mut machine, id)?;
        let made = run_rule(&mut machine, self, id, &weights, &wanted)?;
        for var in wanted {
            let parts = made.iter().filter(|(of, _)| *of == var).map(|(_, part)| *part);
            let analytic = sum_parts(&machine, parts).ok_or_else(|| {
                Error::internal(format!(
                    "gradient rule of {} gives no gradient of '{}'",
                    self.def.spec.name,
                    machine.program.var_name(var)
                ))
            })?;
            self.compare(&mut machine, id, var, &weights, &analytic)?;
        }
        Ok(())
    }

    /// Runs the gradient ops of the slots `wrt` over other inputs than those of the rule. `change`
    /// maps the type and shape of each.
    pub fn attempt_grad(&self, wrt: &[&str], change: &mut dyn FnMut(Meta) -> Meta) -> Result<()> {
        let (mut machine, id) = self.build()?;
        machine.run(id)?;
        let op = machine.program.op(id);
        let wanted: Vec<VarId> = wrt.iter().flat_map(|slot| op.input(slot).to_vec()).collect();
        let weights = self.weights(&mut machine, id)?;
        let (ops, _) = emit_rule(&mut machine, self, id, &weights, &wanted)?;
        for op in ops {
            for var in machine.program.op(op).all_inputs().collect::<Vec<_>>() {
                let Some(Value::Dense(tensor)) = machine.values.get(&var) else { continue };
                let meta = Meta::dense(tensor.dtype(), *tensor.shape());
                let changed = change(meta);
                if changed != meta {
                    let value = Value::random(changed.dtype, changed.shape, 7, -1.0, 1.0);
                    machine.values.insert(var, value);
                }
            }
            let call = machine.program.op(op).clone();
            let made = machine.registry.get(call.name())?.shapes(&call, |var| machine.meta(var))?;
            for (var, made) in call.outputs.iter().flatten().zip(made.iter().flatten()) {
                let var = machine.program.var_mut(*var);
                (var.dtype, var.shape) = (made.dtype, made.shape);
            }
            machine.run(op)?;
        }
        Ok(())
    }

    /// Random weights for the elements of the outputs in the loss.
    fn weights(&self, machine: &mut Machine, id: OpId) -> Result<HashMap<VarId, VarId>> {
        let op = machine.program.op(id).clone();
        let mut weights = HashMap::new();
        for (slot, vars) in op.spec.outputs.iter().zip(&op.outputs) {
            for var in vars {
                let (dtype, shape) = {
                    let it = machine.program.var(*var);
                    (it.dtype, it.shape)
                };
                let named = |slots: &Vec<String>| slots.iter().any(|it| it == slot.name);
                if !dtype.is_float() || !self.loss_on.as_ref().is_none_or(named) {
                    continue;
                }
                let name = machine.program.unique_name("weight");
                let weight =
                    machine.program.add_var(Program::ROOT, Var::new(name, dtype, shape))?;
                let seed = 77 + weights.len() as u64;
                machine.values.insert(weight, Value::random(dtype, shape, seed, -1.0, 1.0));
                weights.insert(*var, weight);
            }
        }
        Ok(weights)
    }

    fn compare(
        &self,
        machine: &mut Machine,
        id: OpId,
        var: VarId,
        weights: &HashMap<VarId, VarId>,
        analytic: &[f64],
    ) -> Result<()> {
        let scale = analytic.iter().fold(1.0, |max: f64, it| max.max(it.abs()));
        let stride = analytic.len().div_ceil(ELEMENTS_MAX).max(1);
        for index in (0..analytic.len()).step_by(stride) {
            let numeric = self.numeric(machine, id, var, weights, index)?;
            let error = (numeric - analytic[index]).abs();
            if error.is_nan() || error > self.grad_tolerance * scale {
                return Err(Error::internal(format!(
                    "the gradient of {} with respect to '{}' is wrong at element {index}",
                    self.def.spec.name,
                    machine.program.var_name(var)
                ))
                .expected(format!("{numeric} (finite differences)"))
                .got(analytic[index]));
            }
        }
        Ok(())
    }

    /// Extrapolated central differences with steps h and h/2 (Richardson); the error is O(h^4).
    fn numeric(
        &self,
        machine: &mut Machine,
        id: OpId,
        var: VarId,
        weights: &HashMap<VarId, VarId>,
        index: usize,
    ) -> Result<f64> {
        let mut slope = |h: f64| -> Result<f64> {
            let (low, below) = shifted_loss(machine, id, var, weights, index, -h)?;
            let (high, above) = shifted_loss(machine, id, var, weights, index, h)?;
            Ok((above - below) / (high - low))
        };
        Ok((4.0 * slope(self.difference / 2.0)? - slope(self.difference)?) / 3.0)
    }
}

/// Emits and runs the gradient ops. Returns (variable, its gradient) pairs.
fn run_rule(
    machine: &mut Machine,
    case: &Case,
    id: OpId,
    weights: &HashMap<VarId, VarId>,
    wanted: &[VarId],
) -> Result<Vec<(VarId, VarId)>> {
    let (ops, made) = emit_rule(machine, case, id, weights, wanted)?;
    for op in ops {
        machine.run(op)?;
    }
    Ok(made)
}

/// Gradient ops, and (variable, its gradient) pairs.
type Emitted = (Vec<OpId>, Vec<(VarId, VarId)>);

fn emit_rule(
    machine: &mut Machine,
    case: &Case,
    id: OpId,
    weights: &HashMap<VarId, VarId>,
    wanted: &[VarId],
) -> Result<Emitted> {
    if case.def.grad.is_none() {
        return Err(Error::invalid(format!("{} has no gradient rule", case.def.spec.name)));
    }
    let wants = |var: VarId| wanted.contains(&var);
    let mut emit = Emit::new(&mut machine.program, &machine.registry, OpRole::BACKWARD);
    let mut ctx = GradCtx::new(&mut emit, id, weights, &wants);
    case.def.grad.emit(&mut ctx)?;
    let made = ctx.into_made();
    let ops = std::mem::take(&mut emit.ops);
    // Gradients get the layouts of the forward op's inputs.
    for (var, grad) in &made {
        if let Some(Value::Dense(tensor)) = machine.values.get(var) {
            machine.layouts.insert(*grad, tensor.layout());
        }
    }
    Ok((ops, made))
}

fn sum_parts(machine: &Machine, parts: impl Iterator<Item = VarId>) -> Option<Vec<f64>> {
    let mut total: Option<Vec<f64>> = None;
    for part in parts {
        let numbers = machine.values.get(&part)?.numbers();
        total = Some(match total {
            None => numbers,
            Some(sum) => sum.iter().zip(numbers).map(|(a, b)| a + b).collect(),
        });
    }
    total
}

/// Shifts one element of a variable. Returns its shifted value and the loss.
fn shifted_loss(
    machine: &mut Machine,
    id: OpId,
    var: VarId,
    weights: &HashMap<VarId, VarId>,
    index: usize,
    by: f64,
) -> Result<(f64, f64)> {
    let Some(value) = machine.values.get(&var) else {
        return Err(Error::internal("a differentiated input has a value"));
    };
    let original = value.try_clone()?;
    let (meta, layout) = (original.meta(), original.tensor().layout());
    if meta.kind != VarKind::Dense || meta.dtype == DType::F16 || meta.dtype == DType::BF16 {
        return Err(Error::unsupported("finite differences need a dense f32 or f64 input"));
    }
    let mut numbers = original.numbers();
    numbers[index] += by;
    let mut moved = Value::of(meta.dtype, meta.shape, &numbers)?;
    let at = moved.numbers()[index];
    if layout == fleet_tensor::Layout::Filter64 {
        moved = crate::to_filter64(moved.tensor())?.into();
    }
    machine.values.insert(var, moved);
    let loss = loss(machine, id, weights);
    machine.values.insert(var, original);
    Ok((at, loss?))
}

fn loss(machine: &Machine, id: OpId, weights: &HashMap<VarId, VarId>) -> Result<f64> {
    let pool = Pool::new(1);
    let share = machine.same.clone();
    let outputs =
        machine.execute(id, &RunOptions { pool: &pool, fill_byte: 0, share, shared_index: 0 })?;
    let op = machine.program.op(id);
    let mut loss = 0.0;
    for (vars, values) in op.outputs.iter().zip(&outputs) {
        for (var, value) in vars.iter().zip(values) {
            if let Some(weight) = weights.get(var).and_then(|weight| machine.values.get(weight)) {
                let products = value.numbers().into_iter().zip(weight.numbers());
                loss += products.map(|(value, weight)| value * weight).sum::<f64>();
            }
        }
    }
    Ok(loss)
}
