//! Fuses `layer_norm(x + residual)` into one pass over memory, and the sum of gradients into its
//! gradient.
//!
//! Forward, a sum of two tensors of one shape becomes part of the following norm (`Residual`). The
//! norm still writes the sum for its own gradient and for other readers. Backward, the gradient of
//! the norm (`Skip`) takes over the sum of two gradients of the normalized tensor, of which it
//! computes one. This form does not need a residual and occurs in every layer of pre-norm networks.

use super::{Edit, Graph, Positions, emit_like, only_var};
use fleet_base::Result;
use fleet_ir::{OpId, Program, VarId};
use fleet_ops::Registry;

/// Fuses the forward sum before a norm.
pub(crate) fn run(program: &mut Program, registry: &Registry, keep: &[VarId]) -> Result<bool> {
    let graph = Graph::new(program, keep);
    let positions = Positions::new(program);
    let mut edit = Edit::default();
    for norm in named(program, "layer_norm") {
        let Some(sum) = only_var(program.op(norm), "X") else { continue };
        let Some(add) = only_writer(program, &positions, sum) else { continue };
        if !program.op(norm).input("Residual").is_empty()
            || !positions.before(add, norm)
            || !edit.is_free(&[add, norm])
        {
            continue;
        }
        // The norm will compute the sum, so no earlier op may read it.
        if graph.users(sum).iter().any(|user| positions.before(*user, norm)) {
            continue;
        }
        let Some((x, residual)) = operands(program, add) else { continue };
        if [x, residual].iter().any(|var| positions.changes(*var, add, norm)) {
            continue;
        }
        let op = program.op(norm).clone();
        let mut emit = emit_like(program, registry, norm);
        let mut call = emit.named_op("layer_norm")?;
        for slot in ["Scale", "Bias"] {
            call = call.inputs(slot, op.input(slot));
        }
        for slot in ["Y", "Mean", "Variance"] {
            call = call.outputs(slot, op.output(slot));
        }
        call.input("X", x)
            .input("Residual", residual)
            .attr("epsilon", op.attr_float("epsilon"))
            .attr("begin_norm_axis", op.attr_int("begin_norm_axis"))
            .output("Sum", sum)
            .done()?;
        let new = std::mem::take(&mut emit.ops);
        edit.replace(&[add, norm], norm, new);
    }
    Ok(edit.apply(program))
}

/// Fuses the sum of gradients after the gradient of a norm (`enable_addto`).
pub(crate) fn fuse_grad_sum(program: &mut Program, keep: &[VarId]) -> Result<bool> {
    let graph = Graph::new(program, keep);
    let positions = Positions::new(program);
    let mut edit = Edit::default();
    for grad in named(program, "layer_norm_grad") {
        let op = program.op(grad);
        let Some(through) = only_var(op, "X@GRAD") else { continue };
        let [sum] = graph.users(through) else { continue };
        let (sum, sum_op) = (*sum, program.op(*sum));
        let takes = sum_op.name() == "sum" && op.input("Skip").is_empty();
        let (&[first, second], Some(total)) = (sum_op.input("X"), only_var(sum_op, "Out")) else {
            continue;
        };
        let other = if first == through { second } else { first };
        if !takes
            || first == second
            || !graph.is_only_read_by(program, through, &[sum])
            || !same(program, through, other)
            || !edit.is_free(&[sum])
            || !positions.ready(other, grad)
        {
            continue;
        }
        let spec = program.op(grad).spec;
        if let (Some(skip), Some(dx)) = (spec.input_index("Skip"), spec.output_index("X@GRAD")) {
            program.op_mut(grad).inputs[skip] = vec![other];
            program.op_mut(grad).outputs[dx] = vec![total];
            edit.replace(&[sum], sum, Vec::new());
        }
    }
    Ok(edit.apply(program))
}

fn named(program: &Program, name: &str) -> Vec<OpId> {
    program.root_ops().filter(|(_, op)| op.name() == name).map(|(id, _)| id).collect()
}

/// Returns the sum that alone writes `var`.
fn only_writer(program: &Program, positions: &Positions, var: VarId) -> Option<OpId> {
    match positions.writes(var) {
        [(_, add)] if program.op(*add).name() == "elementwise_add" => Some(*add),
        _ => None,
    }
}

/// Returns the operands of a sum if they have the same shape and type.
fn operands(program: &Program, add: OpId) -> Option<(VarId, VarId)> {
    let op = program.op(add);
    let (x, y) = (only_var(op, "X")?, only_var(op, "Y")?);
    same(program, x, y).then_some((x, y))
}

fn same(program: &Program, a: VarId, b: VarId) -> bool {
    let (a, b) = (program.var(a), program.var(b));
    a.shape == b.shape && a.dtype == b.dtype && a.kind == b.kind && a.layout == b.layout
}
