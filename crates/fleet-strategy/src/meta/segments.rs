//! Segments of a program whose parameters are divided among ranks (see `sharding.rs`).
//!
//! The forward and the backward pass are cut, from last op to first, where the parameters that a
//! segment reads reach `segment_broadcast_MB`, or at anchors: after the op that writes an anchor or
//! its gradient. Owners broadcast the parameters of a segment when the segment before it begins, so
//! that one is sent while the other computes. Other ranks receive a parameter in
//! `p@BroadCast_<segment>`, whose memory is free after the last op that reads it. A parameter that
//! the segment before has received is not sent again, nor is one of which only the shape is read.
//!
//! Casts of parameters (mixed precision) are repeated in the backward pass, so that their results
//! are not kept either.

use super::recompute::read_inputs;
use crate::effective::Effective;
use crate::job::Job;
use crate::owners::{Segment, Shards};
use fleet_base::Result;
use fleet_ir::{Op, OpId, OpRole, Param, Program, Var, VarId};
use fleet_ops::{Emit, comm::broadcast, math::cast, tensor::fill};
use std::collections::{HashMap, HashSet};

/// Where segments end.
enum Cut {
    Bytes(f64),
    Anchors(HashSet<VarId>),
}

impl Cut {
    fn of(strategy: &Effective<'_>, main: &Program) -> Cut {
        let configs = strategy.sharding_configs();
        if configs.sharding_segment_strategy() != "segment_anchors" {
            return Cut::Bytes(f64::from(configs.segment_broadcast_MB()) * 1024.0 * 1024.0);
        }
        let both = configs.segment_anchors.iter().flat_map(|name| [name.clone(), grad_name(name)]);
        let both: HashSet<String> = both.collect();
        // In a pipeline, each micro-batch has a variable of its own.
        let whole = |name: &str| name.split("@MICRO_").next().is_some_and(|it| both.contains(it));
        let anchors = main.vars().filter(|(_, var)| whole(&var.name));
        Cut::Anchors(anchors.map(|(id, _)| id).collect())
    }
}

fn grad_name(name: &str) -> String {
    format!("{name}@GRAD")
}

/// Cuts the passes of a program into segments, in the order in which they run.
pub fn cut(job: &Job<'_>, params: &[VarId]) -> Vec<Segment> {
    let main = &job.programs.main;
    let rule = Cut::of(job.strategy, main);
    let bytes = |var: VarId| {
        let var = main.var(var);
        var.shape.numel().unwrap_or(0) as f64 * var.dtype.size() as f64
    };
    let divided: HashSet<VarId> = params.iter().copied().collect();
    let values = |op| read_inputs(job.registry, op).filter(|var| divided.contains(var));
    // A later read of the shape only needs no values.
    let forward = main.root_ops().filter(|(_, op)| op.role.is_forward());
    let is_received: HashSet<VarId> = forward.flat_map(|(_, op)| values(op)).collect();
    let mut segments: Vec<Segment> = Vec::new();
    let mut open: Option<Segment> = None;
    for (id, op) in main.root_ops().rev() {
        let role = match op.role {
            role if role.is_forward() => OpRole::FORWARD,
            role if role.is_backward() => OpRole::BACKWARD,
            _ => continue,
        };
        let is_full = |segment: &Segment| match &rule {
            Cut::Bytes(limit) => segment.params.iter().map(|it| bytes(*it)).sum::<f64>() >= *limit,
            Cut::Anchors(anchors) => op.all_outputs().any(|var| anchors.contains(&var)),
        };
        if open.as_ref().is_some_and(|segment| segment.role != role || is_full(segment)) {
            segments.extend(open.take());
        }
        let segment = open.get_or_insert(Segment { ops: Vec::new(), params: Vec::new(), role });
        segment.ops.push(id);
        let first = op.all_inputs().filter(|it| divided.contains(it) && !is_received.contains(it));
        for var in values(op).chain(first) {
            if !segment.params.contains(&var) {
                segment.params.push(var);
            }
        }
    }
    segments.extend(open);
    segments.reverse();
    for segment in &mut segments {
        segment.ops.reverse();
        segment.params.sort();
    }
    segments
}

