//! A bucket's sum over ranks with the updates that wait for it: `c_allreduce_sum` over gradients, each of
//! which one update reads, becomes `allreduce_{sgd,momentum,adam,adamw}`. Parameters then move while their
//! gradient's sum is in the cache.
//!
//! All updates of the bucket must be alike, and must be free to stand where the sum stands: nothing
//! between touches what they write, or writes what they read. A schedule of the rate, which usually
//! stands between, goes to the front first.

use super::optimizer::{KINDS, alike};
use super::{Edit, emit_like};
use fleet_base::Result;
use fleet_ir::{Arity, Attr, OpId, OpRole, Program, VarId, VarKind};
use fleet_ops::Registry;
use std::collections::{HashMap, HashSet};

pub(crate) fn run(program: &mut Program, registry: &Registry) -> Result<bool> {
    let sums: Vec<OpId> = program
        .root_ops()
        .filter(|(_, op)| op.name() == "c_allreduce_sum")
        .map(|(id, _)| id)
        .collect();
    if sums.is_empty() {
        return Ok(false);
    }
    bring_rate_forward(program);
    let updates = updates_by_gradient(program);
    let mut edit = Edit::default();
    for sum in sums {
        if let Some(members) = members(program, sum, &updates) {
            replace(program, registry, &mut edit, sum, &members)?;
        }
    }
    Ok(edit.apply(program))
}

/// What a set of ops reads and writes.
#[derive(Default)]
struct Touched {
    reads: HashSet<VarId>,
    writes: HashSet<VarId>,
}

impl Touched {
    fn add(&mut self, program: &Program, op: OpId) {
        program.reads_of(op, &mut self.reads);
        program.writes_of(op, &mut self.writes);
    }

    fn of(program: &Program, op: OpId) -> Touched {
        let mut touched = Touched::default();
        touched.add(program, op);
        touched
    }

    /// Whether the order of the two matters.
    fn clashes(&self, other: &Touched) -> bool {
        !self.writes.is_disjoint(&other.writes)
            || !self.writes.is_disjoint(&other.reads)
            || !self.reads.is_disjoint(&other.writes)
    }
}

/// The schedule of the rate goes in front of everything, if nothing in front of it minds.
fn bring_rate_forward(program: &mut Program) {
    let ops = program.block(Program::ROOT).ops().to_vec();
    let is_rate = |id: &OpId| {
        let op = program.op(*id);
        op.role == OpRole::LR_SCHED && op.sub_block().is_none()
    };
    let (rate, rest): (Vec<OpId>, Vec<OpId>) = ops.iter().partition(|id| is_rate(id));
    let mut before = Touched::default();
    for id in &ops {
        if is_rate(id) {
            if Touched::of(program, *id).clashes(&before) {
                return;
            }
        } else {
            before.add(program, *id);
        }
    }
    program.set_block_ops(Program::ROOT, [rate, rest].concat());
}

/// The updates that could join a sum; none for a gradient that two would read.
fn updates_by_gradient(program: &Program) -> HashMap<VarId, Option<OpId>> {
    let mut updates: HashMap<VarId, Option<OpId>> = HashMap::new();
    for (id, op) in program.root_ops().filter(|(_, op)| KINDS.contains(&op.name())) {
        let Some(grad) = op.input("Grad").first() else { continue };
        let dense = program.var(*grad).kind == VarKind::Dense;
        updates.entry(*grad).and_modify(|it| *it = None).or_insert(dense.then_some(id));
    }
    updates
}

/// The updates of all gradients of a sum, in its order, if they may stand in its place.
fn members(
    program: &Program,
    sum: OpId,
    updates: &HashMap<VarId, Option<OpId>>,
) -> Option<Vec<OpId>> {
    let op = program.op(sum);
    let grads = op.input("X");
    if op.attr_bool("use_calc_stream") || grads != op.output("Out") {
        return None;
    }
    let members: Vec<OpId> =
        grads.iter().map(|grad| updates.get(grad).copied().flatten()).collect::<Option<_>>()?;
    let first = program.op(*members.first()?);
    let same = |id: &OpId| {
        let other = program.op(*id);
        other.name() == first.name() && alike(first, other)
    };
    (members.iter().all(same) && may_come_forward(program, sum, &members)).then_some(members)
}

fn may_come_forward(program: &Program, sum: OpId, members: &[OpId]) -> bool {
    let mut ours = Touched::default();
    members.iter().for_each(|id| ours.add(program, *id));
    let ops = program.block(Program::ROOT).ops();
    let Some(from) = ops.iter().position(|id| *id == sum) else { return false };
    let Some(to) = ops.iter().rposition(|id| members.contains(id)) else { return false };
    if members.iter().any(|id| ops[..from].contains(id)) {
        return false;
    }
    let between = ops[from + 1..to].iter().filter(|id| !members.contains(id));
    between.into_iter().all(|id| !Touched::of(program, *id).clashes(&ours))
}

fn replace(
    program: &mut Program,
    registry: &Registry,
    edit: &mut Edit,
    sum: OpId,
    members: &[OpId],
) -> Result<()> {
    let name = format!("allreduce_{}", program.op(members[0]).name());
    let Some(def) = registry.find(&name) else { return Ok(()) };
    let ops: Vec<_> = members.iter().map(|id| program.op(*id).clone()).collect();
    let (collective, first) = (program.op(sum).clone(), &ops[0]);
    let mut emit = emit_like(program, registry, members[0]);
    let mut call = emit.named_op(&name)?;
    let lists =
        |slot: &str| def.spec.inputs.iter().any(|it| it.name == slot && it.arity == Arity::Many);
    for (index, slot) in first.spec.inputs.iter().enumerate() {
        if lists(slot.name) {
            let vars: Vec<VarId> = ops.iter().flat_map(|op| op.inputs[index].clone()).collect();
            call = call.inputs(slot.name, &vars);
        } else {
            call = call.inputs(slot.name, &first.inputs[index]);
        }
    }
    for (index, slot) in first.spec.outputs.iter().enumerate() {
        let vars: Vec<VarId> = ops.iter().flat_map(|op| op.outputs[index].clone()).collect();
        call = call.outputs(slot.name, &vars);
    }
    call = call.outputs("GradOut", collective.output("Out"));
    let attrs = |op: &fleet_ir::Op| -> Vec<(&'static str, Attr)> {
        op.spec.attrs.iter().map(|spec| spec.name).zip(op.attrs.iter().cloned()).collect()
    };
    for (name, value) in attrs(first).into_iter().chain(attrs(&collective)) {
        call = call.attr(name, value);
    }
    call.done()?;
    let new = std::mem::take(&mut emit.ops);
    edit.replace(&[members, &[sum]].concat(), sum, new);
    Ok(())
}
