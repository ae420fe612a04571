//! Gradients of a pipeline's micro-batches that are not merged before they are sent.
//!
//! When the backward passes of a micro-batch have computed the gradients of a bucket, these are
//! summed at their owner, which alone merges the sums of all micro-batches, in the variable of the
//! first one. It adds a sum when the bucket of the next micro-batch is complete, so that compute
//! does not wait for the transfer.

use super::{buckets_by_owner, reduce};
use crate::job::Job;
use crate::owners::Shards;
use crate::pipeline::Pieces;
use fleet_base::Result;
use fleet_ir::{OpId, OpRole, VarId};
use fleet_nn::optimizer::ParamGrad;
use fleet_ops::math::elementwise;
use std::collections::{BTreeMap, HashSet};

/// Sums the gradients of micro-batches at their owners, and merges those of this rank's
/// parameters. Returns the merged ones.
pub fn merge_at_owners(job: &mut Job<'_>, shards: &Shards) -> Result<HashSet<VarId>> {
    let all = job.pipeline.as_mut().map_or(Vec::new(), |it| std::mem::take(&mut it.pieces));
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
                let sums = all.iter().map(|it| (it.pieces[0], it.pieces[micro]));
                left.insert(at, add(job, sums.filter(|(_, sum)| vars.contains(sum)))?);
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
    let (own, others): (Vec<Pieces>, Vec<Pieces>) =
        all.into_iter().partition(|it| shards.is_own(it.param));
    let others: HashSet<VarId> = others.into_iter().map(|it| it.param).collect();
    job.grads.retain(|(param, _)| !others.contains(param));
    Ok(own.into_iter().map(|it| it.pieces[0]).collect())
}

/// Adds the sums of a micro-batch, the second of each pair, to those of the micro-batches before.
fn add(job: &mut Job<'_>, sums: impl Iterator<Item = (VarId, VarId)>) -> Result<Vec<OpId>> {
    let mut emit = job.emit(OpRole::BACKWARD);
    for (total, sum) in sums {
        let call = emit.op(&elementwise::ADD).input("X", total).input("Y", sum);
        call.output("Out", total).done()?;
    }
    Ok(std::mem::take(&mut emit.ops))
}
