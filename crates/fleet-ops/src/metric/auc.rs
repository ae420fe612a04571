//! Area under a curve. The op counts positive and negative samples of the batch in buckets of
//! probability, and sums the area from the highest bucket down. `curve` ROC is the true-positive
//! over the false-positive rate, by trapezoids (0.5 if one class is missing). `curve` PR is
//! precision over recall, by steps, which gives the average precision (the share of positives if
//! one class is missing).
//!
//! Predict is [N, 1] or [N, 2], of which the last column is used. Label is [N, 1] or [N]. StatPos
//! and StatNeg are i64 counters, and StatPosOut and StatNegOut are the same variables. With
//! `slide_steps` 0 they hold `num_thresholds + 1` buckets for all batches so far. Otherwise they
//! hold a window over the last `slide_steps` batches: the buckets of each batch, their sum, and a
//! counter.

use super::{check_labels, labels, labels_scratch_len};
use crate::prelude::*;
use fleet_kernels::metrics::{
    Predictions, auc_area, auc_count, auc_count_window, auc_window_len, auc_window_sum,
    precision_recall_area,
};

const PREDICT: usize = 0;
const LABEL: usize = 1;
const STAT_POS: usize = 2;
const STAT_NEG: usize = 3;

pub static DEF: OpDef = OpDef {
    spec: OpSpec {
        name: "auc",
        inputs: &[one("Predict"), one("Label"), one("StatPos"), one("StatNeg")],
        outputs: &[one("AUC"), one("StatPosOut"), one("StatNegOut")],
        attrs: &[
            attr("curve", Str("ROC")),
            attr("num_thresholds", Int(4095)),
            attr("slide_steps", Int(1)),
        ],
    },
    infer,
    grad: Grad::None,
    cpu,
    traits: OpTraits {
        state: &[("StatPosOut", "StatPos"), ("StatNegOut", "StatNeg")],
        spread: Spread::Share,
        ..OpTraits::plain()
    },
};

fn infer(i: &mut InferCtx<'_>) -> Result<()> {
    i.check_dtype("Predict", &[DType::F32])?;
    let (thresholds, steps) = (i.op.attr_int("num_thresholds"), i.op.attr_int("slide_steps"));
    let Some(len) = stat_len(thresholds, steps) else {
        return Err(Error::invalid("attributes of auc are out of range")
            .expected("num_thresholds of at least 1 and slide_steps of at least 0")
            .got(format!("{thresholds} and {steps}")));
    };
    area_under(i.op.attr_str("curve"))?;
    let predict = i.check_rank("Predict", 2)?;
    if predict[1] > 2 || predict[1] == 0 {
        return Err(i
            .error("Predict", "has the wrong number of columns")
            .expected("1 or 2")
            .got(predict));
    }
    check_labels(i, predict[0])?;
    i.set("AUC", DType::F64, [1]);
    for (slot, out) in [("StatPos", "StatPosOut"), ("StatNeg", "StatNegOut")] {
        i.check_dtype(slot, &[DType::I64])?;
        let shape = i.input(slot)?.shape;
        if shape.numel().is_some_and(|numel| numel != len) {
            return Err(i.error(slot, "has the wrong number of counters").expected(len).got(shape));
        }
        i.set(out, DType::I64, shape);
    }
    Ok(())
}

/// Function that computes an area from positives and negatives by bucket.
type Area = fn(&[i64], &[i64]) -> f64;

fn area_under(curve: &str) -> Result<Area> {
    match curve {
        "ROC" => Ok(auc_area),
        "PR" => Ok(precision_recall_area),
        other => Err(Error::invalid("unknown curve of auc").expected("ROC or PR").got(other)),
    }
}

/// Returns the number of counters, or `None` for invalid attributes.
fn stat_len(thresholds: i64, steps: i64) -> Option<usize> {
    let thresholds = usize::try_from(thresholds).ok().filter(|count| *count > 0)?;
    match usize::try_from(steps).ok()? {
        0 => thresholds.checked_add(1),
        steps => auc_window_len(thresholds, steps),
    }
}

fn cpu(p: &PrepareCtx<'_>) -> Result<Kernel> {
    let (thresholds, steps) = (p.op.attr_usize("num_thresholds"), p.op.attr_usize("slide_steps"));
    let width = p.input("Predict").shape.at(1);
    let area_of = area_under(p.op.attr_str("curve"))?;
    let kernel = Kernel::new(move |k| {
        let (scores, labels) = (k.input(PREDICT), labels(k, LABEL));
        let predictions = Predictions { scores, width, labels };
        let (positives, negatives) = (k.updated::<i64>(1, STAT_POS), k.updated::<i64>(2, STAT_NEG));
        k.output::<f64>(0)[0] = if steps == 0 {
            auc_count(predictions, positives, negatives)?;
            area_of(positives, negatives)
        } else {
            auc_count_window(predictions, thresholds, steps, positives, negatives)?;
            area_of(
                auc_window_sum(positives, thresholds, steps),
                auc_window_sum(negatives, thresholds, steps),
            )
        };
        Ok(())
    });
    Ok(kernel.scratch::<i64>(labels_scratch_len(p)))
}
