//! Functions of one element: activations, roots, exponentials, rounding.
//!
//! All support f32 (halves through f32); some also support i32 and i64. A gradient op reads either
//! X or Out, whichever gives the simpler derivative, so only that one is stored.

use crate::divide;
use crate::prelude::*;
use crate::rules::{check_like, number};
use crate::widen::any_float;
use fleet_ir::Op;
use fleet_kernels::elementwise::{self, Saved, Unary};
use fleet_kernels::map::map;

macro_rules! unary {
    ($(
        $DEF:ident $name:literal, [$($attr:expr),*], $amp:ident, zero_to_zero: $zero:literal,
        $function:expr;
    )*) => {
        $(#[doc = concat!("The op `", $name, "`.")]
        pub static $DEF: OpDef = OpDef {
            spec: OpSpec {
                name: $name,
                inputs: &[one("X")],
                outputs: &[one("Out")],
                attrs: &[$($attr),*],
            },
            infer,
            grad: Grad::OpRule(
                &OpDef {
                    spec: OpSpec {
                        name: concat!($name, "_grad"),
                        inputs: &[optional("X"), optional("Out"), one("Out@GRAD")],
                        outputs: &[one("X@GRAD")],
                        attrs: &[$($attr),*],
                    },
                    infer: infer_grad,
                    grad: Grad::None,
                    cpu: |p| any_float(p, grad_cpu),
                    traits: OpTraits {
                        inplace: INPLACE_GRAD,
                        elementwise_unpadded: true,
                        ..OpTraits::amp(AmpClass::$amp)
                    },
                },
                grad,
            ),
            cpu: |p| any_float(p, cpu),
            traits: OpTraits {
                inplace: &[("Out", "X")],
                elementwise: $zero,
                elementwise_unpadded: true,
                divide,
                ..OpTraits::amp(AmpClass::$amp)
            },
        };)*

        /// Every op of this file.
        pub static DEFS: &[&OpDef] = &[$(&$DEF),*];

        /// Functions by the names of their ops.
        const FUNCTIONS: &[(&str, fn(&Op) -> Unary)] = &[$(($name, $function)),*];
    };
}

pub(super) const INPLACE_GRAD: &[(&str, &str)] =
    &[("X@GRAD", "Out@GRAD"), ("X@GRAD", "X"), ("X@GRAD", "Out")];

