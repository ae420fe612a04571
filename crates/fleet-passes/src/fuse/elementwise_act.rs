//! Fuses `relu(x + y)` into one pass over memory, forward and backward, for operands of one shape.

use super::{Edit, Graph, Positions, emit_like, only_var};
use fleet_base::Result;
use fleet_ir::{OpId, Program, VarId};
use fleet_ops::Registry;

pub(crate) fn run(program: &mut Program, registry: &Registry, keep: &[VarId]) -> Result<bool> {
    if registry.find("fused_elemwise_activation").is_none() {
        return Ok(false);
    }
    let (graph, positions) = (Graph::new(program, keep), Positions::new(program));
    let sums: Vec<OpId> = program
        .root_ops()
        .filter(|(_, op)| op.name() == "elementwise_add")
        .map(|(id, _)| id)
        .collect();
    let mut edit = Edit::default();
    for add in sums {
        fuse(program, registry, (&graph, &positions), &mut edit, add)?;
    }
    Ok(edit.apply(program))
}

fn fuse(
    program: &mut Program,
    registry: &Registry,
    (graph, positions): (&Graph, &Positions),
    edit: &mut Edit,
    add: OpId,
) -> Result<()> {
    let op = program.op(add).clone();
    let (Some(x), Some(y), Some(sum)) =
        (only_var(&op, "X"), only_var(&op, "Y"), only_var(&op, "Out"))
    else {
        return Ok(());
    };
    if program.var(x).shape != program.var(y).shape {
        return Ok(());
    }
    let Some(act) = graph.user(program, sum, "relu", "X") else { return Ok(()) };
    let Some(out) = only_var(program.op(act), "Out") else { return Ok(()) };
    // The fused op replaces the activation, so the sum is computed later than before.
    if !positions.before(add, act) || [x, y].iter().any(|var| positions.changes(*var, add, act)) {
        return Ok(());
    }
    let act_grad = graph.user(program, out, "relu_grad", "Out");
    let mut ops = vec![add, act];
    let mut backward = None;
    if let Some(act_grad) = act_grad {
        let grad = program.op(act_grad);
        let (Some(incoming), Some(dy)) = (only_var(grad, "X@GRAD"), only_var(grad, "Out@GRAD"))
        else {
            return Ok(());
        };
        // If the sum's gradient has no op, the gradient of the relu passes unchanged to both
        // operands.
        if let Some(add_grad) = graph.user(program, incoming, "elementwise_add_grad", "Out@GRAD") {
            ops.extend([act_grad, add_grad]);
            if !graph.is_only_read_by(program, incoming, &ops) {
                return Ok(());
            }
            backward = Some((act_grad, add_grad, dy));
        }
    }
    if !graph.is_only_read_by(program, sum, &ops) || !edit.is_free(&ops) {
        return Ok(());
    }
    let functors = vec!["relu".to_string(), "elementwise_add".to_string()];
    let mut emit = emit_like(program, registry, act);
    emit.named_op("fused_elemwise_activation")?
        .input("X", x)
        .input("Y", y)
        .attr("functor_list", fleet_ir::Attr::Strs(functors.clone()))
        .output("Out", out)
        .done()?;
    let new = std::mem::take(&mut emit.ops);
    edit.replace(&[add, act], act, new);
    let Some((act_grad, add_grad, dy)) = backward else { return Ok(()) };
    let grad = program.op(add_grad).clone();
    let mut emit = emit_like(program, registry, add_grad);
    emit.named_op("fused_elemwise_activation_grad")?
        .input("X", x)
        .input("Y", y)
        .input("Out", out)
        .input("Out@GRAD", dy)
        .attr("functor_list", fleet_ir::Attr::Strs(functors))
        .maybe_output("X@GRAD", only_var(&grad, "X@GRAD"))
        .maybe_output("Y@GRAD", only_var(&grad, "Y@GRAD"))
        .done()?;
    let new = std::mem::take(&mut emit.ops);
    edit.replace(&[act_grad, add_grad], add_grad, new);
    Ok(())
}
