//! `offload_store` and `offload_fetch`: a value leaves the arena for the executor's store (see
//! [`Spill`](crate::Spill)) and comes back.
//!
//! `offload_store` writes X to slot `slot`. `offload_fetch` reads that slot into Out, which has the
//! type and shape of X; X itself is looked at for its shape alone, so its memory is free in
//! between. Both run in a lane of their own: a fetch that stands early in the program is done when
//! its value is wanted.

use crate::Lane;
use crate::prelude::*;
use fleet_ir::AttrSpec;

const SLOT: AttrSpec = required("slot", AttrKind::Int);

/// Beside compute, as copies are; not to be left out or moved.
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

pub static STORE: OpDef = OpDef {
    spec: OpSpec { name: "offload_store", inputs: &[one("X")], outputs: &[], attrs: &[SLOT] },
    infer: |i| check(i).map(drop),
    grad: Grad::None,
    cpu: |p| {
        let (spill, slot) = (p.services.spill_of(p.op)?, slot(p.op));
        Ok(Kernel::new(move |k| spill.write(slot, k.inputs[0][0].bytes())))
    },
    traits: TRAITS,
};

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
        Ok(Kernel::new(move |k| spill.read(slot, k.out_arg(0).bytes_mut())))
    },
    traits: OpTraits { shape_only: &["X"], ..TRAITS },
};
