//! Fuses the optimizer into one sweep over all parameters: update ops of the same kind, attributes
//! and learning rate become one op over lists. Each block is fused separately, because updates that
//! run only in some steps (gradient merge, found infinities) are in their own block.

use super::graph::{Edit, emit_like};
use fleet_base::Result;
use fleet_ir::{BlockId, Op, OpId, Program, VarId, VarKind};
use fleet_ops::Registry;
use std::collections::HashSet;

/// Kinds of updates with a fused op over lists.
pub(super) const KINDS: [&str; 4] = ["sgd", "momentum", "adam", "adamw"];

/// Slots with the same variables in all ops of a group.
const SHARED: [&str; 3] = ["LearningRate", "GradScale", "SkipUpdate"];

pub(crate) fn run(program: &mut Program, registry: &Registry) -> Result<bool> {
    let mut changed = false;
    for block in program.block_ids() {
        let mut edit = Edit::default();
        for kind in KINDS {
            let fused = format!("fused_{kind}");
            if registry.find(&fused).is_none() {
                continue;
            }
            for group in groups(program, block, kind) {
                if group.len() > 1 && may_move(program, block, &group) {
                    replace(program, registry, &mut edit, &fused, &group)?;
                }
            }
        }
        changed |= edit.apply_to(program, block);
    }
    Ok(changed)
}

fn groups(program: &Program, block: BlockId, kind: &str) -> Vec<Vec<OpId>> {
    let mut groups: Vec<Vec<OpId>> = Vec::new();
    for (id, op) in program.block_ops(block) {
        let dense =
            op.input("Grad").first().is_some_and(|var| program.var(*var).kind == VarKind::Dense);
        if op.name() != kind || !dense {
            continue;
        }
        match groups.iter_mut().find(|group| alike(program.op(group[0]), op)) {
            Some(group) => group.push(id),
            None => groups.push(vec![id]),
        }
    }
    groups
}

pub(super) fn alike(a: &Op, b: &Op) -> bool {
    a.attrs == b.attrs
        && a.device == b.device
        && SHARED.iter().all(|slot| a.input(slot) == b.input(slot))
        && a.inputs.iter().zip(&b.inputs).all(|(x, y)| x.len() == y.len())
}

/// Returns whether all ops of the group may run at the position of the last one: no op in between
/// accesses a variable that they write, or writes a variable that they read.
fn may_move(program: &Program, block: BlockId, group: &[OpId]) -> bool {
    let members: HashSet<OpId> = group.iter().copied().collect();
    let mut reads: HashSet<VarId> = HashSet::new();
    let mut writes: HashSet<VarId> = HashSet::new();
    for (id, op) in program.block_ops(block) {
        if members.contains(&id) {
            reads.extend(op.all_inputs());
            writes.extend(op.all_outputs());
            if Some(&id) == group.last() {
                break;
            }
            continue;
        }
        let (mut other_reads, mut other_writes) = (HashSet::new(), HashSet::new());
        program.reads_of(id, &mut other_reads);
        program.writes_of(id, &mut other_writes);
        if other_reads.iter().any(|var| writes.contains(var))
            || other_writes.iter().any(|var| writes.contains(var) || reads.contains(var))
        {
            return false;
        }
    }
    true
}

fn replace(
    program: &mut Program,
    registry: &Registry,
    edit: &mut Edit,
    fused: &str,
    group: &[OpId],
) -> Result<()> {
    let ops: Vec<Op> = group.iter().map(|id| program.op(*id).clone()).collect();
    let Some(last) = group.last().copied() else { return Ok(()) };
    let first = &ops[0];
    let mut emit = emit_like(program, registry, last);
    let mut call = emit.named_op(fused)?;
    for (index, slot) in first.spec.inputs.iter().enumerate() {
        if SHARED.contains(&slot.name) {
            call = call.inputs(slot.name, &first.inputs[index]);
        } else {
            let vars: Vec<VarId> = ops.iter().flat_map(|op| op.inputs[index].clone()).collect();
            call = call.inputs(slot.name, &vars);
        }
    }
    for (index, slot) in first.spec.outputs.iter().enumerate() {
        let vars: Vec<VarId> = ops.iter().flat_map(|op| op.outputs[index].clone()).collect();
        call = call.outputs(slot.name, &vars);
    }
    for (spec, value) in first.spec.attrs.iter().zip(&first.attrs) {
        call = call.attr(spec.name, value.clone());
    }
    call.done()?;
    let new = std::mem::take(&mut emit.ops);
    edit.replace(group, last, new);
    Ok(())
}
