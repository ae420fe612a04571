//! `Out = max(x, 0) - x * z + ln(1 + exp(-|x|))`: the cross entropy of sigmoid(X) and Label,
//! without computing the sigmoid; f32.
//!
//! Elements whose label equals `ignore_index` are excluded. With `normalize`, the others are
//! divided by their number.

use super::pointwise::{check_pair, infer_pair, partial_len, sum};
use crate::prelude::*;
use crate::rules::grads_like;
use fleet_ir::AttrSpec;
use fleet_kernels::softmax;

const X: usize = 0;
const LABEL: usize = 1;
const DY: usize = 2;

const ATTRS: &[AttrSpec] = &[attr("ignore_index", Int(-100)), attr("normalize", Bool(false))];

pub static DEF: OpDef = OpDef {
    spec: OpSpec {
        name: "sigmoid_cross_entropy_with_logits",
        inputs: &[one("X"), one("Label")],
        outputs: &[one("Out")],
        attrs: ATTRS,
    },
    infer: |i| infer_pair(i, "X", "Label", "Out"),
    grad: Grad::Op(&GRAD),
    cpu: |p| {
        kernel(p, |k, ignore| {
            let (x, z, out) = (k.input(X), k.input(LABEL), k.output(0));
            softmax::sigmoid_cross_entropy(k.pool, x, z, Some(ignore), out);
            out
        })
    },
    traits: OpTraits { cost, ..OpTraits::amp(AmpClass::Black) },
};

pub static GRAD: OpDef = OpDef {
    spec: OpSpec {
        name: "sigmoid_cross_entropy_with_logits_grad",
        inputs: &[one("X"), one("Label"), one("Out@GRAD")],
        outputs: &[one("X@GRAD")],
        attrs: ATTRS,
    },
    infer: |i| {
        check_pair(i, "X", "Label")?;
        grads_like(i, &["X"])
    },
    grad: Grad::None,
    cpu: |p| {
        kernel(p, |k, ignore| {
            let (x, z, dy, out) = (k.input(X), k.input(LABEL), k.input(DY), k.output(0));
            softmax::sigmoid_cross_entropy_grad(k.pool, x, z, Some(ignore), dy, out);
            out
        })
    },
    traits: OpTraits { cost, ..OpTraits::amp(AmpClass::Black) },
};

/// Computes the output, which it returns, without ignored elements.
type Body = for<'a> fn(&KernelCtx<'a>, f32) -> &'a mut [f32];

/// Runs `body(k, ignore)`. With `normalize`, divides the result by the number of elements that are
/// not ignored.
fn kernel(p: &PrepareCtx<'_>, body: Body) -> Result<Kernel> {
    let ignore = p.op.attr_int("ignore_index") as f32;
    let len = p.input("X").numel();
    if !p.op.attr_bool("normalize") {
        return Ok(Kernel::infallible(move |k| {
            body(k, ignore);
        }));
    }
    Ok(Kernel::infallible(move |k| {
        let out = body(k, ignore);
        let z = k.input::<f32>(LABEL);
        let counted = sum(k.pool, len, k.scratch(), |i| f64::from(u8::from(z[i] != ignore)));
        let scale = (1.0 / counted.max(1.0)) as f32;
        out.iter_mut().for_each(|value| *value *= scale);
    })
    .scratch::<f64>(partial_len(len)))
}

/// Cost with about 20 flops each for an exponential and a logarithm.
fn cost(c: &CostCtx<'_>) -> Cost {
    Cost { flops: 40.0 * c.input("X").map_or(0, Meta::numel) as f64, bytes: c.bytes() }
}
