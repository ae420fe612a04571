//! Data parallelism (`RawProgram` in a chain): every rank trains on its part of the batch with the
//! same parameters, and gradients are summed over ranks before use.
//!
//! * startup: rank 0's parameters are broadcast.
//! * backward: the gradient of the loss is scaled by 1/N, so that the sum over ranks is the
//!   gradient of the mean over the whole batch.
//! * communicate: an all-reduce for each bucket directly follows the bucket's last gradient, so
//!   that it overlaps the rest of the backward pass. Buckets use the rings in turn. Sparse rows are
//!   gathered. Gradients of class weights that ranks divide are not sent. With
//!   `use_hierarchical_allreduce`, gradients are reduced within groups, summed across leaders, and
//!   broadcast within groups. With `sync_nccl_allreduce` assigned true, all of this runs in the
//!   compute lane, without overlap.

use super::pipeline::stages;
use super::{Applies, Facts, Strategy, trains_alone};
use crate::buckets::{self, Item};
use crate::effective::Effective;
use crate::grid::{Axis, Grid};
use crate::job::{Job, prepend};
use fleet_base::Result;
use fleet_config::Problem;
use fleet_ir::{OpId, OpRole, Var, VarId, VarKind};
use fleet_nn::optimizer::ParamGrad;
use fleet_ops::{
    Emit, OpDef,
    comm::{broadcast, control, gather, reduce},
    math::scale,
};

pub struct DataParallel;

impl Strategy for DataParallel {
    fn wanted(&self, _: &Effective<'_>) -> bool {
        true
    }

    fn check(&self, strategy: &Effective<'_>, problems: &mut Vec<Problem>) {
        let is_flat = !strategy.use_hierarchical_allreduce();
        if is_flat && strategy.hierarchical_allreduce_inter_nranks() > 1 {
            let path = "hierarchical_allreduce_inter_nranks";
            let message = "has no effect without use_hierarchical_allreduce";
            let problem = Problem::warning(path, message)
                .why("it is the number of ranks in a group of the lower level")
                .help("set use_hierarchical_allreduce to true, or remove this field");
            problems.push(problem);
        }
        if sums_in_compute_lane(strategy) && strategy.nccl_comm_num() > 1 {
            let message = "does not overlap communication if sync_nccl_allreduce is true";
            let problem = Problem::warning("nccl_comm_num", message)
                .why("the computing thread makes one sum after another")
                .help("set sync_nccl_allreduce to false, or remove this field");
            problems.push(problem);
        }
        if strategy.fuse_all_reduce_ops() {
            problems.extend(large_last_bucket(strategy));
            return;
        }
        let sizes = [
            ("fuse_grad_size_in_MB", strategy.fuse_grad_size_in_MB.is_some()),
            ("fuse_grad_size_in_TFLOPS", strategy.fuse_grad_size_in_TFLOPS.is_some()),
            ("last_comm_group_size_MB", strategy.last_comm_group_size_MB.is_some()),
        ];
        for (path, _) in sizes.into_iter().filter(|(_, assigned)| *assigned) {
            let problem = Problem::warning(path, "has no effect without fuse_all_reduce_ops")
                .why("it limits the size of buckets")
                .help("set fuse_all_reduce_ops to true, or remove this field");
            problems.push(problem);
        }
    }

    fn applies(&self, strategy: &Effective<'_>, facts: &Facts<'_>) -> Applies {
        if stages::is_on(strategy) {
            return match facts.copies(strategy) {
                1 => Applies::Idle("one pipeline: each parameter is on one rank".into()),
                _ if strategy.sharding() => Applies::Idle(SENT_BY_SHARDING.into()),
                copies => Applies::Yes(format!(
                    "{copies} pipelines: gradients are summed over the ranks of equal stages"
                )),
            };
        }
        let (asked, count) = (strategy.hybrid_configs().dp_degree(), facts.ranks.count);
        let grid = match facts.grid(strategy) {
            Ok(grid) if facts.servers.is_none() || grid.degree(Axis::Data) == count => grid,
            _ if asked > 0 && asked as usize != count && !strategy.sharding() => {
                let field = "hybrid_configs.dp_degree".to_string();
                let ranks = if facts.servers.is_some() { "workers trains" } else { "ranks holds" };
                let each = format!("each of the {count} {ranks} a copy of the model");
                return Applies::Refused(field.clone(), format!("{field} is {asked}, but {each}"));
            }
            // The strategy with the wrong degree reports it.
            _ => Grid::new([1, 1, 1, count]),
        };
        match grid.copy(facts.ranks.rank).1 {
            1 if count > 1 => Applies::Idle("the ranks share one copy of the model".into()),
            1 => Applies::Idle("one rank: nothing to send".into()),
            _ if strategy.sharding() => Applies::Idle(SENT_BY_SHARDING.into()),
            ranks if trains_alone(strategy) => Applies::Yes(format!(
                "{ranks} ranks start with equal parameters and train alone, so no gradient is \
                     sent"
            )),
            copies if copies < count => Applies::Yes(format!(
                "{copies} copies of the model: gradients are summed over them"
            )),
            ranks => Applies::Yes(format!("{ranks} ranks: gradients are summed over all of them")),
        }
    }

