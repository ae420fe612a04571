//! Fuses batch norm with adjacent ops: the following sum and relu, the statistics that the
//! preceding convolution can compute, and the sum of its incoming gradients.

use super::{Edit, Graph, emit_like, only_var};
use fleet_base::Result;
use fleet_ir::{Op, OpId, Program, Var, VarId};
use fleet_ops::Registry;

/// Selection of fusions.
pub(crate) struct Fusions {
    /// Batch norm and relu.
    pub act: bool,
    /// Batch norm, sum and relu.
    pub add_act: bool,
}

pub(crate) fn run(
    program: &mut Program,
    registry: &Registry,
    keep: &[VarId],
    fusions: &Fusions,
) -> Result<bool> {
    let graph = Graph::new(program, keep);
    let norms: Vec<OpId> =
        program.root_ops().filter(|(_, op)| op.name() == "batch_norm").map(|(id, _)| id).collect();
    let mut edit = Edit::default();
    for norm in norms {
        if let Some(found) = find(program, &graph, norm, fusions)
            && edit.is_free(&found.all())
        {
            replace(program, registry, &mut edit, &found)?;
        }
    }
    Ok(edit.apply(program))
}

struct Match {
    norm: OpId,
    /// The sum, and its other operand.
    add: Option<(OpId, VarId)>,
    relu: OpId,
    backward: Option<Backward>,
}

struct Backward {
    relu: OpId,
    add: Option<OpId>,
    norm: OpId,
    /// Gradient of the residual operand.
    residual: Option<VarId>,
    incoming: VarId,
}

impl Match {
    fn forward(&self) -> Vec<OpId> {
        [Some(self.norm), self.add.map(|(id, _)| id), Some(self.relu)]
            .into_iter()
            .flatten()
            .collect()
    }

    fn all(&self) -> Vec<OpId> {
        let mut ops = self.forward();
        if let Some(back) = &self.backward {
            ops.extend([Some(back.relu), back.add, Some(back.norm)].into_iter().flatten());
        }
        ops
    }
}

fn find(program: &Program, graph: &Graph, norm: OpId, fusions: &Fusions) -> Option<Match> {
    let normed = only_var(program.op(norm), "Y")?;
    let direct = fusions.act.then(|| graph.user(program, normed, "relu", "X")).flatten();
    let (add, relu, last) = match direct {
        Some(relu) => (None, relu, normed),
        None if fusions.add_act => {
            let (add, other, sum) = residual_sum(program, graph, normed)?;
            (Some((add, other)), graph.user(program, sum, "relu", "X")?, sum)
        }
        None => return None,
    };
    let mut found = Match { norm, add, relu, backward: None };
    let out = only_var(program.op(relu), "Out")?;
    if let Some(relu_grad) = graph.user(program, out, "relu_grad", "Out") {
        found.backward = Some(find_backward(program, graph, &found, normed, relu_grad)?);
    }
    let ops = found.all();
    let is_free =
        graph.is_only_read_by(program, normed, &ops) && graph.is_only_read_by(program, last, &ops);
    is_free.then_some(found)
}

/// Finds the sum `normed + other` or `other + normed` of operands with the same shape.
fn residual_sum(program: &Program, graph: &Graph, normed: VarId) -> Option<(OpId, VarId, VarId)> {
    graph.users(normed).iter().find_map(|id| {
        let op = program.op(*id);
        if op.name() != "elementwise_add" {
            return None;
        }
        let (x, y) = (only_var(op, "X")?, only_var(op, "Y")?);
        let other = if x == normed { y } else { x };
        let same = program.var(x).shape == program.var(y).shape && x != y;
        same.then(|| Some((*id, other, only_var(op, "Out")?))).flatten()
    })
}

fn find_backward(
    program: &Program,
    graph: &Graph,
    forward: &Match,
    normed: VarId,
    relu_grad: OpId,
) -> Option<Backward> {
    let masked = only_var(program.op(relu_grad), "X@GRAD")?;
    let incoming = only_var(program.op(relu_grad), "Out@GRAD")?;
    let (add, residual, before) = match forward.add {
        None => (None, None, masked),
        // The gradient of a sum of equal shapes needs no op: it passes unchanged to both operands.
        Some((add, _)) => match graph.user(program, masked, "elementwise_add_grad", "Out@GRAD") {
            None => (None, Some(masked), masked),
            Some(add_grad) => {
                let (first, second) = match only_var(program.op(add), "X") == Some(normed) {
                    true => ("X@GRAD", "Y@GRAD"),
                    false => ("Y@GRAD", "X@GRAD"),
                };
                let grad = program.op(add_grad);
                (Some(add_grad), only_var(grad, second), only_var(grad, first)?)
            }
        },
    };
    let norm = graph.user(program, before, "batch_norm_grad", "Y@GRAD")?;
    if only_var(program.op(norm), "X") != only_var(program.op(forward.norm), "X") {
        return None;
    }
    let back = Backward { relu: relu_grad, add, norm, residual, incoming };
    let ops = [Some(relu_grad), add, Some(norm)];
    let ops: Vec<OpId> = ops.into_iter().flatten().collect();
    let is_removable =
        |var: VarId| Some(var) == residual || graph.is_only_read_by(program, var, &ops);
    (is_removable(masked) && is_removable(before)).then_some(back)
}