/// Repeats the casts of divided parameters in the backward pass.
pub fn repeat_casts(job: &mut Job<'_>, params: &[VarId]) -> Result<()> {
    let main = &mut job.programs.main;
    let is_cast = |(id, op): (OpId, &Op)| {
        let from = *op.input("X").first()?;
        let is_repeated = cast::DEF.is(op) && op.role.is_forward() && params.contains(&from);
        is_repeated.then_some((*op.output("Out").first()?, id))
    };
    let casts: HashMap<VarId, OpId> = main.root_ops().filter_map(is_cast).collect();
    let mut copies: HashMap<VarId, VarId> = HashMap::new();
    let mut ops = Vec::new();
    for id in main.block(Program::ROOT).ops().to_vec() {
        if main.op(id).role.is_backward() {
            for var in main.op(id).all_inputs().collect::<Vec<_>>() {
                let Some(cast) = casts.get(&var).filter(|_| !copies.contains_key(&var)) else {
                    continue;
                };
                let (old, op) = (main.var(var).clone(), main.op(*cast).clone());
                let name = main.fresh_name(&format!("{}@Backward", old.name));
                let copy = main.add_var(Program::ROOT, Var { name, ..old })?;
                let role = OpRole::BACKWARD;
                ops.push(main.make_op(Op { role, outputs: vec![vec![copy]], ..op }));
                copies.insert(var, copy);
            }
            rename_inputs(main, id, &copies);
        }
        ops.push(id);
    }
    main.set_block_ops(Program::ROOT, ops);
    Ok(())
}

fn rename_inputs(main: &mut Program, id: OpId, renamed: &HashMap<VarId, VarId>) {
    for var in main.op_mut(id).inputs.iter_mut().flatten() {
        if let Some(new) = renamed.get(var) {
            *var = *new;
        }
    }
}

/// Inserts the broadcasts of all segments, and removes the parameters that other ranks own.
pub fn insert_broadcasts(job: &mut Job<'_>, shards: &Shards) -> Result<()> {
    let segments = &shards.segments;
    let mut before: HashMap<OpId, Vec<OpId>> = HashMap::new();
    // The variable that ops read in place of each parameter of another owner.
    let mut held: HashMap<VarId, VarId> = HashMap::new();
    let mut renamed: Vec<HashMap<VarId, VarId>> = Vec::new();
    let mut segment_of: HashMap<OpId, usize> = HashMap::new();
    let mut known: HashSet<VarId> = HashSet::new();
    for (index, segment) in segments.iter().enumerate() {
        let new: Vec<VarId> =
            segment.params.iter().copied().filter(|param| !known.contains(param)).collect();
        let ops = broadcast(job, shards, index, &new, segment.role, &mut held)?;
        let at = segments[index.saturating_sub(1)].ops[0];
        before.entry(at).or_default().extend(ops);
        segment_of.extend(segment.ops.iter().map(|id| (*id, index)));
        renamed.push(held.clone());
        known = segment.params.iter().copied().collect();
    }
    let main = &mut job.programs.main;
    // Casts come first in their segment, because one between the ops of a layer prevents fusion.
    let mut moved: HashSet<OpId> = HashSet::new();
    for segment in segments.iter().filter(|segment| segment.role.is_backward()) {
        let is_first = |id: &&OpId| {
            let op = main.op(**id);
            cast::DEF.is(op) && op.input("X").iter().all(|var| segment.params.contains(var))
        };
        let casts: Vec<OpId> = segment.ops.iter().filter(is_first).copied().collect();
        moved.extend(&casts);
        before.entry(segment.ops[0]).or_default().extend(casts);
    }
    let mut ops = Vec::new();
    for id in main.block(Program::ROOT).ops().to_vec() {
        let first = before.remove(&id).unwrap_or_default();
        let own = (!moved.contains(&id)).then_some(id);
        for id in first.into_iter().chain(own) {
            if let Some(segment) = segment_of.get(&id) {
                rename_inputs(main, id, &renamed[*segment]);
            }
            ops.push(id);
        }
    }
    main.set_block_ops(Program::ROOT, ops);
    let others = shards.params.iter().filter(|param| !shards.is_own(**param));
    others.for_each(|param| main.remove_var(*param));
    Ok(())
}

