//! Parameters that several stages use, such as an embedding that is also the output layer: each of
//! these stages holds and updates the parameter.
//!
//! Each stage merges its own contribution to the gradient. After the last micro-batch, the first of
//! the stages receives the others' contributions, adds them in the order of the program before the
//! cut, and sends the sum back. Two stages talk over a ring of their own.

use super::flow;
use super::stages::Place;
use crate::job::Job;
use crate::pipeline::{Pair, Size};
use fleet_base::Result;
use fleet_ir::{OpId, OpRole, Program, Var, VarId};
use fleet_ops::{
    Emit,
    comm::{broadcast, control, send_recv},
    math::sum,
};
use std::collections::{BTreeMap, BTreeSet};

/// The gradient of a parameter.
#[derive(Clone, Debug)]
pub struct Gradient {
    pub param: VarId,
    /// The stages that hold the parameter.
    pub holders: BTreeSet<usize>,
    /// Contributions, in the order in which they are added: the stage and its variable.
    pub parts: Vec<(usize, VarId)>,
}

impl Gradient {
    pub fn is_shared(&self) -> bool {
        self.holders.len() > 1
    }

    /// Returns the stage that adds the contributions.
    pub fn first(&self) -> usize {
        self.holders.first().copied().unwrap_or_default()
    }

    /// Returns the contribution of a stage.
    pub fn of(&self, stage: usize) -> Option<VarId> {
        self.parts.iter().find(|part| part.0 == stage).map(|part| part.1)
    }
}

/// Returns the gradients of all trained parameters. Replaces a sum of contributions of several
/// stages by one sum on each of these stages.
pub fn gradients(job: &mut Job<'_>, size: Size) -> Result<Vec<Gradient>> {
    let main = &mut job.programs.main;
    let members = flow::members(main)?;
    let origins = flow::origins(main, &members)?;
    let part_of = |var: VarId| match origins.get(&var).map(|origin| origin.place) {
        Some(Place::Part(part)) => part,
        _ => 0,
    };
    let mut users: BTreeMap<VarId, BTreeSet<usize>> = BTreeMap::new();
    for member in &members {
        let Place::Part(part) = member.place else { continue };
        for var in main.op(member.id).all_inputs() {
            if main.var(var).is_parameter() {
                users.entry(var).or_default().insert(size.stage_of(part));
            }
        }
    }
    let mut found = Vec::new();
    let mut replaced: BTreeMap<OpId, Vec<OpId>> = BTreeMap::new();
    for (param, grad) in job.grads.clone() {
        let mut holders = users.remove(&param).unwrap_or_default();
        let writer = origins.get(&grad).map(|origin| members[origin.at].id);
        let sum = writer.filter(|id| sum::DEF.is(job.programs.main.op(*id)));
        let parts = match sum {
            Some(id) => {
                let inputs = job.programs.main.op(id).input("X").to_vec();
                let stages: BTreeSet<usize> =
                    inputs.iter().map(|var| size.stage_of(part_of(*var))).collect();
                match stages.len() {
                    1 => vec![(size.stage_of(part_of(grad)), grad)],
                    _ => divide(job, size, (id, &inputs), &part_of, &mut replaced)?,
                }
            }
            None => vec![(size.stage_of(part_of(grad)), grad)],
        };
        holders.extend(parts.iter().map(|part| part.0));
        found.push(Gradient { param, holders, parts });
    }
    let main = &mut job.programs.main;
    let ops = main.block(Program::ROOT).ops().to_vec();
    let with = |id: OpId| replaced.get(&id).cloned().unwrap_or_else(|| vec![id]);
    main.set_block_ops(Program::ROOT, ops.into_iter().flat_map(with).collect());
    Ok(found)
}

/// Replaces a sum of contributions of several stages by a sum on each stage that has several.
fn divide(
    job: &mut Job<'_>,
    size: Size,
    (id, inputs): (OpId, &[VarId]),
    part_of: &dyn Fn(VarId) -> usize,
    replaced: &mut BTreeMap<OpId, Vec<OpId>>,
) -> Result<Vec<(usize, VarId)>> {
    let mut by_stage: Vec<(usize, Vec<VarId>)> = Vec::new();
    for var in inputs {
        let stage = size.stage_of(part_of(*var));
        match by_stage.iter_mut().find(|it| it.0 == stage) {
            Some((_, vars)) => vars.push(*var),
            None => by_stage.push((stage, vec![*var])),
        }
    }
    let mut parts = Vec::new();
    let mut sums = Vec::new();
    for (stage, vars) in by_stage {
        if let [only] = vars[..] {
            parts.push((stage, only));
            continue;
        }
        let first = vars.iter().map(|var| part_of(*var)).min().unwrap_or(0);
        let main = &mut job.programs.main;
        let name = format!("{}@STAGE_{stage}", main.var_name(main.op(id).output("Out")[0]));
        let mut emit = Emit::new(main, job.registry, OpRole::BACKWARD);
        emit.device = Some(format!("gpu:{first}").into());
        let total = emit.op(&sum::DEF).inputs("X", &vars).named(name).one("Out")?;
        sums.append(&mut emit.ops);
        parts.push((stage, total));
    }
    replaced.insert(id, sums);
    Ok(parts)
}

