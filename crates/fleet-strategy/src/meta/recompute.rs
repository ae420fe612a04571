//! Recompute: activations between checkpoints are not kept for the backward pass, but recomputed.
//!
//! The forward pass is cut into segments at the ops that make the checkpoints. In every segment
//! except the last, values needed only by the backward pass are recomputed from the previous
//! checkpoint. The copies, `v.subprog_<segment>`, directly precede the first backward op that needs
//! one of them. Checkpoints, fed and persistable variables, and values read by other segments are
//! kept. Ops are recomputed only for values that are read: no op runs again if others need only the
//! shape of its result. Random ops draw the same numbers again, because these are functions of
//! seed, stream and step. Results are bit-identical.
//!
//! In a pipeline, segments end at the borders of stages, too.
//!
//! With `enable_offload`, checkpoints are stored in a file between the passes (see `offload.rs`).
//!
//! Without checkpoints, the pass chooses its own from the positions at which only one value is
//! live: the square root of their number, evenly spaced.

use super::{Applies, Facts, Strategy, offload};
use crate::effective::Effective;
use crate::job::Job;
use fleet_base::{Error, Result, text};
use fleet_config::Problem;
use fleet_ir::{Op, OpId, OpRole, Program, Var, VarId};
use fleet_ops::{OpDef, Registry};
use std::collections::{HashMap, HashSet};

pub struct Recompute;

impl Strategy for Recompute {
    fn check(&self, strategy: &Effective<'_>, problems: &mut Vec<Problem>) {
        if strategy.recompute() && strategy.recompute_configs().checkpoints.is_empty() {
            let problem = Problem::warning("recompute_configs.checkpoints", "no checkpoints")
                .why("they are chosen automatically by the square-root rule")
                .help("list the variables between the layers to choose them yourself");
            problems.push(problem);
        }
    }

    fn applies(&self, strategy: &Effective<'_>, facts: &Facts<'_>) -> Applies {
        let configs = strategy.recompute_configs();
        let unknown = |name: &String| facts.program.find_var(name).is_none();
        if let Some(at) = configs.checkpoints.iter().position(unknown) {
            let missing = &configs.checkpoints[at];
            let names = facts.program.vars().map(|(_, var)| var.name.as_str());
            let hint = text::did_you_mean(missing, names);
            return Applies::Refused(
                format!("recompute_configs.checkpoints[{at}]"),
                format!("unknown checkpoint variable '{missing}'{hint}"),
            );
        }
        match configs.checkpoints.len() {
            0 => Applies::Yes("checkpoints are chosen by the square-root rule".into()),
            count => {
                let s = if count == 1 { "" } else { "s" };
                Applies::Yes(format!("{count} checkpoint{s}; other activations are recomputed"))
            }
        }
    }

    fn backward(&self, job: &mut Job<'_>) -> Result<()> {
        let main = &mut job.programs.main;
        let forward = forward_ops(main);
        if main.block_count() > 1 {
            return Err(Error::unsupported(
                "recompute does not support programs with conditional blocks",
            ));
        }
        let names = &job.strategy.recompute_configs().checkpoints;
        let checkpoints: Vec<VarId> = match names.is_empty() {
            true => choose(main, &forward),
            false => names.iter().map(|name| main.var_named(name)).collect::<Result<_>>()?,
        };
        let mut segments = cut(main, &forward, &checkpoints);
        if job.pipeline.is_some() {
            cut_at_stages(main, &forward, &mut segments);
        }
        let replayed = replay(main, job.registry, &forward, &segments, &checkpoints)?;
        if job.strategy.recompute_configs().enable_offload() {
            let count = offload::apply(main, job.registry, &checkpoints)?;
            job.notes.push(format!("offload: {count} checkpoints are stored outside the arena"));
        }
        let main = &job.programs.main;
        let shown: Vec<&str> = checkpoints.iter().map(|var| main.var_name(*var)).collect();
        job.notes.push(format!(
            "recompute: {replayed} ops are recomputed, checkpoints {}",
            shown.join(", ")
        ));
        Ok(())
    }
}

