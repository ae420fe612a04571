//! Fuses the sum of a gradient bucket over ranks with the updates that use it. A `c_allreduce_sum`
//! of gradients, or a `c_reduce_sum` on the rank that updates, each read by one update, becomes
//! `sum_then_{sgd,momentum,adam,adamw}`. Parameters are then updated while the sum of their
//! gradients is in the cache, and the sum is not stored.
//!
//! All updates of the bucket must have the same rule and settings, and must be able to run at the
//! position of the sum. For this, no op in between may access a variable that they write, or write
//! a variable that they read. The sum must have no other readers. The learning-rate schedule is
//! usually in between, so it is moved to the front first.

use super::graph::{Accesses, Edit, emit_like};
use super::optimizer::{KINDS, alike, call_over_lists};
use fleet_base::Result;
use fleet_ir::{Op, OpId, OpRole, Program, VarId, VarKind};
use fleet_ops::Registry;
use std::collections::{HashMap, HashSet};

pub(crate) fn run(program: &mut Program, registry: &Registry, keep: &[VarId]) -> Result<bool> {
    let sums: Vec<OpId> =
        program.root_ops().filter(|(_, op)| SUMS.contains(&op.name())).map(|(id, _)| id).collect();
    if sums.is_empty() {
        return Ok(false);
    }
    move_schedule_first(program);
    let updates = updates_by_gradient(program);
    let mut edit = Edit::default();
    for sum in sums {
        if let Ok(members) = members(program, sum, &updates, keep) {
            replace(program, registry, &mut edit, sum, &members)?;
        }
    }
    Ok(edit.apply(program))
}

/// Sums over ranks whose results can be used on arrival: on all ranks, or on the root.
const SUMS: [&str; 2] = ["c_allreduce_sum", "c_reduce_sum"];

/// A sum over ranks, and whether parameters can be updated while it is received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Label of the sum.
    pub label: String,
    /// Reason why its updates wait for the end of the backward pass.
    pub held: Option<String>,
}

/// Returns the effect of [`BuildOptions::update_on_arrival`](crate::BuildOptions) on each gradient
/// bucket of a program.
pub fn updates_on_arrival(program: &Program) -> Vec<Arrival> {
    let mut program = program.clone();
    move_schedule_first(&mut program);
    let updates = updates_by_gradient(&program);
    let at_root: HashSet<OpId> = program.root_ops().map(|(id, _)| id).collect();
    let ops = program.block_ids().flat_map(|block| program.block_ops(block));
    let is_updated = |grad: &VarId| updates.contains_key(grad);
    let sums = ops.filter(|(id, op)| {
        let (id, grads) = (*id, op.input("X"));
        SUMS.contains(&op.name())
            && grads.iter().all(|it| is_gradient(&program, *it))
            && match op.name() {
                // Only the rank with the updates gets the result, unless another sum sends it on.
                "c_reduce_sum" => grads.iter().any(is_updated) && !is_sent_on(&program, id, grads),
                _ => true,
            }
    });
    let arrival = |(id, op): (OpId, &Op)| Arrival {
        label: op.attr_str("label").to_string(),
        held: match at_root.contains(&id) {
            true => members(&program, id, &updates, &[]).err(),
            false => Some("it does not run in every step".into()),
        },
    };
    sums.map(arrival).collect()
}

/// Returns whether a later collective takes a sum to other ranks.
fn is_sent_on(program: &Program, sum: OpId, grads: &[VarId]) -> bool {
    let mut later = program.root_ops().skip_while(|(id, _)| *id != sum).skip(1);
    later.any(|(_, op)| {
        op.attr("ring_id").is_some() && op.all_inputs().any(|var| grads.contains(&var))
    })
}

fn is_gradient(program: &Program, var: VarId) -> bool {
    program.var_name(var).contains("@GRAD")
}

/// Moves the learning-rate schedule to the front, unless it conflicts with an op before it.
fn move_schedule_first(program: &mut Program) {
    let ops = program.block(Program::ROOT).ops().to_vec();
    let is_rate = |id: &OpId| {
        let op = program.op(*id);
        op.role == OpRole::LR_SCHED && op.sub_block().is_none()
    };
    let (rate, rest): (Vec<OpId>, Vec<OpId>) = ops.iter().partition(|id| is_rate(id));
    let mut before = Accesses::default();
    for id in &ops {
        if is_rate(id) {
            if Accesses::of(program, *id).conflicts_with(&before) {
                return;
            }
        } else {
            before.add(program, *id);
        }
    }
    program.set_block_ops(Program::ROOT, [rate, rest].concat());
}