    fn backward(&self, job: &mut Job<'_>) -> Result<()> {
        // A pipeline scales the gradient before it repeats the backward pass.
        match job.trains_alone || job.pipeline.is_some() {
            true => Ok(()),
            false => scale_loss_gradient(job),
        }
    }

    fn communicate(&self, job: &mut Job<'_>) -> Result<()> {
        if job.trains_alone {
            return Ok(());
        }
        let groups = ReduceRings::of(job)?;
        let buckets = dense_buckets(job);
        let dense: usize = dense_sent(job).len();
        job.notes
            .push(format!("all-reduce ops before and after fusion: {dense} -> {}", buckets.len()));
        let mut placed = Vec::new();
        for (index, bucket) in buckets.iter().enumerate() {
            let vars: Vec<VarId> = bucket.iter().map(|at| job.grads[*at].1).collect();
            let label = format!("gradients {}/{}", index + 1, buckets.len());
            placed.push((vars.clone(), all_reduce(job, &groups, index, &vars, &label)?));
        }
        let ring = match &groups {
            ReduceRings::Flat(rings) => rings[0],
            ReduceRings::TwoLevels { .. } => job.world_rings()?[0],
        };
        gather_rows(job, &[(ring, job.copies())], &mut placed)?;
        if sums_in_compute_lane(job.strategy) {
            for op in placed.iter().flat_map(|(_, ops)| ops) {
                job.programs.main.op_mut(*op).set_attr("use_calc_stream", true)?;
            }
            job.notes.push("gradients are summed in the computing thread, without overlap".into());
        }
        job.place(placed)
    }

    fn startup(&self, job: &mut Job<'_>) -> Result<()> {
        let (ring, nranks) = (job.world_rings()?[0], job.copies());
        let own: Vec<String> = job.class_weights.iter().map(|var| job.name(*var)).collect();
        let params = job.programs.startup.parameters();
        let params = params.filter(|(_, var)| !own.contains(&var.name)).map(|(id, _)| id);
        let params: Vec<VarId> = params.collect();
        broadcast_parameters(job, &params, (ring, nranks))
    }
}

const SENT_BY_SHARDING: &str = "sharding sends gradients to the owners of parameters";

/// Gives all ranks of a ring the initial parameters of its rank 0.
pub(super) fn broadcast_parameters(
    job: &mut Job<'_>,
    params: &[VarId],
    (ring, nranks): (i64, usize),
) -> Result<()> {
    if params.is_empty() {
        return Ok(());
    }
    let mut emit = job.emit_startup();
    emit.op(&broadcast::DEF)
        .inputs("X", params)
        .outputs("Out", params)
        .attr("ring_id", ring)
        .attr("nranks", nranks)
        .attr("root", 0)
        .attr("label", "parameters")
        .done()?;
    emit.op(&control::SYNC_COMM)
        .inputs("X", params)
        .outputs("Out", params)
        .attr("ring_id", ring)
        .done()?;
    emit.append();
    Ok(())
}

/// Reports a last bucket that may be larger than the others.
fn large_last_bucket(strategy: &Effective<'_>) -> Option<Problem> {
    let (last, limit) = (strategy.last_comm_group_size_MB(), strategy.fuse_grad_size_in_MB());
    let message = format!("expected at most fuse_grad_size_in_MB, which is {limit}, got {last}");
    let problem = Problem::warning("last_comm_group_size_MB", message)
        .why("communication of the last bucket is exposed, so it should be the smallest")
        .help("use 1");
    // 0 and -1 are no sizes.
    (limit > 0 && last > limit as f32).then_some(problem)
}

/// Returns whether the computing thread waits for each sum of gradients. Although true is the
/// documented default, sums overlap compute unless the strategy or a flag assigns true.
fn sums_in_compute_lane(strategy: &Effective<'_>) -> bool {
    strategy.sync_nccl_allreduce == Some(true)
}

