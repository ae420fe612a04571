//! Removes ops whose results are not used.
//!
//! An op is kept if it has side effects, writes a variable of the scope, or computes an input of a
//! kept op or a kept variable. Ops with a sub-block are kept if anything in it is kept.

use fleet_base::Result;
use fleet_ir::{OpId, Program, VarId};
use fleet_ops::Registry;
use std::collections::HashSet;

/// Removes the ops of the root block that are not needed. Returns whether there were any.
pub(crate) fn run(program: &mut Program, registry: &Registry, keep: &[VarId]) -> Result<bool> {
    let mut needed: HashSet<VarId> = keep.iter().copied().collect();
    let mut kept: Vec<OpId> = Vec::new();
    for id in program.block(Program::ROOT).ops().iter().rev() {
        let mut writes = HashSet::new();
        program.writes_of(*id, &mut writes);
        let op = program.op(*id);
        let lives = op.sub_block().is_none() && registry.get(op.name())?.traits.effect
            || writes.iter().any(|var| needed.contains(var) || program.var(*var).persistable);
        if lives {
            program.reads_of(*id, &mut needed);
            kept.push(*id);
        }
    }
    kept.reverse();
    let changed = kept.len() < program.root_ops().len();
    program.set_block_ops(Program::ROOT, kept);
    Ok(changed)
}
