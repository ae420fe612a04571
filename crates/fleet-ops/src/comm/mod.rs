//! Communication between ranks. Every op names its ring (`ring_id`) and the number of ranks for
//! which the program was written (`nranks`). The ring itself comes from [`crate::Services`].
//!
//! The ops of a ring run in a lane of their own, beside compute, in program order. Dependencies on
//! other lanes follow from inputs and outputs. `use_calc_stream` moves a ring's ops to the compute
//! lane.

pub mod alltoall;
pub mod broadcast;
pub mod control;
pub mod dgc;
pub mod gather;
pub mod reduce;
pub mod send_recv;

use crate::prelude::*;
use crate::{Arg, Lane};
use fleet_ir::AttrSpec;

pub(crate) const RING_ID: AttrSpec = attr("ring_id", Int(0));
pub(crate) const NRANKS: AttrSpec = attr("nranks", Int(1));
pub(crate) const USE_CALC_STREAM: AttrSpec = attr("use_calc_stream", Bool(false));
/// Description of the call, for errors.
pub(crate) const LABEL: AttrSpec = attr("label", Str(""));

/// Maximum number of ranks in a ring: far above any cluster, and small enough that sizes times
/// ranks do not overflow.
pub const RANKS_MAX: i64 = 1 << 20;

/// Traits of communication ops. All ranks must agree on the calls, so such an op is never removed.
pub(crate) const TRAITS: OpTraits =
    OpTraits { effect: true, lane: Lane::Ring, cost, ..OpTraits::plain() };

/// Cost of the operands' bytes, without arithmetic.
fn cost(ctx: &CostCtx<'_>) -> Cost {
    Cost { flops: 0.0, bytes: ctx.bytes() }
}

/// Returns the number of ranks, checked.
pub(crate) fn nranks(i: &InferCtx<'_>) -> Result<i64> {
    let ranks = i.op.attr_int("nranks");
    if (1..=RANKS_MAX).contains(&ranks) {
        return Ok(ranks);
    }
    Err(Error::invalid(format!("attribute 'nranks' of {} is out of range", i.op.name()))
        .expected(format!("1 to {RANKS_MAX}"))
        .got(ranks))
}

/// Checks that an attribute is a rank of the ring.
pub(crate) fn rank_attr(i: &InferCtx<'_>, name: &str) -> Result<()> {
    let (ranks, rank) = (nranks(i)?, i.op.attr_int(name));
    if (0..ranks).contains(&rank) {
        return Ok(());
    }
    Err(Error::invalid(format!("attribute '{name}' of {} is not a rank of the ring", i.op.name()))
        .expected(format!("0 to {}", ranks - 1))
        .got(rank))
}

/// Gives each output the type and shape of the input at the same index.
pub(crate) fn infer_like_inputs(i: &mut InferCtx<'_>) -> Result<()> {
    nranks(i)?;
    for meta in i.inputs("X").to_vec() {
        i.push("Out", meta);
    }
    Ok(())
}

/// Returns the name of the op in errors and on peers: `c_allreduce_sum 'gradients 1/5' on ring 0`.
pub(crate) fn label(op: &fleet_ir::Op) -> String {
    let (name, ring) = (op.name(), op.attr_int("ring_id"));
    match op.attr_str("label") {
        "" => format!("{name} on ring {ring}"),
        label => format!("{name} '{label}' on ring {ring}"),
    }
}

/// Copies each input to the output at the same index, unless they share memory.
pub(crate) fn copy_unless_shared(inputs: &[Arg], outputs: &[Arg]) {
    for (from, to) in inputs.iter().zip(outputs) {
        if from.shares_memory_with(to) {
            continue;
        }
        to.bytes_mut().copy_from_slice(from.bytes());
        if from.rows.is_some() {
            to.row_ids_mut()[..from.row_count()].copy_from_slice(from.row_ids());
            to.set_row_count(from.row_count());
        }
    }
}
