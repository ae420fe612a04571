//! `Out = X + step` for counters: one number, f32, f64, i32 or i64, usually in place.

use crate::prelude::*;
use crate::rules::by_type;
use fleet_kernels::binary::Number;
use fleet_kernels::map::map;

/// The op `increment`.
pub static DEF: OpDef = OpDef {
    spec: OpSpec {
        name: "increment",
        inputs: &[one("X")],
        outputs: &[one("Out")],
        attrs: &[attr("step", Float(1.0))],
    },
    infer: |i| {
        let x = i.input("X")?;
        i.set("Out", x.dtype, x.shape);
        Ok(())
    },
    grad: Grad::None,
    cpu: |p| {
        let (dtype, step) = (p.input("X").dtype, p.op.attr_float("step"));
        by_type!(dtype, Err(p.no_kernel(dtype)),
            [F32 => f32, F64 => f64, I32 => i32, I64 => i64], T => {
            Ok(Kernel::infallible(move |k| {
                let (x, y) = (k.input_or_output(0, 0), k.output::<T>(0));
                map(k.pool, x, y, |x| Number::add(x, step as T));
            }))
        })
    },
    traits: OpTraits { inplace: &[("Out", "X")], ..OpTraits::plain() },
};
