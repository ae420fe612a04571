//! Branches: two `conditional_block` ops, of a condition and of its opposite, that write the same
//! variables become one `If`.

use crate::export::Exporter;
use crate::graph::{Attribute, Branch, Value};
use fleet_base::{Error, Result};
use fleet_ir::{BlockId, OpId, Program, VarId};
use std::collections::HashSet;

/// Name of the op that runs a block.
const BLOCK: &str = "conditional_block";

/// Translates the two branches at the start of `ops`. Returns how many ops that were.
pub(crate) fn branches(exporter: &mut Exporter<'_>, ops: &[OpId]) -> Result<usize> {
    let program = exporter.program;
    let [first, rest @ ..] = ops else { return Ok(0) };
    if program.op(*first).name() != BLOCK {
        return Ok(0);
    }
    let second = rest.first().filter(|second| is_opposite(program, *first, **second));
    let Some(second) = second else {
        return Err(Error::unsupported("a conditional block without the opposite branch")
            .help("write branches with cond: both have results of the same shape")
            .at(program.describe_op(*first)));
    };
    let (Some(then), Some(otherwise)) =
        (program.op(*first).sub_block(), program.op(*second).sub_block())
    else {
        return Ok(0);
    };
    let results = results(program, *first, *second);
    let condition = exporter.read(program.op(*first).input("Cond")[0])?;
    let scalar = exporter.graph.ints(&[])?;
    let condition = exporter.graph.node("Reshape", &[condition, scalar], Vec::new());
    let then = branch(exporter, then, &results)?;
    let otherwise = branch(exporter, otherwise, &results)?;
    let attributes =
        vec![("then_branch", Attribute::Graph(then)), ("else_branch", Attribute::Graph(otherwise))];
    let made = exporter.graph.nodes("If", &[condition], attributes, results.len());
    for (var, value) in results.iter().zip(made) {
        exporter.graph.suggest_name(value, program.var_name(*var));
        exporter.held.insert(*var, value);
    }
    Ok(2)
}

/// Returns whether two ops are the branches of one condition.
fn is_opposite(program: &Program, first: OpId, second: OpId) -> bool {
    let (one, other) = (program.op(first), program.op(second));
    let ([yes], [no]) = (one.input("Cond"), other.input("Cond")) else { return false };
    let negates = program.root_ops().any(|(_, op)| {
        op.name() == "logical_not" && op.input("X") == [*yes] && op.output("Out") == [*no]
    });
    other.name() == BLOCK && negates
}

/// Returns the variables that both branches write, in order. Others are of one branch.
fn results(program: &Program, first: OpId, second: OpId) -> Vec<VarId> {
    let [one, other] = [first, second].map(|op| {
        let mut writes = HashSet::new();
        program.writes_of(op, &mut writes);
        writes
    });
    let mut both: Vec<VarId> = one.intersection(&other).copied().collect();
    both.sort_unstable();
    both
}

/// Translates a block. Values that it writes are gone after it.
fn branch(exporter: &mut Exporter<'_>, block: BlockId, results: &[VarId]) -> Result<Branch> {
    let before = exporter.held.clone();
    let pending = exporter.graph.begin_branch();
    exporter.block(block)?;
    let mut outputs = Vec::new();
    for var in results {
        let value = exporter.read(*var)?;
        outputs.push(exporter.graph.node("Identity", &[value], Vec::new()));
    }
    let branch = exporter.graph.end_branch(pending, outputs);
    // Constants that the branch has read first stay.
    let constants: HashSet<Value> = exporter.graph.initializers.iter().map(|it| it.value).collect();
    let mut after = before;
    for (var, value) in std::mem::take(&mut exporter.held) {
        if constants.contains(&value) {
            after.entry(var).or_insert(value);
        }
    }
    exporter.held = after;
    Ok(branch)
}
