//! Ops of workers for parameter servers. Every op names its table (`table_id`). [`crate::Services`]
//! gives access to the tables.
//!
//! The ops run in the compute lane, in program order. Slow operations that need not be awaited are
//! passed to [`crate::Tables`], and continue beside compute.
//!
//! If SkipUpdate (a bool) of `send` or `distributed_push_sparse` is true, the op sends nothing: the
//! step of this worker changes no table, whatever the gradients are.

pub mod distributed_lookup_table;
pub mod distributed_push_sparse;
pub mod fake_init;
pub mod fetch_barrier;
pub mod listen_and_serv;
pub mod recv;
pub mod send;
pub mod send_barrier;

use crate::prelude::*;
use fleet_ir::AttrSpec;

pub(crate) const TABLE_ID: AttrSpec = required("table_id", AttrKind::Int);

/// Traits of these ops. They have side effects, so they are never removed.
pub(crate) const TRAITS: OpTraits = OpTraits { effect: true, cost, ..OpTraits::plain() };

fn cost(ctx: &CostCtx<'_>) -> Cost {
    Cost { flops: 0.0, bytes: ctx.bytes() }
}

/// Returns the table's number, checked.
pub(crate) fn table_of(op: &fleet_ir::Op) -> Result<u32> {
    let id = op.attr_int("table_id");
    u32::try_from(id).map_err(|_| {
        Error::invalid(format!("attribute 'table_id' of {} is out of range", op.name()))
            .expected(format!("0 to {}", u32::MAX))
            .got(id)
    })
}

/// Checks the input SkipUpdate.
pub(crate) fn check_skip(i: &InferCtx<'_>) -> Result<()> {
    i.check_dtype("SkipUpdate", &[DType::Bool])?;
    if i.optional("SkipUpdate").is_some() {
        i.check_shape("SkipUpdate", [1])?;
    }
    Ok(())
}

/// Returns whether this step is skipped. `slot` is that of SkipUpdate.
pub(crate) fn is_skipped(k: &KernelCtx<'_>, slot: usize) -> bool {
    k.optional::<u8>(slot).is_some_and(|skip| skip[0] != 0)
}

/// Returns the id whose row is zero. A negative attribute means none.
pub(crate) fn padding(op: &fleet_ir::Op) -> Option<i64> {
    Some(op.attr_int("padding_idx")).filter(|id| *id >= 0)
}
