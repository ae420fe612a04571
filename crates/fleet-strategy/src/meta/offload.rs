//! Recompute with offload: checkpoints leave the arena between the forward and the backward pass.
//!
//! Every checkpoint but the last is stored right behind the op that makes it, into slot `i`, and
//! fetched into `v@Fetch_<i>` one segment ahead: that of the last but one when the backward pass
//! begins, each earlier one when the one behind it is first used. So the arena holds the
//! checkpoints of two segments, however many there are. Stores and fetches run beside compute;
//! values are the same to the bit.

use fleet_base::Result;
use fleet_ir::{OpId, OpRole, Program, Var, VarId, VarKind};
use fleet_ops::{Emit, Registry};

/// Rewrites the root block; the number of checkpoints that leave.
pub(super) fn apply(
    main: &mut Program,
    registry: &Registry,
    checkpoints: &[VarId],
) -> Result<usize> {
    let leaving = leaving(main, checkpoints);
    let mut fetches = Vec::new();
    for (slot, var) in leaving.iter().enumerate() {
        let it = main.var(*var).clone();
        let name = main.fresh_name(&format!("{}@Fetch_{slot}", it.name));
        let made = Var { stop_gradient: it.stop_gradient, ..Var::new(name, it.dtype, it.shape) };
        let fetched = main.add_var(Program::ROOT, made)?;
        let mut emit = Emit::new(main, registry, OpRole::BACKWARD);
        let store = emit.named_op("offload_store")?.input("X", *var).attr("slot", slot);
        let store = store.done()?;
        let fetch = emit.named_op("offload_fetch")?.input("X", *var).output("Out", fetched);
        fetches.push(Moved { var: *var, fetched, store, fetch: fetch.attr("slot", slot).done()? });
    }
    weave(main, &fetches);
    Ok(fetches.len())
}

/// A checkpoint on its way out and back.
struct Moved {
    var: VarId,
    fetched: VarId,
    store: OpId,
    fetch: OpId,
}

/// Checkpoints in the order in which they are made, without the last, which is wanted at once, and
/// without those that the backward pass does not read.
fn leaving(main: &Program, checkpoints: &[VarId]) -> Vec<VarId> {
    let mut made: Vec<VarId> = Vec::new();
    for (_, op) in main.root_ops().filter(|(_, op)| op.role.is_forward()) {
        for var in op.all_outputs().filter(|var| checkpoints.contains(var)) {
            if !made.contains(&var) {
                made.push(var);
            }
        }
    }
    made.pop();
    made.retain(|var| {
        let it = main.var(*var);
        let wanted = main
            .root_ops()
            .any(|(_, op)| op.role.is_backward() && op.all_inputs().any(|input| input == *var));
        wanted && !it.persistable && !it.is_data && it.kind == VarKind::Dense
    });
    made
}

fn weave(main: &mut Program, moved: &[Moved]) {
    let ops = main.block(Program::ROOT).ops().to_vec();
    let makes = |id: OpId, var: VarId| main.op(id).all_outputs().any(|out| out == var);
    let is_forward = |id: &OpId| main.op(*id).role.is_forward();
    let stored_at: Vec<Option<usize>> = moved
        .iter()
        .map(|it| ops.iter().rposition(|id| is_forward(id) && makes(*id, it.var)))
        .collect();
    let mut out = Vec::with_capacity(ops.len() + 2 * moved.len());
    // The last one is fetched when the backward pass begins.
    let mut next = moved.len();
    for (at, id) in ops.into_iter().enumerate() {
        if main.op(id).role.is_backward() {
            let used: Vec<usize> = (0..moved.len())
                .filter(|index| main.op(id).all_inputs().any(|var| var == moved[*index].var))
                .collect();
            // Everything that is used here, and one ahead.
            let ahead = used.iter().copied().min().unwrap_or(moved.len());
            let until = ahead.saturating_sub(1).min(moved.len().saturating_sub(1));
            while next > until {
                next -= 1;
                out.push(moved[next].fetch);
            }
            for var in main.op_mut(id).inputs.iter_mut().flatten() {
                if let Some(it) = moved.iter().find(|it| it.var == *var) {
                    *var = it.fetched;
                }
            }
        }
        out.push(id);
        let stored = stored_at.iter().zip(moved).filter(|(place, _)| **place == Some(at));
        out.extend(stored.map(|(_, it)| it.store));
    }
    main.set_block_ops(Program::ROOT, out);
}
