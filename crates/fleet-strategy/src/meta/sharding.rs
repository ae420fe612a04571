//! Sharding: the ranks of a group divide the state of training, so that each holds a part of it.
//! Ranks are a grid: `dp_degree` groups of `sharding_degree` consecutive ranks, each with a whole
//! copy of the state. Every parameter has an owner in its group ([`owners`](crate::owners)).
//!
//! Rings: 1 connects a group, 2 the ranks that own the same parameters in all groups, and 3 all
//! ranks, if there are several groups.
//!
//! In a pipeline, the ranks of equal stages form a group, which divides the state of its stage. A
//! parameter of several stages has an owner in each of them. Ring 3 connects the groups of all
//! stages of a copy of the model, which together own all parameters. With any stage of sharding, a
//! rank merges the gradients of its micro-batches, and owners sum the merged ones.
//!
//! * backward: the gradient of the loss is scaled by 1/N, as in data parallelism.
//! * communicate: gradients are summed at the owners of their parameters. A bucket has gradients of
//!   one owner. With several groups, owners then sum over the groups. Sparse rows are gathered.
//! * unscale, update: an owner unscales, clips and updates its own parameters only, so only it has
//!   optimizer state. The global norm and the check for finite gradients include those of all
//!   owners.
//! * finish: with stages 1 and 2, owners broadcast the updated parameters. With stage 3, and if no
//!   stage is assigned, other ranks do not keep them: owners broadcast them before their use,
//!   segment by segment (see `segments.rs`).
//!
//! With stage 1, accumulators of gradient merge are on every rank, and ranks communicate once in k
//! steps. From stage 2, and with `gradient_merge_acc_step`, owners accumulate the sums: ranks
//! communicate in every step.

use super::data_parallel::{broadcast_parameters, buckets_of, gather_rows, scale_loss_gradient};
use super::{
    Applies, Conflict, Facts, Strategy, StrategyId, WithServers, gradient_merge, segments,
};
use crate::buckets::grouped;
use crate::effective::Effective;
use crate::grid::Axis;
use crate::job::{Encoded, Job};
use crate::owners::{Merge, Shards};
use crate::ranks::Ranks;
use fleet_base::{Error, Result, text};
use fleet_config::Problem;
use fleet_ir::{OpId, OpRole, Program, VarId};
use fleet_nn::optimizer::{ParamGrad, SharedUpdate};
use fleet_ops::comm::{broadcast, reduce};
use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};

pub struct Sharding;

