//! Gradients of conditional blocks.
//!
//! The gradients of a conditional block's ops are in another conditional block with the same
//! condition. In steps where the block does not run, its contribution to the gradient of an outside
//! variable is zero. For this, zeros are written first, and the block overwrites them. An op of the
//! surrounding block then copies the result. So every gradient is written by an op that always
//! runs, and passes can tell where a gradient is ready.

use super::{Node, Tape, emit_like, var_like};
use fleet_base::{Error, Result};
use fleet_ir::{BlockId, OpId, Program, VarId, VarKind};
use fleet_ops::Emit;
use fleet_ops::{
    control::conditional_block,
    math::{compare, sum},
    tensor::assign,
};
use std::collections::{HashMap, HashSet};

pub(super) fn visit(emit: &mut Emit<'_>, tape: &mut Tape<'_>, node: &Node) -> Result<()> {
    let own = node.writes(emit.program);
    let output_grads: Vec<(VarId, VarId)> =
        own.iter().filter_map(|var| Some((*var, *tape.finished.get(var)?))).collect();
    if output_grads.is_empty() {
        return Ok(());
    }
    let block = emit.program.add_block(tape.block);
    let outside = std::mem::take(&mut emit.ops);
    let mut inner = Tape::new(emit.program, &node.inner, tape.flows, block, Some(own));
    for (var, grad) in output_grads {
        inner.parts.entry(var).or_default().push(grad);
        inner.finish_if_done(emit, var)?;
    }
    for node in node.inner.iter().rev() {
        super::visit(emit, &mut inner, node)?;
    }
    let mut sums = Vec::new();
    let mut parts: Vec<(VarId, Vec<VarId>)> = inner.parts.drain().collect();
    parts.sort_unstable();
    for (var, parts) in parts {
        sums.push((var, sum_inside(emit, var, &parts)?));
    }
    let inside = std::mem::replace(&mut emit.ops, outside);
    emit_grad_block(emit, tape, node.id, (block, inside), &sums)
}

/// Returns the contribution of the whole block to the gradient of a variable outside.
fn sum_inside(emit: &mut Emit<'_>, var: VarId, parts: &[VarId]) -> Result<VarId> {
    if parts.iter().any(|part| emit.program.var(*part).kind == VarKind::SparseRows) {
        return Err(Error::unsupported(format!(
            "sparse gradient of '{}' from a conditional block is not supported",
            emit.program.var_name(var)
        ))
        .help("move the lookup before the branches, or use a dense embedding"));
    }
    match parts {
        [only] => Ok(*only),
        many => emit.op(&sum::DEF).inputs("X", many).one("Out"),
    }
}

/// Emits the block of gradients, between the zeros and the ops that copy its results.
fn emit_grad_block(
    emit: &mut Emit<'_>,
    tape: &mut Tape<'_>,
    forward: OpId,
    (block, mut inside): (BlockId, Vec<OpId>),
    sums: &[(VarId, VarId)],
) -> Result<()> {
    let op = emit.program.op(forward);
    let condition = op.input("Cond").first().copied();
    let condition =
        condition.ok_or_else(|| Error::internal("conditional block without a condition"))?;
    emit.device = op.device.clone();
    emit.source = op.source.clone();
    let mut results = Vec::with_capacity(sums.len());
    for (var, sum) in sums {
        let stem = format!("{}@GRAD@BRANCH", emit.program.var_name(*var));
        let name = emit.program.unique_name(&stem);
        let result = emit_like(emit, *var, name, 0.0)?;
        let before = emit.ops.len();
        emit.op(&assign::DEF).input("X", *sum).output("Out", result).done()?;
        inside.extend(emit.ops.drain(before..));
        results.push((*var, result));
    }
    emit.program.set_block_ops(block, inside);
    check_visible(emit.program, block)?;
    emit.op(&conditional_block::DEF).input("Cond", condition).attr("sub_block", block).done()?;
    for (var, result) in results {
        let stem = format!("{}@GRAD@PART", emit.program.var_name(var));
        let name = emit.program.unique_name(&stem);
        let part = var_like(emit, result, name, VarKind::Dense)?;
        emit.op(&assign::DEF).input("X", result).output("Out", part).done()?;
        if tape.flows.contains(&var) {
            tape.parts.entry(var).or_default().push(part);
        }
    }
    Ok(())
}

/// Checks that gradients can read the results of forward ops, which are in a sibling block.
fn check_visible(program: &Program, block: BlockId) -> Result<()> {
    let around = std::iter::successors(Some(block), |block| program.block(*block).parent);
    let visible: HashSet<VarId> =
        around.flat_map(|block| program.block(block).vars().iter().copied()).collect();
    let mut read = program.block_ops(block).flat_map(|(_, op)| op.all_inputs());
    match read.find(|var| !visible.contains(var)) {
        None => Ok(()),
        Some(var) => Err(Error::unsupported(format!(
            "gradients need '{}', which is declared inside a conditional block",
            program.var_name(var)
        ))
        .help("declare it in the surrounding block")),
    }
}

/// Checks that each variable on the path has one value per step, because gradients belong to
/// variables. One op writes it, or one op in each of two opposite branches.
pub(super) fn check_single_producer(
    program: &Program,
    nodes: &[Node],
    flows: &HashSet<VarId>,
) -> Result<()> {
    let mut writers =
        Writers { program, flows, negations: negations(program), writers: HashMap::new() };
    writers.walk(nodes, &mut Vec::new())
}

struct Writers<'p> {
    program: &'p Program,
    flows: &'p HashSet<VarId>,
    negations: HashSet<(VarId, VarId)>,
    /// Conditions under which each variable is written.
    writers: HashMap<VarId, Vec<Vec<VarId>>>,
}

impl Writers<'_> {
    fn walk(&mut self, nodes: &[Node], under: &mut Vec<VarId>) -> Result<()> {
        for node in nodes {
            let op = self.program.op(node.id);
            if node.is_conditional() {
                under.extend(op.input("Cond").first());
                self.walk(&node.inner, under)?;
                under.pop();
                continue;
            }
            for var in op.all_outputs().filter(|var| self.flows.contains(var)) {
                let before = self.writers.entry(var).or_default();
                let exclude = |other: &Vec<VarId>| {
                    other.iter().any(|a| under.iter().any(|b| self.negations.contains(&(*a, *b))))
                };
                if !before.iter().all(exclude) {
                    return Err(Error::unsupported(format!(
                        "variable '{}' is written twice, so its gradient is not defined",
                        self.program.var_name(var)
                    ))
                    .at(self.program.describe_op(node.id))
                    .help("write to a new variable instead"));
                }
                before.push(under.clone());
            }
        }
        Ok(())
    }
}

/// Returns pairs of conditions that are negations of each other, in both orders.
fn negations(program: &Program) -> HashSet<(VarId, VarId)> {
    let blocks = program.block_ids();
    let ops = blocks.flat_map(|block| program.block_ops(block).map(|(_, op)| op));
    let negations = ops.filter(|op| compare::LOGICAL_NOT.is(op));
    let pairs =
        negations.filter_map(|op| Some((*op.input("X").first()?, *op.output("Out").first()?)));
    pairs.flat_map(|(a, b)| [(a, b), (b, a)]).collect()
}