unary! {
    RELU "relu", [], Gray, zero_to_zero: true, |_| Unary::Relu;
    RELU6 "relu6", [], Gray, zero_to_zero: true, |_| Unary::Relu6;
    LEAKY_RELU "leaky_relu", [attr("alpha", Float(0.02))], Gray, zero_to_zero: true,
        |op| Unary::LeakyRelu { slope: number(op, "alpha") };
    SIGMOID "sigmoid", [], Gray, zero_to_zero: false, |_| Unary::Sigmoid;
    LOGSIGMOID "logsigmoid", [], Unlisted, zero_to_zero: false, |_| Unary::LogSigmoid;
    TANH "tanh", [], Gray, zero_to_zero: true, |_| Unary::Tanh;
    GELU "gelu", [attr("approximate", Bool(false))], Unlisted, zero_to_zero: true,
        |op| if op.attr_bool("approximate") { Unary::GeluTanh } else { Unary::Gelu };
    EXP "exp", [], Black, zero_to_zero: false, |_| Unary::Exp;
    LOG "log", [], Black, zero_to_zero: false, |_| Unary::Log;
    SQRT "sqrt", [], Unlisted, zero_to_zero: true, |_| Unary::Sqrt;
    RSQRT "rsqrt", [], Black, zero_to_zero: false, |_| Unary::Rsqrt;
    SQUARE "square", [], Black, zero_to_zero: true, |_| Unary::Square;
    ABS "abs", [], Unlisted, zero_to_zero: true, |_| Unary::Abs;
    RECIPROCAL "reciprocal", [], Black, zero_to_zero: false, |_| Unary::Reciprocal;
    SOFTPLUS "softplus",
        [attr("beta", Float(1.0)), attr("threshold", Float(20.0))], Black, zero_to_zero: false,
        |op| Unary::Softplus { beta: number(op, "beta"), threshold: number(op, "threshold") };
    SOFTSIGN "softsign", [], Unlisted, zero_to_zero: true, |_| Unary::Softsign;
    HARD_SIGMOID "hard_sigmoid",
        [attr("slope", Float(0.2)), attr("offset", Float(0.5))], Unlisted, zero_to_zero: false,
        |op| Unary::HardSigmoid { slope: number(op, "slope"), offset: number(op, "offset") };
    HARD_SWISH "hard_swish",
        [
            attr("threshold", Float(6.0)),
            attr("scale", Float(6.0)),
            attr("offset", Float(3.0))
        ], Unlisted, zero_to_zero: true,
        |op| Unary::HardSwish {
            threshold: number(op, "threshold"),
            scale: number(op, "scale"),
            offset: number(op, "offset"),
        };
    SWISH "swish", [attr("beta", Float(1.0))], Unlisted, zero_to_zero: true,
        |op| Unary::Swish { beta: number(op, "beta") };
    SILU "silu", [], Unlisted, zero_to_zero: true, |_| Unary::Swish { beta: 1.0 };
    ELU "elu", [attr("alpha", Float(1.0))], Unlisted, zero_to_zero: true,
        |op| Unary::Elu { alpha: number(op, "alpha") };
    SELU "selu",
        [
            attr("scale", Float(1.050_700_987_355_480_5)),
            attr("alpha", Float(1.673_263_242_354_377_2))
        ], Unlisted, zero_to_zero: true,
        |op| Unary::Selu { scale: number(op, "scale"), alpha: number(op, "alpha") };
    SIGN "sign", [], Gray, zero_to_zero: true, |_| Unary::Sign;
    FLOOR "floor", [], Unlisted, zero_to_zero: true, |_| Unary::Floor;
    CEIL "ceil", [], Unlisted, zero_to_zero: true, |_| Unary::Ceil;
    ROUND "round", [], Unlisted, zero_to_zero: true, |_| Unary::Round;
    SIN "sin", [], Unlisted, zero_to_zero: true, |_| Unary::Sin;
    COS "cos", [], Unlisted, zero_to_zero: false, |_| Unary::Cos;
    ERF "erf", [], Unlisted, zero_to_zero: true, |_| Unary::Erf;
    POW "pow", [attr("factor", Float(1.0))], Black, zero_to_zero: false,
        |op| Unary::Pow { exponent: number(op, "factor") };
}

/// Returns the function of an op or of its gradient op.
pub(crate) fn unary_of(op: &Op) -> Result<Unary> {
    let name = op.name().trim_end_matches("_grad");
    if name == "clip" {
        return Ok(Unary::Clip { min: number(op, "min"), max: number(op, "max") });
    }
    let (_, function) = FUNCTIONS
        .iter()
        .find(|(known, _)| *known == name)
        .ok_or_else(|| Error::invalid(format!("'{name}' is not a unary function")))?;
    Ok(function(op))
}

/// Padding may be any number, so only functions of all numbers compute on it.
fn divide(d: &mut Divide<'_>) -> Result<()> {
    let function = unary_of(d.op)?;
    if is_finite(function) {
        d.keep_padding();
    }
    divide::elementwise(d)
}

/// Returns whether a function has results and slopes on both sides of zero, and at zero.
fn is_finite(function: Unary) -> bool {
    let (pool, x) = (Pool::new(1), [-1.0, 0.0, 1.0]);
    let (mut y, mut slopes) = ([0.0; 3], [0.0; 3]);
    elementwise::unary(&pool, function, &x, &mut y);
    let saved = if function.saved() == Saved::Output { &y } else { &x };
    elementwise::unary_grad(&pool, function, saved, &[1.0; 3], &mut slopes);
    y.iter().chain(&slopes).all(|number| number.is_finite())
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
    let op = unary_of(p.op)?;
    match p.input("X").dtype {
        DType::F32 => Ok(Kernel::infallible(move |k| {
            elementwise::unary(k.pool, op, k.input_or_output(0, 0), k.output(0))
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
    Ok(Kernel::infallible(move |k| {
        let (x, y) = (k.input_or_output(0, 0), k.output::<T>(0));
        map(k.pool, x, y, |x| wrap(function(x.into(), low, high)));
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
    Ok(Kernel::infallible(move |k| {
        let (saved, dy) = (k.input_or_output(saved, 0), k.input_or_output(2, 0));
        elementwise::unary_grad(k.pool, op, saved, dy, k.output(0));
    }))
}
