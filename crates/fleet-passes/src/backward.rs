//! The backward pass: appends the ops that compute gradients.
//!
//! Ops are visited from the last to the first. A variable's gradient is complete when every op that
//! uses the variable has been visited. A single contribution is renamed to `x@GRAD`. Several
//! contributions are renamed to `x@GRAD@RENAME@block0@i` and summed. A sum directly follows its
//! last contribution, so that a gradient is ready for communication as early as possible.
//!
//! The gradients of a conditional block are in another conditional block
//! (`backward/conditional.rs`).

mod conditional;

use fleet_base::{Error, Result};
use fleet_ir::{BlockId, OpId, OpRole, Program, Var, VarId, VarKind};
use fleet_ops::{Emit, GradCtx, Registry};
use fleet_ops::{
    math::sum,
    tensor::{assign, fill},
};
use std::collections::{BTreeSet, HashMap, HashSet};

/// Options of differentiation.
#[derive(Clone, Debug, Default)]
pub struct BackwardOptions {
    /// Parameters whose gradients are requested; all trainable ones by default.
    pub parameters: Option<Vec<VarId>>,
    /// Variables at which gradients stop.
    pub no_grad: Vec<VarId>,
}

/// Appends the backward ops of `loss`. Returns each parameter with its gradient, in the order in
/// which the parameters were created. Omits parameters without influence on the loss.
pub fn append_backward(
    program: &mut Program,
    registry: &Registry,
    loss: VarId,
    options: &BackwardOptions,
) -> Result<Vec<(VarId, VarId)>> {
    check_loss(program, loss)?;
    let parameters: Vec<VarId> = match &options.parameters {
        Some(given) => given.clone(),
        None => {
            program.parameters().filter(|(_, var)| !var.stop_gradient).map(|(id, _)| id).collect()
        }
    };
    let found = differentiate(program, registry, &[(loss, None)], &parameters, &options.no_grad)?;
    let pairs: Vec<(VarId, VarId)> = parameters
        .iter()
        .filter_map(|param| found.get(param).map(|grad| (*param, *grad)))
        .collect();
    if pairs.is_empty() {
        return Err(Error::invalid(format!(
            "loss '{}' depends on no trainable parameter",
            program.var_name(loss)
        ))
        .help("check stop_gradient and trainable, and compute the loss from the network"));
    }
    Ok(pairs)
}

/// Appends the ops that compute the gradients of `targets` with respect to `inputs`. Returns one
/// entry per input, which is `None` if the targets do not depend on it. A missing target gradient
/// is all ones.
pub fn gradients(
    program: &mut Program,
    registry: &Registry,
    targets: &[VarId],
    inputs: &[VarId],
    target_gradients: &[Option<VarId>],
) -> Result<Vec<Option<VarId>>> {
    if !target_gradients.is_empty() && target_gradients.len() != targets.len() {
        return Err(Error::invalid("wrong number of target gradients")
            .expected(targets.len())
            .got(target_gradients.len()));
    }
    let seeds: Vec<(VarId, Option<VarId>)> = targets
        .iter()
        .enumerate()
        .map(|(index, target)| (*target, target_gradients.get(index).copied().flatten()))
        .collect();
    let found = differentiate(program, registry, &seeds, inputs, &[])?;
    Ok(inputs.iter().map(|input| found.get(input).copied()).collect())
}

/// Rejects a variable that cannot be minimized.
pub fn check_loss(program: &Program, loss: VarId) -> Result<()> {
    let var = program.var(loss);
    if var.shape.numel() != Some(1) || !var.dtype.is_float() {
        return Err(Error::invalid(format!("invalid loss '{}'", var.name))
            .expected("one floating-point number, shape [1]")
            .got(format!("{}{}", var.dtype, var.shape))
            .help("take its mean or sum"));
    }
    Ok(())
}

/// An op between the leaves and the targets.
struct Node {
    id: OpId,
    /// Nodes inside, for a conditional block.
    inner: Vec<Node>,
}

impl Node {
    fn is_conditional(&self) -> bool {
        !self.inner.is_empty()
    }

    /// Returns the variables that the node reads. A conditional block does not read those that it
    /// writes.
    fn reads(&self, program: &Program) -> BTreeSet<VarId> {
        if !self.is_conditional() {
            return program.op(self.id).all_inputs().collect();
        }
        let reads: BTreeSet<VarId> =
            self.inner.iter().flat_map(|node| node.reads(program)).collect();
        &reads - &self.writes(program)
    }

    fn writes(&self, program: &Program) -> BTreeSet<VarId> {
        match self.is_conditional() {
            true => self.inner.iter().flat_map(|node| node.writes(program)).collect(),
            false => program.op(self.id).all_outputs().collect(),
        }
    }
}

