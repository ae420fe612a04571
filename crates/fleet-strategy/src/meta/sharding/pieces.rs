//! Gradients of a pipeline's micro-batches that are not merged before they are sent.
//!
//! When the backward passes of a micro-batch have computed the gradients of a bucket, these are
//! summed at their owner, which alone merges the sums of all micro-batches. It adds a sum when the
//! bucket of the next micro-batch is complete, so that compute does not wait for the transfer.

use super::{buckets_by_owner, reduce};
use crate::job::Job;
use crate::meta::pipeline::merged_name;
use crate::owners::Shards;
use crate::pipeline::Pieces;
use fleet_base::Result;
use fleet_ir::{OpId, OpRole, Program, Var, VarId};
use fleet_nn::optimizer::ParamGrad;
use fleet_ops::math::elementwise;
use std::collections::{BTreeMap, HashMap, HashSet};

/// Sums the gradients of micro-batches at their owners, and merges those of this rank's
/// parameters. Returns the merged ones.
pub fn merge_at_owners(job: &mut Job<'_>, shards: &Shards) -> Result<HashSet<VarId>> {
    let all = job.pipeline.as_mut().map_or(Vec::new(), |it| std::mem::take(&mut it.pieces));
    let merged = merged(job, shards, &all)?;
    let micros = all.first().map_or(0, |it| it.pieces.len());
    let mut placed: Vec<(Vec<VarId>, Vec<OpId>)> = Vec::new();
    // By bucket: the additions of the micro-batch before.
    let mut left: BTreeMap<usize, Vec<OpId>> = BTreeMap::new();
    let mut calls = 0;
    for micro in 0..micros {
        let sent: Vec<ParamGrad> = all.iter().map(|it| (it.param, it.pieces[micro])).collect();
        for (at, (owner, vars)) in buckets_by_owner(job, shards, &sent).into_iter().enumerate() {
            let mut ops = left.remove(&at).unwrap_or_default();
            ops.extend(reduce(job, shards, owner, &vars)?);
            calls += 1;
            if owner == shards.rank && micro > 0 {
                let sums = all.iter().filter(|it| vars.contains(&it.pieces[micro]));
                left.insert(at, add(job, &merged, sums, micro)?);
            }
            placed.push((vars, ops));
        }
    }
    if calls > 0 {
        job.notes.push(format!(
            "sharding: gradients of micro-batches are summed at their owners in {calls} calls"
        ));
    }
    placed.extend(left.into_values().map(|ops| (Vec::new(), ops)));
    job.place(placed)?;
    let pieced: HashSet<VarId> = all.iter().map(|it| it.param).collect();
    job.grads.retain(|(param, _)| merged.contains_key(param) || !pieced.contains(param));
    for (param, grad) in &mut job.grads {
        *grad = merged.get(param).copied().unwrap_or(*grad);
    }
    Ok(merged.into_values().collect())
}

/// Makes the variables of this rank's merged gradients.
fn merged(job: &mut Job<'_>, shards: &Shards, all: &[Pieces]) -> Result<HashMap<VarId, VarId>> {
    let main = &mut job.programs.main;
    let mut merged = HashMap::new();
    for Pieces { param, pieces } in all.iter().filter(|it| shards.is_own(it.param)) {
        let (dtype, shape) = (main.var(pieces[0]).dtype, main.var(pieces[0]).shape);
        let var = Var::new(merged_name(main, *param), dtype, shape);
        merged.insert(*param, main.add_var(Program::ROOT, var)?);
    }
    Ok(merged)
}

/// Adds the sums of a micro-batch to those of the micro-batches before it.
fn add<'a>(
    job: &mut Job<'_>,
    merged: &HashMap<VarId, VarId>,
    sums: impl Iterator<Item = &'a Pieces>,
    micro: usize,
) -> Result<Vec<OpId>> {
    let mut emit = job.emit(OpRole::BACKWARD);
    for Pieces { param, pieces } in sums {
        let total = merged[param];
        let before = if micro == 1 { pieces[0] } else { total };
        let call = emit.op(&elementwise::ADD).input("X", before).input("Y", pieces[micro]);
        call.output("Out", total).done()?;
    }
    Ok(std::mem::take(&mut emit.ops))
}
