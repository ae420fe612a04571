//! Fuses `relu(x + y)` into one pass over memory, forward and backward, for operands of one shape.
//!
//! If the sum's gradient has no op, the gradient of the relu passes unchanged to both operands, and
//! only the forward part is fused.

use super::fusion::{Fusion, Rule, Variant};
use super::pattern::Match;

pub(crate) const FUSION: Fusion = Fusion {
    variants: &[Variant {
        forward: Rule {
            find: &[
                "add: (Out: sum) = elementwise_add(X: x, Y: y)",
                "act: (Out: out) = relu(X: sum)",
            ],
            becomes: &["act: (Out: out) = fused_elemwise_activation(X: x, Y: y)"],
        },
        backward: &[
            Rule {
                find: &[
                    "dact: (X@GRAD: dsum) = relu_grad(Out: out, Out@GRAD: dout)",
                    "dadd: (X@GRAD: dx?, Y@GRAD: dy?) = elementwise_add_grad(Out@GRAD: dsum)",
                ],
                becomes: &["dadd: (X@GRAD: dx, Y@GRAD: dy) = \
                 fused_elemwise_activation_grad(X: x, Y: y, Out: out, Out@GRAD: dout)"],
            },
            Rule { find: &[], becomes: &[] },
        ],
    }],
    accept,
};

fn accept(found: &mut Match<'_>) -> Option<()> {
    let shape = |name: &str| found.var(name).map(|var| found.program.var(var).shape);
    if shape("x") != shape("y") {
        return None;
    }
    let functors = ["act", "add"].map(|label| found.op(label).map(|op| op.name().to_string()));
    found.set("functor_list", functors.into_iter().collect::<Option<Vec<String>>>()?);
    Some(())
}
