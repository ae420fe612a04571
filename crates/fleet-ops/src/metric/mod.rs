//! Metrics computed in the program.

pub mod accuracy;
pub mod auc;

use crate::prelude::*;

/// Checks that Label has one class number per row of the predictions.
fn check_labels(i: &InferCtx<'_>, rows: i64) -> Result<()> {
    i.check_dtype("Label", &[DType::I64, DType::I32])?;
    let label = i.input("Label")?.shape;
    if label.agrees(&Shape::from([rows, 1])) || label.agrees(&Shape::from([rows])) {
        return Ok(());
    }
    Err(i
        .error("Label", "does not fit the predictions")
        .expected(format!("[{rows}, 1] or [{rows}]"))
        .got(label))
}

/// Returns the labels of a slot as i64. Narrower ones are copied to scratch.
fn labels<'a>(k: &KernelCtx<'a>, slot: usize) -> &'a [i64] {
    if k.arg(slot).dtype == DType::I64 {
        return k.input(slot);
    }
    let from = k.input::<i32>(slot);
    let labels = &mut k.scratch::<i64>()[..from.len()];
    labels.iter_mut().zip(from).for_each(|(to, from)| *to = i64::from(*from));
    labels
}

/// Numbers of scratch that [`labels`] needs.
fn labels_scratch_len(p: &PrepareCtx<'_>) -> usize {
    let label = p.input("Label");
    if label.dtype == DType::I64 { 0 } else { label.numel() }
}