/// Returns the segment of each forward op; ops after the last checkpoint have none.
fn cut(main: &Program, forward: &[OpId], checkpoints: &[VarId]) -> HashMap<OpId, usize> {
    let ends: Vec<usize> = forward
        .iter()
        .enumerate()
        .filter(|(_, id)| main.op(**id).all_outputs().any(|var| checkpoints.contains(&var)))
        .map(|(at, _)| at)
        .collect();
    let mut segment_of = HashMap::new();
    for (at, id) in forward.iter().enumerate() {
        if let Some(segment) = ends.iter().position(|end| at <= *end) {
            segment_of.insert(*id, segment);
        }
    }
    segment_of
}

/// Makes the ops of each stage of a pipeline segments of their own, so that what stages send is
/// kept, and each recomputes its own values.
fn cut_at_stages(main: &Program, forward: &[OpId], segment_of: &mut HashMap<OpId, usize>) {
    let mut numbers: HashMap<(usize, Option<&str>), usize> = HashMap::new();
    for id in forward {
        let Some(segment) = segment_of.get_mut(id) else { continue };
        let next = numbers.len();
        let key = (*segment, main.op(*id).device.as_deref());
        *segment = *numbers.entry(key).or_insert(next);
    }
}

/// Inserts the second run of each segment before its first user; returns the number of recomputed
/// ops.
fn replay(
    main: &mut Program,
    registry: &Registry,
    forward: &[OpId],
    segment_of: &HashMap<OpId, usize>,
    checkpoints: &[VarId],
) -> Result<usize> {
    let mut maker: HashMap<VarId, OpId> = HashMap::new();
    let mut held: HashSet<VarId> = checkpoints.iter().copied().collect();
    for id in forward {
        for var in main.op(*id).all_outputs() {
            if maker.insert(var, *id).is_some() || main.var(var).persistable {
                held.insert(var);
            }
        }
    }
    for id in forward {
        for var in read_inputs(registry, main.op(*id)) {
            // Values used in another segment are kept.
            if let Some(from) = maker.get(&var)
                && segment_of.get(from) != segment_of.get(id)
            {
                held.insert(var);
            }
        }
    }
    let recomputed = |var: VarId| {
        let from = maker.get(&var).filter(|_| !held.contains(&var))?;
        segment_of.get(from).map(|segment| (*from, *segment))
    };
    // The ops of each segment that the backward pass needs.
    let ops = main.block(Program::ROOT).ops().to_vec();
    let mut needed: HashMap<usize, HashSet<OpId>> = HashMap::new();
    for id in ops.iter().filter(|id| main.op(**id).role.is_backward()) {
        let mut open: Vec<VarId> = read_inputs(registry, main.op(*id)).collect();
        while let Some(var) = open.pop() {
            let Some((from, segment)) = recomputed(var) else { continue };
            if needed.entry(segment).or_default().insert(from) {
                open.extend(read_inputs(registry, main.op(from)));
            }
        }
    }
    let mut renamed: HashMap<VarId, VarId> = HashMap::new();
    let mut done: HashSet<usize> = HashSet::new();
    let mut out = Vec::with_capacity(ops.len());
    let mut count = 0;
    for id in ops {
        if main.op(id).role.is_backward() {
            let read = read_inputs(registry, main.op(id));
            let wanted: Vec<usize> = read.filter_map(|var| Some(recomputed(var)?.1)).collect();
            for segment in wanted {
                if !done.insert(segment) {
                    continue;
                }
                let Some(members) = needed.get(&segment) else { continue };
                for op in forward.iter().filter(|op| members.contains(op)) {
                    let copy = copy_op(main, *op, segment, &mut renamed)?;
                    out.push(copy);
                    count += 1;
                }
            }
            rename_inputs(main.op_mut(id), &renamed);
        }
        out.push(id);
    }
    main.set_block_ops(Program::ROOT, out);
    Ok(count)
}

