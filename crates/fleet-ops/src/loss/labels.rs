//! Class labels: their shapes for given predictions, and reading them.

use crate::prelude::*;
use crate::tensor::gather::Indices;

/// Element types of class numbers.
pub(super) const CLASS_TYPES: &[DType] = &[DType::I64, DType::I32];

/// Returns the labels of a slot. Rejects a label that is neither a class nor `ignore`.
pub(super) fn labels<'a>(
    k: &KernelCtx<'a>,
    slot: usize,
    classes: usize,
    ignore: i64,
) -> Result<Indices<'a>> {
    let labels = Indices::of(k, slot);
    match labels.position(|label| label != ignore && !(0..classes as i64).contains(&label)) {
        None => Ok(labels),
        Some(index) => Err(Error::invalid(format!("label at position {index} is not a class"))
            .expected(format!("0 to {}", classes.saturating_sub(1)))
            .got(labels.at(index))),
    }
}

/// Checks the shape of `label` for predictions with classes along `axis`. Returns the shape of the
/// loss: the shape of the predictions with size 1 along `axis`.
pub(super) fn check_label(
    i: &InferCtx<'_>,
    predictions: &str,
    label: &str,
    axis: usize,
    soft: bool,
) -> Result<Shape> {
    let shape = i.input(predictions)?.shape;
    let mut loss = shape;
    loss.dims_mut()[axis] = 1;
    if soft {
        i.check_dtype(label, &[i.input(predictions)?.dtype])?;
        i.check_shape(label, shape)?;
        return Ok(loss);
    }
    i.check_dtype(label, CLASS_TYPES)?;
    let found = i.input(label)?.shape;
    let mut without_axis = Shape::SCALAR;
    for (at, dim) in shape.iter().enumerate() {
        if at != axis {
            without_axis.push(*dim)?;
        }
    }
    if found.agrees(&loss) || found.agrees(&without_axis) {
        return Ok(loss);
    }
    Err(i
        .error(label, "does not fit the predictions")
        .expected(format!("{loss} or {without_axis}"))
        .got(found))
}