/// State of one differentiation, or of its part inside a conditional block.
struct Tape<'f> {
    /// Variables through which gradients flow.
    flows: &'f HashSet<VarId>,
    /// The block whose ops are differentiated.
    block: BlockId,
    /// Variables written inside the conditional block. The gradients of all others are completed
    /// outside.
    local: Option<BTreeSet<VarId>>,
    /// Number of unvisited ops that use the variable.
    pending: HashMap<VarId, usize>,
    parts: HashMap<VarId, Vec<VarId>>,
    finished: HashMap<VarId, VarId>,
}

fn differentiate(
    program: &mut Program,
    registry: &Registry,
    seeds: &[(VarId, Option<VarId>)],
    leaves: &[VarId],
    no_grad: &[VarId],
) -> Result<HashMap<VarId, VarId>> {
    let targets: Vec<VarId> = seeds.iter().map(|(target, _)| *target).collect();
    let (nodes, flows) = relevant_ops(program, registry, &targets, leaves, no_grad)?;
    let mut tape = Tape::new(program, &nodes, &flows, Program::ROOT, None);
    let mut emit = Emit::new(program, registry, OpRole::BACKWARD);
    for (target, seed) in seeds {
        let seed = match seed {
            Some(given) => *given,
            None => emit_ones(&mut emit, *target)?,
        };
        tape.parts.entry(*target).or_default().push(seed);
        tape.finish_if_done(&mut emit, *target)?;
    }
    for node in nodes.iter().rev() {
        visit(&mut emit, &mut tape, node)?;
    }
    emit.append();
    Ok(tape.finished)
}

/// Returns the ops between the leaves and the targets, in program order, and the variables between.
fn relevant_ops(
    program: &Program,
    registry: &Registry,
    targets: &[VarId],
    leaves: &[VarId],
    no_grad: &[VarId],
) -> Result<(Vec<Node>, HashSet<VarId>)> {
    let stopped: HashSet<VarId> = no_grad.iter().copied().collect();
    let mut flows: HashSet<VarId> =
        leaves.iter().copied().filter(|leaf| !stopped.contains(leaf)).collect();
    let dependents = dependent_ops(program, registry, Program::ROOT, &stopped, &mut flows)?;
    let mut needed: HashSet<VarId> = targets.iter().copied().collect();
    let kept = needed_ops(program, dependents, &flows, &mut needed);
    flows.retain(|var| needed.contains(var));
    conditional::check_single_producer(program, &kept, &flows)?;
    Ok((kept, flows))
}

/// Returns the ops of a block that depend on the leaves. Adds their outputs to `flows`.
fn dependent_ops(
    program: &Program,
    registry: &Registry,
    block: BlockId,
    stopped: &HashSet<VarId>,
    flows: &mut HashSet<VarId>,
) -> Result<Vec<Node>> {
    let mut nodes = Vec::new();
    for (id, op) in program.block_ops(block) {
        if !op.role.is_forward() && !op.role.is_backward() {
            continue;
        }
        if let Some(inside) = op.sub_block() {
            let inner = dependent_ops(program, registry, inside, stopped, flows)?;
            if !inner.is_empty() {
                nodes.push(Node { id, inner });
            }
            continue;
        }
        let differentiable = !registry.get(op.name())?.grad.is_none();
        if !differentiable || !op.all_inputs().any(|var| flows.contains(&var)) {
            continue;
        }
        nodes.push(Node { id, inner: Vec::new() });
        for var in op.all_outputs() {
            let it = program.var(var);
            if it.dtype.is_float() && !it.stop_gradient && !stopped.contains(&var) {
                flows.insert(var);
            }
        }
    }
    Ok(nodes)
}

/// Returns the ops that influence the targets. Adds their inputs to `needed`.
fn needed_ops(
    program: &Program,
    nodes: Vec<Node>,
    flows: &HashSet<VarId>,
    needed: &mut HashSet<VarId>,
) -> Vec<Node> {
    let mut kept = Vec::new();
    for node in nodes.into_iter().rev() {
        if node.is_conditional() {
            let inner = needed_ops(program, node.inner, flows, needed);
            if !inner.is_empty() {
                kept.push(Node { id: node.id, inner });
            }
            continue;
        }
        let op = program.op(node.id);
        if op.all_outputs().any(|var| needed.contains(&var) && flows.contains(&var)) {
            needed.extend(op.all_inputs().filter(|var| flows.contains(var)));
            kept.push(node);
        }
    }
    kept.reverse();
    kept
}

fn emit_ones(emit: &mut Emit<'_>, target: VarId) -> Result<VarId> {
    let name = format!("{}@GRAD", emit.program.var_name(target));
    let name = emit.program.fresh_name(&name);
    let role = emit.role;
    emit.role = role.with_loss();
    let ones = emit_like(emit, target, name, 1.0)?;
    emit.role = role;
    Ok(ones)
}

/// Adds a variable with the type and shape of another.
fn var_like(emit: &mut Emit<'_>, like: VarId, name: String, kind: VarKind) -> Result<VarId> {
    let like = emit.program.var(like);
    let var = Var { kind, ..Var::new(name, like.dtype, like.shape) };
    emit.program.add_var(emit.block, var)
}

