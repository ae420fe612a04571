//! Functions of one element: activations, roots, exponentials, rounding.
//!
//! All support f32 (halves through f32); some also support i32 and i64. A gradient op reads either
//! X or Out, whichever gives the simpler derivative, so only that one is stored.

use crate::prelude::*;
use crate::rules::check_like;
use crate::widen::{has_half, through_f32};
use fleet_ir::Op;
use fleet_kernels::elementwise::{self, Saved, Unary};
use fleet_kernels::map::map;

macro_rules! unary {
    ($(
        $name:literal, $DEF:ident, $GRAD:ident, [$($attr:expr),*], $amp:ident,
        zero_to_zero: $zero:literal;
    )*) => {$(
        pub static $DEF: OpDef = OpDef {
            spec: OpSpec {
                name: $name,
                inputs: &[one("X")],
                outputs: &[one("Out")],
                attrs: &[$($attr),*],
            },
            infer,
            grad: Grad::OpRule(&$GRAD, grad),
            cpu,
            traits: OpTraits {
                inplace: &[("Out", "X")],
                elementwise: $zero,
                elementwise_unpadded: true,
                ..OpTraits::amp(AmpClass::$amp)
            },
        };

        pub static $GRAD: OpDef = OpDef {
            spec: OpSpec {
                name: concat!($name, "_grad"),
                inputs: &[optional("X"), optional("Out"), one("Out@GRAD")],
                outputs: &[one("X@GRAD")],
                attrs: &[$($attr),*],
            },
            infer: infer_grad,
            grad: Grad::None,
            cpu: grad_cpu,
            traits: OpTraits {
                inplace: &[("X@GRAD", "Out@GRAD"), ("X@GRAD", "X"), ("X@GRAD", "Out")],
                elementwise_unpadded: true,
                ..OpTraits::amp(AmpClass::$amp)
            },
        };
    )*

        /// Every op of this file.
        pub const DEFS: &[&OpDef] = &[$(&$DEF, &$GRAD),*];
    };
}

unary! {
    "relu", RELU, RELU_GRAD, [], Gray, zero_to_zero: true;
    "relu6", RELU6, RELU6_GRAD, [], Gray, zero_to_zero: true;
    "leaky_relu", LEAKY_RELU, LEAKY_RELU_GRAD, [attr("alpha", Float(0.02))], Gray,
        zero_to_zero: true;
    "sigmoid", SIGMOID, SIGMOID_GRAD, [], Gray, zero_to_zero: false;
    "logsigmoid", LOGSIGMOID, LOGSIGMOID_GRAD, [], Unlisted, zero_to_zero: false;
    "tanh", TANH, TANH_GRAD, [], Gray, zero_to_zero: true;
    "gelu", GELU, GELU_GRAD, [attr("approximate", Bool(false))], Unlisted, zero_to_zero: true;
    "exp", EXP, EXP_GRAD, [], Black, zero_to_zero: false;
    "log", LOG, LOG_GRAD, [], Black, zero_to_zero: false;
    "sqrt", SQRT, SQRT_GRAD, [], Unlisted, zero_to_zero: true;
    "rsqrt", RSQRT, RSQRT_GRAD, [], Black, zero_to_zero: false;
    "square", SQUARE, SQUARE_GRAD, [], Black, zero_to_zero: true;
    "abs", ABS, ABS_GRAD, [], Unlisted, zero_to_zero: true;
    "reciprocal", RECIPROCAL, RECIPROCAL_GRAD, [], Black, zero_to_zero: false;
    "softplus", SOFTPLUS, SOFTPLUS_GRAD, [attr("beta", Float(1.0)), attr("threshold", Float(20.0))],
        Black, zero_to_zero: false;
    "softsign", SOFTSIGN, SOFTSIGN_GRAD, [], Unlisted, zero_to_zero: true;
    "hard_sigmoid", HARD_SIGMOID, HARD_SIGMOID_GRAD,
        [attr("slope", Float(0.2)), attr("offset", Float(0.5))], Unlisted, zero_to_zero: false;
    "hard_swish", HARD_SWISH, HARD_SWISH_GRAD,
        [attr("threshold", Float(6.0)), attr("scale", Float(6.0)), attr("offset", Float(3.0))],
        Unlisted, zero_to_zero: true;
    "swish", SWISH, SWISH_GRAD, [attr("beta", Float(1.0))], Unlisted, zero_to_zero: true;
    "silu", SILU, SILU_GRAD, [], Unlisted, zero_to_zero: true;
    "elu", ELU, ELU_GRAD, [attr("alpha", Float(1.0))], Unlisted, zero_to_zero: true;
    "selu", SELU, SELU_GRAD,
        [
            attr("scale", Float(1.050_700_987_355_480_5)),
            attr("alpha", Float(1.673_263_242_354_377_2))
        ],
        Unlisted, zero_to_zero: true;
    "sign", SIGN, SIGN_GRAD, [], Gray, zero_to_zero: true;
    "floor", FLOOR, FLOOR_GRAD, [], Unlisted, zero_to_zero: true;
    "ceil", CEIL, CEIL_GRAD, [], Unlisted, zero_to_zero: true;
    "round", ROUND, ROUND_GRAD, [], Unlisted, zero_to_zero: true;
    "sin", SIN, SIN_GRAD, [], Unlisted, zero_to_zero: true;
    "cos", COS, COS_GRAD, [], Unlisted, zero_to_zero: false;
    "erf", ERF, ERF_GRAD, [], Unlisted, zero_to_zero: true;
    "pow", POW, POW_GRAD, [attr("factor", Float(1.0))], Black, zero_to_zero: false;
}

