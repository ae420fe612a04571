//! Ops of workers of parameter servers. Every op names its table (`table_id`); the way to the
//! tables comes from [`crate::Services`].
//!
//! They run in the compute lane, in program order: what may take long and need not be waited for is
//! handed over ([`crate::Tables`]) and goes on beside compute.

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

/// Something happens outside: such an op is never dropped.
pub(crate) const TRAITS: OpTraits = OpTraits { effect: true, cost, ..OpTraits::plain() };

fn cost(ctx: &CostCtx<'_>) -> Cost {
    Cost { flops: 0.0, bytes: ctx.bytes() }
}

/// The table's number, checked.
pub(crate) fn table_of(op: &fleet_ir::Op) -> Result<u32> {
    let id = op.attr_int("table_id");
    u32::try_from(id).map_err(|_| {
        Error::invalid(format!("attribute 'table_id' of {} is out of range", op.name()))
            .expected(format!("0 to {}", u32::MAX))
            .got(id)
    })
}

/// The id whose row is zero; a negative attribute means none.
pub(crate) fn padding(op: &fleet_ir::Op) -> Option<i64> {
    Some(op.attr_int("padding_idx")).filter(|id| *id >= 0)
}
