//! Fuses batch norm with adjacent ops: the following sum and relu, the statistics that the
//! preceding convolution can compute, and the sum of its incoming gradients.

use super::fusion::{Fusion, Rule, Variant};
use super::graph::Graph;
use super::pattern::Match;
use fleet_base::Result;
use fleet_ir::{Op, OpId, Program, Var, VarId};

/// Batch norm and relu.
pub(crate) const ACT: Fusion = Fusion {
    variants: &[Variant {
        forward: Rule {
            find: &[NORM, "act: (Out: out) = relu(X: y)"],
            becomes: &["norm @ act: (Y: out) = fused_batch_norm_act(..norm)"],
        },
        backward: &[Rule {
            find: &[
                "dact: (X@GRAD: dy) = relu_grad(Out: out, Out@GRAD: dout)",
                "dnorm: () = batch_norm_grad(X: x, Y@GRAD: dy)",
            ],
            becomes: &["dnorm @ dact: () = fused_batch_norm_act_grad(Y@GRAD: dout, ..dnorm)"],
        }],
    }],
    accept: set_act,
};

/// Batch norm, a sum with a residual of the same shape, and relu.
pub(crate) const ADD_ACT: Fusion = Fusion {
    variants: &[
        add_act(
            &[NORM, "add: (Out: sum) = elementwise_add(X: y, Y: z)", ACT_OF_SUM],
            &[
                add_act_grad(&[
                    DACT,
                    "dadd: (X@GRAD: dy, Y@GRAD: dz?) = \
                     elementwise_add_grad(Out@GRAD: dsum)",
                    DNORM,
                ]),
                UNCHANGED,
            ],
        ),
        add_act(
            &[NORM, "add: (Out: sum) = elementwise_add(X: z, Y: y)", ACT_OF_SUM],
            &[
                add_act_grad(&[
                    DACT,
                    "dadd: (X@GRAD: dz?, Y@GRAD: dy) = \
                     elementwise_add_grad(Out@GRAD: dsum)",
                    DNORM,
                ]),
                UNCHANGED,
            ],
        ),
    ],
    accept: |found| {
        let shape = |name: &str| found.var(name).map(|var| found.program.var(var).shape);
        let is_residual = shape("y") == shape("z") && found.var("y") != found.var("z");
        is_residual.then(|| set_act(found)).flatten()
    },
};

const NORM: &str = "norm: (Y: y) = batch_norm(X: x)";
const ACT_OF_SUM: &str = "act: (Out: out) = relu(X: sum)";
const DACT: &str = "dact: (X@GRAD: dsum) = relu_grad(Out: out, Out@GRAD: dout)";
const DNORM: &str = "dnorm: () = batch_norm_grad(X: x, Y@GRAD: dy)";

/// The gradient of a sum of equal shapes needs no op: it passes unchanged to both operands.
const UNCHANGED: Rule = Rule {
    find: &[DACT, "dnorm: () = batch_norm_grad(X: x, Y@GRAD: dsum)"],
    becomes: &["dnorm @ dact: (Z@GRAD: dsum) = \
         fused_bn_add_activation_grad(Y: out, Y@GRAD: dout, ..dnorm)"],
};

const fn add_act(find: &'static [&'static str], backward: &'static [Rule]) -> Variant {
    let becomes = &["norm @ act: (Y: out) = fused_bn_add_activation(Z: z, ..norm)"];
    Variant { forward: Rule { find, becomes }, backward }
}

const fn add_act_grad(find: &'static [&'static str]) -> Rule {
    let becomes = &["dnorm @ dact: (Z@GRAD: dz) = \
         fused_bn_add_activation_grad(Y: out, Y@GRAD: dout, ..dnorm)"];
    Rule { find, becomes }
}

fn set_act(found: &mut Match<'_>) -> Option<()> {
    let act = found.op("act")?.name();
    found.set("act_type", act);
    Some(())
}

/// `enable_addto`: lets the gradient of a batch norm add two gradients while reading them, if their
/// sum has no other reader.
pub(crate) const GRAD_SUM: Fusion = Fusion {
    variants: &[Variant {
        forward: Rule {
            find: &[
                "sum: (Out: total) = sum(X: first second)",
                "norm: () = batch_norm_grad|fused_batch_norm_act_grad|\
                 fused_bn_add_activation_grad(Y@GRAD: total, Addend: -)",
            ],
            becomes: &["norm: () = $norm(Y@GRAD: first, Addend: second, ..norm)"],
        },
        backward: &[],
    }],
    accept: |found| (found.var("first") != found.var("second")).then_some(()),
};

const NORMS: [&str; 3] = ["batch_norm", "fused_batch_norm_act", "fused_bn_add_activation"];

/// Lets a convolution before a training batch norm compute the partial sums for the norm, while its
/// tiles are in cache. Returns whether there is any.
pub(crate) fn fuse_stats(program: &mut Program, keep: &[VarId]) -> Result<bool> {
    let graph = Graph::new(program, keep);
    let is_conv = |op: &Op| {
        op.name() == "conv2d"
            && op.attr_str("data_format") == "NHWC"
            && op.output("Stats").is_empty()
    };
    let convs: Vec<OpId> =
        program.root_ops().filter(|(_, op)| is_conv(op)).map(|(id, _)| id).collect();
    let mut changed = false;
    for conv in convs {
        let &[out] = program.op(conv).output("Output") else { continue };
        let norm = graph.readers(out).iter().copied().find(|id| {
            let op = program.op(*id);
            NORMS.contains(&op.name())
                && op.input("X") == [out]
                && op.input("Stats").is_empty()
                && !op.attr_bool("is_test")
                && !op.attr_bool("use_global_stats")
        });
        let Some(norm) = norm else { continue };
        let slots = (
            program.op(conv).spec.output_index("Stats"),
            program.op(norm).spec.input_index("Stats"),
        );
        let (Some(made), Some(used)) = slots else { continue };
        let (name, channels) = (program.var_name(out).to_string(), program.var(out).shape[3]);
        let name = program.fresh_name(&format!("{name}@STATS"));
        let stats = Var::new(name, fleet_tensor::DType::F32, [-1, 2, channels]);
        let stats = program.add_var(Program::ROOT, stats)?;
        program.op_mut(conv).outputs[made].push(stats);
        program.op_mut(norm).inputs[used].push(stats);
        changed = true;
    }
    Ok(changed)
}
