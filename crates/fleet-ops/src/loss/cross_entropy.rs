//! Cross entropy of probabilities: `Y = -ln X[label]`, or `-sum(Label * ln X)` with `soft_label`;
//! f32.
//!
//! Classes are along the last dimension, and Y has one number per row. Rows with label
//! `ignore_index` give 0. As in the documented op, logarithms are limited to at least -1e20, so a
//! probability of 0 gives a large but finite loss.

use super::labels::{check_label, labels};
use super::pointwise::fill;
use crate::nn::axis::Split;
use crate::prelude::*;
use crate::rules::grads_like;
use fleet_ir::AttrSpec;

const X: usize = 0;
const LABEL: usize = 1;
const DY: usize = 2;
const LOG_MIN: f32 = -1e20;

const ATTRS: &[AttrSpec] = &[attr("soft_label", Bool(false)), attr("ignore_index", Int(-100))];

pub static DEF: OpDef = OpDef {
    spec: OpSpec {
        name: "cross_entropy",
        inputs: &[one("X"), one("Label")],
        outputs: &[one("Y")],
        attrs: ATTRS,
    },
    infer: |i| {
        let loss = check(i)?;
        i.set("Y", DType::F32, loss);
        Ok(())
    },
    grad: Grad::Op(&GRAD),
    cpu: |p| {
        let (split, soft, ignore) = prepare(p);
        Ok(Kernel::new(move |k| {
            let x = k.input::<f32>(X);
            let log = |index: usize| x[index].ln().max(LOG_MIN);
            if soft {
                let z = k.input::<f32>(LABEL);
                fill(k.pool, k.output(0), |row| {
                    let start = row * split.classes;
                    -(start..start + split.classes).map(|at| z[at] * log(at)).sum::<f32>()
                });
                return Ok(());
            }
            let labels = labels(k, LABEL, split.classes, ignore)?;
            fill(k.pool, k.output(0), |row| match labels.at(row) {
                label if label == ignore => 0.0,
                label => -log(row * split.classes + label as usize),
            });
            Ok(())
        }))
    },
    traits: OpTraits::amp(AmpClass::Black),
};

pub static GRAD: OpDef = OpDef {
    spec: OpSpec {
        name: "cross_entropy_grad",
        inputs: &[one("X"), one("Label"), one("Y@GRAD")],
        outputs: &[one("X@GRAD")],
        attrs: ATTRS,
    },
    infer: |i| {
        check(i)?;
        grads_like(i, &["X"])
    },
    grad: Grad::None,
    cpu: |p| {
        let (split, soft, ignore) = prepare(p);
        Ok(Kernel::new(move |k| {
            let (x, dy) = (k.input::<f32>(X), k.input::<f32>(DY));
            if soft {
                let z = k.input::<f32>(LABEL);
                fill(k.pool, k.output(0), |i| -dy[i / split.classes] * z[i] / x[i]);
                return Ok(());
            }
            let labels = labels(k, LABEL, split.classes, ignore)?;
            fill(k.pool, k.output(0), |i| {
                let row = i / split.classes;
                let label = labels.at(row);
                let hit = label != ignore && label as usize == i % split.classes;
                if hit { -dy[row] / x[i] } else { 0.0 }
            });
            Ok(())
        }))
    },
    traits: OpTraits::amp(AmpClass::Black),
};

fn check(i: &InferCtx<'_>) -> Result<Shape> {
    i.check_dtype("X", &[DType::F32])?;
    let axis = i.input("X")?.shape.axis(-1)?;
    check_label(i, "X", "Label", axis, i.op.attr_bool("soft_label"))
}

fn prepare(p: &PrepareCtx<'_>) -> (Split, bool, i64) {
    let shape = p.input("X").shape;
    let split = Split::new(&shape, shape.rank() - 1);
    (split, p.op.attr_bool("soft_label"), p.op.attr_int("ignore_index"))
}
