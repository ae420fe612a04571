//! Fuses `act(x * w + b)` into one op. Bias and activation are applied while the product's tile is
//! in registers, and the backward pass computes the bias gradient in the same sweep.
//!
//! The pass matches `mul` and plain `matmul_v2` (no transposes, a two-dimensional `w`), followed by
//! an `elementwise_add` of a row and an optional activation. If one such layer feeds the next
//! through a relu, the gradient of the relu is applied to the tiles of the later layer's `X@GRAD`.

use super::{Edit, Graph, emit_like, only_var};
use fleet_base::Result;
use fleet_ir::{Op, OpId, Program, VarId};
use fleet_ops::Registry;

const ACTIVATIONS: [&str; 4] = ["relu", "gelu", "tanh", "sigmoid"];

/// The ops of one match.
struct Match {
    product: OpId,
    add: OpId,
    act: Option<OpId>,
    product_grad: Option<OpId>,
    add_grad: Option<OpId>,
    act_grad: Option<OpId>,
}

pub(crate) fn run(program: &mut Program, registry: &Registry, keep: &[VarId]) -> Result<bool> {
    if registry.find("fused_gemm_epilogue").is_none() {
        return Ok(false);
    }
    let graph = Graph::new(program, keep);
    let products: Vec<OpId> = program
        .root_ops()
        .filter(|(_, op)| row_product(program, op).is_some())
        .map(|(id, _)| id)
        .collect();
    let mut edit = Edit::default();
    for product in products {
        if let Some(found) = find(program, &graph, product)
            && edit.is_free(&found.all())
        {
            replace(program, registry, &mut edit, &found)?;
        }
    }
    Ok(edit.apply(program))
}

/// Moves the gradient of a relu between two layers into the later layer's product, which computes
/// its input.
pub(crate) fn fuse_relu_grad(program: &mut Program, keep: &[VarId]) -> Result<()> {
    const GRAD: &str = "fused_gemm_epilogue_grad";
    let graph = Graph::new(program, keep);
    let later: Vec<OpId> =
        program.root_ops().filter(|(_, op)| op.name() == GRAD).map(|(id, _)| id).collect();
    for later in later {
        let op = program.op(later);
        let (Some(incoming), Some(x)) = (only_var(op, "X@GRAD"), only_var(op, "X")) else {
            continue;
        };
        let [earlier] = graph.users(incoming) else { continue };
        let before = program.op(*earlier);
        if before.name() != GRAD
            || before.attr_str("activation") != "relu"
            || before.input("Out@GRAD") != [incoming]
            || before.input("Out") != [x]
            || op.attr_bool("x_is_relu")
            || !graph.is_only_read_by(program, incoming, &[*earlier])
        {
            continue;
        }
        program.op_mut(later).set_attr("x_is_relu", true)?;
        let earlier = program.op_mut(*earlier);
        earlier.set_attr("activation", "")?;
        if let Some(out) = earlier.spec.input_index("Out") {
            earlier.inputs[out].clear();
        }
    }
    Ok(())
}

impl Match {
    /// Returns the backward op that runs first.
    fn first_grad(&self) -> Option<OpId> {
        self.act_grad.or(self.add_grad).or(self.product_grad)
    }

    fn all(&self) -> Vec<OpId> {
        let maybe = [self.act, self.product_grad, self.add_grad, self.act_grad];
        [self.product, self.add].into_iter().chain(maybe.into_iter().flatten()).collect()
    }
}

/// Returns the number of leading row dimensions, for a product of rows with a matrix.
fn row_product(program: &Program, op: &Op) -> Option<i64> {
    let rank = |slot| only_var(op, slot).map(|var| program.var(var).shape.rank() as i64);
    match op.name() {
        "mul" if rank("Y") == Some(2) => Some(op.attr_int("x_num_col_dims")),
        "matmul_v2"
            if rank("Y") == Some(2)
                && rank("X") >= Some(2)
                && !op.attr_bool("trans_x")
                && !op.attr_bool("trans_y")
                && op.attr_float("alpha") == 1.0 =>
        {
            rank("X").map(|rank| rank - 1)
        }
        _ => None,
    }
}