/// Returns the function of an op or of its gradient op.
pub(crate) fn unary_of(op: &Op) -> Result<Unary> {
    let number = |name: &str| op.attr_float(name) as f32;
    Ok(match op.name().trim_end_matches("_grad") {
        "leaky_relu" => Unary::LeakyRelu { slope: number("alpha") },
        "gelu" if op.attr_bool("approximate") => Unary::GeluTanh,
        "softplus" => Unary::Softplus { beta: number("beta"), threshold: number("threshold") },
        "hard_sigmoid" => Unary::HardSigmoid { slope: number("slope"), offset: number("offset") },
        "hard_swish" => Unary::HardSwish {
            threshold: number("threshold"),
            scale: number("scale"),
            offset: number("offset"),
        },
        "swish" => Unary::Swish { beta: number("beta") },
        "elu" => Unary::Elu { alpha: number("alpha") },
        "selu" => Unary::Selu { scale: number("scale"), alpha: number("alpha") },
        "pow" => Unary::Pow { exponent: number("factor") },
        "clip" => Unary::Clip { min: number("min"), max: number("max") },
        name => return named(name),
    })
}

/// Returns a function without parameters by the name of its op.
pub(crate) fn named(name: &str) -> Result<Unary> {
    Ok(match name {
        "relu" => Unary::Relu,
        "relu6" => Unary::Relu6,
        "sigmoid" => Unary::Sigmoid,
        "logsigmoid" => Unary::LogSigmoid,
        "tanh" => Unary::Tanh,
        "gelu" => Unary::Gelu,
        "exp" => Unary::Exp,
        "log" => Unary::Log,
        "sqrt" => Unary::Sqrt,
        "rsqrt" => Unary::Rsqrt,
        "square" => Unary::Square,
        "abs" => Unary::Abs,
        "reciprocal" => Unary::Reciprocal,
        "softsign" => Unary::Softsign,
        "silu" => Unary::Swish { beta: 1.0 },
        "sign" => Unary::Sign,
        "floor" => Unary::Floor,
        "ceil" => Unary::Ceil,
        "round" => Unary::Round,
        "sin" => Unary::Sin,
        "cos" => Unary::Cos,
        "erf" => Unary::Erf,
        _ => return Err(Error::invalid(format!("'{name}' is not a unary function"))),
    })
}