/// Inserts `loss@GRAD *= 1/N` after the op that fills `loss@GRAD`, unless the strategy asks for the
/// sum.
pub(super) fn scale_loss_gradient(job: &mut Job<'_>) -> Result<()> {
    if job.strategy.gradient_scale_configs().scale_strategy() != "avg" {
        return Ok(());
    }
    let share = 1.0 / job.copies() as f64;
    let fill = job.programs.main.root_ops().find_map(|(_, op)| {
        let fills = op.role.is_backward() && op.role.is_loss();
        fills.then(|| op.all_outputs().next()).flatten()
    });
    let Some(grad) = fill else { return Ok(()) };
    let mut emit = Emit::new(&mut job.programs.main, job.registry, OpRole::BACKWARD.with_loss());
    emit.op(&scale::DEF).input("X", grad).output("Out", grad).attr("scale", share).done()?;
    let ops = std::mem::take(&mut emit.ops);
    job.place(vec![(vec![grad], ops)])
}

/// Returns buckets of dense gradients, as indices of `job.grads`.
fn dense_buckets(job: &Job<'_>) -> Vec<Vec<usize>> {
    let dense = dense_sent(job);
    let sent: Vec<ParamGrad> = dense.iter().map(|at| job.grads[*at]).collect();
    let buckets = buckets_of(job, &sent);
    buckets.into_iter().map(|bucket| bucket.iter().map(|at| dense[*at]).collect()).collect()
}

/// Returns the dense gradients that are summed over ranks, as indices of `job.grads`.
fn dense_sent(job: &Job<'_>) -> Vec<usize> {
    let is_sent = |at: &usize| {
        let (param, grad) = job.grads[*at];
        !job.is_sparse(grad) && !job.class_weights.contains(&param)
    };
    (0..job.grads.len()).filter(is_sent).collect()
}

/// Groups pairs of (parameter, variable sent for it) into buckets.
pub(super) fn buckets_of(job: &Job<'_>, sent: &[ParamGrad]) -> Vec<Vec<usize>> {
    let main = &job.programs.main;
    let items: Vec<Item<'_>> = sent
        .iter()
        .map(|(param, sent)| {
            let var = main.var(*sent);
            let elements = var.shape.numel().unwrap_or(0);
            let bytes = elements as f64 * var.dtype.size() as f64;
            Item { name: main.var_name(*param), bytes, dtype: var.dtype }
        })
        .collect();
    bucket_rule(job.strategy, &items)
}

fn bucket_rule(strategy: &Effective<'_>, items: &[Item<'_>]) -> Vec<Vec<usize>> {
    if !strategy.fuse_all_reduce_ops() {
        return (0..items.len()).map(|at| vec![at]).collect();
    }
    let by_size =
        strategy.fuse_grad_size_in_MB.is_some() || strategy.fuse_grad_size_in_TFLOPS.is_some();
    let mut buckets = match strategy.fuse_grad_size_in_num {
        Some(count) if !by_size => buckets::group_by_count(items, count.max(1) as usize),
        _ => {
            let memory = f64::from(strategy.fuse_grad_size_in_MB());
            buckets::group(items, memory, strategy.fuse_grad_size_in_TFLOPS() as i64)
        }
    };
    if strategy.last_comm_group_size_MB.is_some() {
        split_last(&mut buckets, items, f64::from(strategy.last_comm_group_size_MB()));
    }
    buckets
}

