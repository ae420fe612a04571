//! `Out = (X - Y)^2`, element by element; f32.

use super::pointwise::{check_pair, fill, infer_pair, set_grad};
use crate::prelude::*;

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
        Ok(Kernel::new(|k| {
            let (x, y) = (k.input::<f32>(X), k.input::<f32>(Y));
            fill(k.pool, k.output(0), |i| (x[i] - y[i]) * (x[i] - y[i]));
            Ok(())
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
        set_grad(i, "X", "X@GRAD")?;
        set_grad(i, "Y", "Y@GRAD")
    },
    grad: Grad::None,
    cpu: |_| {
        Ok(Kernel::new(|k| {
            let (x, y, dy) = (k.input::<f32>(X), k.input::<f32>(Y), k.input::<f32>(DY));
            for (slot, factor) in [(0, 2.0), (1, -2.0)] {
                if let Some(out) = k.optional_output::<f32>(slot) {
                    fill(k.pool, out, |i| factor * (x[i] - y[i]) * dy[i]);
                }
            }
            Ok(())
        }))
    },
    traits: OpTraits { elementwise: true, ..OpTraits::plain() },
};
