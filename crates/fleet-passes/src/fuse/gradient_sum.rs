//! Adds the gradient of a weight to the gradients before it while it is computed (`enable_addto`).
//!
//! Gradients of the micro-batches of a pipeline, of the steps of gradient merge, and of the uses of
//! a shared weight are added up. A matrix product adds its result to another tensor for the price
//! of writing it, and the gradient of an embedding changes only the rows in use. So the gradient op
//! takes over the sum, and the weight's separate gradient is not stored.

use super::fusion::{Fusion, Rule, Variant};
use super::pattern::Match;
use fleet_ir::VarKind;
use fleet_tensor::DType;

pub(crate) const FUSION: Fusion = Fusion {
    variants: &[
        of_product(&[OF_PRODUCT, "sum: (Out: total) = elementwise_add(X: other, Y: part)"]),
        of_product(&[OF_PRODUCT, "sum: (Out: total) = elementwise_add(X: part, Y: other)"]),
        of_product(&[OF_PRODUCT, "sum: (Out: total) = sum(X: other part)"]),
        of_product(&[OF_PRODUCT, "sum: (Out: total) = sum(X: part other)"]),
        of_table(&[OF_TABLE, "sum: (Out: total) = elementwise_add(X: other, Y: part)"]),
        of_table(&[OF_TABLE, "sum: (Out: total) = elementwise_add(X: part, Y: other)"]),
        of_table(&[OF_TABLE, "sum: (Out: total) = sum(X: other part)"]),
        of_table(&[OF_TABLE, "sum: (Out: total) = sum(X: part other)"]),
    ],
    accept,
};

const OF_PRODUCT: &str =
    "grad: (Y@GRAD: part) = mul_grad|matmul_v2_grad|fused_gemm_epilogue_grad(YSum: -)";
const OF_TABLE: &str =
    "grad: (W@GRAD: part) = lookup_table_v2_grad|lookup_table_grad|c_embedding_grad(WSum: -)";

const fn of_product(find: &'static [&'static str]) -> Variant {
    let becomes = &["grad: (Y@GRAD: total) = $grad(YSum: other, ..grad)"];
    Variant { forward: Rule { find, becomes }, backward: &[] }
}

const fn of_table(find: &'static [&'static str]) -> Variant {
    let becomes = &["grad: (W@GRAD: total) = $grad(WSum: other, ..grad)"];
    Variant { forward: Rule { find, becomes }, backward: &[] }
}

/// Accepts dense tensors in f32. The sum of halves would be rounded at another place.
fn accept(found: &mut Match<'_>) -> Option<()> {
    let (part, other) = (found.var("part")?, found.var("other")?);
    let (a, b) = (found.program.var(part), found.program.var(other));
    let is_alike = a.shape == b.shape
        && [a, b].iter().all(|it| it.kind == VarKind::Dense && it.dtype == DType::F32)
        && a.layout == b.layout;
    (part != other && is_alike).then_some(())
}
