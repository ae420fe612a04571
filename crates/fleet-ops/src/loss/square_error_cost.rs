//! `Out = (X - Y)^2`, element by element; f32.

use super::pointwise::{check_pair, check_separate, infer_pair};
use crate::prelude::*;
use crate::rules::grads_like;
use fleet_kernels::map::zip;

const X: usize = 0;
const Y: usize = 1;
const DY: usize = 2;

pub static DEF: OpDef = OpDef {
    spec: OpSpec {
        name: "square_error_cost",
        inputs: &[one("X"), one("Y")],
        outputs: &[one("Out")],
        attrs: &[],
    },
    infer: |i| infer_pair(i, "X", "Y", "Out"),
    grad: Grad::Op(&GRAD),
    cpu: |_| {
        Ok(Kernel::infallible(|k| {
            let inputs = [k.input_or_output(X, 0), k.input_or_output(Y, 0)];
            zip(k.pool, inputs, k.output::<f32>(0), |[x, y]| (x - y) * (x - y));
        }))
    },
    traits: OpTraits { elementwise: true, ..OpTraits::plain() },
};

pub static GRAD: OpDef = OpDef {
    spec: OpSpec {
        name: "square_error_cost_grad",
        inputs: &[one("X"), one("Y"), one("Out@GRAD")],
        outputs: &[optional("X@GRAD"), optional("Y@GRAD")],
        attrs: &[],
    },
    infer: |i| {
        check_pair(i, "X", "Y")?;
        check_separate(i)?;
        grads_like(i, &["X", "Y"])
    },
    grad: Grad::None,
    cpu: |_| {
        Ok(Kernel::infallible(|k| {
            for (slot, factor) in [(0, 2.0), (1, -2.0)] {
                if let Some(out) = k.optional_output::<f32>(slot) {
                    let inputs = [X, Y, DY].map(|input| k.input_or_output(input, slot));
                    zip(k.pool, inputs, out, |[x, y, dy]| factor * (x - y) * dy);
                }
            }
        }))
    },
    traits: OpTraits { elementwise: true, ..OpTraits::plain() },
};