pub(super) fn infer(i: &mut InferCtx<'_>) -> Result<()> {
    let x = i.input("X")?;
    if x.dtype == DType::Bool {
        return Err(i.error("X", "has the wrong element type").expected("numbers").got(x.dtype));
    }
    i.set("Out", x.dtype, x.shape);
    Ok(())
}

pub(super) fn infer_grad(i: &mut InferCtx<'_>) -> Result<()> {
    let dout = i.input("Out@GRAD")?;
    check_like(i, "X", dout)?;
    check_like(i, "Out", dout)?;
    i.set("X@GRAD", dout.dtype, dout.shape);
    Ok(())
}

pub(super) fn cpu(p: &PrepareCtx<'_>) -> Result<Kernel> {
    if has_half(p) {
        return through_f32(p, cpu);
    }
    let op = unary_of(p.op)?;
    match p.input("X").dtype {
        DType::F32 => Ok(Kernel::new(move |k| {
            elementwise::unary(k.pool, op, k.input_or_output(0, 0), k.output(0));
            Ok(())
        })),
        DType::I32 => integers(p, op, |value| value as i32, |bound| bound as i32),
        DType::I64 => integers(p, op, |value| value as i64, |bound| bound as i64),
        dtype => Err(p.no_kernel(dtype)),
    }
}

/// Makes the kernels of functions that map integers to integers. A result out of range, such as a
/// large square, wraps like a product of `elementwise_mul`. The bounds of `clip` saturate.
fn integers<T>(
    p: &PrepareCtx<'_>,
    op: Unary,
    wrap: fn(i128) -> T,
    saturate: fn(f64) -> T,
) -> Result<Kernel>
where
    T: fleet_tensor::Element + Into<i128>,
{
    let function: fn(i128, i128, i128) -> i128 = match op {
        Unary::Relu => |x, _, _| x.max(0),
        Unary::Relu6 => |x, _, _| x.clamp(0, 6),
        Unary::Abs => |x, _, _| x.abs(),
        Unary::Sign => |x, _, _| x.signum(),
        Unary::Square => |x, _, _| x * x,
        Unary::Floor | Unary::Ceil | Unary::Round => |x, _, _| x,
        Unary::Clip { .. } => |x, low, high| x.min(high).max(low),
        _ => return Err(p.no_kernel(p.input("X").dtype)),
    };
    let (low, high) = match op {
        Unary::Clip { .. } => (p.op.attr_float("min").ceil(), p.op.attr_float("max").floor()),
        _ => (0.0, 0.0),
    };
    let (low, high): (i128, i128) = (saturate(low).into(), saturate(high).into());
    Ok(Kernel::new(move |k| {
        let (x, y) = (k.input_or_output(0, 0), k.output::<T>(0));
        map(k.pool, x, y, |x| wrap(function(x.into(), low, high)));
        Ok(())
    }))
}

pub(super) fn grad(g: &mut GradCtx<'_, '_>, def: &'static OpDef) -> Result<()> {
    let unused: &[&str] = match unary_of(&g.op)?.saved() {
        Saved::Input => &["Out"],
        Saved::Output => &["X"],
        Saved::Nothing => &["X", "Out"],
    };
    g.by_name(def, unused, VarKind::Dense)
}

pub(super) fn grad_cpu(p: &PrepareCtx<'_>) -> Result<Kernel> {
    if has_half(p) {
        return through_f32(p, grad_cpu);
    }
    let op = unary_of(p.op)?;
    if p.input("Out@GRAD").dtype != DType::F32 {
        return Err(p.no_kernel(p.input("Out@GRAD").dtype));
    }
    let saved = match op.saved() {
        Saved::Input => 0,
        Saved::Output => 1,
        Saved::Nothing => 2,
    };
    if p.inputs[saved].is_empty() {
        return Err(Error::invalid(format!(
            "missing input '{}' of op '{}'",
            p.op.spec.inputs[saved].name,
            p.op.name()
        )));
    }
    Ok(Kernel::new(move |k| {
        let (saved, dy) = (k.input_or_output(saved, 0), k.input_or_output(2, 0));
        elementwise::unary_grad(k.pool, op, saved, dy, k.output(0));
        Ok(())
    }))
}