impl Strategy for Sharding {
    fn conflicts(&self) -> &'static [Conflict] {
        &[
            (StrategyId::LocalSgd, "ranks that train alone need all of the state"),
            (StrategyId::AdaptiveLocalSgd, "ranks that train alone need all of the state"),
            (StrategyId::Dgc, "dgc keeps parts of all gradients on every rank"),
        ]
    }

    fn check(&self, strategy: &Effective<'_>, problems: &mut Vec<Problem>) {
        let hybrid = strategy.hybrid_configs().sharding_degree();
        if !strategy.sharding() {
            if hybrid > 1 {
                let path = "hybrid_configs.sharding_degree";
                let problem = Problem::error(path, format!("{hybrid} ranks share no state"))
                    .why("sharding is off")
                    .help("set sharding to true, and sharding_configs.stage to what is divided");
                problems.push(problem);
            }
            return;
        }
        let ignored = [
            ("nccl_comm_num", strategy.nccl_comm_num() > 1),
            ("use_hierarchical_allreduce", strategy.use_hierarchical_allreduce()),
            ("sync_nccl_allreduce", strategy.sync_nccl_allreduce == Some(true)),
        ];
        for (path, _) in ignored.into_iter().filter(|(_, is_set)| *is_set) {
            let problem = Problem::warning(path, "has no effect with sharding")
                .why("a group has one ring, and gradients are summed at their owners")
                .help("remove it");
            problems.push(problem);
        }
        let configs = strategy.sharding_configs();
        let merges = strategy.gradient_merge() && strategy.gradient_merge_configs().k_steps() > 1;
        if merges && configs.gradient_merge_acc_step() > 1 {
            let path = "sharding_configs.gradient_merge_acc_step";
            let problem = Problem::error(path, "conflicts with gradient_merge")
                .why("both set the steps whose gradients make one update")
                .help("remove one of them");
            problems.push(problem);
        }
        check_segments(strategy, problems);
        if configs.hybrid_dp() && configs.sharding_degree.is_none() && configs.dp_degree.is_none() {
            let problem = Problem::warning("sharding_configs.hybrid_dp", "has no effect alone")
                .why("without degrees, all ranks are one group")
                .help("set sharding_degree to the number of ranks of a group");
            problems.push(problem);
        }
    }

    fn with_servers(&self) -> WithServers {
        WithServers::Refused("servers hold parameters and optimizer state")
    }

    fn applies(&self, strategy: &Effective<'_>, facts: &Facts<'_>) -> Applies {
        if facts.ranks.count == 1 {
            return Applies::Idle("one rank: nothing to divide".into());
        }
        if divides_params(strategy)
            && let Some((field, reason)) = why_not_divided(strategy, facts.program)
        {
            return Applies::Refused(field, reason);
        }
        match facts.grid(strategy) {
            Err((field, reason)) => Applies::Refused(field, reason),
            Ok(grid) => {
                let (divided, ranks) = (what_is_divided(strategy), grid.degree(Axis::Sharding));
                let of_stage = if grid.degree(Axis::Pipeline) > 1 { " of each stage" } else { "" };
                Applies::Yes(match grid.degree(Axis::Data) {
                    1 => format!("{ranks} ranks divide {divided}{of_stage}"),
                    copies => {
                        format!("{copies} groups of {ranks} ranks each divide {divided}{of_stage}")
                    }
                })
            }
        }
    }

    fn optimizer(&self, job: &mut Job<'_>) -> Result<()> {
        let Ranks { rank, count, .. } = job.ranks;
        let grid = job.grid;
        let degree = |axis: Axis| grid.degree(axis);
        let sharding = degree(Axis::Sharding);
        job.ring_along_at(SHARDS_RING, &format!("shards of {sharding}"), Axis::Sharding);
        let mut copies = None;
        let mut world = vec![(SHARDS_RING, sharding)];
        if degree(Axis::Data) > 1 {
            let label = format!("copies of {sharding} shards");
            job.ring_along_at(COPIES_RING, &label, Axis::Data);
            copies = Some(COPIES_RING);
            match grid.copies(rank).filter(|_| degree(Axis::Pipeline) == 1) {
                Some((first, stride, all)) => {
                    let label = if all == count { "all ranks 0" } else { "copies 0" };
                    job.ring_at(WORLD_RING, label, first, stride, all);
                    world = vec![(WORLD_RING, all)];
                }
                None => world.push((COPIES_RING, degree(Axis::Data))),
            }
        }
        let mut owners = (SHARDS_RING, sharding);
        if degree(Axis::Pipeline) > 1 {
            let first = grid.first(Axis::Pipeline, grid.first(Axis::Sharding, rank));
            owners = (WORLD_RING, sharding * degree(Axis::Pipeline));
            let label = format!("owners of {} stages", degree(Axis::Pipeline));
            job.ring_at(WORLD_RING, &label, first, grid.stride(Axis::Sharding), owners.1);
        }
        job.use_world_rings(world.iter().map(|(ring, _)| *ring).collect());
        let merge = Merge::of(job.strategy);
        let (params, owner, elements, names, segments) = Default::default();
        job.shards = Some(Shards {
            ring: SHARDS_RING,
            copies,
            world,
            owners,
            grid,
            rank: grid.place(Axis::Sharding, rank),
            merge,
            params,
            owner,
            elements,
            names,
            divides_params: divides_params(job.strategy),
            segments,
        });
        Ok(())
    }

    fn backward(&self, job: &mut Job<'_>) -> Result<()> {
        let shards = divide(job)?;
        // A pipeline does both before it repeats the passes.
        if job.pipeline.is_none() {
            if shards.divides_params {
                segments::repeat_casts(job, &shards.params)?;
            }
            scale_loss_gradient(job)?;
        }
        job.shards = Some(shards);
        Ok(())
    }

    fn communicate(&self, job: &mut Job<'_>) -> Result<()> {
        let mut shards = shards(job)?;
        if shards.divides_params {
            shards.segments = segments::cut(job, &shards.params);
            job.notes.push(format!("sharding: {} segments", shards.segments.len()));
        }
        let mut placed = Vec::new();
        gather_rows(job, &shards.world, &mut placed)?;
        let dense = job.grads.iter().copied().filter(|(_, grad)| !job.is_sparse(*grad));
        let buckets = buckets_by_owner(job, &shards, &dense.collect::<Vec<_>>());
        let calls = buckets.len();
        for (owner, vars) in buckets {
            let mut ops = reduce(job, &shards, owner, &vars)?;
            if owner == shards.rank {
                ops.extend(sum_copies(job, &shards, &vars)?);
            }
            placed.push((vars, ops));
        }
        job.notes.push(format!("sharding: gradients are summed at their owners in {calls} calls"));
        job.place(placed)?;
        keep_own(job, &shards);
        let (ring, nranks) = shards.owners;
        job.at.shared = Some(match job.at.shared.take() {
            // Of a pipeline: the parameters of all stages.
            Some(stages) => SharedUpdate { ring, nranks, ..stages },
            None => SharedUpdate {
                ring,
                nranks,
                params: shards.params.clone(),
                elsewhere: Vec::new(),
                tables: Vec::new(),
            },
        });
        job.shards = Some(shards);
        Ok(())
    }

    fn decode(&self, job: &mut Job<'_>) -> Result<()> {
        match shards(job)?.merge {
            Some(Merge { k, avg }) => gradient_merge::merge(job, k, avg),
            None => Ok(()),
        }
    }

    fn unscale(&self, job: &mut Job<'_>) -> Result<()> {
        match shards(job)?.merge {
            Some(_) => gradient_merge::rows_of_tables(job),
            None => Ok(()),
        }
    }

    fn finish(&self, job: &mut Job<'_>) -> Result<()> {
        let shards = shards(job)?;
        if shards.merge.is_some() {
            gradient_merge::clear(job)?;
        }
        if !shards.divides_params {
            return broadcast_updated(job, &shards);
        }
        segments::insert_broadcasts(job, &shards)?;
        segments::insert_into_test(job, &shards)
    }

    fn startup(&self, job: &mut Job<'_>) -> Result<()> {
        let shards = shards(job)?;
        let startup = &mut job.programs.startup;
        if !shards.divides_params {
            let params: Vec<VarId> = startup.parameters().map(|(id, _)| id).collect();
            return broadcast_over(job, &params, &shards.world);
        }
        let divided: HashSet<&String> = shards.names.iter().map(|(name, _)| name).collect();
        let others = shards.names.iter().filter(|(_, owner)| *owner != shards.rank);
        segments::remove_others(startup, &others.map(|(name, _)| name.clone()).collect());
        let (own, rest): (Vec<VarId>, Vec<VarId>) = startup
            .parameters()
            .map(|(id, _)| id)
            .partition(|id| divided.contains(&startup.var(*id).name));
        broadcast_over(job, &rest, &shards.world)?;
        match shards.copies {
            Some(copies) => {
                broadcast_parameters(job, &own, (copies, shards.grid.degree(Axis::Data)))
            }
            None => Ok(()),
        }
    }
}

