//! A check that all gradient ops share: `Out@GRAD` must have the type and shape of `Out`.
//!
//! If a gradient op has every input and attribute of its forward op, the forward shape rule gives
//! the expected incoming gradients and saved outputs. Kernels rely on this, and programs may come
//! from users, so it is checked once here. Gradient ops that have fewer inputs or attributes check
//! it in their own rules.

use super::{OpDef, Registry};
use crate::{InferCtx, Meta};
use fleet_base::Result;
use fleet_ir::{Arity, Op};

/// Rejects inputs that the forward op cannot have produced.
pub(crate) fn check(gradient: &InferCtx<'_>) -> Result<()> {
    let forward = Registry::standard().forward_of(gradient.op.name());
    let Some(forward) = forward else { return Ok(()) };
    let Some(made) = made_by(forward, gradient)? else { return Ok(()) };
    for (slot, made) in forward.spec.outputs.iter().zip(&made) {
        let is_saved = forward.spec.input_index(slot.name).is_none();
        let arrives = format!("{}@GRAD", slot.name);
        let names = [is_saved.then_some(slot.name), Some(arrives.as_str())];
        for name in names.into_iter().flatten() {
            for (found, made) in gradient.inputs(name).iter().zip(made) {
                if !found.shape.agrees(&made.shape) || found.dtype != made.dtype {
                    return Err(gradient
                        .error(
                            name,
                            &format!("does not match the outputs of {}", forward.spec.name),
                        )
                        .expected(format!("{}{}", made.dtype, made.shape))
                        .got(format!("{}{}", found.dtype, found.shape)));
                }
            }
        }
    }
    Ok(())
}

/// Returns the outputs of the forward op, if the gradient op has all of its inputs and attributes.
fn made_by(forward: &'static OpDef, gradient: &InferCtx<'_>) -> Result<Option<Vec<Vec<Meta>>>> {
    let (spec, op) = (&forward.spec, gradient.op);
    let takes_inputs = spec
        .inputs
        .iter()
        .all(|slot| slot.arity == Arity::Optional || !gradient.inputs(slot.name).is_empty());
    let places: Option<Vec<usize>> = spec
        .attrs
        .iter()
        .map(|attr| op.spec.attr_index(attr.name).filter(|at| op.spec.attrs[*at].kind == attr.kind))
        .collect();
    let Some(places) = places.filter(|_| takes_inputs) else { return Ok(None) };
    let mut call = Op::build(spec);
    for slot in spec.inputs {
        let vars = op.spec.input_index(slot.name).map_or(&[][..], |at| &op.inputs[at]);
        call = vars.iter().fold(call, |call, var| call.input(slot.name, *var));
    }
    for (attr, place) in spec.attrs.iter().zip(places) {
        call = call.attr(attr.name, op.attrs[place].clone());
    }
    let call = call.finish_open()?;
    let mut ctx = gradient.of_other(&call);
    (forward.infer)(&mut ctx)?;
    Ok(Some(ctx.into_outputs()))
}