/// Copies a forward op; the copy writes new variables.
fn copy_op(
    main: &mut Program,
    id: OpId,
    segment: usize,
    renamed: &mut HashMap<VarId, VarId>,
) -> Result<OpId> {
    let mut op = main.op(id).clone();
    op.role = OpRole::BACKWARD;
    rename_inputs(&mut op, renamed);
    for var in op.outputs.iter_mut().flatten() {
        let old = main.var(*var).clone();
        // Moving statistics must not be updated twice, so the copy writes to another variable.
        let name = main.fresh_name(&format!("{}.subprog_{segment}", old.name));
        let made = Var {
            stop_gradient: old.stop_gradient,
            kind: old.kind,
            ..Var::new(name, old.dtype, old.shape)
        };
        let made = main.add_var(Program::ROOT, made)?;
        if !old.persistable {
            renamed.insert(*var, made);
        }
        *var = made;
    }
    Ok(main.make_op(op))
}

/// Returns the inputs whose values an op reads, without those of which it needs only the shape.
pub(super) fn read_inputs<'a>(
    registry: &Registry,
    op: &'a Op,
) -> impl Iterator<Item = VarId> + use<'a> {
    let def = registry.find(op.name());
    let unread: Vec<usize> = def.into_iter().flat_map(OpDef::shape_only_slots).collect();
    let slots = op.inputs.iter().enumerate();
    slots.filter(move |(slot, _)| !unread.contains(slot)).flat_map(|(_, vars)| vars).copied()
}

fn rename_inputs(op: &mut Op, renamed: &HashMap<VarId, VarId>) {
    for var in op.inputs.iter_mut().flatten() {
        if let Some(new) = renamed.get(var) {
            *var = *new;
        }
    }
}

/// Returns the names of values that can be checkpoints of a network, in order: each is, at some
/// point of the forward pass, the only live value.
///
/// ```
/// use fleet_nn::prelude::*;
/// let net = Net::new();
/// let x = net.data("x", [-1, 4], DType::F32);
/// x.fc(Fc::new(8).act(Act::Tanh)).fc(1).mean();
/// let names = fleet_strategy::recompute_candidates(&net.build()?.main);
/// assert!(names.contains(&"fc_0.tmp_2".to_string()), "{names:?}");
/// # Ok::<(), fleet_base::Error>(())
/// ```
pub fn recompute_candidates(main: &Program) -> Vec<String> {
    crossings(main, &forward_ops(main))
        .into_iter()
        .map(|var| main.var_name(var).to_string())
        .collect()
}

fn forward_ops(main: &Program) -> Vec<OpId> {
    main.root_ops().filter(|(_, op)| op.role.is_forward()).map(|(id, _)| id).collect()
}

/// Chooses checkpoints by the square-root rule: of the candidates, about the square root of their
/// number, evenly spaced.
fn choose(main: &Program, forward: &[OpId]) -> Vec<VarId> {
    let crossings = crossings(main, forward);
    let count = (crossings.len() as f64).sqrt().round() as usize;
    if count == 0 {
        return Vec::new();
    }
    let spacing = crossings.len() as f64 / (count + 1) as f64;
    (1..=count).map(|index| crossings[(index as f64 * spacing) as usize]).collect()
}

fn crossings(main: &Program, forward: &[OpId]) -> Vec<VarId> {
    let mut last_use: HashMap<VarId, usize> = HashMap::new();
    for (at, id) in forward.iter().enumerate() {
        for var in main.op(*id).all_inputs() {
            last_use.insert(var, at);
        }
    }
    let mut live: HashSet<VarId> = HashSet::new();
    let mut crossings = Vec::new();
    for (at, id) in forward.iter().enumerate() {
        for var in main.op(*id).all_outputs() {
            let lives = last_use.get(&var).is_some_and(|last| *last > at);
            if lives && !main.var(var).persistable {
                live.insert(var);
            }
        }
        live.retain(|var| last_use.get(var).is_some_and(|last| *last > at));
        if let [only] = live.iter().copied().collect::<Vec<_>>()[..]
            && !crossings.contains(&only)
            && main.var(only).dtype.is_float()
        {
            crossings.push(only);
        }
    }
    crossings
}