fn replace(
    program: &mut Program,
    registry: &Registry,
    edit: &mut Edit,
    found: &Match,
) -> Result<()> {
    let norm = program.op(found.norm).clone();
    let Some(out) = only_var(program.op(found.relu), "Out") else { return Ok(()) };
    let name = match found.add {
        Some(_) => "fused_bn_add_activation",
        None => "fused_batch_norm_act",
    };
    let mut emit = emit_like(program, registry, found.norm);
    let mut call = emit.named_op(name)?;
    for (slot, vars) in norm.spec.inputs.iter().zip(&norm.inputs) {
        call = call.inputs(slot.name, vars);
    }
    for slot in norm.spec.outputs {
        call = call.outputs(slot.name, if slot.name == "Y" { &[] } else { norm.output(slot.name) });
    }
    if let Some((_, residual)) = found.add {
        call = call.input("Z", residual);
    }
    call = copy_attrs(call, &norm).attr("act_type", "relu").output("Y", out);
    call.done()?;
    let new = std::mem::take(&mut emit.ops);
    edit.replace(&found.forward(), found.relu, new);
    let Some(back) = &found.backward else { return Ok(()) };
    let grad = program.op(back.norm).clone();
    let mut emit = emit_like(program, registry, back.norm);
    let mut call = emit.named_op(&format!("{name}_grad"))?;
    for (slot, vars) in grad.spec.inputs.iter().zip(&grad.inputs) {
        let vars = if slot.name == "Y@GRAD" { std::slice::from_ref(&back.incoming) } else { vars };
        call = call.inputs(slot.name, vars);
    }
    for (slot, vars) in grad.spec.outputs.iter().zip(&grad.outputs) {
        call = call.outputs(slot.name, vars);
    }
    if found.add.is_some() {
        call = call.input("Y", out).maybe_output("Z@GRAD", back.residual);
    }
    copy_attrs(call, &grad).attr("act_type", "relu").done()?;
    let new = std::mem::take(&mut emit.ops);
    let ops: Vec<OpId> =
        [Some(back.relu), back.add, Some(back.norm)].into_iter().flatten().collect();
    edit.replace(&ops, back.relu, new);
    Ok(())
}

fn copy_attrs<'e, 'p>(
    mut call: fleet_ops::OpEmitter<'e, 'p>,
    from: &Op,
) -> fleet_ops::OpEmitter<'e, 'p> {
    for (spec, value) in from.spec.attrs.iter().zip(&from.attrs) {
        call = call.attr(spec.name, value.clone());
    }
    call
}

const NORMS: [&str; 3] = ["batch_norm", "fused_batch_norm_act", "fused_bn_add_activation"];

/// Lets a convolution before a training batch norm compute the partial sums for the norm, while its
/// tiles are in cache.
pub(crate) fn fuse_stats(program: &mut Program, keep: &[VarId]) -> Result<()> {
    let graph = Graph::new(program, keep);
    let convs: Vec<OpId> = program
        .root_ops()
        .filter(|(_, op)| {
            op.name() == "conv2d"
                && op.attr_str("data_format") == "NHWC"
                && op.spec.output_index("Stats").is_some()
                && op.output("Stats").is_empty()
        })
        .map(|(id, _)| id)
        .collect();
    for conv in convs {
        let Some(out) = only_var(program.op(conv), "Output") else { continue };
        let norm = graph.users(out).iter().copied().find(|id| {
            let op = program.op(*id);
            NORMS.contains(&op.name())
                && op.input("X") == [out]
                && op.input("Stats").is_empty()
                && !op.attr_bool("is_test")
                && !op.attr_bool("use_global_stats")
        });
        let Some(norm) = norm else { continue };
        let (name, channels) = (program.var_name(out).to_string(), program.var(out).shape[3]);
        let name = program.fresh_name(&format!("{name}@STATS"));
        let shape = [-1, 2, channels];
        let stats =
            program.add_var(Program::ROOT, Var::new(name, fleet_tensor::DType::F32, shape))?;
        let slot = program.op(conv).spec.output_index("Stats");
        if let Some(slot) = slot {
            program.op_mut(conv).outputs[slot].push(stats);
        }
        let slot = program.op(norm).spec.input_index("Stats");
        if let Some(slot) = slot {
            program.op_mut(norm).inputs[slot].push(stats);
        }
    }
    Ok(())
}

/// `enable_addto`: lets the gradient of a batch norm add two gradients while reading them, if their
/// sum has no other reader.
pub(crate) fn fuse_grad_sum(program: &mut Program, keep: &[VarId]) -> Result<bool> {
    let graph = Graph::new(program, keep);
    let sums: Vec<OpId> = program
        .root_ops()
        .filter(|(_, op)| op.name() == "sum" && op.input("X").len() == 2)
        .map(|(id, _)| id)
        .collect();
    let mut edit = Edit::default();
    for sum in sums {
        let op = program.op(sum);
        let [first, second] = [op.input("X")[0], op.input("X")[1]];
        let Some(total) = only_var(op, "Out") else { continue };
        let [user] = graph.users(total) else { continue };
        let user = *user;
        let takes = {
            let op = program.op(user);
            NORMS.iter().any(|norm| op.name() == format!("{norm}_grad"))
                && op.input("Y@GRAD") == [total]
                && op.input("Addend").is_empty()
        };
        if !takes || first == second || !graph.is_only_read_by(program, total, &[user]) {
            continue;
        }
        let spec = program.op(user).spec;
        if let (Some(dy), Some(addend)) = (spec.input_index("Y@GRAD"), spec.input_index("Addend")) {
            program.op_mut(user).inputs[dy] = vec![first];
            program.op_mut(user).inputs[addend] = vec![second];
            edit.replace(&[sum], sum, Vec::new());
        }
    }
    Ok(edit.apply(program))
}
