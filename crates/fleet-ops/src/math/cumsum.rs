//! `cumsum`: cumulative sums along an axis, from either end, with or without the element itself.
//!
//! f32 (summed in f64), f64, i32, i64; halves through f32. The gradient is the cumulative sum from
//! the other end.

use crate::prelude::*;
use crate::rules::{axis_of, by_type, sizes};
use crate::widen::any_float;
use fleet_kernels::scatter::{Axis, Scan, running_sum};

pub static DEF: OpDef = OpDef {
    spec: OpSpec {
        name: "cumsum",
        inputs: &[one("X")],
        outputs: &[one("Out")],
        attrs: &[
            attr("axis", Int(-1)),
            attr("exclusive", Bool(false)),
            attr("reverse", Bool(false)),
        ],
    },
    infer: |i| {
        let x = i.input("X")?;
        axis_of(i.op, "axis", &x.shape)?;
        i.set("Out", x.dtype, x.shape);
        Ok(())
    },
    grad: Grad::Rule(|g| {
        let dy = g.dy("Out")?;
        let (axis, exclusive) = (g.op.attr_int("axis"), g.op.attr_bool("exclusive"));
        let reverse = !g.op.attr_bool("reverse");
        if let Some(dx) = g.dx("X")? {
            g.op(&DEF)
                .input("X", dy)
                .attr("axis", axis)
                .attr("exclusive", exclusive)
                .attr("reverse", reverse)
                .output("Out", dx)
                .done()?;
        }
        Ok(())
    }),
    cpu: |p| any_float(p, cpu),
    traits: OpTraits::amp(AmpClass::Black),
};

fn cpu(p: &PrepareCtx<'_>) -> Result<Kernel> {
    let x = p.input("X");
    let axis = Axis::of(&sizes(&x.shape), axis_of(p.op, "axis", &x.shape)?);
    let scan =
        Scan { is_exclusive: p.op.attr_bool("exclusive"), is_reverse: p.op.attr_bool("reverse") };
    by_type!(x.dtype, Err(p.no_kernel(x.dtype)),
        [F32 => f32, F64 => f64, I32 => i32, I64 => i64], T => {
        Ok(Kernel::infallible(move |k| {
            running_sum(k.pool, axis, scan, k.input::<T>(0), k.output::<T>(0));
        }))
    })
}
