//! `Out = X - ln(sum(exp(X)))` along `axis`. Rows along an axis other than the last are copied to
//! scratch.

use super::axis::Split;
use super::softmax::{self as softmax_op, cost};
use crate::prelude::*;
use crate::widen::any_float;
use fleet_kernels::softmax;

pub static DEF: OpDef = OpDef {
    spec: OpSpec { name: "log_softmax", ..softmax_op::DEF.spec },
    grad: Grad::Op(&GRAD),
    cpu: |p| any_float(p, cpu),
    traits: OpTraits { cost, ..OpTraits::amp(AmpClass::Black) },
    ..softmax_op::DEF
};

pub static GRAD: OpDef = OpDef {
    spec: OpSpec { name: "log_softmax_grad", ..softmax_op::GRAD.spec },
    cpu: |p| any_float(p, cpu_grad),
    traits: OpTraits {
        cost: |c| Cost {
            flops: 23.0 * c.input("Out").map_or(0, Meta::numel) as f64,
            bytes: c.bytes(),
        },
        ..OpTraits::amp(AmpClass::Black)
    },
    ..softmax_op::GRAD
};

fn cpu(p: &PrepareCtx<'_>) -> Result<Kernel> {
    let split = Split::of(p, "X")?;
    if split.is_empty() {
        return Ok(Kernel::infallible(|_| {}));
    }
    if split.is_last() {
        return Ok(Kernel::infallible(move |k| {
            softmax::log_softmax(k.pool, k.input(0), split.classes, k.output(0))
        }));
    }
    Ok(Kernel::infallible(move |k| {
        let (x, y) = k.scratch::<f32>().split_at_mut(split.len());
        split.gather(k.pool, k.input(0), x);
        softmax::log_softmax(k.pool, x, split.classes, y);
        split.scatter(k.pool, y, k.output(0));
    })
    .scratch::<f32>(2 * split.len()))
}

fn cpu_grad(p: &PrepareCtx<'_>) -> Result<Kernel> {
    let split = Split::of(p, "Out")?;
    if split.is_empty() {
        return Ok(Kernel::infallible(|_| {}));
    }
    if split.is_last() {
        return Ok(Kernel::infallible(move |k| {
            let (y, dy) = (k.input(0), k.input(1));
            softmax::log_softmax_grad(k.pool, y, dy, split.classes, k.output(0));
        }));
    }
    Ok(Kernel::infallible(move |k| {
        let (y, rest) = k.scratch::<f32>().split_at_mut(split.len());
        let (dy, dx) = rest.split_at_mut(split.len());
        split.gather(k.pool, k.input(0), y);
        split.gather(k.pool, k.input(1), dy);
        softmax::log_softmax_grad(k.pool, y, dy, split.classes, dx);
        split.scatter(k.pool, dx, k.output(0));
    })
    .scratch::<f32>(3 * split.len()))
}
