//! Fuses `act(x * w + b)` into one op. Bias and activation are applied while the product's tile is
//! in registers, and the backward pass computes the bias gradient in the same sweep.
//!
//! The pass matches `mul` and plain `matmul_v2` (no transposes, a two-dimensional `w`), followed by
//! an `elementwise_add` of a row and an optional activation. The backward pass may read `w` and the
//! bias from other variables than the forward pass, because sharding sends parameters again. If
//! one such layer feeds the next through a relu, the gradient of the relu is applied to the tiles
//! of the later layer's `X@GRAD`.

use super::fusion::{Fusion, Rule, Variant};
use super::graph::Graph;
use super::pattern::Match;
use fleet_base::Result;
use fleet_ir::{OpId, Program, VarId};

pub(crate) const FUSION: Fusion = Fusion {
    variants: &[
        Variant {
            forward: Rule {
                find: &[
                    PRODUCT,
                    "add: (Out: sum) = elementwise_add(X: product, Y: bias)",
                    "act: (Out: out) = relu|gelu|tanh|sigmoid(X: sum)",
                ],
                becomes: &["act: (Out: out, PreAct: pre_act) = \
                     fused_gemm_epilogue(X: x, Y: w, Bias: bias)"],
            },
            backward: &[
                at_act(&[
                    DACT,
                    "dadd: (X@GRAD: dproduct, Y@GRAD: dbias?) = \
                     elementwise_add_grad(Out@GRAD: dsum, Y: bias_again, X: product)",
                    "dproduct: (X@GRAD: dx?, Y@GRAD: dw?) = \
                     $product_grad(X: x, Y: w_again, Out@GRAD: dproduct)",
                ]),
                // The gradient of a sum for an operand of the same shape needs no op.
                at_act(&[
                    DACT,
                    "dadd: (X@GRAD: -, Y@GRAD: dbias) = \
                     elementwise_add_grad(Out@GRAD: dsum, Y: bias_again, X: product)",
                    DPRODUCT_OF_DSUM,
                ]),
                // The bias is not trained.
                at_act(&[DACT, DPRODUCT_OF_DSUM]),
            ],
        },
        Variant {
            forward: Rule {
                find: &[PRODUCT, "add: (Out: out) = elementwise_add(X: product, Y: bias)"],
                becomes: &["add: (Out: out) = fused_gemm_epilogue(X: x, Y: w, Bias: bias)"],
            },
            backward: &[
                at_add(&[
                    "dadd: (X@GRAD: dproduct, Y@GRAD: dbias?) = \
                     elementwise_add_grad(Out@GRAD: dout, Y: bias_again, X: product)",
                    "dproduct: (X@GRAD: dx?, Y@GRAD: dw?) = \
                     $product_grad(X: x, Y: w_again, Out@GRAD: dproduct)",
                ]),
                at_add(&[
                    "dadd: (X@GRAD: -, Y@GRAD: dbias) = \
                     elementwise_add_grad(Out@GRAD: dout, Y: bias_again, X: product)",
                    "dproduct: (X@GRAD: dx?, Y@GRAD: dw?) = \
                     $product_grad(X: x, Y: w_again, Out@GRAD: dout)",
                ]),
            ],
        },
    ],
    accept,
};

const PRODUCT: &str = "product: (Out: product) = mul|matmul_v2(X: x, Y: w)";
/// Some activations read their input in the backward pass, others their output.
const DACT: &str = "dact: (X@GRAD: dsum) = $act_grad(X: sum?, Out: out?, Out@GRAD: dout)";
const DPRODUCT_OF_DSUM: &str =
    "dproduct: (X@GRAD: dx?, Y@GRAD: dw?) = $product_grad(X: x, Y: w_again, Out@GRAD: dsum)";