fn find(program: &Program, graph: &Graph, product: OpId) -> Option<Match> {
    let op = program.op(product);
    let (x, w) = (only_var(op, "X")?, only_var(op, "Y")?);
    let sum_in = only_var(op, "Out")?;
    let add = graph.user(program, sum_in, "elementwise_add", "X")?;
    let add_op = program.op(add);
    let (bias, sum_out) = (only_var(add_op, "Y")?, only_var(add_op, "Out")?);
    let axis = add_op.attr_int("axis");
    let shape = program.var(bias).shape;
    let width = program.var(w).shape[1];
    let rows = row_product(program, op)?;
    if bias == sum_in || shape.rank() != 1 || shape[0] != width || (axis != -1 && axis != rows) {
        return None;
    }
    let act = ACTIVATIONS.iter().find_map(|act| graph.user(program, sum_out, act, "X"));
    // The fused op supports only the exact gelu.
    let act = act.filter(|id| {
        let op = program.op(*id);
        op.name() != "gelu" || !op.attr_bool("approximate")
    });
    let mut found = Match { product, add, act, product_grad: None, add_grad: None, act_grad: None };
    // The incoming gradient of the sum, if the program has a backward part. The gradient of a sum
    // for an operand of the same shape needs no op, so the gradient of the product may be the same
    // variable.
    let mut incoming = None;
    if let Some(act) = act {
        let name = format!("{}_grad", program.op(act).name());
        let out = only_var(program.op(act), "Out")?;
        found.act_grad = graph
            .user(program, out, &name, "Out")
            .or_else(|| graph.user(program, sum_out, &name, "X"));
        if let Some(id) = found.act_grad {
            incoming = Some(only_var(program.op(id), "X@GRAD")?);
        }
    }
    found.add_grad = graph.users(bias).iter().copied().find(|id| {
        let op = program.op(*id);
        op.name() == "elementwise_add_grad"
            && op.input("X").contains(&sum_in)
            && incoming.is_none_or(|var| op.input("Out@GRAD").contains(&var))
    });
    if let Some(id) = found.add_grad {
        incoming = only_var(program.op(id), "Out@GRAD");
    }
    if let Some(incoming) = incoming {
        let passed = found.add_grad.and_then(|id| only_var(program.op(id), "X@GRAD"));
        let before = passed.unwrap_or(incoming);
        let grad = graph.user(program, before, &format!("{}_grad", op.name()), "Out@GRAD")?;
        let grad_op = program.op(grad);
        if only_var(grad_op, "X") != Some(x) || only_var(grad_op, "Y") != Some(w) {
            return None;
        }
        found.product_grad = Some(grad);
        if !graph.ready(program, x, found.first_grad().unwrap_or(grad)) {
            return None;
        }
        let ops = found.all();
        let is_free = |var: VarId| graph.is_only_read_by(program, var, &ops);
        if (found.act_grad.is_some() && !is_free(incoming)) || !passed.is_none_or(is_free) {
            return None;
        }
    }
    let ops = found.all();
    let inner_is_free = graph.is_only_read_by(program, sum_in, &ops)
        && (act.is_none() || graph.is_only_read_by(program, sum_out, &ops));
    inner_is_free.then_some(found)
}

fn replace(
    program: &mut Program,
    registry: &Registry,
    edit: &mut Edit,
    found: &Match,
) -> Result<()> {
    let product = program.op(found.product).clone();
    let add = program.op(found.add).clone();
    let rows = row_product(program, &product).unwrap_or(1);
    let act = found.act.map(|id| program.op(id).clone());
    let name = act.as_ref().map_or("", |op| op.name());
    let last = found.act.unwrap_or(found.add);
    let (Some(x), Some(w), Some(bias)) =
        (only_var(&product, "X"), only_var(&product, "Y"), only_var(&add, "Y"))
    else {
        return Ok(());
    };
    let Some(out) = only_var(act.as_ref().unwrap_or(&add), "Out") else { return Ok(()) };
    // gelu needs its input in the backward pass.
    let pre_act =
        (name == "gelu" && found.act_grad.is_some()).then(|| only_var(&add, "Out")).flatten();
    let mut emit = emit_like(program, registry, last);
    emit.named_op("fused_gemm_epilogue")?
        .input("X", x)
        .input("Y", w)
        .input("Bias", bias)
        .attr("x_num_col_dims", rows)
        .attr("activation", name)
        .output("Out", out)
        .maybe_output("PreAct", pre_act)
        .done()?;
    let new = std::mem::take(&mut emit.ops);
    let forward: Vec<OpId> =
        [Some(found.product), Some(found.add), found.act].into_iter().flatten().collect();
    edit.replace(&forward, last, new);
    let Some(product_grad) = found.product_grad else { return Ok(()) };
    let product_grad_op = program.op(product_grad).clone();
    let bias_grad = found.add_grad.and_then(|id| only_var(program.op(id), "Y@GRAD"));
    let first = program.op(found.first_grad().unwrap_or(product_grad));
    let Some(dy) = only_var(first, "Out@GRAD") else { return Ok(()) };
    let mut emit = emit_like(program, registry, product_grad);
    emit.named_op("fused_gemm_epilogue_grad")?
        .input("X", x)
        .input("Y", w)
        .input("Bias", bias)
        .input("Out", out)
        .maybe("PreAct", pre_act)
        .input("Out@GRAD", dy)
        .attr("x_num_col_dims", rows)
        .attr("activation", name)
        .maybe_output("X@GRAD", only_var(&product_grad_op, "X@GRAD"))
        .maybe_output("Y@GRAD", only_var(&product_grad_op, "Y@GRAD"))
        .maybe_output("Bias@GRAD", bias_grad)
        .done()?;
    let new = std::mem::take(&mut emit.ops);
    let backward: Vec<OpId> =
        [Some(product_grad), found.add_grad, found.act_grad].into_iter().flatten().collect();
    // The new op replaces the first of them, because an op that communicates a gradient may
    // directly follow it.
    edit.replace(&backward, found.first_grad().unwrap_or(product_grad), new);
    Ok(())
}