/// Returns the update of each gradient that could be fused with a sum; `None` if two updates read
/// it.
fn updates_by_gradient(program: &Program) -> HashMap<VarId, Option<OpId>> {
    let mut updates: HashMap<VarId, Option<OpId>> = HashMap::new();
    for (id, op) in program.root_ops().filter(|(_, op)| KINDS.contains(&op.name())) {
        let Some(grad) = op.input("Grad").first() else { continue };
        let dense = program.var(*grad).kind == VarKind::Dense;
        updates.entry(*grad).and_modify(|it| *it = None).or_insert(dense.then_some(id));
    }
    updates
}

/// Returns the updates of all gradients of a sum, in its order, or the reason why they cannot be
/// fused.
fn members(
    program: &Program,
    sum: OpId,
    updates: &HashMap<VarId, Option<OpId>>,
    keep: &[VarId],
) -> Result<Vec<OpId>, String> {
    let op = program.op(sum);
    let grads = op.input("X");
    if op.attr_bool("use_calc_stream") || grads != op.output("Out") {
        return Err("the sum runs in the compute lane or is not in place".into());
    }
    let mut members = Vec::with_capacity(grads.len());
    for grad in grads {
        match updates.get(grad) {
            Some(Some(update)) => members.push(*update),
            _ => return Err(why_not_direct(program, sum, *grad)),
        }
    }
    let [first, ..] = members[..] else { return Err("the sum is empty".into()) };
    let first = program.op(first);
    for (grad, id) in grads.iter().zip(&members) {
        let other = program.op(*id);
        if other.name() != first.name() || !alike(first, other) {
            let (one, two) = (program.var_name(grads[0]), program.var_name(*grad));
            return Err(format!("'{one}' and '{two}' have different update rules"));
        }
    }
    if let Some(why) = other_reader(program, sum, &members, keep) {
        return Err(why);
    }
    match can_move_to_sum(program, sum, &members) {
        true => Ok(members),
        false => Err("an op between the sum and its updates accesses the same variables".into()),
    }
}

/// Returns the reason for a gradient that is not read directly by exactly one update.
fn why_not_direct(program: &Program, sum: OpId, grad: VarId) -> String {
    let mut later = program.root_ops().skip_while(|(id, _)| *id != sum).skip(1);
    let reader = later.find(|(_, op)| op.all_inputs().any(|var| var == grad));
    let (name, reader) = (program.var_name(grad), reader.map_or("nothing", |(_, op)| op.name()));
    format!("'{name}' is read by {reader} before its update")
}

/// Returns the reason why a gradient's sum must be stored, if ops other than the updates use it.
fn other_reader(program: &Program, sum: OpId, members: &[OpId], keep: &[VarId]) -> Option<String> {
    let grads = program.op(sum).output("Out");
    if let Some(kept) = grads.iter().find(|grad| keep.contains(grad)) {
        return Some(format!("'{}' is fetched", program.var_name(*kept)));
    }
    let later = program.root_ops().skip_while(|(id, _)| *id != sum).skip(1);
    later.filter(|(id, _)| !members.contains(id)).find_map(|(id, op)| {
        let mut reads = HashSet::new();
        program.reads_of(id, &mut reads);
        let used = grads.iter().find(|grad| reads.contains(grad))?;
        Some(format!("'{}' is also read by {}", program.var_name(*used), op.name()))
    })
}

fn can_move_to_sum(program: &Program, sum: OpId, members: &[OpId]) -> bool {
    let mut own = Accesses::default();
    members.iter().for_each(|id| own.add(program, *id));
    let ops = program.block(Program::ROOT).ops();
    let Some(from) = ops.iter().position(|id| *id == sum) else { return false };
    let Some(to) = ops.iter().rposition(|id| members.contains(id)) else { return false };
    if members.iter().any(|id| ops[..from].contains(id)) {
        return false;
    }
    let between = ops[from + 1..to].iter().filter(|id| !members.contains(id));
    between.into_iter().all(|id| !Accesses::of(program, *id).conflicts_with(&own))
}

fn replace(
    program: &mut Program,
    registry: &Registry,
    edit: &mut Edit,
    sum: OpId,
    members: &[OpId],
) -> Result<()> {
    let name = format!("sum_then_{}", program.op(members[0]).name());
    if registry.find(&name).is_none() {
        return Ok(());
    }
    let ops: Vec<Op> = members.iter().map(|id| program.op(*id).clone()).collect();
    let collective = program.op(sum).clone();
    let mut emit = emit_like(program, registry, members[0]);
    let mut call = call_over_lists(emit.named_op(&name)?, &ops);
    call = call.outputs("GradOut", collective.output("Out"));
    for (spec, value) in collective.spec.attrs.iter().zip(&collective.attrs) {
        call = call.attr(spec.name, value.clone());
    }
    call.done()?;
    let new = std::mem::take(&mut emit.ops);
    edit.replace(&[members, &[sum]].concat(), sum, new);
    Ok(())
}