// The new op replaces the first of the old ones, because an op that communicates a gradient may
// directly follow it.
const fn at_act(find: &'static [&'static str]) -> Rule {
    let becomes = &["dproduct @ dact: (X@GRAD: dx, Y@GRAD: dw, Bias@GRAD: dbias) = \
         fused_gemm_epilogue_grad(X: x, Y: w_again, Bias: bias, Out: out, PreAct: pre_act, \
         Out@GRAD: dout)"];
    Rule { find, becomes }
}

const fn at_add(find: &'static [&'static str]) -> Rule {
    let becomes = &["dproduct @ dadd: (X@GRAD: dx, Y@GRAD: dw, Bias@GRAD: dbias) = \
         fused_gemm_epilogue_grad(X: x, Y: w_again, Bias: bias, Out: out, Out@GRAD: dout)"];
    Rule { find, becomes }
}

fn accept(found: &mut Match<'_>) -> Option<()> {
    let rows = row_dimensions(found)?;
    let shape = |name: &str| found.var(name).map(|var| found.program.var(var).shape);
    let (bias, width) = (shape("bias")?, shape("w")?[1]);
    let axis = found.op("add")?.attr_int("axis");
    if bias.rank() != 1 || bias[0] != width || (axis != -1 && axis != rows) {
        return None;
    }
    let name = found.op("act").map_or("", |act| act.name());
    if let Some(act) = found.op("act")
        && act.spec.attr_index("approximate").is_some()
    {
        // The fused op supports only the exact gelu, and needs its input in the backward pass.
        let sum = found.var("sum")?;
        let is_free = found.graph.is_only_read_by(found.program, sum, &found.op_ids());
        if act.attr_bool("approximate") {
            return None;
        }
        if found.op("dact").is_some() && is_free {
            found.bind("pre_act", vec![sum]);
        }
    }
    found.set("x_num_col_dims", rows);
    found.set("activation", name);
    Some(())
}

/// Returns the number of leading row dimensions, for a product of rows with a matrix.
fn row_dimensions(found: &Match<'_>) -> Option<i64> {
    let rank = |name: &str| found.var(name).map(|var| found.program.var(var).shape.rank() as i64);
    let op = found.op("product")?;
    if rank("w") != Some(2) {
        return None;
    }
    if op.spec.attr_index("x_num_col_dims").is_some() {
        return Some(op.attr_int("x_num_col_dims"));
    }
    let is_plain =
        !op.attr_bool("trans_x") && !op.attr_bool("trans_y") && op.attr_float("alpha") == 1.0;
    rank("x").filter(|rank| is_plain && *rank >= 2).map(|rank| rank - 1)
}

/// Moves the gradient of a relu between two layers into the later layer's product, which computes
/// its input. Returns whether there was any.
pub(crate) fn fuse_relu_grad(program: &mut Program, keep: &[VarId]) -> Result<bool> {
    const GRAD: &str = "fused_gemm_epilogue_grad";
    let graph = Graph::new(program, keep);
    let layers: Vec<OpId> =
        program.root_ops().filter(|(_, op)| op.name() == GRAD).map(|(id, _)| id).collect();
    let mut changed = false;
    for later in layers {
        let op = program.op(later);
        let (&[incoming], &[x]) = (op.output("X@GRAD"), op.input("X")) else { continue };
        let &[earlier] = graph.readers(incoming) else { continue };
        let before = program.op(earlier);
        if before.name() != GRAD
            || before.attr_str("activation") != "relu"
            || before.input("Out@GRAD") != [incoming]
            || before.input("Out") != [x]
            || op.attr_bool("x_is_relu")
            || !graph.is_only_read_by(program, incoming, &[earlier])
        {
            continue;
        }
        program.op_mut(later).set_attr("x_is_relu", true)?;
        let earlier = program.op_mut(earlier);
        earlier.set_attr("activation", "")?;
        if let Some(out) = earlier.spec.input_index("Out") {
            earlier.inputs[out].clear();
        }
        changed = true;
    }
    Ok(changed)
}
