//! Activations that layers apply to their output.

use fleet_base::{Error, Result, text};
use fleet_ir::{Attr, VarId};
use fleet_ops::Emit;
use std::str::FromStr;

/// An activation, for the `act` option of layers.
///
/// ```
/// # use fleet_nn::prelude::*;
/// let net = Net::new();
/// let x = net.data("x", [-1, 13], DType::F32);
/// let y = x.fc(Fc::new(400).act(Act::Relu));
/// assert_eq!(y.name(), "fc_0.tmp_2");
/// assert_eq!("relu".parse::<Act>()?, Act::Relu);
/// # Ok::<(), fleet_nn::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Act {
    /// `max(x, 0)`.
    Relu,
    /// `min(max(x, 0), 6)`.
    Relu6,
    /// `x` if it is positive, else `x` times this slope.
    LeakyRelu(f64),
    /// `1 / (1 + exp(-x))`.
    Sigmoid,
    /// The hyperbolic tangent.
    Tanh,
    /// The exact form, with the error function.
    Gelu,
    /// The common tanh approximation of [`Act::Gelu`].
    GeluTanh,
    /// Softmax along the last axis.
    Softmax,
    /// `log(1 + exp(x))`.
    Softplus,
    /// `x * sigmoid(x)`; the op has a factor `beta` of `x` in the sigmoid, which is 1 here.
    Swish,
    /// `x * sigmoid(x)`.
    Silu,
    /// `x * min(max(x + 3, 0), 6) / 6`.
    HardSwish,
    /// `min(max(0.2 * x + 0.5, 0), 1)`.
    HardSigmoid,
    /// `x` if it is positive, else `exp(x) - 1` times this factor.
    Elu(f64),
    /// `1.0507 * x` if `x` is positive, else `1.0507 * 1.6733 * (exp(x) - 1)`.
    Selu,
}

impl Act {
    /// Returns the op's name, and the attribute that differs from the op's default.
    fn op(self) -> (&'static str, Option<(&'static str, Attr)>) {
        match self {
            Act::Relu => ("relu", None),
            Act::Relu6 => ("relu6", None),
            Act::LeakyRelu(alpha) => ("leaky_relu", Some(("alpha", alpha.into()))),
            Act::Sigmoid => ("sigmoid", None),
            Act::Tanh => ("tanh", None),
            Act::Gelu => ("gelu", None),
            Act::GeluTanh => ("gelu", Some(("approximate", true.into()))),
            Act::Softmax => ("softmax", None),
            Act::Softplus => ("softplus", None),
            Act::Swish => ("swish", None),
            Act::Silu => ("silu", None),
            Act::HardSwish => ("hard_swish", None),
            Act::HardSigmoid => ("hard_sigmoid", None),
            Act::Elu(alpha) => ("elu", Some(("alpha", alpha.into()))),
            Act::Selu => ("selu", None),
        }
    }

    /// Emits the op. The result is named after `layer`, if given, or after the op.
    pub(crate) fn emit(self, emit: &mut Emit<'_>, x: VarId, layer: Option<&str>) -> Result<VarId> {
        let (name, attr) = self.op();
        let mut call = emit.named_op(name)?.input("X", x);
        if let Some(layer) = layer {
            call = call.named(format!("{layer}.tmp"));
        }
        if let Some((attr, value)) = attr {
            call = call.attr(attr, value);
        }
        call.one("Out")
    }
}

impl FromStr for Act {
    type Err = Error;

    /// Parses the documented name of an activation. Parameters get their defaults.
    fn from_str(name: &str) -> Result<Act> {
        const KNOWN: [(&str, Act); 15] = [
            ("relu", Act::Relu),
            ("relu6", Act::Relu6),
            ("leaky_relu", Act::LeakyRelu(0.02)),
            ("sigmoid", Act::Sigmoid),
            ("tanh", Act::Tanh),
            ("gelu", Act::Gelu),
            ("gelu_tanh", Act::GeluTanh),
            ("softmax", Act::Softmax),
            ("softplus", Act::Softplus),
            ("swish", Act::Swish),
            ("silu", Act::Silu),
            ("hard_swish", Act::HardSwish),
            ("hard_sigmoid", Act::HardSigmoid),
            ("elu", Act::Elu(1.0)),
            ("selu", Act::Selu),
        ];
        KNOWN.iter().find(|(known, _)| *known == name).map(|(_, act)| *act).ok_or_else(|| {
            let hint = text::did_you_mean(name, KNOWN.iter().map(|(known, _)| *known));
            Error::invalid(format!("unknown activation '{name}'{hint}"))
        })
    }
}
