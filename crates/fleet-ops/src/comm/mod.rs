//! Communication between ranks. Every op names its ring (`ring_id`) and the number of ranks for
//! which the program was written (`nranks`). The ring itself comes from [`crate::Services`].
//!
//! The ops of a ring run in a lane of their own, beside compute, in program order. Dependencies on
//! other lanes follow from inputs and outputs. `use_calc_stream` moves a ring's ops to the compute
//! lane.

pub(crate) mod alltoall;
pub mod axis_parts;
pub mod broadcast;
pub mod control;
pub mod dgc;
pub mod gather;
pub mod identity;
pub mod reduce;
pub mod same_batch;
pub mod send_recv;
pub mod sum_parts;

use crate::prelude::*;
use crate::{Lane, Ring};
use fleet_ir::AttrSpec;

pub(crate) const RING_ID: AttrSpec = attr("ring_id", Int(0));
pub(crate) const NRANKS: AttrSpec = attr("nranks", Int(1));
pub(crate) const USE_CALC_STREAM: AttrSpec = attr("use_calc_stream", Bool(false));
/// Description of the call, for errors.
pub(crate) const LABEL: AttrSpec = attr("label", Str(""));
/// Attributes of most collectives.
pub(crate) const ATTRS: &[AttrSpec] = &[RING_ID, NRANKS, USE_CALC_STREAM, LABEL];

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
    label_as(op.name(), op)
}

/// Like [`label`], for an op that makes the call of another op.
pub(crate) fn label_as(name: &str, op: &fleet_ir::Op) -> String {
    let ring = op.attr_int("ring_id");
    match op.attr_str("label") {
        "" => format!("{name} on ring {ring}"),
        label => format!("{name} '{label}' on ring {ring}"),
    }
}

/// Number of parts of one call up to which their list needs no allocation.
const PARTS_INLINE: usize = 64;

/// Copies each input to the output at the same index, unless they share memory. Calls `call` with
/// the memory of all outputs and their element type. An op without outputs makes no call: all ranks
/// have the same program.
pub(crate) fn with_parts(
    k: &KernelCtx<'_>,
    ring: &dyn Ring,
    (input, output): (usize, usize),
    call: impl FnOnce(DType, &mut [&mut [u8]]) -> Result<()>,
) -> Result<()> {
    let Some(dtype) = k.inputs(input).next().map(|first| first.dtype) else { return Ok(()) };
    let other = k.inputs(input).find(|arg| arg.dtype != dtype && ring.size() > 1);
    if let Some(other) = other {
        return Err(Error::invalid("buffers of one collective have different types")
            .expected(dtype)
            .got(other.dtype));
    }
    let count = k.output_count(output);
    let parts = k.inputs(input).zip(k.outs(output)).map(|(from, mut to)| {
        to.copy_from(from);
        to.into_bytes()
    });
    if count > PARTS_INLINE {
        return call(dtype, &mut parts.collect::<Vec<_>>());
    }
    let mut slots: [&mut [u8]; PARTS_INLINE] = std::array::from_fn(|_| -> &mut [u8] { &mut [] });
    slots.iter_mut().zip(parts).for_each(|(slot, part)| *slot = part);
    call(dtype, &mut slots[..count])
}

/// Copies each input to the output at the same index, unless they share memory.
pub(crate) fn copy(k: &KernelCtx<'_>, input: usize, output: usize) {
    k.inputs(input).zip(k.outs(output)).for_each(|(from, mut to)| to.copy_from(from));
}
