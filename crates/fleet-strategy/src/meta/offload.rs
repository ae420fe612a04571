//! Recompute with offload: checkpoints leave the arena between the forward and the backward pass.
//!
//! Every checkpoint except the last is stored into slot `i`, directly after the op that makes it.
//! It is fetched into `v@Fetch_<i>` one segment ahead of its use. The second-last checkpoint is
//! fetched when the backward pass begins, and each earlier one at the first use of the next
//! checkpoint. The arena thus holds the checkpoints of only two segments. Stores and fetches
//! overlap compute, and values are bit-identical.

use fleet_base::Result;
use fleet_ir::{OpId, OpRole, Program, Var, VarId, VarKind};
use fleet_ops::control::offload;
use fleet_ops::{Emit, Registry};

/// Rewrites the root block; returns the number of offloaded checkpoints.
pub(super) fn apply(
    main: &mut Program,
    registry: &Registry,
    checkpoints: &[VarId],
) -> Result<usize> {
    let vars = to_offload(main, checkpoints);
    let mut fetches = Vec::new();
    for (slot, var) in vars.iter().enumerate() {
        let it = main.var(*var).clone();
        let name = main.fresh_name(&format!("{}@Fetch_{slot}", it.name));
        let made = Var { stop_gradient: it.stop_gradient, ..Var::new(name, it.dtype, it.shape) };
        let fetched = main.add_var(Program::ROOT, made)?;
        let mut emit = Emit::new(main, registry, OpRole::BACKWARD);
        let store = emit.op(&offload::STORE).input("X", *var).attr("slot", slot);
        let store = store.done()?;
        let fetch = emit.op(&offload::FETCH).input("X", *var).output("Out", fetched);
        fetches.push(Offloaded {
            var: *var,
            fetched,
            store,
            fetch: fetch.attr("slot", slot).done()?,
        });
    }
    insert_ops(main, &fetches);
    Ok(fetches.len())
}

/// An offloaded checkpoint, with its store and its fetch.
struct Offloaded {
    var: VarId,
    fetched: VarId,
    store: OpId,
    fetch: OpId,
}

/// Returns the checkpoints to offload, in the order in which they are made. Excludes the last one,
/// which is needed immediately, and those that the backward pass does not read.
fn to_offload(main: &Program, checkpoints: &[VarId]) -> Vec<VarId> {
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

fn insert_ops(main: &mut Program, offloaded: &[Offloaded]) {
    let ops = main.block(Program::ROOT).ops().to_vec();
    let makes = |id: OpId, var: VarId| main.op(id).all_outputs().any(|out| out == var);
    let is_forward = |id: &OpId| main.op(*id).role.is_forward();
    let stored_at: Vec<Option<usize>> = offloaded
        .iter()
        .map(|it| ops.iter().rposition(|id| is_forward(id) && makes(*id, it.var)))
        .collect();
    let mut out = Vec::with_capacity(ops.len() + 2 * offloaded.len());
    // The last stored checkpoint is fetched when the backward pass begins.
    let mut next = offloaded.len();
    for (at, id) in ops.into_iter().enumerate() {
        if main.op(id).role.is_backward() {
            let used: Vec<usize> = (0..offloaded.len())
                .filter(|index| main.op(id).all_inputs().any(|var| var == offloaded[*index].var))
                .collect();
            // Fetches everything that is used here, and one checkpoint ahead.
            let ahead = used.iter().copied().min().unwrap_or(offloaded.len());
            let until = ahead.saturating_sub(1).min(offloaded.len().saturating_sub(1));
            while next > until {
                next -= 1;
                out.push(offloaded[next].fetch);
            }
            for var in main.op_mut(id).inputs.iter_mut().flatten() {
                if let Some(it) = offloaded.iter().find(|it| it.var == *var) {
                    *var = it.fetched;
                }
            }
        }
        out.push(id);
        let stored = stored_at.iter().zip(offloaded).filter(|(place, _)| **place == Some(at));
        out.extend(stored.map(|(_, it)| it.store));
    }
    main.set_block_ops(Program::ROOT, out);
}
