//! Negative log likelihood: `-Weight[label] * X[label]` of log-probabilities X [N, C, ...] and
//! Label [N, ...]; f32.
//!
//! `reduction` "none" gives the shape of Label. "sum" and "mean" give `[1]`, where "mean" divides
//! by the sum of the weights. Total_weight is that sum. Labels equal to `ignore_index` are
//! excluded.

use super::labels::{CLASS_TYPES, labels};
use super::pointwise::{fill, partial_len, sum};
use crate::nn::axis::Split;
use crate::prelude::*;
use crate::rules::grads_like;
use fleet_ir::AttrSpec;

const X: usize = 0;
const LABEL: usize = 1;
const WEIGHT: usize = 2;
const TOTAL: usize = 3;
const DY: usize = 4;

const ATTRS: &[AttrSpec] = &[attr("ignore_index", Int(-100)), attr("reduction", Str("mean"))];

pub static DEF: OpDef = OpDef {
    spec: OpSpec {
        name: "nll_loss",
        inputs: &[one("X"), one("Label"), optional("Weight")],
        outputs: &[one("Out"), one("Total_weight")],
        attrs: ATTRS,
    },
    infer: |i| {
        let labels = check(i)?;
        match i.op.attr_str("reduction") {
            "none" => i.set("Out", DType::F32, labels),
            "sum" | "mean" => i.set("Out", DType::F32, [1]),
            other => {
                return Err(Error::invalid("unknown reduction of nll_loss")
                    .expected("none, sum or mean")
                    .got(other));
            }
        }
        i.set("Total_weight", DType::F32, [1]);
        Ok(())
    },
    grad: Grad::Op(&GRAD),
    cpu: |p| {
        let (split, ignore, reduction) = prepare(p);
        Ok(Kernel::new(move |k| {
            let x = k.input::<f32>(X);
            let labels = labels(k, LABEL, split.classes, ignore)?;
            let weights = k.optional::<f32>(WEIGHT);
            let weight = |row: usize| weight_of(labels.at(row), ignore, weights);
            let term = |row: usize| match labels.at(row) {
                label if label == ignore => 0.0,
                label => -weight(row) * x[split.start(row) + label as usize * split.inner],
            };
            let scratch = k.scratch::<f64>();
            let total = sum(k.pool, split.rows(), scratch, |row| f64::from(weight(row)));
            k.output::<f32>(1)[0] = total as f32;
            let out = k.output::<f32>(0);
            if reduction == Reduction::None {
                fill(k.pool, out, term);
                return Ok(());
            }
            let loss = sum(k.pool, split.rows(), scratch, |row| f64::from(term(row)));
            let mean = reduction == Reduction::Mean && total != 0.0;
            out[0] = if mean { loss / total } else { loss } as f32;
            Ok(())
        })
        .scratch::<f64>(partial_len(split.rows())))
    },
    traits: OpTraits::amp(AmpClass::Black),
};

pub static GRAD: OpDef = OpDef {
    spec: OpSpec {
        name: "nll_loss_grad",
        inputs: &[one("X"), one("Label"), optional("Weight"), one("Total_weight"), one("Out@GRAD")],
        outputs: &[one("X@GRAD")],
        attrs: ATTRS,
    },
    infer: |i| {
        check(i)?;
        grads_like(i, &["X"])
    },
    grad: Grad::None,
    cpu: |p| {
        let (split, ignore, reduction) = prepare(p);
        Ok(Kernel::new(move |k| {
            let labels = labels(k, LABEL, split.classes, ignore)?;
            let weights = k.optional::<f32>(WEIGHT);
            let dy = k.input::<f32>(DY);
            let total = k.input::<f32>(TOTAL)[0];
            let scale = match reduction {
                Reduction::Mean if total != 0.0 => -1.0 / total,
                _ => -1.0,
            };
            fill(k.pool, k.output(0), |i| {
                let (row, class) = split.row_and_class(i);
                let label = labels.at(row);
                if label != class as i64 {
                    return 0.0;
                }
                let dy = if reduction == Reduction::None { dy[row] } else { dy[0] };
                scale * dy * weight_of(label, ignore, weights)
            });
            Ok(())
        }))
    },
    traits: OpTraits { shape_only: &["X"], ..OpTraits::amp(AmpClass::Black) },
};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Reduction {
    None,
    Sum,
    Mean,
}

#[inline]
fn weight_of(label: i64, ignore: i64, weights: Option<&[f32]>) -> f32 {
    match weights {
        _ if label == ignore => 0.0,
        Some(weights) => weights[label as usize],
        None => 1.0,
    }
}

/// Checks the inputs and returns the shape of the labels.
fn check(i: &InferCtx<'_>) -> Result<Shape> {
    i.check_dtype("X", &[DType::F32])?;
    i.check_dtype("Label", CLASS_TYPES)?;
    i.check_dtype("Weight", &[DType::F32])?;
    let x = i.input("X")?.shape;
    if x.rank() < 2 {
        return Err(i.error("X", "has too few dimensions").expected("[N, C] or more").got(x));
    }
    let mut labels = Shape::from([x[0]]);
    for dim in &x[2..] {
        labels.push(*dim)?;
    }
    i.check_shape("Label", labels)?;
    if i.optional("Weight").is_some() {
        i.check_shape("Weight", [x[1]])?;
    }
    Ok(labels)
}

fn prepare(p: &PrepareCtx<'_>) -> (Split, i64, Reduction) {
    let split = Split::new(&p.input("X").shape, 1);
    let reduction = match p.op.attr_str("reduction") {
        "none" => Reduction::None,
        "sum" => Reduction::Sum,
        _ => Reduction::Mean,
    };
    (split, p.op.attr_int("ignore_index"), reduction)
}