/// Returns the pairs of stages that share parameters, with their rings from `ring` on.
pub fn pairs(gradients: &[Gradient], ring: i64) -> Vec<Pair> {
    let mut pairs = BTreeSet::new();
    for gradient in gradients {
        let first = gradient.first();
        pairs.extend(gradient.holders.iter().skip(1).map(|other| (first, *other)));
    }
    let numbered = pairs.into_iter().zip(ring..);
    numbered.map(|((first, other), ring)| Pair { first, other, ring }).collect()
}

fn ring(pairs: &[Pair], first: usize, other: usize) -> i64 {
    let found = pairs.iter().find(|pair| (pair.first, pair.other) == (first, other));
    found.map_or(0, |pair| pair.ring)
}

/// Emits the sum of the contributions of all holders. `own` is the merged contribution of this
/// stage, if it has one. Returns the ops and the variable of the sum.
pub fn exchange(
    job: &mut Job<'_>,
    gradient: &Gradient,
    pairs: &[Pair],
    stage: usize,
    own: Option<VarId>,
) -> Result<(Vec<OpId>, VarId)> {
    let first = gradient.first();
    let param = job.programs.main.var(gradient.param);
    let (name, shape) = (param.name.clone(), param.shape);
    let dtype = job.programs.main.var(gradient.parts[0].1).dtype;
    let mut emit = Emit::new(&mut job.programs.main, job.registry, OpRole::BACKWARD);
    let label = |from: usize| format!("{name}@GRAD of stage {from}");
    let total = Var::new(format!("{name}@GRAD@SHARED"), dtype, shape);
    let total = emit.program.add_var(Program::ROOT, total)?;
    let send = |emit: &mut Emit<'_>, var: VarId, (ring, peer): (i64, usize), label: String| {
        let call = emit.op(&send_recv::SEND).input("X", var).attr("ring_id", ring);
        call.attr("nranks", 2).attr("peer", peer).attr("label", label).done()
    };
    let receive = |emit: &mut Emit<'_>, var: VarId, (ring, peer): (i64, usize), label: String| {
        let call = emit.op(&send_recv::RECV).output("Out", var).attr("ring_id", ring);
        let call = call.attr("nranks", 2).attr("peer", peer).attr("label", label);
        call.attr("out_shape", shape.to_vec()).attr("dtype", dtype).done()
    };
    if stage != first {
        let ring = ring(pairs, first, stage);
        if let Some(own) = own {
            send(&mut emit, own, (ring, 0), label(stage))?;
        }
        receive(&mut emit, total, (ring, 0), format!("{name}@GRAD"))?;
        return Ok((std::mem::take(&mut emit.ops), total));
    }
    let mut parts = Vec::new();
    for (from, _) in &gradient.parts {
        if *from == first {
            parts.extend(own);
            continue;
        }
        let part = Var::new(format!("{name}@GRAD@STAGE_{from}"), dtype, shape);
        let fresh = emit.program.fresh_name(&part.name);
        let part = emit.program.add_var(Program::ROOT, Var { name: fresh, ..part })?;
        receive(&mut emit, part, (ring(pairs, first, *from), 1), label(*from))?;
        parts.push(part);
    }
    emit.op(&sum::DEF).inputs("X", &parts).output("Out", total).done()?;
    for other in gradient.holders.iter().skip(1) {
        let ring = ring(pairs, first, *other);
        send(&mut emit, total, (ring, 1), format!("{name}@GRAD"))?;
        // Phases put their ops after the last one that writes a gradient, and so after this one.
        let call = emit.op(&control::SYNC_COMM).input("X", total).output("Out", total);
        call.attr("ring_id", ring).done()?;
    }
    Ok((std::mem::take(&mut emit.ops), total))
}

/// Gives all holders of shared parameters the initial values of the first one.
pub fn broadcast_parameters(
    job: &mut Job<'_>,
    shared: &[(String, BTreeSet<usize>)],
    pairs: &[Pair],
    stage: usize,
) -> Result<()> {
    let mut emit = Emit::new(&mut job.programs.startup, job.registry, OpRole::FORWARD);
    for pair in pairs.iter().filter(|pair| pair.first == stage || pair.other == stage) {
        let is_held = |holders: &BTreeSet<usize>| {
            holders.first() == Some(&pair.first) && holders.contains(&pair.other)
        };
        let names = shared.iter().filter(|(_, holders)| is_held(holders)).map(|(name, _)| name);
        let params: Vec<VarId> = names.filter_map(|name| emit.program.find_var(name)).collect();
        // Under sharding, the owner has them, which has the same place in the groups of both.
        if params.is_empty() {
            continue;
        }
        let call = emit.op(&broadcast::DEF).inputs("X", &params).outputs("Out", &params);
        let call = call.attr("ring_id", pair.ring).attr("nranks", 2).attr("root", 0);
        call.attr("label", "shared parameters").done()?;
    }
    emit.append();
    Ok(())
}
