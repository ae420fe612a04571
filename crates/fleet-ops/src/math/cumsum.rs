//! `cumsum`: running sums along an axis, from either end, with or without the element itself.
//!
//! f32 sums in f32, one element after another (halves through f32); f64, i32, i64. The gradient is
//! the running sum from the other end.

use crate::prelude::*;
use crate::rules::{around, axis_of, by_type};
use crate::widen::{has_half, through_f32};

/// Elements that a task reads at least.
const GRAIN: usize = 16 * 1024;

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
    cpu,
    traits: OpTraits { inplace: &[("Out", "X")], ..OpTraits::amp(AmpClass::Black) },
};

fn cpu(p: &PrepareCtx<'_>) -> Result<Kernel> {
    if has_half(p) {
        return through_f32(p, cpu);
    }
    let x = p.input("X");
    let (outer, len, inner) = around(&x.shape, axis_of(p.op, "axis", &x.shape)?);
    let (exclusive, reverse) = (p.op.attr_bool("exclusive"), p.op.attr_bool("reverse"));
    let lines_per_task = (GRAIN / len.max(1)).max(1);
    by_type!(x.dtype, Err(p.no_kernel(x.dtype)),
        [F32 => f32, F64 => f64, I32 => i32, I64 => i64], T => {
        Ok(Kernel::new(move |k| {
            let (x, out) = (k.arg(0).ptr as usize, k.out_arg(0).ptr as usize);
            k.pool.run_ranges(outer * inner, lines_per_task, |lines| {
                for line in lines {
                    let start = line / inner * len * inner + line % inner;
                    let mut sum = 0 as T;
                    for step in 0..len {
                        let at = start + if reverse { len - 1 - step } else { step } * inner;
                        // SAFETY: lines are disjoint and inside both tensors; an element is read
                        // before it is written.
                        unsafe {
                            let value = *(x as *const T).add(at);
                            let next = sum + value;
                            *(out as *mut T).add(at) = if exclusive { sum } else { next };
                            sum = next;
                        }
                    }
                }
            });
            Ok(())
        }))
    })
}
