//! `Out = X + step` for counters: one number, f32, f64, i32 or i64, usually in place.

use crate::prelude::*;
use crate::rules::by_type;
use fleet_kernels::binary::Number;

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
        let len = p.input("X").shape.len();
        by_type!(dtype, Err(p.no_kernel(dtype)),
            [F32 => f32, F64 => f64, I32 => i32, I64 => i64], T => {
            Ok(Kernel::new(move |k| {
                let (x, y): (*const T, *mut T) = (k.arg(0).as_ptr(len), k.out_arg(0).as_ptr(len));
                for i in 0..len {
                    // SAFETY: both hold `len` elements; equal pointers are read before written.
                    unsafe { *y.add(i) = Number::add(*x.add(i), step as T) };
                }
                Ok(())
            }))
        })
    },
    traits: OpTraits { inplace: &[("Out", "X")], ..OpTraits::plain() },
};
