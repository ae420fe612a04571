//! `offload_store` and `offload_fetch`: move a value from the arena to the executor's storage (see
//! [`Spill`](crate::Spill)) and back.
//!
//! `offload_store` writes X to slot `slot`. `offload_fetch` reads that slot into Out, which has the
//! type and shape of X. It uses only the shape of X, so the memory of X is free in between. Both
//! run in a separate lane, so a fetch placed early in the program completes before its value is
//! needed.

use crate::Lane;
use crate::prelude::*;
use fleet_ir::AttrSpec;

const SLOT: AttrSpec = required("slot", AttrKind::Int);

/// Runs beside compute, like copies, and is never removed or moved.
const TRAITS: OpTraits = OpTraits { effect: true, lane: Lane::Side(0), cost, ..OpTraits::plain() };

fn cost(ctx: &CostCtx<'_>) -> Cost {
    let bytes = ctx.inputs.iter().flatten().map(|meta| meta.bytes() as f64).sum();
    Cost { flops: 0.0, bytes }
}

fn slot(op: &fleet_ir::Op) -> u64 {
    op.attr_int("slot").unsigned_abs()
}

fn check(i: &InferCtx<'_>) -> Result<Meta> {
    let x = i.input("X")?;
    if i.op.attr_int("slot") < 0 {
        return Err(Error::invalid(format!("attribute 'slot' of {} is out of range", i.op.name()))
            .expected("0 or more")
            .got(i.op.attr_int("slot")));
    }
    Ok(x)
}

/// The op `offload_store`.
pub static STORE: OpDef = OpDef {
    spec: OpSpec { name: "offload_store", inputs: &[one("X")], outputs: &[], attrs: &[SLOT] },
    infer: |i| check(i).map(drop),
    grad: Grad::None,
    cpu: |p| {
        let (spill, slot) = (p.services.spill_of(p.op)?, slot(p.op));
        Ok(Kernel::new(move |k| spill.write(slot, k.arg(0).bytes())))
    },
    traits: OpTraits { offloads: true, ..TRAITS },
};

/// The op `offload_fetch`.
pub static FETCH: OpDef = OpDef {
    spec: OpSpec {
        name: "offload_fetch",
        inputs: &[one("X")],
        outputs: &[one("Out")],
        attrs: &[SLOT],
    },
    infer: |i| {
        let x = check(i)?;
        i.push("Out", x);
        Ok(())
    },
    grad: Grad::None,
    cpu: |p| {
        let (spill, slot) = (p.services.spill_of(p.op)?, slot(p.op));
        Ok(Kernel::new(move |k| spill.read(slot, k.out(0).into_bytes())))
    },
    traits: OpTraits { shape_only: &["X"], ..TRAITS },
};