/// Reports settings of segments that have no effect.
fn check_segments(strategy: &Effective<'_>, problems: &mut Vec<Problem>) {
    let configs = strategy.sharding_configs();
    let by_anchors = configs.sharding_segment_strategy() == "segment_anchors";
    let (size, anchors) = (configs.segment_broadcast_MB, !configs.segment_anchors.is_empty());
    if by_anchors && !anchors {
        let path = "sharding_configs.segment_anchors";
        let problem = Problem::error(path, "no anchors")
            .why("sharding_segment_strategy is segment_anchors")
            .help("list the variables at which segments end");
        problems.push(problem);
    }
    let divides = divides_params(strategy);
    let unused = [
        ("sharding_segment_strategy", configs.sharding_segment_strategy.is_some() && !divides),
        ("segment_broadcast_MB", size.is_some() && (by_anchors || !divides)),
        ("segment_anchors", anchors && (!by_anchors || !divides)),
    ];
    for (name, _) in unused.into_iter().filter(|(_, is_unused)| *is_unused) {
        let why = match divides {
            true => "sharding_segment_strategy selects the other way to cut segments",
            false => "stages 1 and 2 do not divide parameters",
        };
        let problem = Problem::warning(format!("sharding_configs.{name}"), "has no effect");
        problems.push(problem.why(why).help("remove it"));
    }
}

