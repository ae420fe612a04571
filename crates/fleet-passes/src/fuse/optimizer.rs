//! Fuses the optimizer into one sweep over all parameters: update ops of the same kind, attributes
//! and learning rate become one op over lists. Each block is fused separately, because updates that
//! run only in some steps (gradient merge, found infinities) are in their own block.

use super::graph::{Accesses, Edit, emit_like};
use fleet_base::Result;
use fleet_ir::{BlockId, Op, OpId, Program, VarId, VarKind};
use fleet_ops::{OpEmitter, Registry};
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
    let mut own = Accesses::default();
    for (id, _) in program.block_ops(block) {
        if members.contains(&id) {
            own.add(program, id);
            if Some(&id) == group.last() {
                break;
            }
        } else if Accesses::of(program, id).conflicts_with(&own) {
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
    let mut emit = emit_like(program, registry, last);
    call_over_lists(emit.named_op(fused)?, &ops).done()?;
    let new = std::mem::take(&mut emit.ops);
    edit.replace(group, last, new);
    Ok(())
}

/// Adds the slots and attributes of an op over lists, which does the updates of `ops`.
pub(super) fn call_over_lists<'e, 'p>(
    mut call: OpEmitter<'e, 'p>,
    ops: &[Op],
) -> OpEmitter<'e, 'p> {
    let first = &ops[0];
    for (index, slot) in first.spec.inputs.iter().enumerate() {
        let ops = if SHARED.contains(&slot.name) { &ops[..1] } else { ops };
        let vars: Vec<VarId> = ops.iter().flat_map(|op| op.inputs[index].clone()).collect();
        call = call.inputs(slot.name, &vars);
    }
    for (index, slot) in first.spec.outputs.iter().enumerate() {
        let vars: Vec<VarId> = ops.iter().flat_map(|op| op.outputs[index].clone()).collect();
        call = call.outputs(slot.name, &vars);
    }
    for (spec, value) in first.spec.attrs.iter().zip(&first.attrs) {
        call = call.attr(spec.name, value.clone());
    }
    call
}
