//! `Out = act(X Y + Bias)`: a fully connected layer in one op. A fusion pass makes it from `mul`,
//! `elementwise_add` and an activation.
//!
//! `activation` is "", or one of relu, tanh, sigmoid (whose gradients read Out), or gelu (whose
//! gradient reads the optional output PreAct, the value before the activation). f32; bf16 if the
//! machine has a unit for it (with sums, bias and activation in f32); other halves through f32.
//!
//! Bias and relu are applied to a tile of the product while it is in registers. The gradients of
//! activation and bias are computed in one sweep over Out@GRAD. With `x_is_relu`, X@GRAD is the
//! gradient before the relu that made X. A fusion pass moves the relu's gradient here from the
//! preceding layer and so saves its sweep. YSum, if it is given, is added to Y@GRAD.

use crate::math::matmul::{ADDED_TO_Y, mul_shape, mul_sizes};
use crate::prelude::*;
use crate::rules::{begin_sum, check_added, check_row_major, grads_like, set_requested};
use crate::widen::{has_half, is_bf16, through_f32};
use fleet_kernels::bias::{bias_activation_grad, bias_activation_grad_scratch_len, bias_grad};
use fleet_kernels::cast::cast;
use fleet_kernels::elementwise::{Saved, Unary, unary, unary_grad};
use fleet_kernels::gemm::{Epilogue, Gemm};
use fleet_tensor::bf16;

const X: usize = 0;
const Y: usize = 1;
const BIAS: usize = 2;

const ATTRS: &[fleet_ir::AttrSpec] = &[attr("x_num_col_dims", Int(1)), attr("activation", Str(""))];
const GRAD_ATTRS: &[fleet_ir::AttrSpec] =
    &[attr("x_num_col_dims", Int(1)), attr("activation", Str("")), attr("x_is_relu", Bool(false))];

pub static DEF: OpDef = OpDef {
    spec: OpSpec {
        name: "fused_gemm_epilogue",
        inputs: &[one("X"), one("Y"), optional("Bias")],
        outputs: &[one("Out"), optional("PreAct")],
        attrs: ATTRS,
    },
    infer: |i| {
        let shape = mul_shape(i)?;
        let (dtype, y) = (i.input("X")?.dtype, i.check_rank("Y", 2)?);
        activation(i.op)?;
        if i.optional("Bias").is_some() {
            i.check_dtype("Bias", &[dtype])?;
            i.check_shape("Bias", [y[1]])?;
        }
        i.set("Out", dtype, shape);
        set_requested(i, "PreAct", dtype, shape);
        Ok(())
    },
    grad: Grad::OpRule(&GRAD, grad),
    cpu,
    traits: OpTraits { cost, ..OpTraits::amp(AmpClass::White) },
};

pub static GRAD: OpDef = OpDef {
    spec: OpSpec {
        name: "fused_gemm_epilogue_grad",
        inputs: &[
            one("X"),
            one("Y"),
            optional("Bias"),
            optional("Out"),
            optional("PreAct"),
            one("Out@GRAD"),
            optional("YSum"),
        ],
        outputs: &[optional("X@GRAD"), optional("Y@GRAD"), optional("Bias@GRAD")],
        attrs: GRAD_ATTRS,
    },
    infer: |i| {
        grads_like(i, &["X", "Y", "Bias"])?;
        check_added(i, ADDED_TO_Y)
    },
    grad: Grad::None,
    cpu: grad_cpu,
    traits: OpTraits {
        shape_only: &["Bias"],
        cost,
        inplace: &[ADDED_TO_Y],
        ..OpTraits::amp(AmpClass::White)
    },
};

/// Returns the activation function, if there is one.
fn activation(op: &fleet_ir::Op) -> Result<Option<Unary>> {
    Ok(match op.attr_str("activation") {
        "" => None,
        "relu" => Some(Unary::Relu),
        "tanh" => Some(Unary::Tanh),
        "sigmoid" => Some(Unary::Sigmoid),
        "gelu" => Some(Unary::Gelu),
        other => {
            return Err(Error::invalid("unknown activation of fused_gemm_epilogue")
                .expected("\"\", relu, tanh, sigmoid or gelu")
                .got(format!("'{other}'")));
        }
    })
}

fn cost(ctx: &CostCtx<'_>) -> Cost {
    let width = ctx
        .input("Y")
        .map_or(1.0, |y| y.shape.first().map_or(1.0, |dim| dim.unsigned_abs() as f64));
    let out = ctx.output("Out").or(ctx.input("Out@GRAD")).map_or(0.0, |out| out.numel() as f64);
    let is_grad = !ctx.op.input("Out@GRAD").is_empty();
    let sides = ctx.outputs.iter().take(2).filter(|vars| !vars.is_empty()).count();
    let times = if is_grad { sides } else { 1 };
    Cost { flops: 2.0 * out * width * times as f64, bytes: ctx.bytes() }
}