/// The documented numbers of rings; 0 is that of tensor parallelism.
const SHARDS_RING: i64 = 1;
const COPIES_RING: i64 = 2;
const WORLD_RING: i64 = 3;

/// Gives all ranks of several rings that together connect all groups the parameters of the first.
fn broadcast_over(job: &mut Job<'_>, params: &[VarId], rings: &[(i64, usize)]) -> Result<()> {
    rings.iter().try_for_each(|ring| broadcast_parameters(job, params, *ring))
}

fn what_is_divided(strategy: &Effective<'_>) -> &'static str {
    match strategy.sharding_configs().stage {
        Some(1) => "the optimizer state",
        Some(2) => "optimizer state and gradients",
        _ => "optimizer state, gradients and parameters",
    }
}

/// Returns whether parameters are divided: with stage 3, and by default.
pub(super) fn divides_params(strategy: &Effective<'_>) -> bool {
    strategy.sharding_configs().stage.is_none_or(|stage| stage > 2)
}

/// Returns why the parameters of a program cannot be divided: the field at fault, and the reason.
fn why_not_divided(strategy: &Effective<'_>, program: &Program) -> Option<(String, String)> {
    if program.root_ops().any(|(_, op)| op.sub_block().is_some()) {
        let reason = "sharding does not divide the parameters of programs with branches of a cond \
                      or loops: set stage to 1 or 2";
        return Some(("sharding_configs.stage".into(), reason.into()));
    }
    let anchors = &strategy.sharding_configs().segment_anchors;
    let at = anchors.iter().position(|name| program.find_var(name).is_none())?;
    let names = program.vars().map(|(_, var)| var.name.as_str());
    let hint = text::did_you_mean(&anchors[at], names);
    let field = format!("sharding_configs.segment_anchors[{at}]");
    Some((field, format!("unknown anchor variable '{}'{hint}", anchors[at])))
}

fn shards(job: &Job<'_>) -> Result<Shards> {
    job.shards.clone().ok_or_else(|| Error::internal("sharding has not divided the parameters"))
}

/// Divides the trained parameters among the ranks of a group.
fn divide(job: &mut Job<'_>) -> Result<Shards> {
    let mut shards = shards(job)?;
    let mut params: Vec<VarId> = job.grads.iter().map(|(param, _)| *param).collect();
    params.sort();
    let main = &job.programs.main;
    let elements = |param: &VarId| main.var(*param).shape.numel().unwrap_or(0) as u64;
    // Parameters of several stages have the first rank of each group as owner, so that stages can
    // exchange them.
    let of_stages = job.pipeline.iter().flat_map(|pipeline| &pipeline.shared);
    let of_stages: HashSet<&String> = of_stages.map(|(name, _)| name).collect();
    let (first, rest): (Vec<VarId>, Vec<VarId>) =
        params.into_iter().partition(|param| of_stages.contains(&main.var(*param).name));
    let together = (!first.is_empty()).then(|| first.iter().map(elements).sum());
    let elements: Vec<u64> = together.into_iter().chain(rest.iter().map(elements)).collect();
    shards.divide(first, rest, &elements);
    let named = shards.params.iter().map(|it| (main.var_name(*it).to_string(), shards.owner(*it)));
    shards.names = named.collect();
    let own = shards.params.iter().filter(|param| shards.is_own(**param)).count();
    job.notes.push(format!(
        "sharding: rank {} of {} owns {own} of {} parameters",
        shards.rank,
        shards.count(),
        shards.params.len()
    ));
    Ok(shards)
}

/// Groups gradients into buckets of one owner each, those of the last parameters first, as they are
/// computed. If parameters are divided, gradients of different segments are apart.
fn buckets_by_owner(
    job: &Job<'_>,
    shards: &Shards,
    grads: &[ParamGrad],
) -> Vec<(usize, Vec<VarId>)> {
    let main = &job.programs.main;
    let mut segment_of: HashMap<VarId, usize> = HashMap::new();
    for (at, segment) in shards.segments.iter().enumerate() {
        let written = segment.ops.iter().flat_map(|id| main.op(*id).all_outputs());
        segment_of.extend(written.map(|var| (var, at)));
    }
    let key =
        |(param, grad): &ParamGrad| (segment_of.get(grad).copied(), Reverse(shards.owner(*param)));
    let mut groups = grouped(grads.iter().map(|pair| (key(pair), *pair)));
    groups.sort_by_key(|(key, _)| *key);
    let buckets = groups.into_iter().flat_map(|((_, Reverse(owner)), sent)| {
        let buckets = buckets_of(job, &sent).into_iter();
        let vars = |bucket: Vec<usize>| bucket.into_iter().map(|at| sent[at].1).collect();
        buckets.map(|bucket| (owner, vars(bucket))).collect::<Vec<_>>()
    });
    buckets.collect()
}

/// Emits the broadcasts of all parameters by their owners, after the update.
fn broadcast_updated(job: &mut Job<'_>, shards: &Shards) -> Result<()> {
    for owner in 0..shards.count() {
        let params = shards.params.iter().filter(|param| shards.owner(**param) == owner);
        let params: Vec<ParamGrad> = params.map(|param| (*param, *param)).collect();
        for bucket in buckets_of(job, &params) {
            let vars: Vec<VarId> = bucket.iter().map(|at| params[*at].0).collect();
            let mut emit = job.emit(OpRole::OPTIMIZE);
            let call = emit.op(&broadcast::DEF).inputs("X", &vars).outputs("Out", &vars);
            let call = call.attr("ring_id", shards.ring).attr("root", owner);
            let call = call.attr("nranks", shards.count());
            call.attr("label", format!("parameters of rank {owner}")).done()?;
            emit.append();
        }
    }
    Ok(())
}

/// Emits the sum of gradients over a group, at their owner.
fn reduce(job: &mut Job<'_>, shards: &Shards, owner: usize, vars: &[VarId]) -> Result<Vec<OpId>> {
    let mut emit = job.emit(OpRole::BACKWARD);
    let call = emit.op(&reduce::REDUCE_SUM).inputs("X", vars).outputs("Out", vars);
    let call = call.attr("ring_id", shards.ring).attr("nranks", shards.count());
    call.attr("root_id", owner).attr("label", format!("gradients of rank {owner}")).done()?;
    Ok(std::mem::take(&mut emit.ops))
}

/// Emits the sum of this rank's gradients over the groups, if there are several.
fn sum_copies(job: &mut Job<'_>, shards: &Shards, vars: &[VarId]) -> Result<Vec<OpId>> {
    let Some(copies) = shards.copies else { return Ok(Vec::new()) };
    let mut emit = job.emit(OpRole::BACKWARD);
    let call = emit.op(&reduce::ALL_SUM).inputs("X", vars).outputs("Out", vars);
    let call = call.attr("ring_id", copies).attr("nranks", shards.grid.degree(Axis::Data));
    call.attr("label", format!("gradients of rank {}", shards.rank)).done()?;
    Ok(std::mem::take(&mut emit.ops))
}

/// Drops the gradients of other owners.
fn keep_own(job: &mut Job<'_>, shards: &Shards) {
    let mut new_index = vec![None; job.grads.len()];
    let mut own = Vec::new();
    for (at, (param, grad)) in job.grads.iter().enumerate() {
        if shards.is_own(*param) {
            new_index[at] = Some(own.len());
            own.push((*param, *grad));
        }
    }
    job.grads = own;
    let moved = |it: Encoded| Some(Encoded { index: new_index[it.index]?, ..it });
    job.encoded = std::mem::take(&mut job.encoded).into_iter().filter_map(moved).collect();
}
