//! Fuses `act(x * w + b)` into one op. Bias and activation are applied while the product's tile is
//! in registers, and the backward pass computes the bias gradient in the same sweep.
//!
//! The pass matches `mul` and plain `matmul_v2` (no transposes, a two-dimensional `w`), followed by
//! an `elementwise_add` of a row and an optional activation. The backward pass may read `w` and the
//! bias from other variables than the forward pass, because sharding sends parameters again. It may
//! have two ops for the gradients of `x` and `w`, because a pipeline computes the latter later.
//!
//! If one such layer feeds the next through a relu, the gradient of the relu is applied to the
//! tiles of the later layer's `X@GRAD`.

use super::fusion::{Fusion, Rule, Variant};
use super::graph::Graph;
use super::pattern::Match;
use fleet_base::Result;
use fleet_ir::{OpId, Program, VarId};

/// A line of the backward pass, of which the gradient `$of` comes in.
macro_rules! of {
    ($of:literal, SUM) => {
        concat!(
            "dadd: (X@GRAD: dproduct, Y@GRAD: dbias?) = \
             elementwise_add_grad(Out@GRAD: ",
            $of,
            ", Y: bias_again, X: product)"
        )
    };
    ($of:literal, BIAS) => {
        concat!(
            "dadd: (X@GRAD: -, Y@GRAD: dbias) = elementwise_add_grad(Out@GRAD: ",
            $of,
            ", Y: bias_again, X: product)"
        )
    };
    ($of:literal, BOTH) => {
        of!("dproduct: (X@GRAD: dx?, Y@GRAD: dw?)", $of)
    };
    ($of:literal, DX) => {
        of!("dx: (X@GRAD: dx, Y@GRAD: -)", $of)
    };
    ($of:literal, DW) => {
        of!("dw: (X@GRAD: -, Y@GRAD: dw)", $of)
    };
    ($op:literal, $of:literal) => {
        concat!($op, " = $product_grad(X: x, Y: w_again, Out@GRAD: ", $of, ")")
    };
}

/// The gradient op of a fused layer, with these outputs.
macro_rules! grad {
    ($op:literal, $outputs:literal) => {
        concat!(
            $op,
            ": (",
            $outputs,
            ") = fused_gemm_epilogue_grad(X: x, Y: w_again, Bias: bias, Out: out, \
             PreAct: pre_act, Out@GRAD: dout)"
        )
    };
}

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
                Rule {
                    find: &[DACT, of!("dsum", SUM), of!("dproduct", DX), of!("dproduct", DW)],
                    becomes: &[
                        grad!("dx @ dact", "X@GRAD: dx, Bias@GRAD: dbias"),
                        grad!("dw", "Y@GRAD: dw"),
                    ],
                },
                Rule {
                    find: &[DACT, of!("dsum", BIAS), of!("dsum", DX), of!("dsum", DW)],
                    becomes: &[
                        grad!("dx @ dact", "X@GRAD: dx"),
                        grad!("dw @ dadd", "Y@GRAD: dw, Bias@GRAD: dbias"),
                    ],
                },
                Rule {
                    find: &[DACT, of!("dsum", DX), of!("dsum", DW)],
                    becomes: &[grad!("dx @ dact", "X@GRAD: dx"), grad!("dw", "Y@GRAD: dw")],
                },
                Rule { find: &[DACT, of!("dsum", SUM), of!("dproduct", BOTH)], becomes: AT_ACT },
                // The gradient of a sum for an operand of the same shape needs no op.
                Rule { find: &[DACT, of!("dsum", BIAS), of!("dsum", BOTH)], becomes: AT_ACT },
                // The bias is not trained.
                Rule { find: &[DACT, of!("dsum", BOTH)], becomes: AT_ACT },
            ],
        },
        Variant {
            forward: Rule {
                find: &[PRODUCT, "add: (Out: out) = elementwise_add(X: product, Y: bias)"],
                becomes: &["add: (Out: out) = fused_gemm_epilogue(X: x, Y: w, Bias: bias)"],
            },
            backward: &[
                Rule {
                    find: &[of!("dout", SUM), of!("dproduct", DX), of!("dproduct", DW)],
                    becomes: &[
                        grad!("dx @ dadd", "X@GRAD: dx, Bias@GRAD: dbias"),
                        grad!("dw", "Y@GRAD: dw"),
                    ],
                },
                Rule {
                    find: &[of!("dout", BIAS), of!("dout", DX), of!("dout", DW)],
                    becomes: &[
                        grad!("dx", "X@GRAD: dx"),
                        grad!("dw @ dadd", "Y@GRAD: dw, Bias@GRAD: dbias"),
                    ],
                },
                Rule { find: &[of!("dout", SUM), of!("dproduct", BOTH)], becomes: AT_ADD },
                Rule { find: &[of!("dout", BIAS), of!("dout", BOTH)], becomes: AT_ADD },
            ],
        },
    ],
    accept,
};

const PRODUCT: &str = "product: (Out: product) = mul|matmul_v2(X: x, Y: w)";
/// Some activations read their input in the backward pass, others their output.
const DACT: &str = "dact: (X@GRAD: dsum) = $act_grad(X: sum?, Out: out?, Out@GRAD: dout)";

// The new op replaces the first of the old ones, because an op that communicates a gradient may
// directly follow it.
const AT_ACT: &[&str] = &[grad!("dproduct @ dact", "X@GRAD: dx, Y@GRAD: dw, Bias@GRAD: dbias")];
const AT_ADD: &[&str] = &[grad!("dproduct @ dadd", "X@GRAD: dx, Y@GRAD: dw, Bias@GRAD: dbias")];

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
        let earlier = graph.readers(incoming);
        let is_layer = |id: &OpId| {
            let before = program.op(*id);
            before.name() == GRAD
                && before.attr_str("activation") == "relu"
                && before.input("Out@GRAD") == [incoming]
                && before.input("Out") == [x]
        };
        if earlier.is_empty()
            || !earlier.iter().all(is_layer)
            || op.attr_bool("x_is_relu")
            || !graph.is_only_read_by(program, incoming, earlier)
        {
            continue;
        }
        program.op_mut(later).set_attr("x_is_relu", true)?;
        for id in earlier {
            let earlier = program.op_mut(*id);
            earlier.set_attr("activation", "")?;
            if let Some(out) = earlier.spec.input_index("Out") {
                earlier.inputs[out].clear();
            }
        }
        changed = true;
    }
    Ok(changed)
}
