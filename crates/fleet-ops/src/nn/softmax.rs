//! `Out = exp(X) / sum(exp(X))` along `axis`. Rows along an axis other than the last are copied to
//! scratch.

use super::axis::Split;
use crate::prelude::*;
use crate::widen::{FLOATS, any_float};
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
    traits: OpTraits {
        inplace: &[("Out", "X")],
        cost,
        divide: |d| {
            let axis = d.shape("X")?.axis(d.op.attr_int("axis"))?;
            match d.along("X").filter(|along| along.axis != axis) {
                Some(along) => d.set_part("Out", along),
                None => Err(d.unsupported("does not support a divided axis of classes")),
            }
        },
        ..OpTraits::amp(AmpClass::Black)
    },
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

fn infer(i: &mut InferCtx<'_>) -> Result<()> {
    i.check_dtype("X", FLOATS)?;
    let x = i.input("X")?;
    x.shape.axis(i.op.attr_int("axis"))?;
    i.set("Out", x.dtype, x.shape);
    Ok(())
}

fn infer_grad(i: &mut InferCtx<'_>) -> Result<()> {
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
        return Ok(Kernel::infallible(move |k| {
            if !split.is_empty() {
                let x = k.input_or_output(0, 0);
                softmax::softmax(k.pool, x, split.classes, k.output(0));
            }
        }));
    }
    Ok(Kernel::infallible(move |k| {
        let rows = k.scratch::<f32>();
        let (x, out) = (k.input_or_output(0, 0), k.output::<f32>(0));
        split.gather(k.pool, x.or(out), rows);
        softmax::softmax(k.pool, Input::Output, split.classes, rows);
        split.scatter(k.pool, rows, out);
    })
    .scratch::<f32>(split.len()))
}

fn cpu_grad(p: &PrepareCtx<'_>) -> Result<Kernel> {
    let split = Split::of(p, "Out")?;
    if split.is_last() || split.is_empty() {
        return Ok(Kernel::infallible(move |k| {
            if !split.is_empty() {
                let (y, dy) = (k.input_or_output(0, 0), k.input_or_output(1, 0));
                softmax::softmax_grad(k.pool, y, dy, split.classes, k.output(0));
            }
        }));
    }
    Ok(Kernel::infallible(move |k| {
        let (y, dy) = k.scratch::<f32>().split_at_mut(split.len());
        let out = k.output::<f32>(0);
        split.gather(k.pool, k.input_or_output(0, 0).or(out), y);
        split.gather(k.pool, k.input_or_output(1, 0).or(out), dy);
        softmax::softmax_grad(k.pool, &*y, Input::Output, split.classes, dy);
        split.scatter(k.pool, dy, out);
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
