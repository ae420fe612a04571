//! `Out = exp(X) / sum(exp(X))` along `axis`. Rows along an axis other than the last are copied to
//! scratch.

use super::axis::Split;
use super::half::{FLOATS, any_float};
use crate::prelude::*;
use fleet_kernels::softmax;

pub static DEF: OpDef = OpDef {
    spec: OpSpec {
        name: "softmax",
        inputs: &[one("X")],
        outputs: &[one("Out")],
        attrs: &[attr("axis", Int(-1))],
    },
    infer,
    grad: Grad::Op(&GRAD),
    cpu: |p| any_float(p, cpu),
    traits: OpTraits { inplace: &[("Out", "X")], cost, ..OpTraits::amp(AmpClass::Black) },
};

pub static GRAD: OpDef = OpDef {
    spec: OpSpec {
        name: "softmax_grad",
        inputs: &[one("Out"), one("Out@GRAD")],
        outputs: &[one("X@GRAD")],
        attrs: &[attr("axis", Int(-1))],
    },
    infer: infer_grad,
    grad: Grad::None,
    cpu: |p| any_float(p, cpu_grad),
    traits: OpTraits {
        inplace: &[("X@GRAD", "Out@GRAD"), ("X@GRAD", "Out")],
        cost: cost_grad,
        ..OpTraits::amp(AmpClass::Black)
    },
};

pub(super) fn infer(i: &mut InferCtx<'_>) -> Result<()> {
    i.check_dtype("X", FLOATS)?;
    let x = i.input("X")?;
    x.shape.axis(i.op.attr_int("axis"))?;
    i.set("Out", x.dtype, x.shape);
    Ok(())
}

pub(super) fn infer_grad(i: &mut InferCtx<'_>) -> Result<()> {
    i.check_dtype("Out", FLOATS)?;
    let out = i.input("Out")?;
    i.check_dtype("Out@GRAD", &[out.dtype])?;
    i.check_shape("Out@GRAD", out.shape)?;
    i.set("X@GRAD", out.dtype, out.shape);
    Ok(())
}

fn cpu(p: &PrepareCtx<'_>) -> Result<Kernel> {
    let split = Split::of(p, "X")?;
    if split.is_last() || split.is_empty() {
        return Ok(Kernel::new(move |k| {
            if !split.is_empty() {
                let len = split.len();
                let (x, y) = (k.arg(0).as_ptr(len), k.out_arg(0).as_ptr(len));
                // SAFETY: both hold as many floats as the shape has elements, and are equal or
                // disjoint.
                unsafe { softmax::softmax_raw(k.pool, x, y, split.rows(), split.classes) };
            }
            Ok(())
        }));
    }
    Ok(Kernel::new(move |k| {
        let rows = k.scratch::<f32>();
        split.gather(k.pool, k.input(0), rows);
        softmax::softmax_inplace(k.pool, rows, split.classes);
        split.scatter(k.pool, rows, k.output(0));
        Ok(())
    })
    .scratch::<f32>(split.len()))
}

fn cpu_grad(p: &PrepareCtx<'_>) -> Result<Kernel> {
    let split = Split::of(p, "Out")?;
    if split.is_last() || split.is_empty() {
        return Ok(Kernel::new(move |k| {
            if !split.is_empty() {
                let all = split.len();
                let (y, dy) = (k.arg(0).as_ptr(all), k.arg(1).as_ptr(all));
                let (dx, rows, len) = (k.out_arg(0).as_ptr(all), split.rows(), split.classes);
                // SAFETY: all hold as many floats as the shape has elements; the result is equal to
                // or disjoint from the others.
                unsafe { softmax::softmax_grad_raw(k.pool, y, dy, dx, rows, len) };
            }
            Ok(())
        }));
    }
    Ok(Kernel::new(move |k| {
        let (y, dy) = k.scratch::<f32>().split_at_mut(split.len());
        split.gather(k.pool, k.input(0), y);
        split.gather(k.pool, k.input(1), dy);
        let dx = dy.as_mut_ptr();
        // SAFETY: two disjoint parts of the scratch; the result overwrites one of them.
        unsafe {
            softmax::softmax_grad_raw(k.pool, y.as_ptr(), dx, dx, split.rows(), split.classes);
        }
        split.scatter(k.pool, dy, k.output(0));
        Ok(())
    })
    .scratch::<f32>(2 * split.len()))
}

/// Cost with about 20 flops per exponential.
pub(super) fn cost(c: &CostCtx<'_>) -> Cost {
    Cost { flops: 23.0 * c.input("X").map_or(0, Meta::numel) as f64, bytes: c.bytes() }
}

fn cost_grad(c: &CostCtx<'_>) -> Cost {
    Cost { flops: 4.0 * c.input("Out").map_or(0, Meta::numel) as f64, bytes: c.bytes() }
}
