//! Fuses a relu into the following depthwise convolution. The convolution clips its input while
//! reading, and its gradient masks its output, so the clipped image is not stored.

use super::{Edit, Graph, emit_like, only_var};
use fleet_base::Result;
use fleet_ir::{OpId, Program, VarId};
use fleet_ops::Registry;

pub(crate) fn run(program: &mut Program, registry: &Registry, keep: &[VarId]) -> Result<bool> {
    let Some(def) = registry.find("depthwise_conv2d") else { return Ok(false) };
    if def.spec.attr_index("fuse_relu_before_depthwise_conv").is_none() {
        return Ok(false);
    }
    let graph = Graph::new(program, keep);
    let convs: Vec<OpId> = program
        .root_ops()
        .filter(|(_, op)| op.name() == "depthwise_conv2d")
        .map(|(id, _)| id)
        .collect();
    let mut edit = Edit::default();
    for conv in convs {
        fuse(program, registry, &graph, &mut edit, conv)?;
    }
    Ok(edit.apply(program))
}

fn fuse(
    program: &mut Program,
    registry: &Registry,
    graph: &Graph,
    edit: &mut Edit,
    conv: OpId,
) -> Result<()> {
    const FLAG: &str = "fuse_relu_before_depthwise_conv";
    let Some(clipped) = only_var(program.op(conv), "Input") else { return Ok(()) };
    let relu =
        program.root_ops().find(|(_, op)| op.name() == "relu" && op.output("Out") == [clipped]);
    let Some((relu, relu_op)) = relu else { return Ok(()) };
    let Some(image) = only_var(relu_op, "X") else { return Ok(()) };
    let conv_grad = graph.user(program, clipped, "depthwise_conv2d_grad", "Input");
    let relu_grad = graph.user(program, clipped, "relu_grad", "Out");
    let ops: Vec<OpId> =
        [Some(relu), Some(conv), conv_grad, relu_grad].into_iter().flatten().collect();
    if !graph.is_only_read_by(program, clipped, &ops) || !edit.is_free(&ops) {
        return Ok(());
    }
    if let (Some(conv_grad), Some(relu_grad)) = (conv_grad, relu_grad) {
        let between = only_var(program.op(conv_grad), "Input@GRAD");
        let Some(between) = between.filter(|var| program.op(relu_grad).input("Out@GRAD") == [*var])
        else {
            return Ok(());
        };
        if !graph.is_only_read_by(program, between, &[relu_grad]) {
            return Ok(());
        }
    } else if conv_grad.is_some() != relu_grad.is_some()
        && conv_grad.is_some_and(|id| !program.op(id).output("Input@GRAD").is_empty())
    {
        return Ok(());
    }
    let rewire = |program: &mut Program, id: OpId, out: Option<VarId>| -> Result<Vec<OpId>> {
        let old = program.op(id).clone();
        let mut emit = emit_like(program, registry, id);
        let mut call = emit.named_op(old.name())?;
        for (slot, vars) in old.spec.inputs.iter().zip(&old.inputs) {
            let vars = if slot.name == "Input" { std::slice::from_ref(&image) } else { vars };
            call = call.inputs(slot.name, vars);
        }
        for (slot, vars) in old.spec.outputs.iter().zip(&old.outputs) {
            match out {
                Some(out) if slot.name == "Input@GRAD" => call = call.output(slot.name, out),
                _ => call = call.outputs(slot.name, vars),
            }
        }
        for (spec, value) in old.spec.attrs.iter().zip(&old.attrs) {
            call = call.attr(spec.name, value.clone());
        }
        call.attr(FLAG, true).done()?;
        Ok(std::mem::take(&mut emit.ops))
    };
    let new = rewire(program, conv, None)?;
    edit.replace(&[relu, conv], conv, new);
    if let Some(conv_grad) = conv_grad {
        let out = relu_grad.and_then(|id| only_var(program.op(id), "X@GRAD"));
        let new = rewire(program, conv_grad, out)?;
        let removed: Vec<OpId> = [Some(conv_grad), relu_grad].into_iter().flatten().collect();
        edit.replace(&removed, conv_grad, new);
    }
    Ok(())
}
