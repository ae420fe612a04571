//! The operators `+ - * /` and unary minus on handles, with handles or plain numbers.

use crate::Var;
use crate::build::Build;
use fleet_base::Result;
use fleet_ir::VarId;
use fleet_tensor::DType;
use std::ops::{Add, Div, Mul, Neg, Sub};
use std::panic::Location;

/// Right operand of a binary operation: a variable or a number.
///
/// ```
/// # use fleet_nn::prelude::*;
/// let net = Net::new();
/// let p = net.data("p", [-1, 1], DType::F32);
/// let sure = p.greater_than(0.5);
/// let larger = p.maximum(net.data("q", [-1, 1], DType::F32));
/// assert_eq!((sure.dtype(), larger.dtype()), (DType::Bool, DType::F32));
/// ```
#[derive(Clone, Copy, Debug)]
pub enum Operand<'n> {
    /// A variable, whose shape broadcasts as in [`Elementwise`](crate::Elementwise).
    Var(Var<'n>),
    /// A number, which gets the other operand's element type.
    Number(f64),
}

impl<'n> From<Var<'n>> for Operand<'n> {
    fn from(var: Var<'n>) -> Self {
        Operand::Var(var)
    }
}

impl<'n> From<&Var<'n>> for Operand<'n> {
    fn from(var: &Var<'n>) -> Self {
        Operand::Var(*var)
    }
}

impl From<f64> for Operand<'_> {
    fn from(number: f64) -> Self {
        Operand::Number(number)
    }
}

impl From<i32> for Operand<'_> {
    fn from(number: i32) -> Self {
        Operand::Number(f64::from(number))
    }
}

/// The four arithmetic operations.
#[derive(Clone, Copy)]
enum Kind {
    Add,
    Sub,
    Mul,
    Div,
}

impl Kind {
    fn op(self) -> &'static str {
        match self {
            Kind::Add => "elementwise_add",
            Kind::Sub => "elementwise_sub",
            Kind::Mul => "elementwise_mul",
            Kind::Div => "elementwise_div",
        }
    }
}

fn binary<'n>(kind: Kind, a: Operand<'n>, b: Operand<'n>, at: &Location<'_>) -> Var<'n> {
    let net = match (a, b) {
        (Operand::Var(var), _) | (_, Operand::Var(var)) => var.net,
        (Operand::Number(_), Operand::Number(_)) => {
            unreachable!("an operator needs a variable as an operand")
        }
    };
    net.try_emit_var(at, |build| match (a, b) {
        (Operand::Var(a), Operand::Var(b)) => {
            let (a, b) = (build.id(a)?, build.id(b)?);
            let stem = stem(build);
            build.op(kind.op())?.input("X", a).input("Y", b).named(stem).one("Out")
        }
        (Operand::Var(a), Operand::Number(b)) => {
            let a = build.id(a)?;
            with_number(build, kind, a, b)
        }
        (Operand::Number(a), Operand::Var(b)) => {
            let b = build.id(b)?;
            from_number(build, kind, a, b)
        }
        (Operand::Number(_), Operand::Number(_)) => {
            unreachable!("an operator needs a variable as an operand")
        }
    })
}

/// Returns the stem of the names of operator results: `tmp_0`, `tmp_1` and so on.
fn stem(build: &Build<'_>) -> String {
    match &build.main.layer {
        Some(layer) => format!("{layer}.tmp"),
        None => format!("{}tmp", build.scope),
    }
}

fn with_number(build: &mut Build<'_>, kind: Kind, a: VarId, b: f64) -> Result<VarId> {
    let a = widened(build, kind, a, b)?;
    match kind {
        Kind::Add => scale(build, a, 1.0, b),
        Kind::Sub => scale(build, a, 1.0, -b),
        Kind::Mul => scale(build, a, b, 0.0),
        Kind::Div => scale(build, a, 1.0 / b, 0.0),
    }
}

fn from_number(build: &mut Build<'_>, kind: Kind, a: f64, b: VarId) -> Result<VarId> {
    let b = widened(build, kind, b, a)?;
    match kind {
        Kind::Add => scale(build, b, 1.0, a),
        Kind::Sub => scale(build, b, -1.0, a),
        Kind::Mul => scale(build, b, a, 0.0),
        Kind::Div => {
            let a = number(build, a, b)?;
            let stem = stem(build);
            build.op("elementwise_div")?.input("X", a).input("Y", b).named(stem).one("Out")
        }
    }
}

/// Casts an integer variable to f32 if the result is not an integer.
fn widened(build: &mut Build<'_>, kind: Kind, var: VarId, number: f64) -> Result<VarId> {
    let whole = number.fract() == 0.0 && !matches!(kind, Kind::Div);
    if build.meta(var).dtype.is_float() || whole {
        return Ok(var);
    }
    build.op("cast")?.input("X", var).attr("out_dtype", DType::F32).one("Out")
}

fn scale(build: &mut Build<'_>, x: VarId, scale: f64, bias: f64) -> Result<VarId> {
    let stem = stem(build);
    let call = build.op("scale")?.input("X", x).attr("scale", scale).attr("bias", bias);
    call.named(stem).one("Out")
}

/// Returns a number as a variable with one element of the type of `like`.
pub(crate) fn number(build: &mut Build<'_>, value: f64, like: VarId) -> Result<VarId> {
    let dtype = build.meta(like).dtype;
    let call = build.op("fill_constant")?.attr("shape", vec![1i64]).attr("dtype", dtype);
    call.attr("value", value).one("Out")
}

macro_rules! operators {
    ($($trait:ident $method:ident;)*) => {$(
        operators!(@one $trait $method; Var<'n>, Var<'n>);
        operators!(@one $trait $method; Var<'n>, &Var<'n>);
        operators!(@one $trait $method; &Var<'n>, Var<'n>);
        operators!(@one $trait $method; &Var<'n>, &Var<'n>);
        operators!(@one $trait $method; Var<'n>, f64);
        operators!(@one $trait $method; &Var<'n>, f64);
        operators!(@one $trait $method; f64, Var<'n>);
        operators!(@one $trait $method; f64, &Var<'n>);
    )*};
    (@one $trait:ident $method:ident; $left:ty, $right:ty) => {
        impl<'n> $trait<$right> for $left {
            type Output = Var<'n>;
            #[track_caller]
            fn $method(self, other: $right) -> Var<'n> {
                binary(Kind::$trait, self.into(), other.into(), Location::caller())
            }
        }
    };
}

operators! {
    Add add;
    Sub sub;
    Mul mul;
    Div div;
}

impl<'n> Neg for Var<'n> {
    type Output = Var<'n>;
    #[track_caller]
    fn neg(self) -> Var<'n> {
        binary(Kind::Mul, self.into(), Operand::Number(-1.0), Location::caller())
    }
}