fn cpu(p: &PrepareCtx<'_>) -> Result<Kernel> {
    let (m, n, depth) = mul_sizes(p);
    if is_bf16(p) && Gemm::nn(m, n, depth).is_bf16_native() {
        return cpu_bf16(p);
    }
    if has_half(p) {
        return through_f32(p, cpu);
    }
    check_row_major(p)?;
    let (gemm, op) = (Gemm::nn(m, n, depth), activation(p.op)?);
    let scratch = gemm.scratch_len(p.threads);
    // Relu is applied within the product. Other functions are expensive enough for a separate sweep
    // in long runs, instead of 64 numbers at a time after each tile.
    let relu = op == Some(Unary::Relu);
    Ok(Kernel::infallible(move |k| {
        let (x, y, out) = (k.input(X), k.input(Y), k.output::<f32>(0));
        let epilogue = Epilogue { bias: k.optional(BIAS), relu, ..Epilogue::NONE };
        match (op, k.optional_output::<f32>(1)) {
            (Some(op), Some(pre)) => {
                let epilogue = Epilogue { relu: false, ..epilogue };
                gemm.run(k.pool, x, y, pre, k.scratch(), &epilogue);
                unary(k.pool, op, &*pre, out);
            }
            (op, pre) => {
                gemm.run(k.pool, x, y, out, k.scratch(), &epilogue);
                if let Some(op) = op.filter(|_| !relu) {
                    unary(k.pool, op, Input::Output, out);
                }
                if let Some(pre) = pre {
                    pre.copy_from_slice(out);
                }
            }
        }
    })
    .scratch::<f32>(scratch))
}

/// Sums in f32 and applies bias and activation before rounding.
fn cpu_bf16(p: &PrepareCtx<'_>) -> Result<Kernel> {
    check_row_major(p)?;
    let (m, n, depth) = mul_sizes(p);
    let (gemm, op) = (Gemm::nn(m, n, depth), activation(p.op)?);
    let wide = op.filter(|op| *op != Unary::Relu || !p.outputs[1].is_empty());
    let relu = op.is_some() && wide.is_none();
    let sums_len = if wide.is_some() { m * n } else { 0 };
    let scratch = n + sums_len + gemm.scratch_len_bf16(p.threads);
    Ok(Kernel::infallible(move |k| {
        let (x, y, out) = (k.input::<bf16>(X), k.input::<bf16>(Y), k.output::<bf16>(0));
        let (bias, scratch) = k.scratch::<f32>().split_at_mut(n);
        let (sums, scratch) = scratch.split_at_mut(sums_len);
        let bias = k.optional::<bf16>(BIAS).map(|from| {
            cast(k.pool, from, bias);
            &*bias
        });
        let epilogue = Epilogue { bias, relu, ..Epilogue::NONE };
        let pre = k.optional_output::<bf16>(1);
        let Some(op) = wide else {
            gemm.run_bf16(k.pool, x, y, out, scratch, &epilogue);
            if let Some(pre) = pre {
                pre.copy_from_slice(out);
            }
            return;
        };
        gemm.run_bf16(k.pool, x, y, sums, scratch, &epilogue);
        if let Some(pre) = pre {
            cast(k.pool, sums, pre);
        }
        unary(k.pool, op, Input::Output, sums);
        cast(k.pool, sums, out);
    })
    .scratch::<f32>(scratch))
}

fn grad(g: &mut GradCtx<'_, '_>, def: &'static OpDef) -> Result<()> {
    let unused: &[&str] = match activation(&g.op)?.map(|op| op.saved()) {
        Some(Saved::Output) => &["PreAct"],
        Some(Saved::Input) => &["Out"],
        _ => &["Out", "PreAct"],
    };
    g.by_name(def, unused, VarKind::Dense)
}

const DOUT: usize = 5;
const Y_SUM: usize = 6;

/// Returns the index of the input that the activation's gradient reads.
fn saved_input(p: &PrepareCtx<'_>, op: Option<Unary>) -> Result<usize> {
    let saved = match op.map(|op| op.saved()) {
        Some(Saved::Output) => 3,
        Some(Saved::Input) => 4,
        _ => DOUT,
    };
    if p.inputs[saved].is_empty() {
        return Err(Error::invalid(format!(
            "missing input '{}' of op '{}'",
            p.op.spec.inputs[saved].name,
            p.op.name()
        )));
    }
    Ok(saved)
}