/// Makes the end of the last bucket a small bucket of its own. The last bucket cannot overlap
/// compute, so this reduces exposed communication.
fn split_last(buckets: &mut Vec<Vec<usize>>, items: &[Item<'_>], limit_mb: f64) {
    let Some(last) = buckets.last_mut() else { return };
    let mut bytes = 0.0;
    let mut keep = last.len();
    while keep > 1 && bytes + items[last[keep - 1]].bytes <= limit_mb * 1024.0 * 1024.0 {
        keep -= 1;
        bytes += items[last[keep]].bytes;
    }
    if keep < last.len() {
        let tail = last.split_off(keep);
        buckets.push(tail);
    }
}

/// The rings that a sum uses.
enum ReduceRings {
    Flat(Vec<i64>),
    /// For each pair of rings: within the group, and across leaders if this rank leads.
    TwoLevels {
        inner: Vec<i64>,
        outer: Vec<i64>,
        group: usize,
        leads: bool,
    },
}

impl ReduceRings {
    fn of(job: &mut Job<'_>) -> Result<ReduceRings> {
        let flat = job.world_rings()?;
        if !job.strategy.use_hierarchical_allreduce() {
            return Ok(ReduceRings::Flat(flat));
        }
        let asked = job.strategy.hierarchical_allreduce_inter_nranks();
        let group = if asked <= 1 { job.ranks.per_node } else { asked as usize };
        let (rank, count) = (job.ranks.rank, job.ranks.count);
        if job.copies() != count {
            let note = "use_hierarchical_allreduce has no effect: ranks hold parts of the model";
            job.notes.push(note.into());
            return Ok(ReduceRings::Flat(flat));
        }
        if group <= 1 || count <= group || !count.is_multiple_of(group) {
            job.notes.push(format!(
                "use_hierarchical_allreduce has no effect: {count} ranks do not form several \
                 groups of {group}"
            ));
            return Ok(ReduceRings::Flat(flat));
        }
        let (place, first) = (rank % group, rank - rank % group);
        let mut inner = Vec::new();
        let mut outer = Vec::new();
        // All ranks number their rings alike, so ranks that are not leaders skip the leaders'
        // numbers.
        for index in 0..flat.len() {
            inner.push(job.ring(&format!("group of {group} {index}"), first, 1, group));
            outer.push(job.ring(&format!("leaders {index}"), place, group, count / group));
        }
        if place != 0 {
            job.rings.own.retain(|ring| !ring.label.starts_with("leaders"));
        }
        Ok(ReduceRings::TwoLevels { inner, outer, group, leads: place == 0 })
    }
}

fn all_reduce(
    job: &mut Job<'_>,
    groups: &ReduceRings,
    index: usize,
    vars: &[VarId],
    label: &str,
) -> Result<Vec<OpId>> {
    let count = job.copies();
    let mut emit = job.emit(OpRole::BACKWARD);
    let mut call = |def: &'static OpDef, ring: i64, nranks: usize| {
        emit_collective(&mut emit, def, vars, (ring, nranks), label)
    };
    match groups {
        ReduceRings::Flat(rings) => call(&reduce::ALL_SUM, rings[index % rings.len()], count)?,
        ReduceRings::TwoLevels { inner, outer, group, leads } => {
            let lane = index % inner.len();
            call(&reduce::REDUCE_SUM, inner[lane], *group)?;
            if *leads {
                call(&reduce::ALL_SUM, outer[lane], count / group)?;
            }
            call(&broadcast::DEF, inner[lane], *group)?;
        }
    }
    Ok(std::mem::take(&mut emit.ops))
}

/// Emits a collective that replaces variables by its results.
pub(super) fn emit_collective(
    emit: &mut Emit<'_>,
    def: &'static OpDef,
    vars: &[VarId],
    (ring, nranks): (i64, usize),
    label: &str,
) -> Result<()> {
    let call = emit.op(def).inputs("X", vars).outputs("Out", vars).attr("ring_id", ring);
    call.attr("nranks", nranks).attr("label", label).done().map(drop)
}

/// Gathers the sparse rows of all ranks over rings that together span them: over the first one, and
/// the results over the next. Their concatenation represents their sum.
pub(super) fn gather_rows(
    job: &mut Job<'_>,
    rings: &[(i64, usize)],
    placed: &mut Vec<(Vec<VarId>, Vec<OpId>)>,
) -> Result<()> {
    let block = job.at.block;
    for at in 0..job.grads.len() {
        let (param, grad) = job.grads[at];
        if !job.is_sparse(grad) || job.class_weights.contains(&param) {
            continue;
        }
        let main = &mut job.programs.main;
        let mut emit = Emit::new(main, job.registry, OpRole::BACKWARD);
        emit.block = block;
        let mut sent = grad;
        for (ring, count) in rings {
            let main = &mut *emit.program;
            let name = main.fresh_name(&format!("{}@ALLGATHER", main.var_name(sent)));
            let (dtype, shape) = (main.var(sent).dtype, main.var(sent).shape);
            let var = Var { kind: VarKind::SparseRows, ..Var::new(name, dtype, shape) };
            let all = main.add_var(block, var)?;
            let call = emit.op(&gather::ALL_GATHER_ROWS).input("X", sent).output("Out", all);
            let call = call.attr("ring_id", *ring).attr("nranks", *count);
            call.attr("label", "sparse gradient").done()?;
            sent = all;
        }
        placed.push((vec![grad], std::mem::take(&mut emit.ops)));
        job.grads[at].1 = sent;
    }
    Ok(())
}

/// Declares the rings at the start of the startup program.
pub(crate) fn declare_rings(job: &mut Job<'_>) -> Result<()> {
    let rings = job.rings.own.clone();
    let mut emit = job.emit_startup();
    for ring in rings {
        emit.op(&control::COMM_INIT)
            .attr("ring_id", ring.id)
            .attr("nranks", ring.nranks)
            .attr("rank", ring.rank)
            .attr("first", ring.first)
            .attr("stride", ring.stride)
            .attr("label", ring.label.as_str())
            .done()?;
    }
    let ops = std::mem::take(&mut emit.ops);
    prepend(&mut job.programs.startup, ops);
    Ok(())
}
