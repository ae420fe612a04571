//! Fuses `layer_norm(x + residual)` into one pass over memory, and the sum of gradients into its
//! gradient.
//!
//! Forward, a sum of two tensors of one shape becomes part of the following norm (`Residual`). The
//! norm still writes the sum for its own gradient and for other readers. Backward, the gradient of
//! the norm (`Skip`) takes over the sum of two gradients of the normalized tensor, of which it
//! computes one. This form does not need a residual and occurs in every layer of pre-norm networks.

use super::fusion::{Fusion, Rule, Variant};
use super::pattern::Match;

/// The forward sum before a norm.
pub(crate) const SUM: Fusion = Fusion {
    variants: &[Variant {
        forward: Rule {
            find: &[
                "add: (Out: sum) = elementwise_add(X: x, Y: residual)",
                "norm: () = layer_norm(X: sum, Residual: -)",
            ],
            becomes: &["norm: (Sum: sum) = layer_norm(X: x, Residual: residual, ..norm)"],
        },
        backward: &[],
    }],
    accept: |found| are_alike(found, "x", "residual"),
};

/// The sum of gradients after the gradient of a norm (`enable_addto`).
pub(crate) const GRAD_SUM: Fusion = Fusion {
    variants: &[
        grad_sum(&[NORM, "sum: (Out: total) = sum(X: part other)"]),
        grad_sum(&[NORM, "sum: (Out: total) = sum(X: other part)"]),
    ],
    accept: |found| are_alike(found, "part", "other"),
};

const NORM: &str = "norm: (X@GRAD: part) = layer_norm_grad(Skip: -)";

const fn grad_sum(find: &'static [&'static str]) -> Variant {
    let becomes = &["norm: (X@GRAD: total) = $norm(Skip: other, ..norm)"];
    Variant { forward: Rule { find, becomes }, backward: &[] }
}

/// Accepts two different variables of the same shape and type.
fn are_alike(found: &Match<'_>, a: &str, b: &str) -> Option<()> {
    let (a, b) = (found.var(a)?, found.var(b)?);
    let (x, y) = (found.program.var(a), found.program.var(b));
    let same = x.shape == y.shape && x.dtype == y.dtype && x.kind == y.kind && x.layout == y.layout;
    (a != b && same).then_some(())
}