/// Inserts the broadcasts into the test program, too, if the programs have one: that of a stage.
pub fn insert_into_test(job: &mut Job<'_>, shards: &Shards) -> Result<()> {
    let Some(test) = job.programs.test.take() else { return Ok(()) };
    let main = std::mem::replace(&mut job.programs.main, test);
    let segments = cut(job, &shards.params);
    let inserted = insert_broadcasts(job, &Shards { segments, ..shards.clone() });
    job.programs.test = Some(std::mem::replace(&mut job.programs.main, main));
    inserted
}

/// Emits the broadcasts of parameters for a segment, one for each owner. Adds the variables that
/// receive parameters of other owners to `held`.
fn broadcast(
    job: &mut Job<'_>,
    shards: &Shards,
    segment: usize,
    params: &[VarId],
    role: OpRole,
    held: &mut HashMap<VarId, VarId>,
) -> Result<Vec<OpId>> {
    let mut ops = Vec::new();
    for owner in 0..shards.count() {
        let owned: Vec<VarId> =
            params.iter().copied().filter(|param| shards.owner(*param) == owner).collect();
        if owned.is_empty() {
            continue;
        }
        let main = &mut job.programs.main;
        let mut vars = Vec::with_capacity(owned.len());
        let mut emit = Emit::new(main, job.registry, role);
        for param in owned {
            if owner == shards.rank {
                vars.push(param);
                continue;
            }
            let var = emit.program.var(param);
            let (name, dtype, shape) = (var.name.clone(), var.dtype, var.shape);
            let temporary = Var::new(format!("{name}{RECEIVED}{segment}"), dtype, shape);
            let temporary = emit.program.add_var(Program::ROOT, temporary)?;
            let call = emit.op(&fill::EMPTY).attr("shape", shape.to_vec()).attr("dtype", dtype);
            call.output("Out", temporary).done()?;
            held.insert(param, temporary);
            vars.push(temporary);
        }
        let call = emit.op(&broadcast::DEF).inputs("X", &vars).outputs("Out", &vars);
        let call = call.attr("ring_id", shards.ring).attr("nranks", shards.count());
        let label = format!("parameters of segment {segment}");
        call.attr("root", owner).attr("label", label).done()?;
        ops.append(&mut emit.ops);
    }
    Ok(ops)
}

/// Separates the name of a parameter that another rank has sent from the segment's number.
pub const RECEIVED: &str = "@BroadCast_";

/// Removes the parameters of other owners from the startup program, with the ops that fill them.
pub fn remove_others(startup: &mut Program, others: &HashSet<String>) {
    let is_other = |program: &Program, var: VarId| others.contains(program.var_name(var));
    let kept: Vec<OpId> = startup
        .root_ops()
        .filter(|(_, op)| !op.all_outputs().any(|var| is_other(startup, var)))
        .map(|(id, _)| id)
        .collect();
    startup.set_block_ops(Program::ROOT, kept);
    for name in others {
        if let Some(var) = startup.find_var(name) {
            startup.remove_var(var);
        }
    }
}

/// Returns a forward program in which ranks keep all parameters: ops read the parameters that other
/// ranks have sent as the parameters themselves, and nothing is sent.
pub fn undivided(forward: &Program) -> Result<Program> {
    let mut whole = forward.clone();
    let mut renamed: HashMap<VarId, VarId> = HashMap::new();
    for (id, var) in forward.vars() {
        let Some((name, _)) = var.name.split_once(RECEIVED) else { continue };
        let param = match whole.find_var(name) {
            Some(param) => param,
            None => {
                let param = Var::parameter(name, var.dtype, var.shape, Param::default());
                whole.add_var(Program::ROOT, param)?
            }
        };
        renamed.insert(id, param);
    }
    let is_param = |var: VarId| renamed.contains_key(&var) || forward.var(var).is_parameter();
    let kept = forward.root_ops().filter(|(_, op)| {
        let sends = broadcast::DEF.is(op) || fill::EMPTY.is(op);
        !(sends && op.all_outputs().all(is_param))
    });
    let kept: Vec<OpId> = kept.map(|(id, _)| id).collect();
    kept.iter().for_each(|id| rename_inputs(&mut whole, *id, &renamed));
    whole.set_block_ops(Program::ROOT, kept);
    whole.drop_unused_vars();
    Ok(whole)
}