/// Emits a variable with the type and shape of another, filled with a value.
fn emit_like(emit: &mut Emit<'_>, like: VarId, name: String, value: f64) -> Result<VarId> {
    let made = var_like(emit, like, name, VarKind::Dense)?;
    let Var { dtype, shape, .. } = *emit.program.var(like);
    let call = if shape.is_known() {
        emit.op(&fill::FILL_CONSTANT).attr("shape", shape.to_vec()).attr("dtype", dtype)
    } else {
        emit.op(&fill::FILL_ANY_LIKE).input("X", like)
    };
    call.attr("value", value).output("Out", made).done()?;
    Ok(made)
}

fn visit(emit: &mut Emit<'_>, tape: &mut Tape<'_>, node: &Node) -> Result<()> {
    if node.is_conditional() {
        conditional::visit(emit, tape, node)?;
    } else {
        visit_op(emit, tape, node.id)?;
    }
    for var in node.reads(emit.program) {
        if let Some(count) = tape.pending.get_mut(&var) {
            *count -= 1;
        }
        tape.finish_if_done(emit, var)?;
    }
    Ok(())
}

fn visit_op(emit: &mut Emit<'_>, tape: &mut Tape<'_>, id: OpId) -> Result<()> {
    let op = emit.program.op(id);
    emit.device.clone_from(&op.device);
    emit.source.clone_from(&op.source);
    let arrives = op.all_outputs().any(|var| tape.finished.contains_key(&var));
    let grad = emit.registry.get(op.name())?.grad;
    if arrives && !grad.is_none() {
        let flows = tape.flows;
        let wanted = |var: VarId| flows.contains(&var);
        let mut ctx = GradCtx::new(emit, id, &tape.finished, &wanted);
        grad.emit(&mut ctx).map_err(|error| {
            let place = ctx.emit.program.describe_op(id);
            error.at(format!("the gradient of {place}"))
        })?;
        for (var, part) in ctx.into_made() {
            if tape.flows.contains(&var) {
                tape.parts.entry(var).or_default().push(part);
            }
        }
    }
    Ok(())
}

impl<'f> Tape<'f> {
    fn new(
        program: &Program,
        nodes: &[Node],
        flows: &'f HashSet<VarId>,
        block: BlockId,
        local: Option<BTreeSet<VarId>>,
    ) -> Tape<'f> {
        let mut pending: HashMap<VarId, usize> = HashMap::new();
        for var in nodes.iter().flat_map(|node| node.reads(program)) {
            *pending.entry(var).or_default() += 1;
        }
        Tape { flows, block, local, pending, parts: HashMap::new(), finished: HashMap::new() }
    }

    /// Names the gradient when all contributions are known, and sums them if there are several.
    fn finish_if_done(&mut self, emit: &mut Emit<'_>, var: VarId) -> Result<()> {
        let is_outer = self.local.as_ref().is_some_and(|own| !own.contains(&var));
        if is_outer || self.pending.get(&var).is_some_and(|count| *count > 0) {
            return Ok(());
        }
        let Some(parts) = self.parts.remove(&var) else { return Ok(()) };
        let name = format!("{}@GRAD", emit.program.var_name(var));
        let total = match parts.as_slice() {
            // A parameter's gradient has its own name, even if it equals another gradient.
            [only] if !is_part(emit.program, *only) && emit.program.var(var).is_parameter() => {
                let grad = var_like(emit, var, name, VarKind::Dense)?;
                emit.op(&assign::DEF).input("X", *only).output("Out", grad).done()?;
                grad
            }
            [only] => {
                if emit.program.find_var(&name).is_none() && is_part(emit.program, *only) {
                    emit.program.rename_var(*only, name)?;
                }
                *only
            }
            many => self.emit_sum(emit, var, &name, many)?,
        };
        self.finished.insert(var, total);
        Ok(())
    }

    fn emit_sum(
        &self,
        emit: &mut Emit<'_>,
        var: VarId,
        name: &str,
        parts: &[VarId],
    ) -> Result<VarId> {
        for (index, part) in parts.iter().enumerate() {
            if is_part(emit.program, *part) {
                let renamed = format!("{name}@RENAME@block0@{index}");
                let renamed = emit.program.fresh_name(&renamed);
                emit.program.rename_var(*part, renamed)?;
            }
        }
        let all_sparse =
            parts.iter().all(|part| emit.program.var(*part).kind == VarKind::SparseRows);
        let kind = if all_sparse { VarKind::SparseRows } else { VarKind::Dense };
        let name = emit.program.fresh_name(name);
        let total = var_like(emit, var, name, kind)?;
        emit.op(&sum::DEF).inputs("X", parts).output("Out", total).done()?;
        Ok(total)
    }
}

/// Returns whether the variable was made by [`GradCtx::dx_of`] and still has its temporary name.
fn is_part(program: &Program, var: VarId) -> bool {
    program.var_name(var).contains("@GRAD@PART_")
}