fn grad_cpu(p: &PrepareCtx<'_>) -> Result<Kernel> {
    let (m, n, depth) = mul_sizes(p);
    let sides = [Gemm::nt(m, depth, n), Gemm::tn(depth, n, m)];
    if is_bf16(p) && sides.iter().all(Gemm::is_bf16_native) {
        return grad_cpu_bf16(p, sides);
    }
    if has_half(p) {
        return through_f32(p, grad_cpu);
    }
    check_row_major(p)?;
    let op = activation(p.op)?;
    let saved = saved_input(p, op)?;
    let [to_x, to_y] = sides;
    let gemm_scratch = to_x.scratch_len(p.threads).max(to_y.scratch_len(p.threads));
    let bias_scratch = bias_activation_grad_scratch_len(m, n);
    // The gradient before the activation, if there is an activation.
    let pre_len = if op.is_some() { m * n } else { 0 };
    let x_is_relu = p.op.attr_bool("x_is_relu");
    Ok(Kernel::infallible(move |k| {
        let (x, y, dout) = (k.input::<f32>(X), k.input::<f32>(Y), k.input::<f32>(DOUT));
        let (pre, scratch) = k.scratch::<f32>().split_at_mut(pre_len);
        let saved = k.input::<f32>(saved);
        match (k.optional_output::<f32>(2), op) {
            (Some(dbias), Some(op)) if n > 0 => {
                bias_activation_grad(k.pool, Some(op), saved, dout, pre, dbias, scratch);
            }
            (Some(dbias), None) if n > 0 => bias_grad(k.pool, dout, dbias, scratch),
            (_, Some(op)) => unary_grad(k.pool, op, saved, dout, pre),
            _ => {}
        }
        let pre: &[f32] = if op.is_some() { pre } else { dout };
        if let Some(dx) = k.optional_output(0) {
            let epilogue = Epilogue { mask: x_is_relu.then_some(x), ..Epilogue::NONE };
            to_x.run(k.pool, pre, y, dx, scratch, &epilogue);
        }
        if let Some(dy) = k.optional_output(1) {
            let beta = f32::from(begin_sum(k, (1, Y_SUM), dy));
            to_y.beta(beta).run(k.pool, x, pre, dy, scratch, &Epilogue::NONE);
        }
    })
    .scratch::<f32>(pre_len + gemm_scratch.max(bias_scratch)))
}

/// Computes the gradient before the activation in f32, rounds it once and uses it in both products.
fn grad_cpu_bf16(p: &PrepareCtx<'_>, [to_x, to_y]: [Gemm; 2]) -> Result<Kernel> {
    check_row_major(p)?;
    let (m, n, _) = mul_sizes(p);
    let op = activation(p.op)?;
    let saved = saved_input(p, op)?;
    let gemm_scratch = to_x.scratch_len_bf16(p.threads).max(to_y.scratch_len_bf16(p.threads));
    let bias_scratch = bias_activation_grad_scratch_len(m, n);
    let wide = op.is_some() || !p.outputs[2].is_empty();
    // In f32: the gradient, the saved input of the activation's gradient, the bias gradient. Then
    // in bf16: the gradient before the activation.
    let len = if wide { m * n } else { 0 };
    let lens = [len, if op.is_some() { len } else { 0 }, n, len.div_ceil(2)];
    let x_is_relu = p.op.attr_bool("x_is_relu");
    Ok(Kernel::infallible(move |k| {
        let (x, y, dout) = (k.input::<bf16>(X), k.input::<bf16>(Y), k.input::<bf16>(DOUT));
        let (grad, rest) = k.scratch::<f32>().split_at_mut(lens[0]);
        let (saved_wide, rest) = rest.split_at_mut(lens[1]);
        let (bias_sums, rest) = rest.split_at_mut(lens[2]);
        let (rounded, scratch) = rest.split_at_mut(lens[3]);
        if wide {
            cast(k.pool, dout, grad);
        }
        if op.is_some() {
            cast(k.pool, k.input::<bf16>(saved), saved_wide);
        }
        let dbias = k.optional_output::<bf16>(2);
        match (&dbias, op) {
            (Some(_), Some(op)) => {
                bias_activation_grad(
                    k.pool,
                    Some(op),
                    &*saved_wide,
                    Input::Output,
                    grad,
                    bias_sums,
                    scratch,
                );
            }
            (Some(_), None) => bias_grad(k.pool, grad, bias_sums, scratch),
            (None, Some(op)) => unary_grad(k.pool, op, &*saved_wide, Input::Output, grad),
            (None, None) => {}
        }
        if let Some(dbias) = dbias {
            cast(k.pool, bias_sums, dbias);
        }
        let pre: &[bf16] = match op {
            Some(_) => {
                let rounded: &mut [bf16] = &mut view_as_mut(rounded)[..len];
                cast(k.pool, grad, rounded);
                rounded
            }
            None => dout,
        };
        if let Some(dx) = k.optional_output::<bf16>(0) {
            to_x.run_bf16(k.pool, pre, y, dx, scratch, &Epilogue::NONE);
            if x_is_relu {
                let dead = |(dx, x): (&mut bf16, &bf16)| {
                    *dx = if *x > bf16::ZERO { *dx } else { bf16::ZERO }
                };
                dx.iter_mut().zip(x).for_each(dead);
            }
        }
        if let Some(dy) = k.optional_output::<bf16>(1) {
            let beta = f32::from(begin_sum(k, (1, Y_SUM), dy));
            to_y.beta(beta).run_bf16(k.pool, x, pre, dy, scratch, &Epilogue::NONE);
        }
    })
    .scratch::<f32>(lens.iter().sum::<usize>() + gemm_scratch.max(bias_scratch)))
}
